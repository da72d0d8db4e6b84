"""The entry log's format: header, records, locations, and the ledgers map at the end of a rotated log.

A log is a header of 1024 bytes and records, each a 4-byte length and an entry packet. A location, the value in every
index, is the log's id in the upper 32 bits and the offset of the packet (after its length field) in the lower. A
rotated log ends with map records (ledger id -1) that contain how many bytes each ledger has in it; a log that was
current at a crash or stop has none, and is scanned instead. All integers are big-endian, ids in file names hexadecimal
(F9). Ledgers are identified by their number; those with a scope are in map records of their own, with an entry id that
older readers reject, so that they scan the log. Source: docs/protocol/storage.md#entry-logs,
docs/protocol/scoped-ledgers.md#entry-logs.

Not its job: files, ids of new logs, which log is current (`log_file`).
"""

from __future__ import annotations

import itertools
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence

from bookgate.ledger.entry import SCOPED_IDS_SIZE, packet_ids
from bookgate.ledger.ledger_id import HALF_MASK, MAX_UNSCOPED

MAGIC = b"BKLO"
VERSION = 1
HEADER_SIZE = 1024
FILE_SUFFIX = ".log"
MAX_LOG_ID = 0x7FFFFFFF
RECORD_PREFIX_SIZE = 20
"""Bytes of a record up to its ids: length 4, ledger id 8, entry id 8."""
LONGEST_PREFIX_SIZE = 4 + SCOPED_IDS_SIZE
"""The same for a record of a scoped ledger."""
MIN_ENTRY_SIZE = 16

_FILE_NAME = re.compile(r"([0-9a-f]+)\.log(\.[0-9a-f]+\.compacted)?")
_MAP_LEDGER_ID = -1
_MAP_ENTRY_ID = -2
_SCOPED_MAP_ENTRY_ID = -3
_MAP_BATCH = 10_000
_MAP_FIXED_SIZE = 20

_prefix = struct.Struct(">iqq")
_length = struct.Struct(">i")
_header_tail = struct.Struct(">qi")
_map_head = struct.Struct(">iqqi")
_scoped_row = struct.Struct(">QQq")
LARGEST_MAP_RECORD_PER_LEDGER = _map_head.size + _scoped_row.size
"""Upper bound of a map's bytes per ledger."""

MAP_FIELDS_OFFSET = 8
"""Position in the header of the map's offset and number of ledgers."""


def file_name(log_id: int) -> str:
    return f"{log_id:x}{FILE_SUFFIX}"


def log_id_of(name: str) -> int | None:
    """Id in the name of a log, or of a compaction's leftover (`<id>.log.<old id>.compacted`); else None."""
    match = _FILE_NAME.fullmatch(name)
    return int(match[1], 16) if match else None


def location_of(log_id: int, offset: int) -> int:
    return log_id << 32 | offset


def split_location(location: int) -> tuple[int, int]:
    """(log id, offset of the packet)."""
    return location >> 32, location & 0xFFFFFFFF


def encode_header(map_offset: int = 0, ledgers: int = 0) -> bytes:
    """Header of a log; offset 0 means that there is no map (yet)."""
    return (MAGIC + _length.pack(VERSION) + encode_map_fields(map_offset, ledgers)).ljust(HEADER_SIZE, b"\0")


def encode_map_fields(map_offset: int, ledgers: int) -> bytes:
    """The part of the header at MAP_FIELDS_OFFSET that is rewritten when the log is rotated."""
    return _header_tail.pack(map_offset, ledgers)


def encode_records(packets: Sequence[bytes]) -> bytes:
    """Records ready to be written, joined in order."""
    parts: list[bytes] = [b""] * (2 * len(packets))
    parts[0::2] = map(_length.pack, map(len, packets))
    parts[1::2] = packets
    return b"".join(parts)


