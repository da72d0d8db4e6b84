"""The driver's side of a stream over ledgers in memory: what is asked of whom, offsets, tasks, losses."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, ReadMinRows

from bookgate.ledger.bookie_registry import ClusterInfo
from bookgate.ledger.entry import Entry
from bookgate.ledger.errors import (
    BKException,
    BookieHandleNotAvailableException,
    DigestMatchException,
    LedgerTrimmedException,
    MetaStoreException,
    NoSuchLedgerExistsOnMetadataServerException,
    UnauthorizedAccessException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.unbounded import close_unbounded, create_unbounded, trim
from bookgate.thinclient.spark.commit_protocol import Write, attempt_metadata, with_claim, with_mark
from bookgate.thinclient.spark.options.read_options import OptionError, Options, parse_options
from bookgate.thinclient.spark.reading.batch import EntriesPartition
from bookgate.thinclient.spark.streaming import stream as stream_module
from bookgate.thinclient.spark.streaming.stream import EntriesStreamReader

ENTRY_SIZE = 10


class Ledgers:
    """A client's ledgers in memory; counts what it is asked for."""

    def __init__(self) -> None:
        self.records: dict[int, LedgerRecord] = {}
        self.confirmed: dict[int, int] = {}
        self.errors: list[BKException] = []
        self.metadata_reads: list[list[int]] = []
        self.asked_bookies: list[list[int]] = []
        self.ledger_manager = self
        self.service_discovery = self
        self.cluster = "one"

    def cluster_info(self) -> ClusterInfo:
        return ClusterInfo(self.cluster, "")

    def add(self, number: int, entries: int, *, close: bool = True, custom: dict[str, bytes] | None = None) -> None:
        metadata = LedgerMetadata.new(
            ["a", "b"], 2, 2, password=b"planted-p", custom_metadata=custom, ctime_ms=number * 1000
        )
        self.records[number] = LedgerRecord(LedgerId(0, number), metadata, 0)
        self.confirmed[number] = entries - 1
        if close:
            self.close(number)

    def trim(self, number: int, entries: int, before: int, length: int | None = None) -> None:
        """A closed unbounded ledger with so many entries, of which those before are deleted."""
        metadata = create_unbounded(LedgerMetadata.new(["a", "b"], 2, 2, password=b"planted-p", ctime_ms=1))
        closed = close_unbounded(metadata, entries - 1, entries * ENTRY_SIZE if length is None else length)
        self.records[number] = LedgerRecord(LedgerId(0, number), trim(closed, before), before)
        self.confirmed[number] = entries - 1

    def grow(self, number: int, entries: int) -> None:
        self.confirmed[number] += entries

    def mark(self, number: int, ids: Sequence[int]) -> None:
        record = self.records[number]
        self.records[number] = LedgerRecord(record.ledger_id, with_mark(record.metadata, ids), record.version + 1)

    def ledger_ranges(self, scope: int, after: int | None, before: int | None) -> Iterator[Sequence[int]]:
        low, high = -1 if after is None else after, 1 << 62 if before is None else before
        yield [number for number in sorted(self.records) if low < number < high]

    def read_many(self, ids: Sequence[LedgerId]) -> list[LedgerRecord | BKException]:
        self.metadata_reads.append([each.low for each in ids])
        missing = NoSuchLedgerExistsOnMetadataServerException()
        return [self.records.get(each.low, missing) for each in ids]

    def list_ledgers(self, scope_id: int, start_after: int | None, end_before: int) -> Iterator[list[LedgerRecord]]:
        yield [record for number, record in sorted(self.records.items()) if number < end_before]

    def last_adds_confirmed(self, records: Sequence[LedgerRecord], password: bytes) -> list[int | BKException]:
        for record in records:
            self.open_record(record, password)
        open_ones = [record for record in records if not record.metadata.is_closed]
        self.asked_bookies.append([record.ledger_id.low for record in open_ones])
        answers: list[int | BKException] = []
        for record in records:
            failed = self.errors and not record.metadata.is_closed
            answers.append(self.errors.pop() if failed else self.confirmed[record.ledger_id.low])
        return answers

    def open_record(self, record: LedgerRecord, password: bytes) -> Ledgers:
        if password != b"planted-p":
            raise UnauthorizedAccessException(str(record.ledger_id))
        return self

    def bookies(self, _which: object) -> list[object]:
        return []

    def close(self, number: int | None = None) -> None:
        """Of a handle, or of a ledger."""
        if number is None:
            return
        record, last = self.records[number], self.confirmed[number]
        metadata = record.metadata.close(last, (last + 1) * ENTRY_SIZE)
        self.records[number] = LedgerRecord(record.ledger_id, metadata, record.version + 1)

    def __enter__(self) -> Ledgers:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def read(self, first: int, last: int) -> Iterator[Entry]:
        yield Entry(0, last, last - 1, (last + 1) * ENTRY_SIZE, b"x" * ENTRY_SIZE)


