"""The journal's format: file header, records, padding, and the mark that says where replay begins.

A journal file is a header (512 bytes since version 5) and records, each a 4-byte length and a payload that begins with
ledger id and entry id, in the form that an entry packet of the ledger has (`ledger.entry`). A negative entry id is a
meta record: master key, fence or explicit LAC of the ledger, its term, that it was truncated, or that it was created
anew. Each flush ends with a padding record, so that it ends on a multiple of the alignment. After the last record there
are zeros: a length of 0 ends the data. All integers are big-endian. Source: docs/protocol/storage.md#journal,
docs/protocol/unbounded-ledgers.md#in-a-bookies-files.

A scan distinguishes the torn tail of a crash from damage. A length 0, a length beyond the end of the file, a payload of
which not all blocks reached the disk, and a padding record whose length was cut at the end of a block are torn: they
end the file without an error, since none of it was acknowledged. Any other impossible length can't come from a crash,
and is rejected with file and offset.

No checksum protects a record, and a torn one may look like another: an entry id whose last bytes are missing is entry
0. Therefore the last record before the end of data is checked more closely. A completed flush ends on the alignment; if
one does not, and its last record is zeros from a block boundary on, it was torn there. The entry's digest is checked by
readers.

Not its job: files and threads (`journal`), what a record does to storage (`replay`).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from bookgate.bookie.index.terms import Terms
from bookgate.bookie.system.data_loss import WAYS_OUT
from bookgate.bookie.system.files import StorageCorruptException
from bookgate.ledger.entry import SCOPED_IDS_SIZE, encode_ids, is_scoped_packet, packet_ids

MAGIC = b"BKLG"
CURRENT_VERSION = 6
HEADER_SIZE = 512
FILE_SUFFIX = ".txn"

LEDGER_KEY = -0x1000
FENCE = -0x2000
EXPLICIT_LAC = -0x8000
MADE_ANEW = -0x42474D41
"""The ledger was deleted, and the following records belong to a new ledger with the same id. Apache BookKeeper's bookie
does not know this record and skips it.
"""
TERM = -0x42475445
"""The ledger's term changed. Apache BookKeeper's bookie skips this record and the next."""
TRUNCATE = -0x42475452
"""All entries above one were deleted."""
OLDEST_VERSION_WITH = {LEDGER_KEY: 3, FENCE: 4, EXPLICIT_LAC: 6}

_PADDING_LENGTH = -0x100
_FIRST_PADDED_VERSION = 5
_IDS_SIZE = 16
_SCAN_CHUNK = 1 << 20
_BLOCK = 512
"""The smallest unit that a disk writes atomically; every alignment is a multiple of it."""

_FILE_NAME = re.compile(r"([0-9a-f]+)\.txn")
_length = struct.Struct(">i")
_meta = struct.Struct(">qq")
_mark = struct.Struct(">qq")
_terms = struct.Struct(">q?qq")
_entry_id = struct.Struct(">q")
MARK_SIZE = _mark.size

pack_length = _length.pack
_ZERO_FIELDS = bytes(24)


class LogMark(NamedTuple):
    """A position in the journal; everything before it is in ledger storage. Marks compare by their position."""

    journal_id: int
    offset: int

    def encode(self) -> bytes:
        """16 bytes, the content of a `lastMark` file."""
        return _mark.pack(*self)

    @classmethod
    def decode(cls, data: bytes) -> LogMark:
        """Inverse of `encode`; shorter data is the mark that nothing was persisted yet."""
        return cls(*_mark.unpack_from(data)) if len(data) >= MARK_SIZE else NO_MARK


NO_MARK = LogMark(0, 0)


def file_name(journal_id: int) -> str:
    return f"{journal_id:x}{FILE_SUFFIX}"


def journal_id_of(name: str) -> int | None:
    """The id in a journal file's name, None for any other name."""
    match = _FILE_NAME.fullmatch(name)
    return int(match[1], 16) if match else None


def encode_header() -> bytes:
    """Header of a new file of the current version."""
    return (MAGIC + _length.pack(CURRENT_VERSION)).ljust(HEADER_SIZE, b"\0")


def decode_header(data: bytes, name: str) -> tuple[int, int]:
    """(version, header size) from the first bytes of a file. A file without magic is version 1, which has no header.

    Raises StorageCorruptException for a version that does not exist.
    """
    if len(data) < 8 or data[:4] != MAGIC:
        return 1, 0
    (version,) = _length.unpack_from(data, 4)
    if not 2 <= version <= CURRENT_VERSION:
        raise StorageCorruptException(
            f"journal {name} has format version {version}; this bookie reads 1 to {CURRENT_VERSION}. "
            "Start the bookie version that wrote it, or restore the file."
        )
    return version, HEADER_SIZE if version >= _FIRST_PADDED_VERSION else 8


