"""The format of index files: one file per ledger, a header with key, fence and explicit LAC, then 8-byte locations.

The slot of entry e is at 1024 + 8e; 0 means that the entry is not held. Slots are grouped in pages of 1024 (8 KiB); a
file is a header and whole pages, and a short last page reads as zeros. All integers are big-endian, names are
hexadecimal and unpadded except for ledgers with a scope. Source: docs/protocol/storage.md#index-files,
docs/protocol/scoped-ledgers.md#index-files.

The header's zeros contain a *seal*: a tag, the last entry that the file held durably before this write, the number of
the update that wrote it (its *generation*, `index_list`), and a CRC-32 of these and of the header. It is in the same
disk sector as the header, so both change together. Apache BookKeeper's bookie ignores it, and omits it when it writes a
header; a header without a seal is therefore valid, one with a wrong seal is damaged, and a file that holds less than
its seal says has lost entries.

The header of an unbounded ledger has a second thing in these zeros: its term, whether it is fenced there, LAC and LAFR.
The fenced bit is set as well, so a bookie that does not know terms accepts no writer's add. Source:
docs/protocol/unbounded-ledgers.md#in-a-bookies-files.

Not its job: reading and writing the files, caching pages (`file_index`).
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from bookgate.bookie.index.terms import Terms
from bookgate.bookie.system.data_loss import ACCEPT_LOSS
from bookgate.bookie.system.files import StorageCorruptException
from bookgate.ledger.ledger_id import NO_ENTRY, LedgerId

MAGIC = b"BKLE"
VERSION = 1
HEADER_SIZE = 1024
SLOT_SIZE = 8
SLOTS_PER_PAGE = 1024
PAGE_SIZE = SLOT_SIZE * SLOTS_PER_PAGE
MAX_ENTRY_ID = (1 << 40) - 1
"""Slots beyond it would need a file longer than common file systems allow."""

FILE_SUFFIX = ".idx"
RELOCATION_SUFFIX = ".rloc"

_FILE_NAME = re.compile(r"([0-9a-f]{1,16})\.idx")
_RELOCATED_NAME = re.compile(r"([0-9a-f]{1,16})\.idx\.rloc")
_LEVEL_NAME = re.compile(r"[0-9a-f]{1,2}")
_SCOPED_LEVEL_NAME = re.compile(r"[0-9a-f]{8}")
_SCOPED_FILE_NAME = re.compile(r"([0-9a-f]{8})\.idx")
_FENCED = 1
_MIN_LAC_PACKET = 16
_head = struct.Struct(">4sii")
_int = struct.Struct(">i")
_slot = struct.Struct(">Q")
_seal_values = struct.Struct(">qq")
_SEAL_TAG = b"BGIX"
SEAL_SIZE = 24
SEAL_AT = 512 - SEAL_SIZE
_SHORT_SEAL_SIZE = 16
"""Of a form without generation, which no release has written."""
_terms_values = struct.Struct(">qqqi")
_TERMS_TAG = b"BGTM"
_TERMS_SIZE = 32
TERMS_AT = SEAL_AT - _TERMS_SIZE
_EMPTY_SLOT = bytes(SLOT_SIZE)
_PAGE_SLOTS = struct.Struct(f">{SLOTS_PER_PAGE}Q")


class IndexHeader(NamedTuple):
    """What the header keeps of a ledger; `explicit_lac` is the packet as the client sent it, or None.

    Only RocksDB's rows have `limbo`: whoever marked the ledger knew that this bookie lost some of it. `lost` says that
    of an index file, which has fewer entries than its seal tells.
    """

    master_key: bytes
    fenced: bool
    explicit_lac: bytes | None
    limbo: bool = False
    lost: bool = False
    sealed_last_entry: int = NO_ENTRY
    """An entry id up to which the index had come, durably; -1 where that is not known."""
    generation: int = 0
    """The number of the last update (`index_list`); 0 where that is not known."""
    terms: Terms | None = None
    """Of an unbounded ledger; `fenced` is then as it says."""

    def encode(self) -> bytes:
        """HEADER_SIZE bytes of the current version, sealed. Raises ValueError when key and LAC do not fit."""
        lac = self.explicit_lac or b""
        data = b"".join(
            (
                _head.pack(MAGIC, VERSION, len(self.master_key)),
                self.master_key,
                _int.pack(_FENCED if self.fenced or self.terms is not None else 0),
                _int.pack(len(lac)),
                lac,
            )
        )
        if len(data) > HEADER_SIZE:
            raise ValueError(f"master key and explicit LAC take {len(data)} bytes; the index header has {HEADER_SIZE}")
        if self.terms is not None:
            if len(data) > TERMS_AT:
                raise ValueError(f"key and LAC take {len(data)} bytes; with a term the index header has {TERMS_AT}")
            term, fenced, lac_known, lafr = self.terms
            data = data.ljust(TERMS_AT, b"\0") + _TERMS_TAG + _terms_values.pack(term, lac_known, lafr, fenced)
        return sealed(data.ljust(HEADER_SIZE, b"\0"), self.sealed_last_entry, self.generation)[0]


def fits_header(master_key: bytes, explicit_lac: bytes, *, with_term: bool = False) -> bool:
    """Whether a header with both can be written, and a term besides."""
    room = (TERMS_AT if with_term else HEADER_SIZE) - _head.size - 2 * _int.size
    return len(master_key) + len(explicit_lac) <= room


def is_blank(data: bytes) -> bool:
    """Whether the first bytes of a file have no header, since it was never written."""
    return len(data) < HEADER_SIZE or not any(data[:HEADER_SIZE])


def decode_header(data: bytes, name: str) -> IndexHeader | None:
    """The header in a file's first bytes; None when it was never written (a crash came between create and write).

    Raises StorageCorruptException for bytes that are no header.
    """
    if is_blank(data):
        return None
    magic, version, key_length = _head.unpack_from(data)
    if magic != MAGIC or version not in (0, VERSION):
        raise corrupt(name, f"begins with {magic!r}, version {version}")
    lac_at = _head.size + key_length + 2 * _int.size
    if key_length < 0 or lac_at > HEADER_SIZE:
        raise corrupt(name, f"announces a master key of {key_length} bytes")
    master_key = data[_head.size : _head.size + key_length]
    state, lac_length = _int.unpack_from(data, lac_at - 8)[0], _int.unpack_from(data, lac_at - 4)[0]
    if version == 0:
        lac_length = 0
    if lac_length != 0 and not _MIN_LAC_PACKET <= lac_length <= HEADER_SIZE - lac_at:
        raise corrupt(name, f"announces an explicit LAC of {lac_length} bytes")
    lac = data[lac_at : lac_at + lac_length] if lac_length else None
    last, generation = NO_ENTRY, 0
    stored = data[SEAL_AT : SEAL_AT + SEAL_SIZE]
    if stored.startswith(_SEAL_TAG) or (lac_at + lac_length <= SEAL_AT and any(stored)):
        last, generation = _seal_values.unpack_from(stored, len(_SEAL_TAG))
        if stored[SEAL_SIZE - _SHORT_SEAL_SIZE :].startswith(_SEAL_TAG):
            raise StorageCorruptException(
                f"index file {name} was written by a Bookgate between two releases, which sealed it in another form. "
                "Let this bookie begin with empty directories, and its ledgers be replicated."
            )
        if stored != seal_of(data, last, generation):
            raise corrupt(name, "has a header that does not match its checksum")
    terms = _terms_in(data) if lac_at + lac_length <= TERMS_AT else None
    fenced = bool(state & _FENCED) if terms is None else terms.fenced
    return IndexHeader(master_key, fenced, lac, sealed_last_entry=last, generation=generation, terms=terms)


def _terms_in(header: bytes) -> Terms | None:
    if not header.startswith(_TERMS_TAG, TERMS_AT):
        return None
    term, known_lac, lafr, fenced = _terms_values.unpack_from(header, TERMS_AT + len(_TERMS_TAG))
    return Terms(term, bool(fenced), known_lac, lafr)


def sealed(header: bytes, last_entry_id: int, generation: int) -> tuple[bytes, bool]:
    """The header with a new seal, and whether there is room for one; if not, the header is unchanged."""
    seal = seal_of(header, last_entry_id, generation)
    return (header[:SEAL_AT] + seal + header[SEAL_AT + SEAL_SIZE :], True) if seal else (header, False)


def seal_of(header: bytes, last_entry_id: int, generation: int) -> bytes:
    """The bytes at SEAL_AT of a header; empty if key and LAC reach that far, or if they are in no known form."""
    try:
        _, _, key_length = _head.unpack_from(header)
        lac_at = _head.size + key_length + 2 * _int.size
        if key_length < 0 or lac_at > SEAL_AT or lac_at + _int.unpack_from(header, lac_at - 4)[0] > SEAL_AT:
            return b""
    except struct.error:
        return b""
    body = _SEAL_TAG + _seal_values.pack(last_entry_id, generation)
    return body + zlib.crc32(body, zlib.crc32(header[:SEAL_AT])).to_bytes(4, "big")


def corrupt(name: str, what: str) -> StorageCorruptException:
    """The error for a damaged index file, with its remedy."""
    return StorageCorruptException(
        f"index file {name} {what}; the file is damaged. "
        f"Restore it, or stop the bookie, remove the file and start the bookie once with {ACCEPT_LOSS}."
    )


def relative_path(ledger_id: LedgerId) -> PurePosixPath:
    """Path below the index directory: two levels above the file, or three for a ledger with a scope.

    Names of the latter have eight digits, which no level of the former has.
    """
    number = ledger_id.number
    if ledger_id.scope_id != 0:
        name = f"{number:032x}"
        return PurePosixPath(name[:8], name[8:16], name[16:24], f"{name[24:]}{FILE_SUFFIX}")
    return PurePosixPath(f"{number >> 8 & 0xFF:x}") / f"{number & 0xFF:x}" / f"{number:x}{FILE_SUFFIX}"


def ledger_id_of(name: str) -> int | None:
    """Id of the ledger (scope 0) in the name of an index file; None for any other name."""
    return _id_in(_FILE_NAME, name)


def relocated_ledger_id_of(name: str) -> int | None:
    """The same for a file that was being moved to another directory."""
    return _id_in(_RELOCATED_NAME, name)


def _id_in(pattern: re.Pattern[str], name: str) -> int | None:
    match = pattern.fullmatch(name)
    number = int(match[1], 16) if match else -1
    return number if 0 <= number < 1 << 63 else None


def is_level_name(name: str) -> bool:
    """Whether a directory of that name is one of the two levels above index files of scope 0."""
    return _LEVEL_NAME.fullmatch(name) is not None


def is_scoped_level_name(name: str) -> bool:
    """Whether a directory of that name is one of the three levels above index files of ledgers with a scope."""
    return _SCOPED_LEVEL_NAME.fullmatch(name) is not None


def scoped_number_of(levels: Sequence[str], name: str) -> int | None:
    """Number of the ledger in the name of an index file below three levels; None for what is no ledger's."""
    match = _SCOPED_FILE_NAME.fullmatch(name)
    number = int("".join((*levels, match[1])), 16) if match else 0
    return number if number >> 64 else None