@pytest.fixture
def ledgers(monkeypatch: pytest.MonkeyPatch) -> Ledgers:
    made = Ledgers()

    class OneClient:
        @contextmanager
        def plan(self, _gateways: str, _settings: object) -> Iterator[Ledgers]:
            yield made

    monkeypatch.setattr(stream_module, "clients", OneClient())
    return made


def options(**given: object) -> Options:
    return parse_options(
        {"gateways": "g:1", "password": "planted-p", **{name: str(value) for name, value in given.items()}}
    )


class Query:
    """What Spark does with a reader, trigger by trigger; offsets go through JSON as they do there."""

    def __init__(self, **given: object) -> None:
        self.options = options(**given)
        self.reader = EntriesStreamReader(self.options)
        self.offset = self._json(self.reader.initialOffset())
        self.limit: ReadLimit = self.reader.getDefaultReadLimit()
        self.read: list[tuple[int, int]] = []
        self.batches: list[tuple[Any, Any]] = []

    @staticmethod
    def _json(document: Any) -> Any:
        return json.loads(json.dumps(document))

    def restart(self) -> None:
        self.reader = EntriesStreamReader(self.options)

    def trigger(self) -> list[tuple[int, int]]:
        """The new rows; nothing when the offset stays as it is."""
        end = self._json(self.reader.latestOffset(self.offset, self.limit))
        if json.dumps(end) == json.dumps(self.offset):
            return []
        found = self.rows(self.offset, end)
        self.batches.append((self.offset, end))
        self.read += found
        self.offset = end
        self.reader.commit(end)
        return found

    def rows(self, start: Any, end: Any) -> list[tuple[int, int]]:
        return rows_of(self.reader.partitions(start, end))


def rows_of(partitions: Sequence[InputPartition]) -> list[tuple[int, int]]:
    found = []
    for partition in partitions:
        assert isinstance(partition, EntriesPartition)
        for piece in partition.slices:
            assert piece.record.metadata.is_closed, "executors need no more than a snapshot"
            assert piece.last_entry_id <= piece.record.metadata.last_entry_id
            number = piece.ledger_id.low
            found += [(number, entry) for entry in range(piece.first_entry_id, piece.last_entry_id + 1)]
    return sorted(found)


def tasks(partitions: Sequence[InputPartition]) -> list[list[tuple[int, int]]]:
    return [rows_of([partition]) for partition in partitions]


def entries(number: int, *which: int) -> list[tuple[int, int]]:
    return [(number, entry) for entry in range(*which)]


