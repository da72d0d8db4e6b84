"""Reading ledgers for Spark over a client at its interface: selection, snapshots, moved ledgers, losses, clients."""

from __future__ import annotations

import operator
import os
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from bookgate.ledger.entry import Entry
from bookgate.ledger.entry_columns import EntryColumns
from bookgate.ledger.errors import (
    BKException,
    BookieHandleNotAvailableException,
    DigestMatchException,
    IllegalOpException,
    LedgerTrimmedException,
    MetaStoreException,
    NoSuchEntryException,
    NoSuchLedgerExistsOnMetadataServerException,
    UnauthorizedAccessException,
)
from bookgate.ledger.id_set import unsigned
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import OWNER_KEY, DigestType, LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.unbounded import create_unbounded
from bookgate.thinclient.blocking.client import BookKeeper
from bookgate.thinclient.config import ClientConfig
from bookgate.thinclient.gateways.discovery import NoRevisionException
from bookgate.thinclient.spark import worker_client
from bookgate.thinclient.spark.commit_protocol import Write, attempt_metadata, with_claim, with_mark
from bookgate.thinclient.spark.options.read_options import Options, ReadMode
from bookgate.thinclient.spark.options.values import LedgerRange
from bookgate.thinclient.spark.reading.entries import listing_ends, readable_slices, selected_records
from bookgate.thinclient.spark.reading.planning import Slice, TemplateTable, readable_record, wanted_range
from bookgate.thinclient.spark.reading.pushdown import Bounds
from bookgate.thinclient.spark.reading.slice_reads import Losses, slice_entries, task_entries
from bookgate.thinclient.spark.worker_client import WorkerClients

ENTRY_SIZE = 10
_READING = "bookgate.thinclient.spark.reading.entries"


class FakeHandle:
    def __init__(self, client: FakeClient, record: LedgerRecord, last: int) -> None:
        self.client, self.record, self.last_add_confirmed = client, record, last

    def __enter__(self) -> FakeHandle:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        self.client.open_handles -= 1

    @property
    def is_closed(self) -> bool:
        return self.record.metadata.is_closed

    def read(self, first: int, last: int) -> Iterator[Entry]:
        for batch in self.read_columns(first, last):
            yield from batch

    def read_columns(self, first: int, last: int) -> Iterator[EntryColumns]:
        for batch in self._batches(first, last):
            yield EntryColumns.of(self.record.ledger_id.low, batch[0].entry_id, batch)

    def _batches(self, first: int, last: int) -> Iterator[list[Entry]]:
        assert last <= self.last_add_confirmed
        for start in range(first, last + 1, 4):
            batch: list[Entry] = []
            for entry_id in range(start, min(start + 4, last + 1)):
                if entry_id in self.client.gaps:
                    if batch:
                        yield batch
                    batch = []
                    continue
                error = self.client.error_at(self.record, entry_id)
                if error is not None:
                    if batch:
                        yield batch
                    raise error
                length = ENTRY_SIZE * (entry_id + 1)
                batch.append(Entry(self.record.ledger_id.low, entry_id, entry_id - 1, length, b"x" * ENTRY_SIZE))
            if batch:
                yield batch


class FakeClient:
    """Ledgers in memory. `lost` are entries no bookie holds, `gone` bookies that can't be reached, and `gaps` truncate
    entries.
    """

    def __init__(self, *records: LedgerRecord) -> None:
        self.records = {record.ledger_id: record for record in records}
        self.last_confirmed: dict[LedgerId, int] = {}
        self.lost: set[int] = set()
        self.gaps: set[int] = set()
        self.gone: set[str] = set()
        self.listings: list[tuple[int | None, int | None]] = []
        self.id_listings: list[tuple[int | None, int | None]] = []
        self.recovered: list[LedgerId] = []
        self.opened: list[LedgerId] = []
        self.asked: list[LedgerId] = []
        self.open_handles = 0
        self.closed = False
        self.ledger_manager = self
        self.config = ClientConfig()
        self.bulk_reads: list[list[int]] = []
        self.unreadable: set[int] = set()
        self.no_gateway = False
        self.demands_all = False
        self.catch_ups = 0
        self.metrics = object()
        self.is_behind: BKException | None = None

    def catch_up(self) -> None:
        self.catch_ups += 1
        if self.is_behind is not None:
            raise self.is_behind

    def demand_complete_listings(self) -> None:
        self.demands_all = True

    def error_at(self, record: LedgerRecord, entry_id: int) -> BKException | None:
        if self.gone & set(record.metadata.fragment_at(entry_id).ensemble):
            return BookieHandleNotAvailableException("bookie is gone")
        return NoSuchEntryException(f"entry {entry_id} is nowhere") if entry_id in self.lost else None

    def list_ledgers(
        self, scope_id: int, start_after: int | None, end_before: int | None
    ) -> Iterator[list[LedgerRecord]]:
        self.listings.append((start_after, end_before))
        for ledger_id in sorted(self.records):
            if ledger_id.scope_id == scope_id:
                yield [self.records[ledger_id]]

    def ledger_ranges(self, scope_id: int, start_after: int | None, end_before: int | None) -> Iterator[list[int]]:
        self.id_listings.append((start_after, end_before))
        yield [each.low for each in sorted(self.records) if each.scope_id == scope_id]

    def open_record(self, record: LedgerRecord, password: bytes) -> FakeHandle:
        if record.metadata.password != password:
            raise UnauthorizedAccessException(f"the password of ledger {record.ledger_id} is not the one given")
        self.open_handles += 1
        return FakeHandle(self, record, record.metadata.last_entry_id)

    def open_ledger(self, ledger_id: LedgerId, password: bytes, recovery: bool) -> FakeHandle:
        if ledger_id not in self.records:
            raise NoSuchLedgerExistsOnMetadataServerException("gone")
        self.opened.append(ledger_id)
        self.open_handles += 1
        record, last = self.records[ledger_id], self.last_confirmed.get(ledger_id, -1)
        if recovery:
            self.recovered.append(ledger_id)
            last += 1
            record = LedgerRecord(ledger_id, record.metadata.close(last, ENTRY_SIZE * (last + 1)), record.version + 2)
        return FakeHandle(self, record, record.metadata.last_entry_id if record.metadata.is_closed else last)

    def read_many(self, ledger_ids: Sequence[LedgerId]) -> list[LedgerRecord | BKException]:
        self.bulk_reads.append([each.low for each in ledger_ids])
        missing = NoSuchLedgerExistsOnMetadataServerException("gone")
        return [
            MetaStoreException("no gateway") if each.low in self.unreadable else self.records.get(each, missing)
            for each in ledger_ids
        ]

    def read_record(self, ledger_id: LedgerId) -> LedgerRecord:
        if self.no_gateway:
            raise MetaStoreException("no gateway")
        if ledger_id not in self.records:
            raise NoSuchLedgerExistsOnMetadataServerException("gone")
        self.asked.append(ledger_id)
        return self.records[ledger_id]

    def close(self) -> None:
        self.closed = True


