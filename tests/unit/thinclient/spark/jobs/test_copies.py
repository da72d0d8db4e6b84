"""One bookie's copies of a ledger that was taken over: its ids have a gap."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from bookgate.ledger.entry import Entry
from bookgate.ledger.entry_columns import EntryColumns
from bookgate.ledger.errors import NoSuchEntryException
from bookgate.thinclient.blocking.client import ReadHandle
from bookgate.thinclient.spark.jobs.copies import Fault, FaultRange, Patience, _copies

GAP = 3


class FakeHandle:
    """A bookie with entries 0 to 9, of which 3 is a truncate entry, without those `lost`."""

    def __init__(self, *lost: int) -> None:
        self.lost = lost

    def read_columns(self, first: int, last: int) -> Iterator[EntryColumns]:
        for entry_id in range(first, last + 1):
            if entry_id in self.lost:
                raise NoSuchEntryException(f"no entry {entry_id}")
            if entry_id != GAP:
                yield EntryColumns.of(7, entry_id, [Entry(7, entry_id, entry_id - 1, entry_id + 1, b"x")])


def found(*lost: int) -> tuple[list[int], list[FaultRange]]:
    copies = list(_copies(cast(ReadHandle, FakeHandle(*lost)), 0, 9, Patience(0, lambda _seconds: None)))
    good = [each.first_entry_id for each in copies if isinstance(each, EntryColumns)]
    return good, [each for each in copies if isinstance(each, FaultRange)]


def test_a_gap_in_the_ids_is_no_fault() -> None:
    assert found() == ([0, 1, 2, 4, 5, 6, 7, 8, 9], [])


def test_each_copy_is_read_once_around_a_gap_and_a_missing_copy() -> None:
    for lost in (1, 5):
        missing = [FaultRange(Fault.MISSING, lost, lost, f"no entry {lost}")]
        assert found(lost) == (sorted({*range(10)} - {lost, GAP}), missing)