def test_only_what_can_have_changed_is_asked_for(ledgers: Ledgers) -> None:
    for number in range(50):
        ledgers.add(number, 2)
    ledgers.add(50, 3, close=False)
    query = Query()
    assert len(query.trigger()) == 103
    assert ledgers.metadata_reads == [list(range(51))]
    ledgers.metadata_reads.clear()
    ledgers.grow(50, 2)
    ledgers.add(51, 1)
    assert query.trigger() == [*entries(50, 3, 5), (51, 0)]
    assert ledgers.metadata_reads == [[50, 51]], "planning asked again, or finished ledgers were"
    assert ledgers.asked_bookies[-1] == [50]
    ledgers.close(50)
    assert query.trigger() == [], "a trigger for nothing"
    ledgers.add(52, 1)
    assert query.trigger() == [(52, 0)]
    assert query.offset["ledgers"] == {}
    ledgers.metadata_reads.clear()
    assert query.trigger() == []
    assert ledgers.metadata_reads == []


def test_nothing_is_kept_of_ledgers_that_are_closed_or_deleted_while_they_grow(ledgers: Ledgers) -> None:
    for number in (1, 2, 3):
        ledgers.add(number, 3, close=False)
    query = Query()
    query.reader.prepareForTriggerAvailableNow()
    assert query.reader._available._lengths.keys() == {1, 2, 3}
    del ledgers.records[1]
    ledgers.close(2)
    query.trigger()
    assert query.reader._available._lengths.keys() == {3}


def test_nothing_is_kept_of_ledgers_that_were_left_out_and_are_gone(ledgers: Ledgers) -> None:
    """One that is made anew with an id that was left out is looked at."""
    for number in (1, 2):
        ledgers.add(number, 1, custom={"app": b"b"})
    query = Query(**{"customMetadata.app": "a"})
    assert query.trigger() == []
    assert set(query.reader._available._left_out) == {1, 2}
    del ledgers.records[1]
    query.trigger()
    assert set(query.reader._available._left_out) == {2}
    ledgers.metadata_reads.clear()
    ledgers.add(1, 3, custom={"app": b"a"})
    assert query.trigger() == entries(1, 3)
    assert ledgers.metadata_reads == [[1]]


def test_nothing_is_kept_of_lost_ledgers_that_are_done(ledgers: Ledgers, caplog: pytest.LogCaptureFixture) -> None:
    for number in (1, 2):
        ledgers.add(number, 3, close=False)
    query = Query(failOnDataLoss=False)
    query.trigger()
    for number in (1, 2):
        del ledgers.records[number]
    for number in (3, 4, 5):
        ledgers.add(number, 1)
        query.trigger()
    assert query.reader._available._lost == set()
    assert caplog.text.count("deleted before they were read") == 1


def test_nothing_is_kept_of_trimmed_ledgers_that_are_done(ledgers: Ledgers) -> None:
    ledgers.trim(1, 20, 0)
    query = Query(maxEntriesPerTrigger=5, failOnDataLoss=False)
    query.trigger()
    ledgers.trim(1, 20, 18)
    query.trigger()
    assert query.reader._available._trimmed == {1: 18}
    while query.trigger():
        pass
    assert query.reader._available._trimmed == {}


def test_a_restarted_driver_plans_a_begun_batch_as_before(ledgers: Ledgers) -> None:
    ledgers.add(1, 9, close=False)
    ledgers.add(2, 4)
    query = Query(maxEntriesPerTrigger=5)
    while query.trigger():
        pass
    ledgers.grow(1, 5)
    ledgers.close(1)
    planned = [query.rows(start, end) for start, end in query.batches]
    query.restart()
    assert [query.rows(start, end) for start, end in query.batches] == planned
    assert query.trigger() == entries(1, 9, 14)
    assert sorted(query.read) == [*entries(1, 14), *entries(2, 4)]