class Lagging(FakeClient):
    """Its gateway tells what is in `older` until it catches up."""

    def __init__(self, *records: LedgerRecord, older: Sequence[LedgerRecord] = ()) -> None:
        super().__init__(*older)
        self.newest = {record.ledger_id: record for record in records}

    def catch_up(self) -> None:
        super().catch_up()
        self.records = self.newest


def as_client(fake: FakeClient) -> BookKeeper:
    return cast(BookKeeper, fake)


def ledger(ledger_id: int, entries: int | None = 10, **custom: bytes) -> LedgerRecord:
    """A closed ledger, or an open one for None."""
    metadata = LedgerMetadata.new(["b:1"], 1, 1, password=b"planted-pw", custom_metadata=custom)
    if entries is not None:
        metadata = metadata.close(entries - 1, ENTRY_SIZE * entries)
    return LedgerRecord(LedgerId.unscoped(ledger_id), metadata, 1)


def options(**changes: Any) -> Options:
    return Options(**{"gateways": "g", "password": b"planted-pw", **changes})


def ids(client: FakeClient, wanted: Options) -> list[int]:
    return [record.ledger_id.low for page in selected_records(as_client(client), wanted) for record in page]


def test_one_listing_as_narrow_as_the_selector_allows() -> None:
    client = FakeClient(*(ledger(n, app=b"x" if n % 2 else b"y") for n in range(6)))
    assert ids(client, options()) == [0, 1, 2, 3, 4, 5]
    assert ids(client, options(ledger_ids=(2, 4))) == [2, 4]
    assert ids(client, options(ledger_range=LedgerRange(4, None))) == [4, 5]
    assert ids(client, options(ledger_range=LedgerRange(0, 1))) == [0, 1]
    assert ids(client, options(custom_metadata={"app": b"x"})) == [1, 3, 5]
    assert client.listings == [(None, None), (3, None), (None, 2), (None, None)]
    assert client.bulk_reads == [[2, 4]]


def test_a_ledger_that_was_asked_for_and_is_too_old_is_not_gone() -> None:
    old, young = (
        LedgerRecord(r.ledger_id, replace(r.metadata, ctime_ms=ms), 1) for r, ms in ((ledger(1), 10), (ledger(2), 20))
    )
    client = FakeClient(old, young, ledger(3))
    assert ids(client, options(ledger_ids=(1, 2), starting_timestamp_ms=20)) == [2]
    assert ids(client, options(starting_timestamp_ms=21)) == [3]


def test_ledgers_asked_for_that_are_gone_are_named_or_left_out(caplog: pytest.LogCaptureFixture) -> None:
    client = FakeClient(ledger(1))
    with pytest.raises(NoSuchLedgerExistsOnMetadataServerException, match=r"ledgerIds .*: 3, 9; failOnDataLoss"):
        ids(client, options(ledger_ids=(1, 3, 9)))
    assert ids(client, options(ledger_ids=(1, 3), fail_on_data_loss=False)) == [1]
    assert "left out 1 ledgers" in caplog.text


def sink_ledger(number: int, mark: Sequence[int] = (), entries: int | None = 10, batch: int = 0) -> LedgerRecord:
    record = ledger(number, entries, **attempt_metadata(Write("q", batch), "0.0.0"))
    return replace(record, metadata=with_mark(record.metadata, mark)) if mark else record


def test_a_ledger_that_was_listed_before_its_write_was_committed_is_read_whole() -> None:
    """The lead says that it is committed, and names a ledger that was still open, and one that was not there."""
    client = FakeClient(sink_ledger(1, mark=[1, 2, 3]), sink_ledger(2), sink_ledger(3))
    listed = FakeClient(sink_ledger(1, mark=[1, 2, 3]), sink_ledger(2, entries=None))
    client.list_ledgers = listed.list_ledgers  # type: ignore[method-assign]
    assert spans(client, options()) == [(1, 0, 9, 100), (2, 0, 9, 100), (3, 0, 9, 100)]


def test_a_selection_without_the_lead_reads_what_its_driver_had_no_time_to_mark() -> None:
    late = sink_ledger(2)
    late = replace(late, metadata=with_claim(late.metadata, 1))
    client = FakeClient(sink_ledger(1, mark=[1, 2]), late)
    assert spans(client, options(ledger_ids=(2,))) == [(2, 0, 9, 100)]
    client.records[LedgerId(0, 1)] = sink_ledger(1)
    assert spans(client, options(ledger_ids=(2,))) == []


