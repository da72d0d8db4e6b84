"""The index file's bytes, and the cache of pages over real files."""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookgate.bookie.index import file_format
from bookgate.bookie.index.file_format import IndexHeader
from bookgate.bookie.index.file_index import LedgerCache
from bookgate.bookie.index.index_list import IndexLists
from bookgate.bookie.system.files import REAL_FILE_SYSTEM, FileSystem, StorageCorruptException
from bookgate.ledger.ledger_id import LedgerId
from tests.unit.bookie.storage.storage_support import lac_packet

HEADER = IndexHeader(b"k" * 20, False, None)


@pytest.mark.parametrize(
    ("ledger_id", "path"),
    [(0x1A2B3, "a2/b3/1a2b3.idx"), (7, "0/7/7.idx"), (5000001000, "f5/e8/12a05f5e8.idx"), (0, "0/0/0.idx")],
)
def test_path_of_a_ledger(ledger_id: int, path: str) -> None:
    assert str(file_format.relative_path(LedgerId.unscoped(ledger_id))) == path


def test_a_scoped_ledger_never_gets_the_path_of_an_unscoped_one() -> None:
    path = file_format.relative_path(LedgerId(1, 7))
    assert str(path) == "00000000/00000001/00000000/00000007.idx"
    assert not file_format.is_level_name(path.parts[0])
    assert file_format.scoped_number_of(path.parts[:3], path.name) == LedgerId(1, 7).number
    assert file_format.scoped_number_of(("00000000", "00000000", "00000000"), path.name) is None


def test_header_layout() -> None:
    lac = lac_packet(3, 8)
    data = IndexHeader(b"abc", True, lac).encode()
    assert len(data) == 1024
    expected = b"BKLE" + struct.pack(">ii", 1, 3) + b"abc" + struct.pack(">ii", 1, len(lac)) + lac
    seal = b"BGIX" + struct.pack(">qq", -1, 0)
    checksum = zlib.crc32(seal, zlib.crc32(expected.ljust(488, b"\0")))
    assert data == (expected.ljust(488, b"\0") + seal + struct.pack(">I", checksum)).ljust(1024, b"\0")


def test_a_header_that_leaves_no_room_for_a_seal_has_none() -> None:
    header = IndexHeader(b"k" * 300, True, b"l" * 300)
    data = header.encode()
    assert data[12:312] + data[320:620] == b"k" * 300 + b"l" * 300
    assert not any(data[620:])
    assert file_format.decode_header(data, "x") == header


def test_any_bit_of_a_sealed_header_is_missed() -> None:
    """A turned bit of the key would refuse its owner, one of the fence would let a writer in."""
    data = IndexHeader(b"k" * 20, True, lac_packet(3, 8)).encode()
    for offset in range(file_format.SEAL_AT + file_format.SEAL_SIZE):
        for bit in range(8):
            changed = bytearray(data)
            changed[offset] ^= 1 << bit
            with pytest.raises(StorageCorruptException):
                file_format.decode_header(bytes(changed), "x")


def test_a_header_without_seal_is_right() -> None:
    """Apache BookKeeper's bookie writes such, also over one that had a seal."""
    data = IndexHeader(b"k" * 20, True, None).encode()
    assert file_format.decode_header(data[: file_format.SEAL_AT].ljust(1024, b"\0"), "x") == IndexHeader(
        b"k" * 20, True, None
    )


def test_entries_that_are_gone_from_a_file_put_its_ledger_in_limbo(tmp_path: Path) -> None:
    """Those that an earlier update had made durable: the last one's may not have come to the disk yet."""
    listed = IndexLists(REAL_FILE_SYSTEM, tmp_path)
    cache = LedgerCache(REAL_FILE_SYSTEM, [tmp_path], 1 << 20, listed=listed)
    ledger_id = LedgerId.unscoped(7)
    for first in (0, 2000):
        runs = file_format.slot_runs(range(first, first + 3), [4096 + first] * 3)
        cache.update(ledger_id, HEADER if first == 0 else None, runs)
        cache.sync()
    path = tmp_path / file_format.relative_path(ledger_id)
    whole = path.read_bytes()
    for size, lost in ((len(whole), False), (file_format.page_offset(1), False), (file_format.slot_offset(2), True)):
        path.write_bytes(whole[:size])
        found = LedgerCache(REAL_FILE_SYSTEM, [tmp_path], 1 << 20).read_header(ledger_id)
        assert found is not None
        assert found[0] == HEADER._replace(lost=lost), size