@pytest.mark.parametrize("closed", [True, False])
def test_a_repeated_batch_is_cut_into_the_same_tasks(
    ledgers: Ledgers, monkeypatch: pytest.MonkeyPatch, closed: bool
) -> None:
    """By another driver, with more cores, which finds a ledger longer, or closed: a sink writes by partition."""
    monkeypatch.setitem(globals(), "ENTRY_SIZE", 10_000)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    ledgers.add(1, 100, close=False)
    ledgers.add(2, 30)
    ledgers.add(3, 40)
    query = Query(maxEntriesPerTrigger=150)
    end = query._json(query.reader.latestOffset(query.offset, query.limit))
    planned = tasks(query.reader.partitions(query.offset, end))
    assert len(planned) > 4
    ledgers.grow(1, 500)
    if closed:
        ledgers.close(1)
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    query.restart()
    assert tasks(query.reader.partitions(query.offset, end)) == planned
    # A checkpoint of an earlier release does not say what the batch was planned with.
    del end["cores"], end["sizes"]
    assert query.rows(query.offset, end) == sorted(row for task in planned for row in task)


@pytest.mark.parametrize("meanwhile", ["metadata", "bookies", "planned"])
def test_a_repeated_batch_is_cut_at_the_same_entries(
    ledgers: Ledgers, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    """The ensemble is changed after the ledger's metadata, or its bookies, were asked; or the batch was planned, and a
    recovery changes it from an entry below the batch's end on.
    """
    monkeypatch.setitem(globals(), "ENTRY_SIZE", 10_000)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    ledgers.add(1, 20, close=False)
    query, asked = Query(), ledgers.last_adds_confirmed

    def change() -> None:
        record = ledgers.records[1]
        changed = record.metadata.with_ensemble(13 if meanwhile == "planned" else 20, ["a", "c"])
        ledgers.records[1] = LedgerRecord(record.ledger_id, changed, record.version + 1)
        if meanwhile != "planned":
            ledgers.grow(1, 50)

    def asked_meanwhile(records: Sequence[LedgerRecord], password: bytes) -> list[int | BKException]:
        if meanwhile == "metadata":
            change()
        answers = asked(records, password)
        if meanwhile == "bookies":
            change()
        return answers

    monkeypatch.setattr(ledgers, "last_adds_confirmed", asked_meanwhile)
    end = query._json(query.reader.latestOffset(query.offset, query.limit))
    planned = tasks(query.reader.partitions(query.offset, end))
    assert len(planned) > 3
    if meanwhile == "planned":
        change()
        ledgers.close(1)
    query.restart()
    assert tasks(query.reader.partitions(query.offset, end)) == planned


def test_readers_travel_to_the_tasks_without_the_drivers_state(ledgers: Ledgers) -> None:
    ledgers.add(1, 1)
    query = Query()
    query.trigger()
    copied = pickle.loads(pickle.dumps(query.reader))
    assert list(copied.read(InputPartition(None))) == []
    assert "_available" not in vars(copied)


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        ({}, ReadAllAvailable()),
        ({"maxEntriesPerTrigger": 7}, ReadMaxRows(7)),
        ({"maxBytesPerTrigger": "1k"}, ReadMaxBytes(1024)),
        ({"maxEntriesPerTrigger": 7, "maxBytesPerTrigger": "1k"}, ReadMaxRows(7)),
    ],
)
def test_the_limit_that_spark_is_told(given: dict[str, object], limit: ReadLimit) -> None:
    assert EntriesStreamReader(options(**given)).getDefaultReadLimit() == limit


def test_limits_hold_alone_and_together(ledgers: Ledgers) -> None:
    ledgers.add(1, 100)
    assert len(Query(maxEntriesPerTrigger=30).trigger()) == 30
    assert len(Query(maxBytesPerTrigger=200).trigger()) == 20
    assert len(Query(maxEntriesPerTrigger=30, maxBytesPerTrigger=200).trigger()) == 20
    once = Query(maxEntriesPerTrigger=30, maxBytesPerTrigger=200)
    once.limit = ReadAllAvailable()
    assert len(once.trigger()) == 100
    strange = Query()
    strange.limit = ReadMinRows(5)
    with pytest.raises(OptionError, match="ReadMinRows"):
        strange.trigger()