def encode_key(ledger_id: int, master_key: bytes) -> bytes:
    """Payload of a master key record."""
    return encode_ids(ledger_id, LEDGER_KEY) + _length.pack(len(master_key)) + master_key


def encode_fence(ledger_id: int) -> bytes:
    """Payload of a fence record."""
    return encode_ids(ledger_id, FENCE)


def encode_made_anew(ledger_id: int) -> bytes:
    """Payload of the record that precedes all others of a ledger whose id belonged to an earlier ledger."""
    return encode_ids(ledger_id, MADE_ANEW)


def encode_explicit_lac(ledger_id: int, packet: bytes) -> bytes:
    """Payload of an explicit LAC record; `packet` is the body of the request that set it."""
    return encode_ids(ledger_id, EXPLICIT_LAC) + _length.pack(len(packet)) + packet


def encode_term(ledger_id: int, terms: Terms) -> bytes:
    """Payload of a record with all that is kept of an unbounded ledger's terms."""
    return encode_ids(ledger_id, TERM) + _length.pack(_terms.size) + _terms.pack(*terms)


def decode_term(payload: bytes) -> Terms:
    """The content of a term record. Raises ValueError when it is no such record."""
    blob = meta_blob(payload)
    if len(blob) != _terms.size:
        raise ValueError(f"a term record has {len(blob)} bytes of content, not {_terms.size}")
    terms = Terms(*_terms.unpack(blob))
    if terms.term < 0:
        raise ValueError(f"a term record has term {terms.term}")
    return terms


def encode_truncate(ledger_id: int, last_entry_id: int) -> bytes:
    """Payload of the record that every entry above `last_entry_id` was deleted."""
    return encode_ids(ledger_id, TRUNCATE) + _length.pack(_entry_id.size) + _entry_id.pack(last_entry_id)


def decode_truncate(payload: bytes) -> int:
    """The last entry that is left. Raises ValueError when the payload is no such record."""
    blob = meta_blob(payload)
    if len(blob) != _entry_id.size:
        raise ValueError(f"a truncation record has {len(blob)} bytes of content, not {_entry_id.size}")
    (last_entry_id,) = _entry_id.unpack(blob)
    if last_entry_id < 0:
        raise ValueError(f"a truncation record leaves entries up to {last_entry_id}")
    return int(last_entry_id)


def meta_blob(payload: bytes) -> bytes:
    """Key or LAC packet of a meta record. Raises ValueError when the payload is shorter than its length field says."""
    ids_size = SCOPED_IDS_SIZE if payload and is_scoped_packet(payload) else _IDS_SIZE
    start = ids_size + _length.size
    if len(payload) < start:
        raise ValueError(f"a meta record of {len(payload)} bytes has no room for its content")
    size = _length.unpack_from(payload, ids_size)[0]
    end = start + size
    if size < 0 or end > len(payload):
        raise ValueError(f"a meta record of {len(payload)} bytes announces {size} bytes of content")
    return payload[start:end]


def encode_records(payloads: Sequence[bytes]) -> bytes:
    """Records ready to be written, joined in order."""
    parts: list[bytes] = [b""] * (2 * len(payloads))
    parts[0::2] = map(pack_length, map(len, payloads))
    parts[1::2] = payloads
    return b"".join(parts)


def padding(position: int, alignment: int) -> bytes:
    """The padding record that brings `position` (from the file's start) to a multiple of `alignment`; empty if it is
    one.

    The record itself takes at least 8 bytes; if fewer are left in a block, it fills the next block as well.
    """
    remainder = position % alignment
    if remainder == 0:
        return b""
    gap = alignment - remainder
    size = gap - 8 if gap >= 8 else alignment - (8 - gap)
    return _length.pack(_PADDING_LENGTH) + _length.pack(size) + bytes(size)


class JournalRecord(NamedTuple):
    """One record; `offset` is the position of its length field, `ledger_id` the ledger's number."""

    offset: int
    ledger_id: int
    entry_id: int
    payload: bytes


def _ids_of(payload: bytes) -> tuple[int, int]:
    """Ledger number and entry id; the number is negative if it is not a valid ledger's."""
    ledger_id, entry_id = _meta.unpack_from(payload)
    if ledger_id < 0:
        try:
            return packet_ids(payload)
        except ValueError:
            return ledger_id, entry_id
    return ledger_id, entry_id


