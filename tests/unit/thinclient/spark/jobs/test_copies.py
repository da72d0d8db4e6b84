"""One bookie's copies of a ledger that was taken over: its ids have a gap. And faults that older metadata show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from bookgate.ledger.entry import Entry
from bookgate.ledger.entry_columns import EntryColumns
from bookgate.ledger.errors import BKException, NoSuchEntryException
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.thinclient.blocking.client import ReadHandle
from bookgate.thinclient.spark.jobs.copies import CopyReader, CopyReport, Fault, FaultRange, Patience, _copies
from tests.unit.thinclient.spark.reading.test_entries import Lagging, as_client, ledger, moved, whole

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


class Holding(Lagging):
    """Only the bookie `holder` has entries."""

    holder: str | None = None

    def error_at(self, record: LedgerRecord, entry_id: int) -> BKException | None:
        holds = record.metadata.fragment_at(entry_id).ensemble == (self.holder,)
        return None if holds else NoSuchEntryException(f"no entry {entry_id}")


def reports(client: Lagging) -> list[CopyReport]:
    return CopyReader(as_client(client), b"planted-pw", 0, lambda _seconds: None).check(whole(ledger(1)))


def test_copies_that_have_moved_are_not_missing_where_the_gateway_lags() -> None:
    client = Holding(moved(ledger(1), 0), older=[ledger(1)])
    client.holder = "c:1"
    assert [(each.bookie_id, each.good) for each in reports(client)] == [("c:1", 10)]


def test_a_ledger_that_the_gateway_does_not_know_yet_is_not_taken_for_deleted() -> None:
    assert [(each.bookie_id, each.counts[Fault.MISSING]) for each in reports(Holding(ledger(1)))] == [("b:1", 10)]
    assert reports(Holding(older=[ledger(1)])) == [], "it was deleted"