def test_available_now_ends_where_things_stood(ledgers: Ledgers) -> None:
    ledgers.add(1, 10, close=False)
    ledgers.add(2, 5)
    query = Query(maxEntriesPerTrigger=4)
    query.reader.prepareForTriggerAvailableNow()
    ledgers.grow(1, 10)
    ledgers.close(1)
    ledgers.add(3, 7)
    counts = []
    while found := query.trigger():
        counts.append(len(found))
    assert counts == [4, 4, 4, 3]
    assert sorted(query.read) == [*entries(1, 10), *entries(2, 5)]
    query.restart()
    query.reader.prepareForTriggerAvailableNow()
    while query.trigger():
        pass
    assert sorted(query.read) == [*entries(1, 20), *entries(2, 5), *entries(3, 7)]


def test_progress_tells_where_everything_ends_and_how_far_behind_the_stream_is(ledgers: Ledgers) -> None:
    query = Query(maxEntriesPerTrigger=6)
    assert query.reader.reportLatestOffset() is None
    ledgers.add(1, 10, close=False)
    ledgers.add(2, 2)
    query.trigger()
    report = query.reader.reportLatestOffset()
    assert report is not None
    assert report["ledgers"] == {"1": 10}
    assert report["metrics"] == {
        "minOffsetsBehindLatest": "1",
        "maxOffsetsBehindLatest": "5",
        "avgOffsetsBehindLatest": "3.0",
    }


def test_selection_and_timestamps(ledgers: Ledgers) -> None:
    for number in range(1, 6):
        ledgers.add(number, 1, custom={"app": b"a" if number % 2 else b"b"})
    assert Query(ledgerIds="2,4").trigger() == [(2, 0), (4, 0)]
    assert Query(ledgerRange="3-").trigger() == [(3, 0), (4, 0), (5, 0)]
    assert Query(startingTimestamp=4000).trigger() == [(4, 0), (5, 0)]
    query = Query(**{"customMetadata.app": "a"})
    assert query.trigger() == [(1, 0), (3, 0), (5, 0)]
    ledgers.metadata_reads.clear()
    assert query.trigger() == []
    assert ledgers.metadata_reads == [], "ledgers that are not wanted were looked at again"


def test_ledgers_of_a_sink_are_read_when_they_are_committed(ledgers: Ledgers) -> None:
    for number in (1, 2):
        ledgers.add(number, 1, custom=attempt_metadata(Write("q"), "0.0.0"))
    ledgers.add(3, 1)
    query, everything = Query(), Query(includeUncommitted=True)
    assert query.trigger() == [(3, 0)]
    assert len(everything.trigger()) == 3
    ledgers.mark(1, [1, 2])
    assert query.trigger() == [(1, 0), (2, 0)]


def test_a_selection_without_the_lead_reads_what_its_driver_had_no_time_to_mark(ledgers: Ledgers) -> None:
    for number in (1, 2):
        ledgers.add(number, 1, custom=attempt_metadata(Write("q"), "0.0.0"))
    claimed = ledgers.records[2]
    ledgers.records[2] = LedgerRecord(claimed.ledger_id, with_claim(claimed.metadata, 1), 1)
    query = Query(ledgerRange="2-")
    assert query.trigger() == []
    ledgers.mark(1, [1, 2])
    assert query.trigger() == [(2, 0)]


def test_what_a_lead_names_is_read_though_the_lead_was_read_before(ledgers: Ledgers) -> None:
    def add(number: int) -> None:
        ledgers.add(number, 1, custom=attempt_metadata(Write("q"), "0.0.0"))

    add(1)
    ledgers.mark(1, [1, 2, 3])
    query = Query()
    assert query.trigger() == [(1, 0)]
    # It was created behind the listing; whoever should set its mark died.
    add(2)
    assert query.trigger() == [(2, 0)]
    add(3)
    query.restart()
    assert query.trigger() == [(3, 0)]
    add(4)
    query.restart()
    for _ in range(2):
        assert query.trigger() == [], "no lead names it"
    assert query.reader._available._leads == [], "leads pile up"


