"""Entry logs: format, appending over rotations, ids of new logs, and reading what may be damaged."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookgate.bookie.entry_logs import format as fmt
from bookgate.bookie.entry_logs.entry_logs import EntryLogs
from bookgate.bookie.entry_logs.reader import EntryLogReader
from bookgate.bookie.system.files import REAL_FILE_SYSTEM, StorageCorruptException
from tests.unit.bookie.storage.storage_support import packet

GIB = 1 << 30


def writer(directory: Path, max_bytes: int = GIB) -> EntryLogs:
    return EntryLogs(REAL_FILE_SYSTEM, [directory], max_bytes=max_bytes, open_files=10)


def reader(directory: Path, open_files: int = 10) -> EntryLogReader:
    return EntryLogReader(REAL_FILE_SYSTEM, [directory], open_files)


def scan(data: bytes) -> list[tuple[int, bytes]]:
    """(offset of the packet, packet) of a log's records up to its map."""
    found = []
    position = fmt.HEADER_SIZE
    while position < len(data):
        length, ledger_id = struct.unpack_from(">iq", data, position)
        if ledger_id >= 0:
            found.append((position + 4, data[position + 4 : position + 4 + length]))
        position += 4 + length
    return found


def test_header_and_location() -> None:
    assert fmt.encode_header() == (b"BKLO" + struct.pack(">i", 1)).ljust(1024, b"\0")
    assert fmt.decode_map_fields(fmt.encode_header()) is None
    assert fmt.decode_map_fields(fmt.encode_header(5000, 3)) == (5000, 3)
    assert fmt.decode_map_fields(b"BKLO" + struct.pack(">iqi", 0, 5000, 3)) is None
    assert fmt.location_of(3, 1028) == 3 << 32 | 1028
    assert fmt.split_location(fmt.location_of(0x7FFFFFFF, 0xFFFFFFFF)) == (0x7FFFFFFF, 0xFFFFFFFF)


@pytest.mark.parametrize(
    ("name", "log_id"),
    [
        ("1f.log", 31),
        ("0.log", 0),
        ("a.log.3.compacted", 10),
        ("a.log.compacting", None),
        ("lastId", None),
        ("x.log", None),
    ],
)
def test_names_are_hexadecimal(name: str, log_id: int | None) -> None:
    assert fmt.log_id_of(name) == log_id
    assert fmt.file_name(31) == "1f.log"


def test_map_record_layout() -> None:
    assert fmt.encode_ledgers_map({7: 1234}) == struct.pack(">iqqiqq", 36, -1, -2, 1, 7, 1234)


@settings(deadline=None, max_examples=50)
@given(st.dictionaries(st.integers(0, 2**63 - 1), st.integers(1, 2**40), max_size=30), st.binary(max_size=3))
def test_map_round_trip(ledgers: dict[int, int], padding: bytes) -> None:
    data = fmt.encode_ledgers_map(ledgers) + bytes(len(padding))
    assert fmt.decode_ledgers_map(data, len(ledgers)) == ledgers
    assert fmt.decode_ledgers_map(data, len(ledgers) + 1) is None


def test_map_of_many_ledgers_takes_several_records() -> None:
    ledgers = {number: number + 1 for number in range(12_000)}
    data = fmt.encode_ledgers_map(ledgers)
    assert struct.unpack_from(">iqqi", data) == (20 + 160_000, -1, -2, 10_000)
    assert fmt.decode_ledgers_map(data, 12_000) == ledgers


