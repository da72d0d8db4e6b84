"""The journal's bytes: what is written, what a scan makes of it, and of what a crash or a fault left."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookgate.bookie.journal import format as fmt
from bookgate.bookie.journal.format import JournalScan, LogMark
from bookgate.bookie.system.files import StorageCorruptException
from tests.unit.bookie.storage.storage_support import lac_packet, packet


def scan(data: bytes, start: int = 0, version: int = 6) -> tuple[list[bytes], int]:
    scanner = JournalScan(lambda size, offset: data[offset : offset + size], len(data), start, version, "1.txn")
    return [record.payload for record in scanner], scanner.end


def test_header_is_512_bytes_with_magic_and_version() -> None:
    header = fmt.encode_header()
    assert header == b"BKLG" + struct.pack(">i", 6) + bytes(504)
    assert fmt.decode_header(header, "x") == (6, 512)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", (1, 0)),
        (b"BKLG\0\0", (1, 0)),
        (bytes(512), (1, 0)),
        (b"BKLG\0\0\0\2", (2, 8)),
        (b"BKLG\0\0\0\4", (4, 8)),
        (b"BKLG\0\0\0\5", (5, 512)),
    ],
)
def test_header_of_each_version(data: bytes, expected: tuple[int, int]) -> None:
    assert fmt.decode_header(data, "x") == expected


@pytest.mark.parametrize("version", [0, 1, 7, -1])
def test_header_of_unknown_version_is_refused(version: int) -> None:
    with pytest.raises(StorageCorruptException, match=r"9\.txn has format version"):
        fmt.decode_header(b"BKLG" + struct.pack(">i", version), "9.txn")


def test_meta_records_have_the_layout_of_the_specification() -> None:
    assert fmt.encode_key(5, b"abc") == bytes.fromhex("0000000000000005 fffffffffffff000 00000003") + b"abc"
    assert fmt.encode_fence(5) == bytes.fromhex("0000000000000005 ffffffffffffe000")
    lac = lac_packet(5, 9)
    assert fmt.encode_explicit_lac(5, lac) == bytes.fromhex("0000000000000005 ffffffffffff8000 00000014") + lac
    assert fmt.meta_blob(fmt.encode_explicit_lac(5, lac)) == lac


@pytest.mark.parametrize(
    "payload", [bytes(19), struct.pack(">qqi", 1, -0x1000, 4) + b"abc", struct.pack(">qqi", 1, 1, -1)]
)
def test_meta_record_too_short_for_its_content(payload: bytes) -> None:
    with pytest.raises(ValueError, match="meta record"):
        fmt.meta_blob(payload)


@pytest.mark.parametrize(
    ("position", "total"),
    [(512, 0), (513, 511), (1024 - 8, 8), (1024 - 7, 7 + 512), (1024 - 1, 1 + 512), (1024 - 9, 9)],
)
def test_padding_ends_on_the_alignment(position: int, total: int) -> None:
    record = fmt.padding(position, 512)
    assert len(record) == total
    if record:
        marker, size = struct.unpack_from(">ii", record)
        assert marker == -0x100
        assert 0 <= size <= 511
        assert len(record) == 8 + size


payloads = st.lists(
    st.builds(
        lambda ledger_id, entry_id, body: struct.pack(">qqq", ledger_id, entry_id, entry_id - 1) + body,
        st.integers(0, 2**63 - 1),
        st.integers(0, 2**62),
        st.binary(max_size=700),
    ),
    max_size=6,
)


@settings(deadline=None, max_examples=50)
@given(st.lists(payloads, max_size=5), st.sampled_from([512, 4096]), st.integers(0, 600))
def test_batches_with_padding_read_back(batches: list[list[bytes]], alignment: int, zeros: int) -> None:
    data = fmt.encode_header()
    for batch in batches:
        data += fmt.encode_records(batch)
        data += fmt.padding(len(data), alignment)
        assert len(data) % alignment == 0 or not batch
    found, end = scan(data + bytes(zeros), 512)
    assert found == [payload for batch in batches for payload in batch]
    assert end == len(data)


@pytest.mark.parametrize("zeros", [0, 5000])
def test_a_torn_last_record_is_dropped_at_every_length(zeros: int) -> None:
    """`zeros` is what was allocated ahead: a torn record then reads as a record that ends in zeros, or as none."""
    first, last = packet(1, 0), packet(1, 1)
    whole = fmt.encode_records([first, last])
    boundary = len(fmt.encode_records([first]))
    for cut in range(boundary, len(whole)):
        data = whole[:cut].ljust(cut + zeros, b"\0") if zeros else whole[:cut]
        found, end = scan(data)
        assert found[0] == first
        if not zeros or cut <= boundary + 4:
            assert (len(found), end) == (1, boundary), cut


def test_a_record_whose_first_block_never_reached_the_disk_is_torn() -> None:
    """The length of the next record is there, its payload still zeros: not an entry 0 of ledger 0."""
    first = fmt.encode_records([packet(1, 0)])
    found, end = scan(first + struct.pack(">i", 100) + bytes(100))
    assert (len(found), end) == (1, len(first))


def journal_cut_to_zeros(at: int, size: int) -> tuple[bytes, int]:
    """A flush of two records whose blocks from offset `at` on never reached the disk; and where the second begins."""
    first, second = packet(1, 1), packet(1, 5, size)
    data = fmt.encode_header() + fmt.encode_records([first])
    start = len(data)
    data += fmt.encode_records([second])
    data += fmt.padding(len(data), 512)
    return data[:at].ljust(len(data) + 4096, b"\0"), start


@pytest.mark.parametrize("size", [500, 1500, 3000])
def test_a_record_that_lost_its_last_blocks_is_torn(size: int) -> None:
    """Blocks reach the disk in any order: the record's length may be there and the rest zeros."""
    whole, start = journal_cut_to_zeros(100_000, size)
    assert [len(payload) for payload in scan(whole, 512)[0]] == [82, 32 + size]
    for at in range(1024, start + 36 + size, 512):
        found, end = scan(journal_cut_to_zeros(at, size)[0], 512)
        assert (len(found), end) == (1, start), at