def test_a_deleted_ledger_is_an_error_that_names_it_or_given_up_once(
    ledgers: Ledgers, caplog: pytest.LogCaptureFixture
) -> None:
    ledgers.add(1, 8)
    ledgers.add(2, 8)
    query, brave = Query(maxEntriesPerTrigger=4), Query(maxEntriesPerTrigger=4, failOnDataLoss=False)
    query.trigger()
    brave.trigger()
    del ledgers.records[1]
    with pytest.raises(NoSuchLedgerExistsOnMetadataServerException, match=r"1 \(entries from 2 on\).*failOnDataLoss"):
        query.trigger()
    while brave.trigger():
        pass
    assert sorted(brave.read) == [*entries(1, 2), *entries(2, 8)]
    assert brave.offset["ledgers"] == {}
    assert caplog.text.count("went on without them") == 1


def test_a_ledger_that_is_deleted_between_offset_and_tasks(ledgers: Ledgers) -> None:
    for given in ({}, {"failOnDataLoss": "false"}):
        ledgers.add(1, 3)
        query = Query(**given)
        end = query.reader.latestOffset(query.offset, query.limit)
        del ledgers.records[1]
        query.restart()
        if given:
            assert query.rows(query.offset, end) == []
        else:
            with pytest.raises(NoSuchLedgerExistsOnMetadataServerException, match=r"1 \(entries from 0 on\)"):
                query.rows(query.offset, end)


@pytest.mark.parametrize("given", [{"maxEntriesPerTrigger": 100}, {"maxBytesPerTrigger": 1000}])
def test_no_trigger_is_spent_on_entries_that_a_trim_has_deleted(ledgers: Ledgers, given: dict[str, object]) -> None:
    ledgers.trim(1, 100_000, 99_990)
    ledgers.trim(2, 100, 100)
    ledgers.add(3, 50)
    query = Query(**given)
    assert query.trigger() == [*entries(1, 99_990, 100_000), *entries(3, 50)]
    assert query.offset["ledgers"] == {}
    assert query.trigger() == []


@pytest.mark.parametrize("trigger", ["processingTime", "availableNow"])
def test_a_trim_of_a_ledger_that_waits_is_no_loss(ledgers: Ledgers, trigger: str) -> None:
    ledgers.trim(1, 10, 0)
    ledgers.trim(2, 1000, 0)
    query = Query(maxEntriesPerTrigger=1)
    if trigger == "availableNow":
        query.reader.prepareForTriggerAvailableNow()
    assert query.trigger() == [(1, 0)]
    ledgers.trim(2, 1000, 998)
    for _ in range(11):
        assert query.trigger(), "a trigger without a row"
    assert sorted(query.read) == [*entries(1, 10), *entries(2, 998, 1000)]


@pytest.mark.parametrize("left", [30, 0])
def test_what_a_trim_deletes_of_a_begun_ledger_is_an_error_or_told_once(
    ledgers: Ledgers, caplog: pytest.LogCaptureFixture, left: int
) -> None:
    ledgers.trim(1, 100, 0)
    query, brave = (Query(maxEntriesPerTrigger=20, failOnDataLoss=fails) for fails in (True, False))
    assert query.trigger() == brave.trigger() == entries(1, 20)
    ledgers.trim(1, 100, 100 - left)
    with pytest.raises(LedgerTrimmedException, match=rf"1 \(entries 20 to {99 - left}\).*failOnDataLoss"):
        query.trigger()
    ledgers.add(2, 1)
    while brave.trigger():
        pass
    assert sorted(brave.read) == [*entries(1, 20), *entries(1, 100 - left, 100), (2, 0)]
    assert brave.offset["ledgers"] == {}
    assert caplog.text.count("went on without them") == 1