def test_a_mark_that_names_ledgers_of_others_repeats_no_rows_and_shows_none_that_are_not_committed() -> None:
    def owned(record: LedgerRecord, owner: bytes) -> LedgerRecord:
        custom = {**record.metadata.custom_metadata, OWNER_KEY: owner}
        return replace(record, metadata=replace(record.metadata, custom_metadata=custom))

    mine = [owned(each, b"me") for each in (ledger(5), sink_ledger(6), sink_ledger(3, mark=[3]))]
    client = FakeClient(*mine, owned(sink_ledger(9, mark=[3, 5, 6, 9]), b"other"))
    assert spans(client, options()) == [(3, 0, 9, 100), (5, 0, 9, 100), (9, 0, 9, 100)]


def test_however_many_ledgers_marks_name_no_part_of_a_write_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what marks name and the listing has not shown as committed, no more is looked up than exists."""
    monkeypatch.setattr(f"{_READING}.MOST_NAMED", 3)
    monkeypatch.setattr(f"{_READING}._ASKED_FOR_AT_ONCE", 2)
    listed = [sink_ledger(1, mark=[1, 2, 3]), sink_ledger(11, mark=[11, 12, 13, 14, *range(100, 200)], batch=1)]
    client = FakeClient(*listed, sink_ledger(2), sink_ledger(3), *(sink_ledger(each, batch=1) for each in (12, 13, 14)))
    client.list_ledgers = FakeClient(*listed).list_ledgers  # type: ignore[method-assign]
    assert [first for first, *_ in spans(client, options())] == [1, 2, 3, 11, 12, 13, 14]
    assert client.bulk_reads[-3:] == [[2, 3], [12, 13], [14]]
    wide = options(ledger_range=LedgerRange(11, 13))
    assert [first for first, *_ in spans(client, wide)] == [11, 12, 13]
    assert len(client.id_listings) == 1, "what the read does not want was counted"


class Ordered(FakeClient):
    """Lists ids as the stores do: in the order of their bits."""

    listed: tuple[LedgerId, ...] = ()

    def list_ledgers(
        self, scope_id: int, start_after: int | None, end_before: int | None
    ) -> Iterator[list[LedgerRecord]]:
        low = -1 if start_after is None else unsigned(start_after)
        high = 1 << 64 if end_before is None else unsigned(end_before)
        in_scope = [each for each in self.records if each.scope_id == scope_id]
        self.listed = tuple(each for each in in_scope if low < unsigned(each.low) < high)
        yield [self.records[each] for each in sorted(self.listed, key=lambda each: unsigned(each.low))]


IDS = st.integers(-(2**63), 2**63 - 1) | st.sampled_from(
    [-(2**63), -(2**63) + 1, -2, -1, 0, 1, 2, 2**63 - 2, 2**63 - 1]
)
CONDITIONS: dict[type[Any], Callable[[int, int], bool]] = {
    EqualTo: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}


@pytest.mark.parametrize("scope", [0, 5, -5])
@settings(deadline=None)
@given(st.data())
def test_filters_and_ranges_leave_what_they_say_whatever_the_ids(scope: int, data: st.DataObject) -> None:
    ids = data.draw(st.sets(IDS if scope else IDS.filter(lambda each: each >= 0), max_size=12))
    client = Ordered(*(replace(ledger(1), ledger_id=LedgerId(scope, each)) for each in ids))
    near = IDS | st.sampled_from(sorted(ids)) if ids else IDS
    bounds, expected = Bounds(), set(ids)
    for kind, value in data.draw(st.lists(st.tuples(st.sampled_from(list(CONDITIONS)), near), max_size=3)):
        assert list(bounds.take([kind(("ledger_id",), value)])) == []
        expected = {each for each in expected if CONDITIONS[kind](each, value)}
    if data.draw(st.booleans()):
        listed = data.draw(st.lists(near, max_size=4))
        assert list(bounds.take([In(("ledger_id",), tuple(listed))])) == []
        expected &= set(listed)
    wanted = options(scope_id=scope)
    if data.draw(st.booleans()):
        first, last = sorted([data.draw(near), data.draw(near)])
        end = data.draw(st.sampled_from([last, None]))
        wanted = options(scope_id=scope, ledger_range=LedgerRange(first, end))
        expected = {each for each in expected if first <= each and (end is None or each <= end)}
    found = [each.ledger_id for page in selected_records(as_client(client), wanted, bounds) for each in page]
    assert sorted(each.low for each in found) == sorted(expected)
    whole = listing_ends(scope, wanted_range(wanted, bounds)) == (None, None)
    run = wanted_range(wanted, bounds)
    assert whole or all(each.low in run for each in client.listed), "more is listed than need be"


def test_a_ledger_of_a_committed_write_that_can_not_be_looked_up_is_an_error() -> None:
    client = FakeClient(sink_ledger(1, mark=[1, 2]))
    client.unreadable = {2}
    with pytest.raises(MetaStoreException, match="no gateway"):
        spans(client, options())


def spans(client: FakeClient, wanted: Options) -> list[tuple[int, int, int, int]]:
    return [
        (piece.ledger_id.low, piece.first_entry_id, piece.last_entry_id, piece.size)
        for piece in readable_slices(as_client(client), wanted)
    ]


def test_closed_ledgers_need_no_further_question() -> None:
    client = FakeClient(ledger(2), ledger(1, entries=3), ledger(3, entries=0))
    assert spans(client, options()) == [(1, 0, 2, 30), (2, 0, 9, 100)]
    assert client.opened == []


def test_open_ledgers_are_read_up_to_their_last_add_confirmed_without_recovery() -> None:
    client = FakeClient(ledger(1, entries=None), ledger(2, entries=3), ledger(3, entries=None))
    client.last_confirmed[LedgerId.unscoped(1)] = 6
    slices = readable_slices(as_client(client), options())
    assert [(s.ledger_id.low, s.last_entry_id, s.size) for s in slices] == [(1, 6, 70), (2, 2, 30)]
    assert client.recovered == []
    assert all(s.record.metadata.is_closed for s in slices)


@pytest.mark.parametrize("mode", [ReadMode.CONFIRMED, ReadMode.RECOVER])
def test_an_open_ledger_that_is_deleted_while_the_read_is_planned_is_as_one_deleted_before(mode: ReadMode) -> None:
    listed = FakeClient(ledger(1), ledger(2, entries=None), ledger(3, entries=None))
    client = FakeClient(ledger(1), ledger(3, entries=None))
    client.last_confirmed[LedgerId.unscoped(3)] = 6
    client.list_ledgers = listed.list_ledgers  # type: ignore[method-assign]
    assert [span[0] for span in spans(client, options(read_mode=mode))] == [1, 3]
    client.read_many = listed.read_many  # type: ignore[method-assign]
    asked_for = options(read_mode=mode, ledger_ids=(1, 2, 3))
    with pytest.raises(NoSuchLedgerExistsOnMetadataServerException, match=r"ledgerIds .*: 2; failOnDataLoss"):
        spans(client, asked_for)
    assert [span[0] for span in spans(client, replace(asked_for, fail_on_data_loss=False))] == [1, 3]


def test_recover_closes_open_ledgers_and_only_those() -> None:
    client = FakeClient(ledger(1, entries=None), ledger(2, entries=3))
    client.last_confirmed[LedgerId.unscoped(1)] = 6
    assert spans(client, options(read_mode=ReadMode.RECOVER)) == [(1, 0, 7, 80), (2, 0, 2, 30)]
    assert client.recovered == [LedgerId.unscoped(1)]


def unbounded(ledger_id: int, entries: int | None) -> LedgerRecord:
    record = ledger(ledger_id, entries)
    return replace(record, metadata=create_unbounded(record.metadata))


def test_an_unbounded_ledger_is_read_once_it_is_closed() -> None:
    client = FakeClient(ledger(1), unbounded(2, None), unbounded(3, 5))
    assert spans(client, options()) == [(1, 0, 9, 100), (3, 0, 4, 50)]
    assert spans(client, options(read_mode=ReadMode.RECOVER)) == [(1, 0, 9, 100), (3, 0, 4, 50)]
    assert client.opened == []
    with pytest.raises(IllegalOpException, match="ledger 2 of option ledgerIds is unbounded and not closed"):
        spans(client, options(ledger_ids=(1, 2)))


def test_wrong_password_and_digest_type_name_the_ledger_before_anything_is_opened() -> None:
    client = FakeClient(ledger(5), ledger(6, entries=None))
    with pytest.raises(UnauthorizedAccessException, match="ledger 5"):
        readable_slices(as_client(client), options(password=b"wrong"))
    with pytest.raises(DigestMatchException, match="ledger 5"):
        readable_slices(as_client(client), options(digest_type=DigestType.HMAC))
    assert client.opened == []


def no_pause(_seconds: float) -> None:
    pass


def read(
    client: FakeClient,
    piece: Slice,
    wanted: Options,
    losses: Losses | None = None,
    pause: Callable[[float], None] = no_pause,
) -> list[int]:
    batches = slice_entries(as_client(client), piece, wanted, losses or Losses(), pause)
    return [entry.entry_id for batch in batches for entry in batch]


def whole(record: LedgerRecord) -> Slice:
    return TemplateTable().slice_of(readable_record(record))


def test_a_slice_is_read_from_the_bookies_alone() -> None:
    client = FakeClient(ledger(1))
    assert read(client, whole(ledger(1)).between(2, 7), options()) == [2, 3, 4, 5, 6, 7]
    assert client.opened == client.asked == []
    assert client.open_handles == 0


def test_a_lost_entry_is_an_error_with_ledger_and_range() -> None:
    client = FakeClient(ledger(1))
    client.lost = {6}
    batches = slice_entries(as_client(client), whole(ledger(1)), options(), Losses())
    assert [entry.entry_id for _ in range(2) for entry in next(batches)] == [0, 1, 2, 3, 4, 5]
    with pytest.raises(NoSuchEntryException, match=r"entries 6 to 9 of ledger 1 .*failOnDataLoss=false"):
        next(batches)


@pytest.mark.parametrize("lost", [{0}, {9}, {3, 4}, {0, 2, 9}, set(range(10)), {5, 6, 7}])
def test_losses_are_skipped_and_counted_and_nothing_else_is(lost: set[int]) -> None:
    client, losses = FakeClient(ledger(1)), Losses()
    client.lost = lost
    assert read(client, whole(ledger(1)), options(fail_on_data_loss=False), losses) == sorted(set(range(10)) - lost)
    assert losses.entries == len(lost)


def test_a_ledger_that_was_deleted_is_skipped_at_once(caplog: pytest.LogCaptureFixture) -> None:
    client, losses = FakeClient(), Losses()
    client.lost = set(range(3, 10))
    assert read(client, whole(ledger(1)), options(fail_on_data_loss=False), losses) == [0, 1, 2]
    losses.report()
    assert losses.entries == 7
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "skipped entries 3 to 9 of ledger 1",
        "7 entries were lost and skipped (failOnDataLoss is false)",
    ]
    assert [getattr(record, "context") for record in caplog.records] == [  # noqa: B009
        {"ledger_id": "1", "first": "3", "last": "9"},
        {"lost_entries": "7"},
    ]


def moved(record: LedgerRecord, entry_id: int) -> LedgerRecord:
    """The ledger with its entries from `entry_id` on another bookie."""
    fragments = LedgerMetadata.new(["b:1"], 1, 1).with_ensemble(entry_id, ["c:1"]).fragments
    last = record.metadata.last_entry_id
    metadata = LedgerMetadata(1, 1, 1, fragments, password=b"planted-pw").close(last, ENTRY_SIZE * (last + 1))
    return LedgerRecord(record.ledger_id, metadata, record.version + 1)


def test_a_ledger_that_moved_is_read_on_from_where_it_is_now() -> None:
    client = FakeClient(moved(ledger(1), 0))
    client.gone = {"b:1"}
    assert read(client, whole(ledger(1)).between(1, 9), options()) == list(range(1, 10))
    assert client.asked == [LedgerId.unscoped(1)]


class Moved(FakeClient):
    """Bookies that have given a ledger's entries away say that they have none."""

    def error_at(self, record: LedgerRecord, entry_id: int) -> BKException | None:
        is_elsewhere = record.metadata.fragment_at(entry_id).ensemble != self.ensemble(record.ledger_id, entry_id)
        return NoSuchEntryException(f"no entry {entry_id} here") if is_elsewhere else super().error_at(record, entry_id)

    def ensemble(self, ledger_id: LedgerId, entry_id: int) -> tuple[str, ...]:
        return self.records[ledger_id].metadata.fragment_at(entry_id).ensemble


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("first", [0, 3, 9])
def test_what_moved_is_not_lost(fails: bool, first: int) -> None:
    client, losses = Moved(moved(ledger(1), first)), Losses()
    assert read(client, whole(ledger(1)), options(fail_on_data_loss=fails), losses) == list(range(10))
    assert losses.entries == 0


