"""What our storage writes, read again by a reader made from the formats' description alone, stricter than a real one.

Nothing of the bookie's own parsing is used: header bytes, padding, zero tails, sums of the ledgers map, page rounding
and file names are checked as docs/protocol/storage.md#lastid, docs/protocol/storage.md#journal,
docs/protocol/storage.md#entry-logs, docs/protocol/storage.md#index-files have them.
"""

from __future__ import annotations

import struct
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.bookie.storage.storage_support import KEY, lac_packet, opened, packet

PRE_ALLOC = 16 * 1024
ALIGNMENT = 512
LOG_LIMIT = 3000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Rolled journals and entry logs, two-page and fenced ledgers, explicit LACs, re-adds; closed cleanly."""
    with opened(tmp_path, journal_max_size_bytes=4000, journal_max_backups=99, entry_log_max_bytes=LOG_LIMIT) as bookie:
        bookie.add(1, *range(30), size=100)
        bookie.add(0x1A2B3, 0, 5, 1030, size=33)
        bookie.fence(0x1A2B3)
        bookie.write_lac(0x1A2B3, 5)
        bookie.storage.checkpoint()
        bookie.fence(7)
        for size in range(430, 480):  # every gap of the padding, also those below its own 8 bytes
            bookie.add(5_000_001_000, size, size=size)
        bookie.add(1, 3, size=700)
    return tmp_path


def journal_records(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """(ledger id, entry id, payload); every byte of the file is accounted for."""
    data = path.read_bytes()
    assert len(data) % PRE_ALLOC == 0
    assert data[:8] == b"BKLG\x00\x00\x00\x06"
    assert data[8:512] == bytes(504)
    position = 512
    while True:
        [length] = struct.unpack_from(">i", data, position)
        if length == 0:
            break
        if length == -0x100:
            [size] = struct.unpack_from(">i", data, position + 4)
            gap = ALIGNMENT - position % ALIGNMENT
            assert position % ALIGNMENT, "padding where none is needed"
            assert size == (gap - 8 if gap >= 8 else ALIGNMENT - (8 - gap))
            assert data[position + 8 : position + 8 + size] == bytes(size)
            position += 8 + size
            assert position % ALIGNMENT == 0
            continue
        assert length >= 16
        payload = data[position + 4 : position + 4 + length]
        assert len(payload) == length
        position += 4 + length
        ledger_id, entry_id = struct.unpack_from(">qq", payload)
        assert entry_id >= 0 or entry_id in (-0x1000, -0x2000, -0x8000)
        yield ledger_id, entry_id, payload
    assert position % ALIGNMENT == 0, "a flush ends on the alignment"
    assert not any(data[position:]), "zeros behind the data"


def journals(root: Path) -> list[Path]:
    paths = sorted((root / "journal/current").glob("*.txn"), key=lambda path: int(path.stem, 16))
    ids = [int(path.stem, 16) for path in paths]
    assert [path.stem for path in paths] == [f"{number:x}" for number in ids]
    assert ids == list(range(ids[0], ids[0] + len(ids)))
    return paths


def test_journals(root: Path) -> None:
    found = [record for path in journals(root) for record in journal_records(path)]
    keyed: set[int] = set()
    entries: dict[tuple[int, int], bytes] = {}
    kinds: dict[int, list[int]] = defaultdict(list)
    for ledger_id, entry_id, payload in found:
        if entry_id == -0x1000:
            assert payload[16:] == struct.pack(">i", 20) + KEY
            keyed.add(ledger_id)
        assert ledger_id in keyed, "the key comes before anything else of a ledger"
        if entry_id == -0x2000:
            assert len(payload) == 16
        if entry_id == -0x8000:
            assert payload[16:] == struct.pack(">i", 20) + lac_packet(ledger_id, 5)
        if entry_id >= 0:
            entries[ledger_id, entry_id] = payload
        kinds[entry_id].append(ledger_id)
    assert kinds[-0x2000] == [0x1A2B3, 7]
    assert entries[1, 3] == packet(1, 3, 700)
    assert len(entries) == 30 + 3 + 50
    assert len(journals(root)) > 3


def log_records(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(offset of the packet, packet) up to the map; every byte up to the end is accounted for."""
    position = 1024
    while position < len(data):
        [length] = struct.unpack_from(">i", data, position)
        assert length > 0
        packet_ = data[position + 4 : position + 4 + length]
        assert len(packet_) == length
        yield position + 4, packet_
        position += 4 + length
    assert position == len(data)