def test_a_header_cut_by_a_block_boundary_does_not_become_another_entry() -> None:
    """Without its last bytes entry 5 would read as entry 0, and displace the true one."""
    for shift in range(1, 32):
        filler = packet(1, 1, 512 - 4 - 32 - 4 - shift)
        data = fmt.encode_header() + fmt.encode_records([filler])
        start = len(data)
        data = (data + fmt.encode_records([packet(1, 5, 100)]))[:1024].ljust(4096, b"\0")
        found, end = scan(data, 512)
        assert (found, end) == ([filler], start), shift


def test_an_entry_that_ends_in_zeros_is_kept_when_its_flush_was_completed() -> None:
    entry = packet(1, 1, 2000, fill=0)
    data = fmt.encode_header() + fmt.encode_records([entry])
    data += fmt.padding(len(data), 512)
    assert scan(data + bytes(4096), 512)[0] == [entry]
    exact = packet(1, 1, 1024 - 36, fill=0)
    assert scan(fmt.encode_header() + fmt.encode_records([exact]) + bytes(4096), 512)[0] == [exact]


@pytest.mark.parametrize("arrived", range(1, 9))
def test_a_padding_record_may_be_torn_anywhere(arrived: int) -> None:
    """A block ends within its length or its size, and the next one is as it was before the flush."""
    header = fmt.encode_header()
    entry = packet(1, 1, 512 - arrived - 36)
    data = header + fmt.encode_records([entry])
    assert -len(data) % 512 == arrived
    whole = data + fmt.padding(len(data), 512)
    torn = whole[: len(data) + arrived] + bytes(4096)
    assert scan(torn, 512)[0] == [entry]
    assert scan(whole + bytes(4096), 512)[0] == [entry]


def test_damage_that_looks_like_torn_padding_elsewhere_is_refused() -> None:
    data = fmt.encode_header() + fmt.encode_records([packet(1, 1, 100)]) + b"\xff" + bytes(511)
    with pytest.raises(StorageCorruptException, match="impossible length"):
        scan(data, 512)
    boundary = fmt.encode_header() + fmt.encode_records([packet(1, 1, 511 - 36)])
    with pytest.raises(StorageCorruptException, match="impossible length"):
        scan(boundary + b"\xff\0\0\0" + b"entry" + bytes(511), 512)


@pytest.mark.parametrize("length", [-1, -0x101, -(2**31)])
def test_an_impossible_length_names_file_and_offset(length: int) -> None:
    data = fmt.encode_records([packet(1, 0)])
    with pytest.raises(StorageCorruptException, match=rf"1\.txn: the record at offset {len(data)} .*{length}"):
        scan(data + struct.pack(">i", length) + bytes(100))


def test_padding_with_negative_size_is_refused() -> None:
    with pytest.raises(StorageCorruptException):
        scan(struct.pack(">ii", -0x100, -5) + bytes(100))


def test_padding_in_a_version_without_padding_is_refused() -> None:
    with pytest.raises(StorageCorruptException):
        scan(struct.pack(">ii", -0x100, 4) + bytes(100), version=4)


def test_a_length_beyond_the_file_is_a_torn_record_and_not_read() -> None:
    sizes: list[int] = []

    def read(size: int, offset: int) -> bytes:
        sizes.append(size)
        return (struct.pack(">i", 2**31 - 1) + b"x" * 50)[offset : offset + size]

    assert list(JournalScan(read, 54, 0, 6, "x")) == []
    assert max(sizes) <= 1 << 20


def test_a_record_without_room_for_its_ids_is_refused() -> None:
    with pytest.raises(StorageCorruptException, match="too few"):
        scan(fmt.encode_records([b"x" * 15]) + bytes(20))


@pytest.mark.parametrize(
    ("payload", "version"),
    [(fmt.encode_key(1, b"k"), 2), (fmt.encode_fence(1), 3), (fmt.encode_explicit_lac(1, bytes(16)), 5)],
)
def test_a_kind_that_the_file_version_lacks_is_refused(payload: bytes, version: int) -> None:
    data = fmt.encode_records([payload])
    assert scan(data, version=version + 1)[0] == [payload]
    with pytest.raises(StorageCorruptException, match=f"version {version}"):
        scan(data, version=version)


def test_mark_round_trip_and_order() -> None:
    mark = LogMark(0x1A1FF3A2FA3, 4096)
    assert LogMark.decode(mark.encode()) == mark
    assert len(mark.encode()) == 16
    assert LogMark.decode(b"short") == fmt.NO_MARK
    assert LogMark(1, 900) < LogMark(2, 512) < LogMark(2, 1024)


@pytest.mark.parametrize(
    ("name", "journal_id"),
    [
        ("1a.txn", 26),
        ("0.txn", 0),
        ("VERSION", None),
        ("1a.log", None),
        ("x.txn", None),
        ("0x1.txn", None),
        ("-1.txn", None),
    ],
)
def test_file_names(name: str, journal_id: int | None) -> None:
    assert fmt.journal_id_of(name) == journal_id
    if journal_id is not None:
        assert fmt.file_name(journal_id) == name