@pytest.mark.parametrize("is_known", [True, False])
def test_what_moved_is_not_lost_where_the_gateway_lags(is_known: bool) -> None:
    """It tells the ledger's metadata as they were, or does not know the ledger yet, until it has caught up."""

    class MovedUnseen(Lagging, Moved):
        def ensemble(self, ledger_id: LedgerId, entry_id: int) -> tuple[str, ...]:
            return self.newest[ledger_id].metadata.fragment_at(entry_id).ensemble

    client, losses = MovedUnseen(moved(ledger(1), 3), older=[ledger(1)] if is_known else []), Losses()
    assert read(client, whole(ledger(1)), options(fail_on_data_loss=False), losses) == list(range(10))
    assert losses.entries == 0


def test_what_moved_in_the_middle_of_losses_is_not_lost() -> None:
    client, losses = Moved(ledger(1)), Losses()
    client.lost = {2, 6}
    found = slice_entries(as_client(client), whole(ledger(1)), options(fail_on_data_loss=False), losses, no_pause)
    entries = [entry.entry_id for entry in next(found)] + [entry.entry_id for entry in next(found)]
    assert losses.entries == 1
    client.records[LedgerId(0, 1)] = moved(ledger(1), 5)
    entries += [entry.entry_id for batch in found for entry in batch]
    assert entries == [0, 1, 3, 4, 5, 7, 8, 9]
    assert losses.entries == 2