def decode_prefix(data: bytes | memoryview) -> tuple[int, int, int]:
    """(length, ledger number, entry id) of a record; the number is negative if the record is not an entry's.

    `data` has at least RECORD_PREFIX_SIZE bytes, or LONGEST_PREFIX_SIZE if the record is that long.
    """
    length, number, entry_id = _prefix.unpack_from(data)
    if number < 0:
        try:
            number, entry_id = packet_ids(data, _length.size)
        except ValueError:
            return length, number, entry_id
    return length, number, entry_id


def decode_prefixes(data: bytes, starts: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """`decode_prefix` of the records that begin at `starts`."""
    return map(_prefix.unpack_from, itertools.repeat(data), starts)


def encode_ledgers_map(bytes_by_ledger: Mapping[int, int]) -> bytes:
    """The map's records, each for at most 10,000 ledgers: the bytes of each ledger's records, including length
    fields.
    """
    if not bytes_by_ledger or max(bytes_by_ledger) <= MAX_UNSCOPED:
        return b"".join(map(_encode_map_record, _batches(bytes_by_ledger.items())))
    unscoped = [item for item in bytes_by_ledger.items() if item[0] <= MAX_UNSCOPED]
    scoped = [item for item in bytes_by_ledger.items() if item[0] > MAX_UNSCOPED]
    records = (*map(_encode_map_record, _batches(unscoped)), *map(_encode_scoped_record, _batches(scoped)))
    return b"".join(records)


def _batches(items: Iterable[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    iterator = iter(items)
    while batch := list(itertools.islice(iterator, _MAP_BATCH)):
        yield batch


def _encode_map_record(batch: Sequence[tuple[int, int]]) -> bytes:
    head = _map_head.pack(_MAP_FIXED_SIZE + 16 * len(batch), _MAP_LEDGER_ID, _MAP_ENTRY_ID, len(batch))
    return head + struct.pack(f">{2 * len(batch)}q", *itertools.chain.from_iterable(batch))


def _encode_scoped_record(batch: Sequence[tuple[int, int]]) -> bytes:
    size = _MAP_FIXED_SIZE + _scoped_row.size * len(batch)
    rows = (_scoped_row.pack(number >> 64, number & HALF_MASK, taken) for number, taken in batch)
    return _map_head.pack(size, _MAP_LEDGER_ID, _SCOPED_MAP_ENTRY_ID, len(batch)) + b"".join(rows)


def decode_map_fields(header: bytes) -> tuple[int, int] | None:
    """(offset of the map, number of ledgers) in a log's header; None if the header names no map."""
    if len(header) < RECORD_PREFIX_SIZE or header[:4] != MAGIC or _length.unpack_from(header, 4)[0] < 1:
        return None
    map_offset, ledgers = _header_tail.unpack_from(header, MAP_FIELDS_OFFSET)
    return (map_offset, ledgers) if map_offset > 0 and ledgers > 0 else None


def decode_ledgers_map(data: bytes, ledgers: int) -> dict[int, int] | None:
    """Bytes by ledger number from the map's records (`data` extends from the map to the end of the file).

    None if the records are not a map of that many ledgers: the log is then scanned.
    """
    result: dict[int, int] = {}
    position = 0
    while position + _map_head.size <= len(data):
        size, ledger_id, entry_id, count = _map_head.unpack_from(data, position)
        if size <= 0:
            break
        end = position + 4 + size
        row_size = {_MAP_ENTRY_ID: 16, _SCOPED_MAP_ENTRY_ID: _scoped_row.size}.get(entry_id)
        if row_size is None or ledger_id != _MAP_LEDGER_ID or size != _MAP_FIXED_SIZE + row_size * count:
            return None
        if end > len(data) or count < 0:
            return None
        rows = data[position + _map_head.size : end]
        if entry_id == _MAP_ENTRY_ID:
            flat = struct.unpack(f">{2 * count}q", rows)
            result.update(zip(flat[0::2], flat[1::2], strict=True))
        else:
            result.update((scope << 64 | lower, taken) for scope, lower, taken in _scoped_row.iter_unpack(rows))
        position = end
    return result if len(result) == ledgers else None