@settings(deadline=None, max_examples=50)
@given(st.binary(max_size=64), st.booleans(), st.none() | st.binary(min_size=16, max_size=200))
def test_header_round_trip(master_key: bytes, fenced: bool, lac: bytes | None) -> None:
    header = IndexHeader(master_key, fenced, lac)
    assert file_format.decode_header(header.encode(), "x") == header


def test_header_of_version_0_has_no_lac() -> None:
    data = (b"BKLE" + struct.pack(">ii", 0, 2) + b"kk" + struct.pack(">i", 1) + b"\xff" * 20).ljust(1024, b"\0")
    assert file_format.decode_header(data, "x") == IndexHeader(b"kk", True, None)


@pytest.mark.parametrize("data", [b"", b"BKLE" + bytes(100), bytes(1024), bytes(9216)])
def test_header_that_was_never_written(data: bytes) -> None:
    assert file_format.decode_header(data, "x") is None


@pytest.mark.parametrize(
    "start",
    [
        b"XKLE" + struct.pack(">ii", 1, 2),
        b"BKLE" + struct.pack(">ii", 2, 2),
        b"BKLE" + struct.pack(">ii", 1, -1),
        b"BKLE" + struct.pack(">ii", 1, 5000),
        b"BKLE" + struct.pack(">iiii", 1, 0, 0, 5),
        b"BKLE" + struct.pack(">iiii", 1, 0, 0, 2000),
    ],
)
def test_header_that_is_none_is_refused_with_the_file(start: bytes) -> None:
    with pytest.raises(StorageCorruptException, match=r"a/7\.idx"):
        file_format.decode_header(start.ljust(1024, b"\0"), "a/7.idx")


def test_header_too_long_for_its_place() -> None:
    assert file_format.fits_header(bytes(20), bytes(984))
    IndexHeader(bytes(20), False, bytes(984)).encode()
    assert not file_format.fits_header(bytes(20), bytes(985))
    with pytest.raises(ValueError, match="1024"):
        IndexHeader(bytes(20), False, bytes(985)).encode()


def test_a_short_page_reads_as_zeros_and_a_cut_slot_as_absent() -> None:
    page = file_format.whole_page(struct.pack(">QQ", 5, 6) + b"\xff\xff")
    assert len(page) == file_format.PAGE_SIZE
    assert [file_format.location_in(page, entry_id) for entry_id in (0, 1, 2, 1023)] == [5, 6, 0, 0]
    assert file_format.location_in(page, 1025) == 6
    assert file_format.held_in(page) == [0, 1]


def test_held_slots_are_found_wherever_they_lie_and_whatever_their_bytes_end_with() -> None:
    held = [0, 7, 8, file_format.SLOTS_PER_PAGE - 1]
    for last in range(1, len(held) + 1):
        page = bytearray(file_format.PAGE_SIZE)
        for slot in held[:last]:
            struct.pack_into(">Q", page, slot * file_format.SLOT_SIZE, 1 << 32)  # its last four bytes are zeros
        assert file_format.held_in(bytes(page)) == held[:last]
    assert file_format.held_in(bytes(file_format.PAGE_SIZE)) == []


entry_locations = st.dictionaries(st.integers(0, 5000), st.integers(1, 2**63), max_size=60)


@settings(deadline=None, max_examples=50)
@given(st.lists(entry_locations, min_size=1, max_size=3))
def test_slots_read_back_after_every_update(
    tmp_path_factory: pytest.TempPathFactory, updates: list[dict[int, int]]
) -> None:
    directory = tmp_path_factory.mktemp("index")
    index = LedgerCache(REAL_FILE_SYSTEM, [directory], 2 * file_format.PAGE_SIZE)
    ledger_id = LedgerId.unscoped(9)
    expected: dict[int, int] = {}
    for update in updates:
        ids = sorted(update)
        index.update(ledger_id, HEADER, file_format.slot_runs(ids, [update[entry_id] for entry_id in ids]))
        index.sync()
        expected.update(update)
        assert {e: index.location(ledger_id, e) for e in expected} == expected
    assert list(index.entry_ids(ledger_id)) == sorted(expected)
    assert index.read_header(ledger_id) == (HEADER, max(expected, default=-1))
    size = (directory / "0/9/9.idx").stat().st_size
    assert size == file_format.HEADER_SIZE + file_format.PAGE_SIZE * (max(expected) // 1024 + 1 if expected else 0) or (
        not expected and size == file_format.HEADER_SIZE
    )