def test_nothing_is_called_lost_while_no_gateway_can_tell() -> None:
    client, losses, pauses = FakeClient(ledger(1)), Losses(), list[float]()
    client.lost = {4}
    client.no_gateway = True

    def pause(seconds: float) -> None:
        assert losses.entries == 0
        pauses.append(seconds)
        client.no_gateway = len(pauses) < 3

    skipping = options(fail_on_data_loss=False, num_retries=3)
    assert read(client, whole(ledger(1)), skipping, losses, pause) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert losses.entries == 1
    client.no_gateway = True
    with pytest.raises(MetaStoreException, match="entries 4 to 9 of ledger 1"):
        read(client, whole(ledger(1)), options(fail_on_data_loss=False, num_retries=2))


class Breaking(FakeClient):
    """The connection breaks once at each of these entries."""

    breaks: frozenset[int] = frozenset()

    def error_at(self, record: LedgerRecord, entry_id: int) -> BKException | None:
        if entry_id in self.breaks:
            self.breaks = self.breaks - {entry_id}
            return BookieHandleNotAvailableException("connection reset")
        return super().error_at(record, entry_id)


@given(st.sets(st.integers(0, 39)), st.sets(st.integers(0, 39), max_size=4), st.sets(st.integers(0, 39), max_size=4))
@example(lost={5}, breaks=set(), gaps={4})
@example(lost=set(), breaks={9}, gaps={3})
def test_every_entry_comes_once_and_every_loss_counts_once_whatever_fails_between(
    lost: set[int], breaks: set[int], gaps: set[int]
) -> None:
    """Gaps are where an unbounded ledger was taken over."""
    lost, client, losses = lost - gaps, Breaking(ledger(1, 40)), Losses()
    client.lost, client.breaks, client.gaps = lost, frozenset(breaks), gaps
    skipping = options(fail_on_data_loss=False, num_retries=4)
    assert read(client, whole(ledger(1, 40)), skipping, losses) == sorted(set(range(40)) - lost - gaps)
    assert losses.entries == len(lost)


def test_of_entries_that_are_lost_together_a_gateway_is_asked_once_and_one_line_tells(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """However many they are; once more where the read begins to fail, which may be since the ledger has moved."""
    client, losses = FakeClient(ledger(1, 1000)), Losses()
    client.lost = {*range(100, 900), 950}
    read(client, whole(ledger(1, 1000)), options(fail_on_data_loss=False), losses)
    assert losses.entries == 801
    assert (len(client.asked), client.catch_ups) == (3, 3)
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "skipped entries 100 to 899 of ledger 1",
        "skipped entries 950 to 950 of ledger 1",
    ]