@pytest.mark.parametrize("deleted", [0, 10])
def test_a_repeated_batch_of_which_a_trim_has_deleted_entries_is_an_error(ledgers: Ledgers, deleted: int) -> None:
    """What had been deleted when the batch was planned is none of it."""
    ledgers.trim(1, 100, deleted)
    query = Query(maxEntriesPerTrigger=80 - deleted)
    end = query._json(query.reader.latestOffset(query.offset, query.limit))
    assert query.rows(query.offset, end) == entries(1, deleted, 80)
    query.restart()
    assert query.rows(query.offset, end) == entries(1, deleted, 80)
    ledgers.trim(1, 100, 70)
    query.restart()
    with pytest.raises(LedgerTrimmedException, match=rf"1 \(entries {deleted} to 69\).*failOnDataLoss"):
        query.rows(query.offset, end)
    query.options = options(failOnDataLoss=False)
    query.restart()
    assert query.rows(query.offset, end) == entries(1, 70, 80)


def test_a_repeated_batch_is_cut_as_before_whatever_was_deleted_in_front_of_it(ledgers: Ledgers) -> None:
    ledgers.trim(1, 100, 0, length=1_000_018)
    query = Query(maxEntriesPerTrigger=61)
    query.trigger()
    end = query._json(query.reader.latestOffset(query.offset, query.limit))

    def sizes() -> list[int]:
        parts = query.reader.partitions(query.offset, end)
        return [piece.size for part in parts for piece in cast(EntriesPartition, part).slices]

    planned = sizes()
    for before in range(1, 61):
        ledgers.trim(1, 100, before, length=1_000_018)
        query.restart()
        assert sizes() == planned


@pytest.mark.parametrize("fails_on_loss", [True, False])
def test_a_finished_ledger_that_still_looks_open_is_an_error(ledgers: Ledgers, fails_on_loss: bool) -> None:
    """The batch was planned, its driver died, and what the next one reads of the metadata is older."""
    query = Query(failOnDataLoss=fails_on_loss)
    ledgers.add(7, 5, close=False)
    older = ledgers.records[7]
    ledgers.close(7)
    end = query._json(query.reader.latestOffset(query.offset, query.limit))
    planned = query.rows(query.offset, end)
    query.restart()
    newest, ledgers.records[7] = ledgers.records[7], older
    with pytest.raises(MetaStoreException, match=r"ledger 7 is OPEN .* checkpoint has it as closed"):
        query.rows(query.offset, end)
    ledgers.records[7] = newest
    assert query.rows(query.offset, end) == planned == entries(7, 5)


def test_a_ledger_asked_for_by_id_has_to_exist(ledgers: Ledgers) -> None:
    ledgers.add(1, 3)
    with pytest.raises(NoSuchLedgerExistsOnMetadataServerException, match="77"):
        Query(ledgerIds="1,77").trigger()
    assert Query(ledgerIds="1,77", failOnDataLoss=False).trigger() == entries(1, 3)


def test_options_that_leave_a_begun_ledger_out_keep_its_place(ledgers: Ledgers) -> None:
    ledgers.add(1, 8, close=False)
    query = Query()
    query.trigger()
    ledgers.grow(1, 4)
    ledgers.add(2, 1)
    query.options = options(ledgerRange="2-")
    query.restart()
    assert query.trigger() == [(2, 0)]
    query.options = options()
    query.restart()
    assert query.trigger() == entries(1, 8, 12)