class JournalScan:
    """Iterates over the records of one file from `start`. `end` is the scan's position: a record boundary.

    `read(size, offset)` returns up to `size` bytes of the file; `file_size` is in bytes; `name` is for messages. Raises
    StorageCorruptException, with file and offset, for damage that no crash explains.
    """

    def __init__(self, read: Callable[[int, int], bytes], file_size: int, start: int, version: int, name: str) -> None:
        self._read = read
        self._file_size = file_size
        self._version = version
        self._name = name
        self._chunk = b""
        self._chunk_start = 0
        self.end = start

    def __iter__(self) -> Iterator[JournalRecord]:
        while (length := self._next_length()) is not None:
            offset = self.end
            if length < 0:
                if self._is_torn_padding(length):
                    return
                self.end += self._padding_size(length)
                continue
            if length > self._file_size - offset - 4:
                return
            payload = self._take(offset + 4, length)
            if (
                self._never_arrived(payload)
                or self._lost_its_end(offset + 4, payload)
                or self._lost_its_ids(offset + 4, payload)
            ):
                return
            self.end = offset + 4 + length
            yield self._record(offset, payload)

    def _next_length(self) -> int | None:
        field = self._take(self.end, 4)
        if len(field) < 4:
            return None
        return int(_length.unpack(field)[0]) or None

    def _is_torn_padding(self, length: int) -> bool:
        """Whether a block ends within the length of a padding record, and the next block never reached the disk."""
        arrived = -self.end % _BLOCK
        if self._version < _FIRST_PADDED_VERSION or arrived not in (1, 2):
            return False
        torn = pack_length(_PADDING_LENGTH)[:arrived].ljust(4, b"\0")
        return pack_length(length) == torn and not any(self._take(self.end + 4, 4))

    def _padding_size(self, length: int) -> int:
        field = self._take(self.end + 4, 4)
        size = _length.unpack(field)[0] if len(field) == 4 else 0
        if length != _PADDING_LENGTH or self._version < _FIRST_PADDED_VERSION or size < 0:
            raise self._corrupt(self.end, f"has the impossible length {length}")
        return 8 + int(size)

    def _lost_its_end(self, start: int, payload: bytes) -> bool:
        """Whether this is the last record of an incomplete flush, and consists of zeros from a block boundary on."""
        end = start + len(payload)
        boundary = (end - 1) // _BLOCK * _BLOCK
        if self._version < _FIRST_PADDED_VERSION or end % _BLOCK == 0 or boundary <= start or payload[-1]:
            return False
        return not any(payload[boundary - start :]) and not any(self._take(end, 4))

    def _never_arrived(self, payload: bytes) -> bool:
        # The blocks of an unsynced write reach the disk in any order, so a length may be on disk before its payload.
        # No entry has a header of zeros: entry 0 carries LAC -1.
        return payload.startswith(_ZERO_FIELDS) or (len(payload) >= _IDS_SIZE and not any(payload))

    def _lost_its_ids(self, start: int, payload: bytes) -> bool:
        """Whether a block boundary cuts the ids of a scoped ledger's record, and zeros follow it."""
        boundary = -start % _BLOCK
        if not is_scoped_packet(payload) or not 0 < boundary < SCOPED_IDS_SIZE:
            return False
        return not any(payload[boundary : boundary + _BLOCK])

    def _record(self, offset: int, payload: bytes) -> JournalRecord:
        if len(payload) < _IDS_SIZE:
            raise self._corrupt(offset, f"has {len(payload)} bytes, too few for its ids")
        ledger_id, entry_id = _ids_of(payload)
        if self._version < OLDEST_VERSION_WITH.get(entry_id, 1):
            raise self._corrupt(offset, f"is of kind {entry_id}, which version {self._version} does not have")
        return JournalRecord(offset, ledger_id, entry_id, payload)

    def _corrupt(self, offset: int, what: str) -> StorageCorruptException:
        return StorageCorruptException(
            f"journal {self._name}: the record at offset {offset} {what}; the file is damaged. {WAYS_OUT}."
        )

    def _take(self, offset: int, size: int) -> bytes:
        """Bytes of the file through a read-ahead chunk."""
        start = offset - self._chunk_start
        if start < 0 or start + size > len(self._chunk):
            self._chunk = self._read(max(size, _SCAN_CHUNK), offset)
            self._chunk_start = offset
            start = 0
        return self._chunk[start : start + size]