def test_a_failure_among_lost_entries_does_not_read_them_again() -> None:
    """Else a long loss would never be passed where connections break now and then."""
    asked = list[int]()

    class Counting(Breaking):
        def error_at(self, record: LedgerRecord, entry_id: int) -> BKException | None:
            asked.append(entry_id)
            return super().error_at(record, entry_id)

    client, losses = Counting(ledger(1, 40)), Losses()
    client.lost, client.breaks = set(range(5, 35)), frozenset(range(20, 30))
    skipping = options(fail_on_data_loss=False, num_retries=1)
    assert read(client, whole(ledger(1, 40)), skipping, losses) == [*range(5), *range(35, 40)]
    assert losses.entries == 30
    assert asked.count(5) < 10, "a range is halved that often"


def test_trimmed_entries_are_skipped_at_once() -> None:
    class Trimmed(FakeClient):
        reads = 0

        def error_at(self, record: LedgerRecord, entry_id: int) -> BKException | None:
            self.reads += entry_id < 900
            return LedgerTrimmedException(f"entry {entry_id} was deleted", 900) if entry_id < 900 else None

    client, losses = Trimmed(ledger(1, 1000)), Losses()
    found = read(client, whole(ledger(1, 1000)), options(fail_on_data_loss=False), losses)
    assert found == list(range(900, 1000))
    assert (losses.entries, client.reads) == (900, 1)


def test_an_entry_that_was_trimmed_meanwhile_is_told_with_the_first_that_is_left() -> None:
    class Trimmed(FakeClient):
        def error_at(self, record: LedgerRecord, entry_id: int) -> BKException | None:
            return LedgerTrimmedException(f"entry {entry_id} was deleted", 4) if entry_id < 4 else None

    with pytest.raises(LedgerTrimmedException, match="entries 0 to 9 of ledger 1") as caught:
        read(Trimmed(ledger(1)), whole(ledger(1)), options())
    assert caught.value.first_available == 4


def test_a_dead_bookie_of_a_ledger_that_did_not_move_is_an_error() -> None:
    client = FakeClient(ledger(1))
    client.gone = {"b:1"}
    with pytest.raises(BookieHandleNotAvailableException, match="entries 0 to 9 of ledger 1"):
        read(client, whole(ledger(1)), options(fail_on_data_loss=False))


def test_a_failure_that_passes_is_tried_again_after_a_growing_pause() -> None:
    client, pauses = FakeClient(ledger(1)), list[float]()
    client.gone = {"b:1"}

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            client.gone = set()

    assert read(client, whole(ledger(1)), options(num_retries=3), pause=pause) == list(range(10))
    assert pauses == [0.2, 0.4, 0.8]
    client.gone = {"b:1"}
    pauses.clear()
    with pytest.raises(BookieHandleNotAvailableException, match="entries 0 to 9 of ledger 1"):
        read(client, whole(ledger(1)), options(num_retries=2), pause=pause)
    assert len(pauses) == 2


def test_what_another_try_would_not_mend_is_told_at_once() -> None:
    client, pauses = FakeClient(ledger(1)), list[float]()
    client.lost = {0}
    with pytest.raises(NoSuchEntryException):
        read(client, whole(ledger(1)), options(), pause=pauses.append)
    assert pauses == []


def test_a_ledger_deleted_meanwhile_reports_what_the_bookies_said() -> None:
    client = FakeClient()
    client.lost = {0}
    with pytest.raises(NoSuchEntryException, match="of ledger 1"):
        read(client, whole(ledger(1)), options())