@pytest.mark.parametrize("available_now", [True, False])
@pytest.mark.parametrize("starts", [(500, 3000), (500, None), (500, 0)])
def test_the_time_that_a_query_began_with_counts_whatever_its_later_starts_say(
    ledgers: Ledgers, starts: tuple[int, int | None], available_now: bool
) -> None:
    """As of a program that names an hour ago each time it is started."""
    began, now = starts
    ledgers.add(0, 1)
    ledgers.add(1, 4, close=False)
    query = Query(startingTimestamp=began)
    assert query.trigger() == entries(1, 4)
    ledgers.grow(1, 3)
    ledgers.close(1)
    ledgers.add(2, 2)
    query.options = options(**({} if now is None else {"startingTimestamp": now}))
    for number, found in ((4, [*entries(1, 4, 7), *entries(2, 2), (4, 0)]), (5, [(5, 0)])):
        ledgers.add(number, 1)
        query.restart()
        if available_now:
            query.reader.prepareForTriggerAvailableNow()
        assert query.trigger() == found
        assert query.trigger() == []


def test_the_time_of_a_query_that_an_earlier_release_began_is_that_of_its_next_start(ledgers: Ledgers) -> None:
    ledgers.add(1, 1)
    query = Query()
    query.trigger()
    del query.offset["of"]
    ledgers.add(3, 1)
    ledgers.add(4, 1)
    query.options = options(startingTimestamp=4000)
    query.restart()
    assert query.trigger() == [(4, 0)]
    query.options = options(startingTimestamp=9000)
    query.restart()
    ledgers.add(5, 1)
    assert query.trigger() == [(5, 0)]


@pytest.mark.parametrize("what", ["cluster", "scope"])
def test_a_checkpoint_of_another_cluster_or_scope_is_refused(ledgers: Ledgers, what: str) -> None:
    """Its ids would be taken for ledgers that were read, and a batch that was begun would be read of others."""
    ledgers.add(1, 3)
    query = Query()
    query.trigger()
    if what == "cluster":
        ledgers.cluster = "another"
        told = "of scope 0 of the cluster one, .* name scope 0 of the cluster another"
    else:
        query.options = options(scopeId=5)
        told = "of scope 0 of the cluster one, .* name scope 5 of the cluster one"
    for available_now in (True, False):
        query.restart()
        if available_now:
            query.reader.prepareForTriggerAvailableNow()
        with pytest.raises(OptionError, match=f"{told}.*new checkpoint"):
            query.trigger()
    query.restart()
    with pytest.raises(OptionError, match=told):
        query.rows(*query.batches[0])


def test_errors_before_anything_is_read(ledgers: Ledgers) -> None:
    ledgers.add(1, 3)
    with pytest.raises(UnauthorizedAccessException):
        Query(password="wrong").trigger()
    with pytest.raises(DigestMatchException, match="ledger 1"):
        Query(digestType="HMAC").trigger()


def test_bookies_that_do_not_answer_are_asked_again(ledgers: Ledgers, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    ledgers.add(1, 3, close=False)
    ledgers.add(2, 3, close=False)
    query = Query(numRetries=2)
    monkeypatch.setattr(cast(Any, query.reader)._available, "_pause", pauses.append)
    ledgers.errors = [BookieHandleNotAvailableException("b"), BookieHandleNotAvailableException("b")]
    assert len(query.trigger()) == 6
    assert len(pauses) == 1
    ledgers.errors = [BookieHandleNotAvailableException("b")] * 9
    with pytest.raises(BookieHandleNotAvailableException, match="ledger 1 may be read"):
        query.trigger()


def test_sizes_of_open_ledgers_are_measured_seldom(ledgers: Ledgers, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[int] = []
    read = Ledgers.read

    def counting(self: Ledgers, first: int, last: int) -> Iterator[Entry]:
        measured.append(last)
        return read(self, first, last)

    monkeypatch.setattr(Ledgers, "read", counting)
    ledgers.add(1, 1, close=False)
    query = Query(maxBytesPerTrigger=1 << 20)
    for _ in range(64):
        query.trigger()
        ledgers.grow(1, 1)
    assert measured == [0, 1, 3, 7, 15, 31, 63][: len(measured)]
    assert len(measured) in (6, 7)
