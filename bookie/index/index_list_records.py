"""Records of the lists of index files (`index_list`): a ledger and the generation of its file."""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Collection, MutableSequence, Sequence
from typing import Protocol

from pyroaring import BitMap64

from bookgate.ledger.ledger_id import HALF_MASK
from bookgate.ledger.ledger_numbers import LedgerNumbers

_RECORD_SIZE = 16
_scoped_record = struct.Struct(">QQq")
Columns = tuple[MutableSequence[int], "array[int]"]
"""Numbers and generations."""


def id_set(numbers: array[int]) -> BitMap64:
    """Of an array of ids of type code q; they are not looked at one by one."""
    return BitMap64(array("Q", numbers.tobytes()))


class Records(Protocol):
    """How the records of a list are written, and which ledgers it is for."""

    size: int
    only_where_needed: bool
    """Whether there is no file where there are no such ledgers."""

    def column(self, numbers: Collection[int]) -> MutableSequence[int]: ...
    def encode(self, numbers: Collection[int], generations: Collection[int]) -> bytes: ...
    def decode(self, data: bytes) -> Columns: ...
    def own(self, numbers: LedgerNumbers) -> Sequence[int]: ...
    def set_of(self, numbers: Sequence[int]) -> LedgerNumbers: ...


class UnscopedRecords:
    """Two integers; ledgers of scope 0, of which there may be many: nothing is done one by one."""

    size = _RECORD_SIZE
    only_where_needed = False

    def column(self, numbers: Collection[int]) -> MutableSequence[int]:
        return array("q", numbers)

    def encode(self, numbers: Collection[int], generations: Collection[int]) -> bytes:
        records = array("q", bytes(_RECORD_SIZE * len(numbers)))
        records[::2], records[1::2] = array("q", numbers), array("q", generations)
        if sys.byteorder == "little":
            records.byteswap()
        return records.tobytes()

    def decode(self, data: bytes) -> Columns:
        records = array("q", data)
        if sys.byteorder == "little":
            records.byteswap()
        return records[::2], records[1::2]

    def own(self, numbers: LedgerNumbers) -> Sequence[int]:
        return array("q", numbers.unscoped)

    def set_of(self, numbers: Sequence[int]) -> LedgerNumbers:
        return LedgerNumbers.of_parts(id_set(array("q", numbers)))


class ScopedRecords:
    """Three integers; ledgers with a scope."""

    size = _scoped_record.size
    only_where_needed = True

    def column(self, numbers: Collection[int]) -> MutableSequence[int]:
        return list(numbers)

    def encode(self, numbers: Collection[int], generations: Collection[int]) -> bytes:
        records = zip(numbers, generations, strict=True)
        return b"".join(_scoped_record.pack(number >> 64, number & HALF_MASK, found) for number, found in records)

    def decode(self, data: bytes) -> Columns:
        records = list(_scoped_record.iter_unpack(data))
        return [scope << 64 | lower for scope, lower, _ in records], array("q", [found for _, _, found in records])

    def own(self, numbers: LedgerNumbers) -> Sequence[int]:
        return sorted(numbers.scoped)

    def set_of(self, numbers: Sequence[int]) -> LedgerNumbers:
        return LedgerNumbers.of_parts(BitMap64(), numbers)