def test_what_is_larger_than_its_metadata_say_is_not_in_memory_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read ahead as a small slice; then it waits for its turn."""
    monkeypatch.setitem(globals(), "ENTRY_SIZE", 1 << 20)
    asked = list[tuple[int, int]]()

    class Counting(FakeClient):
        def error_at(self, record: LedgerRecord, entry_id: int) -> BKException | None:
            asked.append((record.ledger_id.low, entry_id))
            return super().error_at(record, entry_id)

    client = Counting(*(ledger(number, 40) for number in range(1, 4)))
    slices = [whole(ledger(number, 40))._replace(size=0) for number in range(1, 4)]
    found = [
        (ledger_id.low, entry.entry_id)
        for ledger_id, entries in task_entries(cast(BookKeeper, client), slices, options(), Losses())
        for entry in entries
    ]
    assert found == [(number, entry_id) for number in range(1, 4) for entry_id in range(40)]
    assert len(asked) == len(found) + 3 * 8, "of each 5 MiB were read ahead, in batches of 4 entries"
    assert client.open_handles == 0


class Meeting(FakeClient):
    """Reads wait for others: one at a time they would wait in vain."""

    def __init__(self, *records: LedgerRecord, readers: int) -> None:
        super().__init__(*records)
        self.met = threading.Barrier(readers, timeout=30)

    def open_record(self, record: LedgerRecord, password: bytes) -> FakeHandle:
        self.met.wait()
        return super().open_record(record, password)


def test_small_slices_are_read_ahead_side_by_side_and_handed_over_in_order() -> None:
    records = [ledger(number) for number in range(16)]
    slices = [whole(record) for record in records]
    found = task_entries(as_client(Meeting(*records, readers=8)), slices, options(), Losses())
    assert [(number.low, len(batch)) for number, batch in found] == [
        (number, size) for number in range(16) for size in (4, 4, 2)
    ]


def test_a_read_that_was_abandoned_does_not_wait_for_what_is_read_ahead() -> None:
    """The collector may end it on the thread for which the reads wait."""
    goes_on = threading.Event()

    class Waiting(FakeClient):
        def open_record(self, record: LedgerRecord, password: bytes) -> FakeHandle:
            if record.ledger_id.low:
                goes_on.wait()
            return super().open_record(record, password)

    slices = [whole(ledger(number)) for number in range(16)]
    read_ahead = task_entries(as_client(Waiting()), slices, options(), Losses())
    assert isinstance(read_ahead, Generator)
    next(read_ahead)
    collecting = threading.Thread(target=read_ahead.close, daemon=True)
    collecting.start()
    collecting.join(10)
    try:
        assert not collecting.is_alive()
    finally:
        goes_on.set()


def test_what_fails_ahead_is_read_again_in_its_turn_and_large_slices_always_are() -> None:
    large = ledger(1, 3000)
    client, losses = FakeClient(ledger(0), large, ledger(2)), Losses()
    client.lost = {3}
    slices = [whole(record) for record in (ledger(0), large, ledger(2))]
    found = task_entries(as_client(client), slices, options(fail_on_data_loss=False), losses)
    entries = [(number.low, entry.entry_id) for number, batch in found for entry in batch]
    counts = [(number, entry) for number, end in enumerate((10, 3000, 10)) for entry in range(end) if entry != 3]
    assert entries == counts
    assert losses.entries == 3
    failing = task_entries(as_client(client), slices, options(), Losses())
    with pytest.raises(NoSuchEntryException, match="entries 3 to 9 of ledger 0"):
        list(failing)


class TestWorkerClients:
    def test_one_client_for_many_uses(self) -> None:
        made: list[FakeClient] = []
        clients = WorkerClients(lambda *_: as_client(_made(made)))
        for _ in range(3):
            with clients.use("g"):
                pass
        assert len(made) == 1

    def test_a_failure_throws_it_away_and_closes_it(self) -> None:
        made: list[FakeClient] = []
        clients = WorkerClients(lambda *_: as_client(_made(made)))
        with pytest.raises(BKException), clients.use("g"):
            raise BKException("no")
        with clients.use("g"):
            pass
        assert [client.closed for client in made] == [True, False]

    def test_a_reader_that_is_not_read_to_the_end_keeps_it(self) -> None:
        made: list[FakeClient] = []
        clients = WorkerClients(lambda *_: as_client(_made(made)))

        def rows() -> Iterator[int]:
            with clients.use("g"):
                yield 1
                yield 2

        iterator = rows()
        next(iterator)
        iterator.close()  # type: ignore[attr-defined]
        with clients.use("g"):
            assert [client.closed for client in made] == [False]

    def test_a_fork_makes_its_own_and_leaves_the_parents_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made: list[FakeClient] = []
        clients = WorkerClients(lambda *_: as_client(_made(made)))
        with clients.use("g"):
            pass
        child = os.getpid() + 1
        monkeypatch.setattr(os, "getpid", lambda: child)
        with clients.use("g"):
            pass
        assert [client.closed for client in made] == [False, False]

    def test_threads_that_begin_at_once_have_one_client(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As of a program that runs several exports. A second client would be kept, and the first one never closed."""
        made, both = list[FakeClient](), threading.Barrier(2)
        process, at_once = worker_client._Process, threading.Barrier(2, timeout=30)

        def of_each_thread() -> worker_client._Process:
            at_once.wait()
            return process()

        monkeypatch.setattr(worker_client, "_Process", of_each_thread)

        def connect(*_settings: object) -> BookKeeper:
            with suppress(threading.BrokenBarrierError):
                both.wait(timeout=0.2)
            return as_client(_made(made))

        clients = WorkerClients(connect)

        def use(_number: int) -> None:
            with clients.use("g"):
                pass

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(use, range(2)))
        assert [client.closed for client in made] == [False]
        assert clients.metrics() == {0: made[0].metrics}

    def test_uses_begin_and_end_while_one_connects(self) -> None:
        """As where the collector runs on the clients' event loop, for which a connection waits, and ends a use."""
        made, ended, waited = list[FakeClient](), threading.Event(), list[bool]()

        def rows() -> Generator[int, None, None]:
            with clients.use("a"):
                yield 1

        def end() -> None:
            abandoned.close()
            with clients.use("c"):
                ended.set()

        def connect(gateways: str, *_others: object) -> BookKeeper:
            if gateways == "b":
                threading.Thread(target=end, daemon=True).start()
                waited.append(ended.wait(10))
            return as_client(_made(made))

        clients = WorkerClients(connect)
        abandoned = rows()
        next(abandoned)
        with clients.use("b"):
            assert waited == [True]

    def test_a_use_that_was_abandoned_waits_for_nothing_and_closes_nothing(self) -> None:
        """The collector ends it in any thread, which may hold the lock or one that the event loop waits for. The next
        use counts the end.
        """
        made: list[FakeClient] = []
        clients = WorkerClients(lambda *_: as_client(_made(made)))

        def rows() -> Generator[int, None, None]:
            with clients.use("a"):
                yield 1

        abandoned = rows()
        next(abandoned)
        with pytest.raises(BKException), clients.use("a"):
            raise BKException("no")
        with clients._own().lock:
            collecting = threading.Thread(target=abandoned.close, daemon=True)
            collecting.start()
            collecting.join(10)
            assert not collecting.is_alive()
        abandoned = rows()
        next(abandoned)
        assert [client.closed for client in made] == [True, False]
        with pytest.raises(BKException), clients.use("a"):
            raise BKException("no")
        abandoned.close()
        assert [client.closed for client in made] == [True, False]
        with clients.use("b"):
            assert [client.closed for client in made] == [True, True, False]

    def test_a_use_that_fails_while_it_is_ended_waits_for_nothing_and_closes_nothing(self) -> None:
        """As where what an abandoned read has opened can't be closed. The next use closes the client."""
        made: list[FakeClient] = []
        clients = WorkerClients(lambda *_: as_client(_made(made)))

        def rows() -> Generator[int, None, None]:
            with clients.use("a"):
                try:
                    yield 1
                finally:
                    raise BKException("no")

        abandoned = rows()
        next(abandoned)
        with pytest.raises(BKException):
            abandoned.close()
        assert [client.closed for client in made] == [False]
        with clients.use("a"):
            assert [client.closed for client in made] == [True, False]

    def test_a_client_that_others_use_is_closed_by_the_last_of_them(self) -> None:
        made: list[FakeClient] = []
        clients = WorkerClients(lambda *_: as_client(_made(made)))
        with clients.use("g"):
            for _ in range(2):
                with pytest.raises(ValueError, match="a null"), clients.use("g"):
                    raise ValueError("a null")
            assert [client.closed for client in made] == [False, True]
            with clients.use("g"):
                assert len(made) == 3, "one that failed was given to another user"
        assert [client.closed for client in made] == [True, True, False]

    def test_who_waited_for_a_connection_that_failed_tries_for_itself(self) -> None:
        made, waits, tries = list[FakeClient](), threading.Event(), list[bool]()

        def connect(_gateways: str, _settings: object, plans: bool) -> BookKeeper:
            tries.append(plans)
            if plans:
                assert waits.wait(30)
                raise MetaStoreException("all gateways reject the connection")
            return as_client(_made(made))

        def use() -> None:
            with clients.use("g"):
                pass

        clients = WorkerClients(connect)
        with ThreadPoolExecutor(2) as pool:
            planning = pool.submit(lambda: clients.plan("g").__enter__())
            while not tries:
                time.sleep(0)
            reading = pool.submit(use)
            while next(iter(clients._own().clients.values())).users < 2:
                time.sleep(0)
            waits.set()
            assert isinstance(planning.exception(30), MetaStoreException)
            assert reading.exception(30) is None
        assert tries == [True, False]
        assert list(clients.metrics().values()) == [made[0].metrics]

    def test_who_concludes_from_listings_has_a_client_of_its_own(self) -> None:
        made: list[FakeClient] = []
        clients = WorkerClients(lambda *_: as_client(_made(made)))
        for lists_all in (False, True, True, False):
            with clients.use("g", lists_all=lists_all):
                pass
        assert [client.demands_all for client in made] == [False, True]

    def test_a_few_unused_clients_are_kept_and_the_others_closed(self) -> None:
        """A process lives through many jobs, and each may have settings of its own, as a token that is renewed."""
        made: list[FakeClient] = []
        clients = WorkerClients(lambda *_: as_client(_made(made)))
        with clients.use("in use"), clients.use("in use"):
            for number in range(20):
                with clients.use("often used"):
                    pass
                with clients.use("g", (("auth_token", str(number)),)):
                    assert not made[-1].closed
            assert [client.closed for client in made] == [False, False, *[True] * 17, *[False] * 3]
            assert len(clients.metrics()) == 5
        assert [number for number, client in enumerate(made) if not client.closed] == [0, 1, 20, 21]

    def test_a_client_has_its_number_as_long_as_it_lives(self) -> None:
        """It is a label of metrics: a counter of one is not continued by another, except from nothing."""
        made: list[FakeClient] = []
        clients = WorkerClients(lambda *_: as_client(_made(made)))
        for gateways in "abc":
            with clients.use(gateways):
                pass
        with pytest.raises(BKException), clients.use("b"):
            raise BKException("no")
        assert clients.metrics() == {0: made[0].metrics, 2: made[2].metrics}
        with clients.use("d"):
            assert clients.metrics() == {0: made[0].metrics, 2: made[2].metrics, 1: made[3].metrics}

    def test_a_plan_and_a_commit_catch_up_with_the_store_first(self) -> None:
        """Each time: the process keeps its client, and others go on meanwhile."""
        made: list[FakeClient] = []
        clients = WorkerClients(lambda *_: as_client(_made(made)))
        with clients.use("g"):
            assert made[0].catch_ups == 0, "a task has all that it needs"
        for number in range(2):
            with clients.plan("g"):
                assert made[0].catch_ups == number + 1
        with clients.use("g", lists_all=True, catches_up=True):
            assert made[1].catch_ups == 1

    def test_who_can_not_catch_up_does_not_go_on(self) -> None:
        made: list[FakeClient] = []
        clients = WorkerClients(lambda *_: as_client(_made(made)))
        with clients.use("g"):
            made[0].is_behind = MetaStoreException("no gateway")
        with pytest.raises(MetaStoreException, match="no gateway"), clients.plan("g"):
            raise AssertionError("it went on")
        assert made[0].closed

    def test_gateways_that_tell_no_revision_are_used_as_before(self) -> None:
        made: list[FakeClient] = []
        clients = WorkerClients(lambda *_: as_client(_made(made)))
        with clients.use("g"):
            made[0].is_behind = NoRevisionException("older")
        with clients.plan("g"):
            assert not made[0].closed


def _made(made: list[FakeClient]) -> FakeClient:
    made.append(FakeClient())
    return made[-1]


def test_clients_differ_by_their_settings() -> None:
    made: list[object] = []

    def connect(gateways: str, settings: tuple[tuple[str, str], ...], plans: bool) -> BookKeeper:
        made.append((gateways, settings))
        return as_client(FakeClient())

    clients = WorkerClients(connect)
    secured = (("bookie_tls", "native"),)
    for given_settings in ((), secured, secured, ()):
        with clients.use("g", given_settings):
            pass
    assert made == [("g", ()), ("g", secured)]