def test_slot_runs_are_as_few_as_possible() -> None:
    runs = file_format.slot_runs([3, 4, 5, 9, 10, 20], [1, 2, 3, 4, 5, 6])
    assert [(run.first, run.end) for run in runs] == [(3, 6), (9, 11), (20, 21)]
    assert runs[1].data == struct.pack(">QQ", 4, 5)
    assert file_format.slot_runs([], []) == []


def test_far_apart_entries_do_not_read_the_hole_between(tmp_path: Path) -> None:
    index = LedgerCache(REAL_FILE_SYSTEM, [tmp_path], 1 << 20)
    ledger_id = LedgerId.unscoped(1)
    ids = [0, 1, 50_000_000]
    index.update(ledger_id, HEADER, file_format.slot_runs(ids, [7, 8, 9]))
    index.sync()
    assert list(index.entry_ids(ledger_id)) == ids
    assert index.read_header(ledger_id) == (HEADER, 50_000_000)


def test_unknown_ledger_and_entry(tmp_path: Path) -> None:
    index = LedgerCache(REAL_FILE_SYSTEM, [tmp_path], 1 << 20)
    ledger_id = LedgerId.unscoped(1)
    assert index.read_header(ledger_id) is None
    assert index.location(ledger_id, 0) == 0
    assert list(index.entry_ids(ledger_id)) == []


def test_a_page_loaded_before_an_update_is_not_kept_after_it(tmp_path: Path) -> None:
    """A reader that loads a page while a checkpoint writes must not leave the older page in the cache."""
    ledger_id = LedgerId.unscoped(1)

    class UpdatingWhileRead(FileSystem):
        update_on_read = False

        def pread(self, fd: int, size: int, offset: int) -> bytes:
            page = super().pread(fd, size, offset)
            if self.update_on_read:
                self.update_on_read = False
                index.update(ledger_id, None, file_format.slot_runs([1], [77]))
                index.sync()
            return page

    files = UpdatingWhileRead()
    index = LedgerCache(files, [tmp_path], 1 << 20)
    index.update(ledger_id, HEADER, file_format.slot_runs([0], [5]))
    index.sync()
    files.update_on_read = True
    assert index.location(ledger_id, 0) == 5
    assert not files.update_on_read
    assert index.location(ledger_id, 1) == 77


def test_pages_in_memory_are_bounded(tmp_path: Path) -> None:
    index = LedgerCache(REAL_FILE_SYSTEM, [tmp_path], 3 * file_format.PAGE_SIZE)
    ids = list(range(0, 20_000, 1000))
    for number in range(4):
        index.update(LedgerId.unscoped(number), HEADER, file_format.slot_runs(ids, [entry + 1 for entry in ids]))
    index.sync()
    for number in range(4):
        assert [index.location(LedgerId.unscoped(number), entry) for entry in ids] == [entry + 1 for entry in ids]
    assert index.cached_pages == 3


def test_the_last_entry_is_found_before_a_hole_however_large(tmp_path: Path) -> None:
    """A length that outlived the page it was made for."""
    counting = CountingReads()
    cache = LedgerCache(counting, [tmp_path], 1 << 20)
    ledger_id = LedgerId.unscoped(7)
    for held in ((3,), (3, 5_000_000)):
        cache.update(ledger_id, HEADER, file_format.slot_runs(held, [1 << 32] * len(held)))
        cache.sync()
        os.truncate(tmp_path / "0/7/7.idx", file_format.page_offset(1 << 30))
        counting.reads = 0
        assert cache.read_header(ledger_id) == (HEADER, held[-1])
        assert counting.reads <= 5


class CountingReads(FileSystem):
    def __init__(self) -> None:
        self.reads = 0

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        self.reads += 1
        return super().pread(fd, size, offset)


def test_a_seal_of_the_form_that_no_release_had_is_told_as_such() -> None:
    header = bytearray(IndexHeader(b"key", False, None).encode())
    body = b"BGIX" + (7).to_bytes(8, "big")
    header[488:512] = bytes(8) + body + zlib.crc32(body, zlib.crc32(header[:488] + bytes(8))).to_bytes(4, "big")
    with pytest.raises(StorageCorruptException, match=r"1\.idx was written by a Bookgate between two releases"):
        file_format.decode_header(bytes(header), "1.idx")
