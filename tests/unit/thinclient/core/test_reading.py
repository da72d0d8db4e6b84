"""Order, failover and window of ranged reads."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookgate.ledger.entry import Entry
from bookgate.ledger.errors import (
    BKException,
    BookieHandleNotAvailableException,
    DigestMatchException,
    NoSuchEntryException,
    NoSuchLedgerExistsException,
    ReadException,
    TimeoutException,
)
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.thinclient.core.entry_read import retained_error
from bookgate.thinclient.core.reading import RangeReader

MISSING, GONE, BAD, LATE = (
    NoSuchEntryException("missing"),
    BookieHandleNotAvailableException("gone"),
    DigestMatchException("bad"),
    TimeoutException("late"),
)


def metadata(ensemble_size: int = 3, write_quorum: int = 3) -> LedgerMetadata:
    return LedgerMetadata.new([f"b{i}" for i in range(ensemble_size)], write_quorum, 1)


def entry(entry_id: int, size: int = 10) -> Entry:
    return Entry(1, entry_id, entry_id - 1, 0, b"x" * size)


@pytest.mark.parametrize(
    ("kept", "new", "result"),
    [
        (None, MISSING, MISSING),
        (MISSING, GONE, GONE),
        (MISSING, NoSuchLedgerExistsException("no"), None),
        (GONE, MISSING, GONE),
        (GONE, BAD, BAD),
        (BAD, GONE, BAD),
        (LATE, MISSING, LATE),
    ],
)
def test_retained_error(kept: BKException | None, new: BKException, result: BKException | None) -> None:
    assert retained_error(kept, new) is (result or new)


def test_every_replica_is_asked_before_a_read_fails() -> None:
    reader = RangeReader(metadata(), 0, 0)
    asked = []
    for error in (MISSING, GONE, MISSING):
        (read,) = reader.next_reads()
        asked.append(read.bookie_id)
        assert reader.failure is None
        reader.on_error(0, read.bookie_id, error)
    assert sorted(asked) == ["b0", "b1", "b2"]
    assert reader.next_reads() == []
    assert isinstance(reader.failure, BookieHandleNotAvailableException)
    assert "entry 0 can't be read from any of b0, b1, b2: gone" in str(reader.failure)


def test_no_such_entry_only_when_all_say_so() -> None:
    reader = RangeReader(metadata(), 0, 0)
    for _ in range(3):
        (read,) = reader.next_reads()
        reader.on_error(0, read.bookie_id, MISSING)
    assert isinstance(reader.failure, NoSuchEntryException)


def test_a_bookie_that_failed_is_asked_last_from_then_on_but_a_bad_copy_condemns_nobody() -> None:
    reader = RangeReader(metadata(), 0, 100, max_entries=1)
    (read,) = reader.next_reads()
    reader.on_error(0, read.bookie_id, BAD)
    (repeat,) = reader.next_reads()
    assert repeat.bookie_id != read.bookie_id
    reader.on_entries("b", [entry(0)])
    reader.take(1)
    (second,) = reader.next_reads()
    assert second.bookie_id == read.bookie_id
    reader.on_error(1, second.bookie_id, GONE)
    reader.next_reads()
    reader.on_entries("b", [entry(1)])
    reader.take(1)
    (third,) = reader.next_reads()
    assert third.bookie_id != read.bookie_id


def test_what_stands_before_a_failure_is_delivered_first() -> None:
    reader = RangeReader(metadata(1, 1), 0, 2)
    reader.next_reads()
    reader.on_error(1, "b0", MISSING)
    reader.on_error(2, "b0", MISSING)
    assert reader.failure is None
    reader.on_entries("b", [entry(0)])
    assert [e.entry_id for e in reader.take(10)] == [0]
    assert "entry 1 " in str(reader.failure)


def test_full_write_sets_stick_to_the_preferred_replica_and_striped_ones_follow_the_entry() -> None:
    reads = RangeReader(metadata(), 0, 9, preferred_index=7).next_reads()
    assert {read.bookie_id for read in reads} == {"b1"}
    reads = RangeReader(metadata(3, 2), 0, 5).next_reads()
    assert [read.bookie_id for read in reads] == ["b0", "b1", "b2", "b0", "b1", "b2"]


def test_fragments_have_their_own_bookies() -> None:
    changed = metadata(1, 1).with_ensemble(3, ["c0"])
    reads = RangeReader(changed, 1, 5).next_reads()
    assert [(r.entry_id, r.bookie_id) for r in reads] == [(1, "b0"), (2, "b0"), (3, "c0"), (4, "c0"), (5, "c0")]


def test_large_entries_shrink_the_window() -> None:
    reader = RangeReader(metadata(), 0, 1000, max_entries=500, max_bytes=10_000)
    first = len(reader.next_reads())
    for i in range(first):
        reader.on_entries("b", [entry(i, 5000)])
    reader.take(first)
    assert len(reader.next_reads()) == 1


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 120), st.sampled_from([(3, 3), (3, 2), (4, 3)]))
def test_any_mix_of_answers_gives_the_entries_in_order_and_within_the_window(
    seed: int, count: int, sizes: tuple[int, int]
) -> None:
    rng = random.Random(seed)
    reader = RangeReader(metadata(*sizes), 0, count - 1, preferred_index=rng.randrange(9), max_entries=20)
    outstanding, delivered = [], []
    failures: dict[int, int] = {}
    while not reader.finished:
        outstanding += reader.next_reads()
        assert len({read.entry_id for read in outstanding}) <= 20
        asked = bool(outstanding)
        if asked:
            read = outstanding.pop(rng.randrange(len(outstanding)))
            # Fewer failures than replicas, so every entry stays readable.
            if failures.get(read.entry_id, 0) < sizes[1] - 1 and rng.random() < 0.3:
                failures[read.entry_id] = failures.get(read.entry_id, 0) + 1
                reader.on_error(read.entry_id, read.bookie_id, rng.choice([MISSING, GONE, BAD, LATE]))
            else:
                reader.on_entries(read.bookie_id, [entry(read.entry_id)])
        taken = reader.take(rng.randrange(1, 9))
        delivered += [e.entry_id for e in taken]
        assert reader.failure is None
        assert asked or taken, "the reader stands still"
    assert delivered == list(range(count))


def test_unknown_failures_become_read_errors() -> None:
    class Odd(BKException):
        def __init__(self) -> None:
            super().__init__("odd")

    reader = RangeReader(metadata(1, 1), 0, 0)
    reader.next_reads()
    reader.on_error(0, "b0", Odd())
    assert isinstance(reader.failure, ReadException)


def test_how_long_a_bookie_took_is_told_only_where_it_was_asked_last() -> None:
    reader = RangeReader(metadata(), 0, 0, speculate_after=1.0)
    (slow,) = reader.next_reads(0.0)
    assert reader.waited(0, slow.bookie_id, 0.5) == 0.5
    assert reader.on_time(2.0) == 1
    (quick,) = reader.next_reads(2.0)
    assert reader.waited(0, slow.bookie_id, 2.25) is None
    assert reader.waited(0, quick.bookie_id, 2.25) == 0.25
    reader.on_entries(quick.bookie_id, [entry(0)], 2.25)
    assert reader.waited(0, slow.bookie_id, 3.0) is None
