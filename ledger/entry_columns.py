"""A run of entries stored column-wise, for building tables without one Python object per entry.

The digest and ids of each entry are verified as in `entry.decode_entries`, which also handles every digest but CRC32C
and reports what is wrong with a bad packet. The columns also behave as a sequence of entries; an `Entry` is created
when an element is accessed.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import overload

import google_crc32c

from bookgate.ledger.digest import Crc32cDigest, Digest
from bookgate.ledger.entry import CRC32C_PACKET, Entry, decode_entries
from bookgate.ledger.errors import DigestMatchException
from bookgate.ledger.ledger_id import MAX_UNSCOPED, halves_of
from bookgate.ledger.packets import Packets

_FIELDS = 4
"""Number of header fields: ledger id, entry id, last add confirmed, length."""


class EntryColumns(Sequence[Entry]):
    """Consecutive entries of one ledger. Callers must not modify the columns."""

    __slots__ = ("first_entry_id", "last_adds_confirmed", "ledger_id", "lengths", "payloads", "sizes")

    def __init__(
        self,
        ledger_id: int,
        first_entry_id: int,
        last_adds_confirmed: array[int],
        lengths: array[int],
        sizes: array[int],
        payloads: Sequence[bytes],
    ) -> None:
        self.ledger_id = ledger_id
        self.first_entry_id = first_entry_id
        self.last_adds_confirmed = last_adds_confirmed
        """Signed 8-byte integers, as are `lengths`."""
        self.lengths = lengths
        self.sizes = sizes
        """Payload bytes of each entry, as signed 4-byte integers."""
        self.payloads = payloads

    @property
    def payload(self) -> bytes:
        """The payloads, concatenated."""
        return b"".join(self.payloads)

    @classmethod
    def of(cls, ledger_id: int, first_entry_id: int, entries: Sequence[Entry]) -> EntryColumns:
        """Builds columns from existing entries."""
        return cls(
            ledger_id,
            first_entry_id,
            array("q", [entry.last_add_confirmed for entry in entries]),
            array("q", [entry.ledger_length for entry in entries]),
            array("i", [len(entry.payload) for entry in entries]),
            [entry.payload for entry in entries],
        )

    def __len__(self) -> int:
        return len(self.sizes)

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> EntryColumns: ...
    def __getitem__(self, index: int | slice) -> Entry | EntryColumns:
        """One entry, or for a slice with step 1 its columns."""
        if isinstance(index, slice):
            return self._slice(index)
        at = range(len(self.sizes))[index]
        entry_id = self.first_entry_id + at
        return Entry(self.ledger_id, entry_id, self.last_adds_confirmed[at], self.lengths[at], self.payloads[at])

    def _slice(self, index: slice) -> EntryColumns:
        start, stop, step = index.indices(len(self.sizes))
        if step != 1:
            raise ValueError("columns of entries have no gaps and one order")
        stop = max(start, stop)
        return EntryColumns(
            self.ledger_id,
            self.first_entry_id + start,
            self.last_adds_confirmed[start:stop],
            self.lengths[start:stop],
            self.sizes[start:stop],
            self.payloads[start:stop],
        )


def decode_columns(
    digest: Digest, packets: Sequence[bytes | memoryview], ledger_id: int, first_entry_id: int
) -> tuple[EntryColumns, DigestMatchException | None]:
    """Like `decode_entries`: returns the good packets before the first bad one, and that packet's error."""
    columns = (
        _decode_crc32c(packets, ledger_id, first_entry_id)
        if type(digest) is Crc32cDigest and ledger_id <= MAX_UNSCOPED
        else None
    )
    if columns is not None:
        return columns, None
    entries, error = decode_entries(digest, packets, ledger_id, first_entry_id)
    return EntryColumns.of(halves_of(ledger_id)[1], first_entry_id, entries), error


def _decode_crc32c(packets: Sequence[bytes | memoryview], ledger_id: int, first_entry_id: int) -> EntryColumns | None:
    """The columns, or None if any packet fails a check."""
    parts = Packets.of(packets).split(CRC32C_PACKET)
    if parts is None:
        return None
    headers, crcs, payloads = tuple(zip(*parts, strict=True)) or ((), (), ())
    if crcs != tuple(map(google_crc32c.extend, map(google_crc32c.value, headers), payloads)):
        return None
    fields, count = array("q", b"".join(headers)), len(headers)
    if sys.byteorder == "little":
        fields.byteswap()
    ids = array("q", range(first_entry_id, first_entry_id + count))
    if fields[0::_FIELDS] != array("q", [ledger_id]) * count or fields[1::_FIELDS] != ids:
        return None
    sizes = array("i", map(len, payloads))
    return EntryColumns(ledger_id, first_entry_id, fields[2::_FIELDS], fields[3::_FIELDS], sizes, payloads)