def test_a_broken_map_is_no_map() -> None:
    data = fmt.encode_ledgers_map({7: 1, 8: 2})
    assert fmt.decode_ledgers_map(data[:-1], 2) is None
    assert fmt.decode_ledgers_map(struct.pack(">iqqiqq", 36, 5, -2, 1, 7, 1), 1) is None
    assert fmt.decode_ledgers_map(struct.pack(">iqqiqq", 35, -1, -2, 1, 7, 1), 1) is None


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 900), min_size=1, max_size=40), st.integers(2000, 6000))
def test_appended_packets_read_back_over_rotations(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], max_bytes: int
) -> None:
    directory = tmp_path_factory.mktemp("logs")
    packets = [packet(5, index, size) for index, size in enumerate(sizes)]
    log = writer(directory, max_bytes)
    locations = log.append(5, packets[: len(packets) // 2]) + log.append(5, packets[len(packets) // 2 :])
    log.sync()
    log.close()
    reads = reader(directory, 2)
    assert [reads.read(location, 5, index) for index, location in enumerate(locations)] == packets
    for path in directory.glob("*.log"):
        data = path.read_bytes()
        fields = fmt.decode_map_fields(data)
        if fields is not None:
            assert fields[0] <= max_bytes
            records = scan(data)
            assert fmt.decode_ledgers_map(data[fields[0] :], fields[1]) == {5: sum(len(p) + 4 for _, p in records)}


def test_an_entry_larger_than_the_limit_gets_a_log_of_its_own(tmp_path: Path) -> None:
    log = writer(tmp_path, 2000)
    packets = [packet(1, 0, 10), packet(1, 1, 5 << 20), packet(1, 2, 10)]
    locations = log.append(1, packets)
    log.close()
    assert [fmt.split_location(location)[0] for location in locations] == [0, 1, 2]
    assert [reader(tmp_path).read(location, 1, index) for index, location in enumerate(locations)] == packets


def test_a_new_process_never_appends_to_an_old_log(tmp_path: Path) -> None:
    first = writer(tmp_path)
    first.append(1, [packet(1, 0)])
    first.close()
    before = (tmp_path / "0.log").read_bytes()
    second = writer(tmp_path)
    location = second.append(1, [packet(1, 1)])[0]
    second.close()
    assert fmt.split_location(location)[0] == 1
    assert (tmp_path / "0.log").read_bytes() == before
    assert (tmp_path / "lastId").read_bytes() == b"1\n"


@pytest.mark.parametrize(
    ("names", "last_id", "expected"),
    [
        ([], None, 0),
        ([], b"garbage", 0),
        (["0.log", "1.log"], None, 2),
        (["0.log"], b"1f\n", 0x20),
        (["3.log.1.compacted"], None, 4),
        (["7ffffffe.log", "0.log", "1.log"], b"1\n", 2),
        (["7fffffff.log"], b"7fffffff\n", 0),
    ],
)
def test_id_of_the_next_log(tmp_path: Path, names: list[str], last_id: bytes | None, expected: int) -> None:
    for name in names:
        (tmp_path / name).touch()
    if last_id is not None:
        (tmp_path / "lastId").write_bytes(last_id)
    log = writer(tmp_path)
    log.append(1, [packet(1, 0)])
    log.close()
    assert (tmp_path / fmt.file_name(expected)).stat().st_size > fmt.HEADER_SIZE


def damaged(tmp_path: Path, change: bytes, offset: int) -> int:
    log = writer(tmp_path)
    location = log.append(1, [packet(1, 0, 20_000)])[0]
    log.close()
    with (tmp_path / "0.log").open("r+b") as file:
        file.seek(fmt.split_location(location)[1] + offset)
        file.write(change)
    return location


@pytest.mark.parametrize(
    ("change", "offset"),
    [
        (struct.pack(">i", 15), -4),
        (struct.pack(">i", -1), -4),
        (struct.pack(">i", 30_000), -4),
        (struct.pack(">i", 0x7FFFFFFF), -4),
        (struct.pack(">q", 2), 0),
        (struct.pack(">q", 1), 8),
    ],
)
def test_a_record_that_does_not_match_is_corrupt(tmp_path: Path, change: bytes, offset: int) -> None:
    location = damaged(tmp_path, change, offset)
    with pytest.raises(StorageCorruptException, match=r"entry 0 of ledger 1.*0\.log"):
        reader(tmp_path).read(location, 1, 0)


@pytest.mark.parametrize("size", [0, 1000, 1028, 1040, 9000, 21_000])
def test_a_log_cut_off_is_corrupt_wherever_the_cut(tmp_path: Path, size: int) -> None:
    location = damaged(tmp_path, b"", 0)
    os.truncate(tmp_path / "0.log", size)
    with pytest.raises(StorageCorruptException):
        reader(tmp_path).read(location, 1, 0)


@pytest.mark.parametrize("location", [1, fmt.location_of(0, 100), fmt.location_of(9, 1028)])
def test_a_location_that_can_not_be_is_corrupt(tmp_path: Path, location: int) -> None:
    damaged(tmp_path, b"", 0)
    with pytest.raises(StorageCorruptException):
        reader(tmp_path).read(location, 1, 0)