def read_log(path: Path) -> tuple[dict[int, bytes], bool]:
    """(packets by offset, whether the log was rotated)."""
    data = path.read_bytes()
    magic, version, map_offset, ledgers = struct.unpack_from(">4siqi", data)
    assert (magic, version) == (b"BKLO", 1)
    assert not any(data[20:1024])
    packets: dict[int, bytes] = {}
    sums: dict[int, int] = defaultdict(int)
    mapped: dict[int, int] = {}
    for offset, packet_ in log_records(data):
        ledger_id, entry_id = struct.unpack_from(">qq", packet_)
        if ledger_id == -1:
            assert entry_id == -2
            assert offset - 4 >= map_offset > 0
            [count] = struct.unpack_from(">i", packet_, 16)
            assert len(packet_) == 20 + 16 * count
            assert 0 < count <= 10_000
            flat = struct.unpack_from(f">{2 * count}q", packet_, 20)
            mapped.update(zip(flat[::2], flat[1::2], strict=True))
            continue
        assert not mapped, "nothing comes behind the map"
        assert offset + len(packet_) <= LOG_LIMIT or offset == 1028, "over the limit only where it is alone"
        packets[offset] = packet_
        sums[ledger_id] += len(packet_) + 4
    if map_offset:
        assert mapped == sums
        assert ledgers == len(mapped)
    else:
        assert ledgers == 0
    return packets, bool(map_offset)


def logs(root: Path) -> dict[int, tuple[dict[int, bytes], bool]]:
    paths = sorted((root / "ledgers/current").glob("*.log"), key=lambda path: int(path.stem, 16))
    assert [path.stem for path in paths] == [f"{number:x}" for number in range(len(paths))]
    return {int(path.stem, 16): read_log(path) for path in paths}


def test_entry_logs(root: Path) -> None:
    found = logs(root)
    rotated = [is_rotated for _, is_rotated in found.values()]
    assert rotated == [True] * (len(rotated) - 1) + [False]
    assert len(found) > 10
    assert (root / "ledgers/current/lastId").read_bytes() == b"%x\n" % max(found)


def read_index(path: Path) -> tuple[bytes, bool, bytes, dict[int, int]]:
    """(key, fenced, explicit LAC, location by entry id)."""
    data = path.read_bytes()
    assert (len(data) - 1024) % 8192 == 0, "whole pages"
    magic, version, key_size = struct.unpack_from(">4sii", data)
    assert (magic, version) == (b"BKLE", 1)
    state, lac_size = struct.unpack_from(">ii", data, 12 + key_size)
    assert state in (0, 1)
    assert lac_size == 0 or lac_size >= 16
    end = 20 + key_size + lac_size
    assert end <= 1024
    assert not any(data[end:488])
    assert not any(data[512:1024]), "but for the seal, which others do not read"
    slots = struct.unpack(f">{(len(data) - 1024) // 8}q", data[1024:])
    locations = {entry_id: location for entry_id, location in enumerate(slots) if location}
    return data[12 : 12 + key_size], state == 1, data[20 + key_size : end], locations


@pytest.mark.parametrize(
    ("number", "name", "fenced", "lac", "entries", "pages"),
    [
        (1, "0/1/1.idx", False, b"", list(range(30)), 1),
        (0x1A2B3, "a2/b3/1a2b3.idx", True, lac_packet(0x1A2B3, 5), [0, 5, 1030], 2),
        (7, "0/7/7.idx", True, b"", [], 0),
        (5_000_001_000, "f5/e8/12a05f5e8.idx", False, b"", list(range(430, 480)), 1),
    ],
)
def test_index_files(
    root: Path, number: int, name: str, fenced: bool, lac: bytes, entries: list[int], pages: int
) -> None:
    path = root / "ledgers/current" / name
    assert read_index(path)[:3] == (KEY, fenced, lac)
    seal = path.read_bytes()[488:508]
    assert seal.startswith(b"BGIX")
    assert path.read_bytes()[508:512] == zlib.crc32(seal, zlib.crc32(path.read_bytes()[:488])).to_bytes(4, "big")
    assert path.stat().st_size == 1024 + 8192 * pages
    locations = read_index(path)[3]
    assert sorted(locations) == entries
    found = logs(root)
    for entry_id, location in locations.items():
        packet_ = found[location >> 32][0][location & 0xFFFFFFFF]
        assert struct.unpack_from(">qq", packet_) == (number, entry_id)
        size = {1: 700 if entry_id == 3 else 100, 0x1A2B3: 33}.get(number, entry_id)
        assert packet_ == packet(number, entry_id, size), "the newest copy"


def test_the_mark_is_the_end_of_the_last_flush(root: Path) -> None:
    """After a clean stop nothing is left to replay."""
    data = (root / "ledgers/current/lastMark").read_bytes()
    # What Apache BookKeeper reads; behind it stands what vouches for these.
    journal_id, offset = struct.unpack_from(">qq", data)
    assert data[16:] == b"BGMK" + zlib.crc32(data[:16]).to_bytes(4, "big")
    path = journals(root)[-1]
    assert journal_id == int(path.stem, 16)
    assert offset % ALIGNMENT == 0
    assert not any(path.read_bytes()[offset:])


def test_nothing_else_lies_in_the_directories(root: Path) -> None:
    names = {path.name for path in (root / "ledgers/current").iterdir() if path.is_file() and path.suffix != ".log"}
    assert names == {"lastMark", "lastId"}
    assert {path.suffix for path in (root / "journal/current").iterdir()} == {".txn"}