def slot_offset(entry_id: int) -> int:
    """Where the slot of an entry stands in the file."""
    return HEADER_SIZE + SLOT_SIZE * entry_id


def page_offset(page: int) -> int:
    return HEADER_SIZE + PAGE_SIZE * page


def page_count(file_size: int) -> int:
    """Pages in a file of that many bytes, a short last one included."""
    return max(0, -(-(file_size - HEADER_SIZE) // PAGE_SIZE))


def whole_page(data: bytes) -> bytes:
    """A page as read, filled up with zeros; what is left of a slot that was cut in two is zeroed."""
    if len(data) == PAGE_SIZE:
        return data
    return data[: len(data) - len(data) % SLOT_SIZE].ljust(PAGE_SIZE, b"\0")


def location_in(page: bytes, entry_id: int) -> int:
    """The entry's location in its page, 0 when it is not held."""
    location: int = _slot.unpack_from(page, entry_id % SLOTS_PER_PAGE * SLOT_SIZE)[0]
    return location


def locations_in(page: bytes, entry_id: int, count: int) -> tuple[int, ...]:
    """Locations of up to `count` entries from `entry_id` on, as many as the page has."""
    slot = entry_id % SLOTS_PER_PAGE
    return struct.unpack_from(f">{min(count, SLOTS_PER_PAGE - slot)}Q", page, slot * SLOT_SIZE)


def log_ids_in(page: bytes) -> set[int]:
    """Ids of the entry logs that a page's slots point into."""
    return {location >> 32 for location in set(_PAGE_SLOTS.unpack(page)) if location}


def held_in(page: bytes) -> list[int]:
    """Slot numbers of a page that hold a location, ascending."""
    # Most pages are filled from the front, and only in part.
    used = -(-len(page.rstrip(b"\0")) // SLOT_SIZE)
    return [slot for slot, location in enumerate(struct.unpack_from(f">{used}Q", page)) if location]


def last_held_in(page: bytes) -> int:
    """The highest slot number of a page that holds a location, or -1."""
    return -(-len(page.rstrip(b"\0")) // SLOT_SIZE) - 1


class SlotRun(NamedTuple):
    """Slots of consecutive entries as they stand in the file; an empty one deletes its entry."""

    first: int
    data: bytes

    @property
    def first_empty(self) -> int | None:
        """The first entry that the run deletes."""
        if _EMPTY_SLOT not in self.data:
            return None
        locations = struct.unpack(f">{len(self.data) // SLOT_SIZE}Q", self.data)
        return self.first + locations.index(0) if 0 in locations else None

    @property
    def end(self) -> int:
        """The entry id behind the last."""
        return self.first + len(self.data) // SLOT_SIZE


def slot_runs(entry_ids: Sequence[int], locations: Sequence[int]) -> list[SlotRun]:
    """Encodes the slots of entries with ascending ids, as few runs as possible."""
    data = struct.pack(f">{len(locations)}Q", *locations)
    return [
        SlotRun(entry_ids[start], data[SLOT_SIZE * start : SLOT_SIZE * stop]) for start, stop in _consecutive(entry_ids)
    ]


def _consecutive(entry_ids: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Index ranges of ascending ids within which the ids are consecutive."""
    if not entry_ids:
        return
    if entry_ids[-1] - entry_ids[0] + 1 == len(entry_ids):
        yield 0, len(entry_ids)
        return
    start = 0
    for index in range(1, len(entry_ids)):
        if entry_ids[index] != entry_ids[index - 1] + 1:
            yield start, index
            start = index
    yield start, len(entry_ids)
