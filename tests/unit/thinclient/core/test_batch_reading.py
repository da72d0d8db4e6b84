"""Batches, speculation and memory of ranged reads, under answers in any order."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookgate.ledger.entry import Entry
from bookgate.ledger.errors import (
    BKException,
    BookieHandleNotAvailableException,
    DigestMatchException,
    EntryNotConfirmedException,
    NoSuchEntryException,
    ReadException,
    TimeoutException,
)
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.unbounded import create_unbounded
from bookgate.thinclient.core.read_health import ReadHealth
from bookgate.thinclient.core.reading import BatchLimits, BatchReadEffect, RangeReader, ReadEffect

EIO = ReadException("EIO")
MISSING, GONE, BAD, LATE = (
    NoSuchEntryException("missing"),
    BookieHandleNotAvailableException("gone"),
    DigestMatchException("bad"),
    TimeoutException("late"),
)
LIMITS = BatchLimits(10, 10_000)


def metadata(ensemble_size: int = 3, write_quorum: int = 3) -> LedgerMetadata:
    return LedgerMetadata.new([f"b{i}" for i in range(ensemble_size)], write_quorum, 1)


def entries(first: int, last: int, size: int = 10) -> list[Entry]:
    return [Entry(1, i, i - 1, 0, b"x" * size) for i in range(first, last + 1)]


def answer(effect: ReadEffect | BatchReadEffect, count: int | None = None, size: int = 10) -> list[Entry]:
    wanted = effect.max_count if isinstance(effect, BatchReadEffect) else 1
    return entries(effect.entry_id, effect.entry_id + (wanted if count is None else count) - 1, size)


class Memory:
    """Bytes of the payloads that anything still holds."""

    held = 0


class Payload(bytes):
    """Counts itself in `memory` for as long as it lives."""

    memory: Memory

    @classmethod
    def of(cls, size: int, memory: Memory) -> Payload:
        made = cls(size)
        made.memory = memory
        memory.held += size
        return made

    def __del__(self) -> None:
        self.memory.held -= len(self)


def begun(reader: RangeReader) -> list[BatchReadEffect]:
    """The batches asked for once the first one has told how large entries are."""
    (first,) = reader.next_reads()
    assert isinstance(first, BatchReadEffect)
    reader.on_entries(first.bookie_id, answer(first))
    reads = reader.next_reads()
    return [read for read in reads if isinstance(read, BatchReadEffect)]


def test_runs_are_spread_over_the_replicas() -> None:
    reader = RangeReader(metadata(), 0, 999, batches=LIMITS)
    reads = begun(reader)
    assert [read.entry_id for read in reads[:4]] == [10, 20, 30, 40]
    assert {read.bookie_id for read in reads[:3]} == {"b0", "b1", "b2"}
    assert all((read.max_count, read.max_size) == (10, 10_000) for read in reads)


def test_striped_ledgers_and_lone_entries_are_read_one_by_one() -> None:
    assert all(type(r) is ReadEffect for r in RangeReader(metadata(3, 2), 0, 9, batches=LIMITS).next_reads())
    assert [type(r) for r in RangeReader(metadata(), 5, 5, batches=LIMITS).next_reads()] == [ReadEffect]


def test_batches_end_where_their_fragment_ends() -> None:
    changed = metadata(1, 1).with_ensemble(7, ["c0"])
    reader = RangeReader(changed, 0, 20, batches=LIMITS)
    (first,) = reader.next_reads()
    assert first == BatchReadEffect(0, "b0", 7, 10_000)
    reader.on_entries("b0", answer(first))
    assert reader.next_reads()[0] == BatchReadEffect(7, "c0", 10, 10_000)


def test_what_a_short_answer_lacks_is_asked_for_again_before_what_comes_later() -> None:
    reader = RangeReader(metadata(), 0, 999, batches=LIMITS)
    (read,) = reader.next_reads()
    reader.on_entries(read.bookie_id, answer(read, 4))
    reads = reader.next_reads()
    assert reads[0][0] == 4
    assert [e.entry_id for e in reader.take(100)] == [0, 1, 2, 3]


def test_what_a_short_answer_lacks_is_asked_for_after_a_failure_behind_it_too() -> None:
    """It once was not, and the read never ended."""
    reader = RangeReader(metadata(1, 1), 0, 999, batches=LIMITS)
    second, *_ = begun(reader)
    third = BatchReadEffect(20, "b0", 10, 10_000)
    reader.on_error(third.entry_id, "b0", EIO)
    reader.on_entries("b0", answer(second, 4))
    assert reader.next_reads() == [BatchReadEffect(14, "b0", 6, 10_000)]
    reader.on_entries("b0", entries(14, 19))
    assert reader.next_reads() == []
    assert [entry.entry_id for entry in reader.take(100)] == list(range(20))
    assert isinstance(reader.failure, ReadException)


@settings(max_examples=300)
@given(st.integers(0, 2**32), st.integers(2, 80), st.sampled_from([(3, 3), (1, 1), (3, 2)]))
def test_whatever_can_be_read_is_delivered_before_the_first_that_can_not(
    seed: int, count: int, sizes: tuple[int, int]
) -> None:
    rng = random.Random(seed)
    unreadable = {rng.randrange(count) for _ in range(rng.randint(1, 4))}
    reader = RangeReader(metadata(*sizes), 0, count - 1, max_entries=20, max_bytes=20_000, batches=LIMITS)
    outstanding: list[ReadEffect | BatchReadEffect] = []
    delivered: list[int] = []
    while reader.failure is None:
        outstanding += reader.next_reads()
        if outstanding:
            read = outstanding.pop(rng.randrange(len(outstanding)))
            good = answer(read)
            end = next((i for i, e in enumerate(good) if e.entry_id in unreadable), len(good))
            if end:
                reader.on_entries(read.bookie_id, good[: rng.randint(1, end)])
            else:
                reader.on_error(read.entry_id, read.bookie_id, EIO)
        taken = reader.take(rng.randint(1, 30))
        delivered += [entry.entry_id for entry in taken]
        outstanding += reader.next_reads()
        assert outstanding or taken or reader.failure is not None, "nothing is under way"
    assert delivered == list(range(min(unreadable)))


def test_a_first_entry_that_is_bad_goes_to_the_next_replica_with_its_whole_run() -> None:
    reader = RangeReader(metadata(), 0, 999, batches=LIMITS)
    (read,) = reader.next_reads()
    reader.on_error(0, read.bookie_id, BAD)
    (repeat,) = reader.next_reads()
    assert isinstance(repeat, BatchReadEffect)
    assert repeat.bookie_id != read.bookie_id
    assert (repeat.entry_id, repeat.max_count) == (0, 10)


def test_a_bookie_without_batches_gets_single_reads_from_then_on() -> None:
    lacking: set[str] = set()
    reader = RangeReader(metadata(1, 1), 0, 30, batches=LIMITS, without_batches=lacking)
    (read,) = reader.next_reads()
    reader.on_error(0, read.bookie_id, GONE)
    reads = reader.next_reads()
    assert lacking == {"b0"}
    assert reads
    assert all(type(read) is ReadEffect for read in reads)
    again = RangeReader(metadata(1, 1), 0, 30, batches=LIMITS, without_batches=lacking)
    assert all(type(read) is ReadEffect for read in again.next_reads())


def test_others_serve_batches_while_one_does_not_and_it_is_still_asked_before_a_read_fails() -> None:
    lacking = {"b0"}
    reader = RangeReader(metadata(2, 2), 0, 30, batches=LIMITS, without_batches=lacking)
    (read,) = reader.next_reads()
    assert read[:2] == (0, "b1")
    reader.on_error(0, "b1", MISSING)
    asked = {effect for effect in reader.next_reads() if effect.entry_id == 0}
    assert asked == {ReadEffect(0, "b0")}
    reader.on_error(0, "b0", MISSING)
    assert {effect for effect in reader.next_reads() if effect.entry_id == 0} == {ReadEffect(0, "b1")}
    reader.on_error(0, "b1", MISSING)
    assert isinstance(reader.failure, NoSuchEntryException)


def test_a_dead_bookie_is_not_asked_again_by_other_readers_for_a_while() -> None:
    health = ReadHealth(60)
    reader = RangeReader(metadata(), 0, 0, health=health)
    (read,) = reader.next_reads(1000.0)
    reader.on_error(0, read.bookie_id, LATE, 1005.0)
    (other,) = RangeReader(metadata(), 0, 0, health=health).next_reads(1064.0)
    assert other.bookie_id != read.bookie_id
    (later,) = RangeReader(metadata(), 0, 0, health=health).next_reads(1065.0)
    assert later.bookie_id == read.bookie_id


def test_a_silent_bookie_is_not_waited_for() -> None:
    reader = RangeReader(metadata(), 0, 0, speculate_after=2.0)
    (read,) = reader.next_reads(100.0)
    reader.on_time(101.9)
    assert reader.next_reads(101.9) == []
    reader.on_time(102.0)
    (second,) = reader.next_reads(102.0)
    assert second.bookie_id != read.bookie_id
    reader.on_time(103.0)
    assert reader.next_reads(103.0) == []
    reader.on_time(104.0)
    (third,) = reader.next_reads(104.0)
    assert len({read.bookie_id, second.bookie_id, third.bookie_id}) == 3
    reader.on_entries(second.bookie_id, entries(0, 0))
    assert len(reader.take(5)) == 1
    reader.on_entries(read.bookie_id, entries(0, 0))
    assert reader.take(5) == []


def test_an_error_is_not_the_end_while_another_replica_may_still_answer() -> None:
    reader = RangeReader(metadata(2, 2), 0, 0, speculate_after=2.0)
    (read,) = reader.next_reads(0.0)
    reader.on_time(2.0)
    (second,) = reader.next_reads(2.0)
    reader.on_error(0, second.bookie_id, BAD)
    assert reader.failure is None
    reader.on_entries(read.bookie_id, entries(0, 0))
    assert len(reader.take(1)) == 1


def test_the_third_replica_is_not_asked_while_the_first_is_still_waited_for() -> None:
    reader = RangeReader(metadata(), 0, 0, speculate_after=2.0)
    reader.next_reads(0.0)
    reader.on_time(2.0)
    (second,) = reader.next_reads(2.0)
    reader.on_error(0, second.bookie_id, BAD, 2.1)
    assert reader.next_reads(2.1) == []


def test_more_than_was_asked_for_is_left_aside() -> None:
    reader = RangeReader(metadata(), 0, 15, batches=LIMITS)
    (read,) = reader.next_reads()
    reader.on_entries(read.bookie_id, answer(read, 20))
    assert [e.entry_id for e in reader.take(100)] == list(range(10))


def test_a_bookie_that_answers_is_not_speculated_against() -> None:
    reader = RangeReader(metadata(), 0, 5, speculate_after=2.0)
    reads = reader.next_reads(0.0)
    reader.on_entries(reads[0].bookie_id, entries(0, 0), 1.0)
    reader.on_time(3.0)
    assert reader.next_reads(3.0) == []


def test_without_speculation_nobody_is_asked_twice() -> None:
    reader = RangeReader(metadata(), 0, 0)
    reader.next_reads(0.0)
    reader.on_time(1e9)
    assert reader.next_reads(1e9) == []


def test_a_consumer_that_takes_nothing_stops_the_read_ahead() -> None:
    reader = RangeReader(metadata(), 0, 10**9, batches=BatchLimits(100, 25_000), max_bytes=100_000)
    outstanding = reader.next_reads()
    arrived = 0
    while outstanding:
        read = outstanding.pop()
        batch = answer(read, 100, 300)
        reader.on_entries(read.bookie_id, batch)
        arrived += sum(len(entry.payload) for entry in batch)
        outstanding += reader.next_reads()
    assert arrived <= 125_000


@settings(deadline=None, max_examples=80)
@given(st.integers(0, 2**32), st.integers(1, 200), st.sampled_from([(3, 3), (2, 2), (1, 1), (3, 2)]))
def test_any_mix_of_answers_gives_every_entry_once_in_order_in_bounded_memory(
    seed: int, count: int, sizes: tuple[int, int]
) -> None:
    """Fewer failures an entry than replicas, of all kinds; short batches; late answers; speculation at any moment."""
    rng = random.Random(seed)
    limits = BatchLimits(rng.randrange(1, 40), 5000)
    size_of = [rng.choice([10, 10, 200, 3000]) for _ in range(count)]
    ledger = metadata(*sizes)
    if rng.random() < 0.5 and count > 4:
        ledger = ledger.with_ensemble(rng.randrange(1, count), [f"c{i}" for i in range(sizes[0])])
    lacking: set[str] = set()
    old = {f"b{i}" for i in range(3) if rng.random() < 0.3}
    reader = RangeReader(
        ledger,
        0,
        count - 1,
        preferred_index=rng.randrange(9),
        max_entries=20,
        max_bytes=20_000,
        batches=limits,
        without_batches=lacking,
        speculate_after=1.0,
    )
    outstanding: list[ReadEffect | BatchReadEffect] = []
    delivered: list[int] = []
    failures: dict[int, set[str]] = {}
    # Single reads in flight are reckoned by the mean of what came before, and may all be large.
    most_held = 20_000 + 2 * 5000 + 3000 + (20 * 3000 if old or sizes == (3, 2) else 0)
    now, steps, memory = 0.0, 0, Memory()
    while not reader.finished:
        steps += 1
        assert steps < 50 * count + 500
        now += rng.random()
        fresh = reader.next_reads(now)
        assert all(read.entry_id < count for read in fresh)
        outstanding += fresh
        assert memory.held <= most_held
        if outstanding:
            read = outstanding.pop(rng.randrange(len(outstanding)))
            failed = failures.setdefault(read.entry_id, set())
            if isinstance(read, BatchReadEffect) and read.bookie_id in old:
                reader.on_error(read.entry_id, read.bookie_id, GONE, now)
            elif len(failed | {read.bookie_id}) < sizes[1] and rng.random() < 0.3:
                failed.add(read.bookie_id)
                reader.on_error(read.entry_id, read.bookie_id, rng.choice([MISSING, GONE, BAD, LATE]), now)
            else:
                wanted = 1 if isinstance(read, ReadEffect) else rng.randint(1, read.max_count)
                ids = range(read.entry_id, read.entry_id + wanted)
                batch = [Entry(1, i, i - 1, 0, Payload.of(size_of[i], memory)) for i in ids]
                while isinstance(read, BatchReadEffect) and len(batch) > 1:
                    if sum(len(e.payload) + 40 for e in batch) <= read.max_size:
                        break
                    batch.pop()
                reader.on_entries(read.bookie_id, batch, now)
                del batch
        if rng.random() < 0.2:
            reader.on_time(now)
        if rng.random() < 0.7:
            delivered += [e.entry_id for e in reader.take(rng.randrange(1, 30))]
        assert reader.failure is None
    assert delivered == list(range(count))
    assert memory.held == 0


@pytest.mark.parametrize("batched", [True, False])
def test_books_are_even_at_the_end(batched: bool) -> None:
    """The reader looks through its own when the last entry is taken."""
    assert __debug__
    reader = RangeReader(metadata(), 0, 99, batches=LIMITS if batched else None)
    while not reader.finished:
        for read in reader.next_reads():
            reader.on_entries(read.bookie_id, answer(read))
        reader.take(7)


def test_the_retained_error_of_a_run_is_that_of_its_first_entry() -> None:
    reader = RangeReader(metadata(), 0, 20, batches=LIMITS)
    errors: list[BKException] = [MISSING, LATE, MISSING]
    for error in errors:
        (read,) = reader.next_reads()
        reader.on_error(0, read.bookie_id, error)
    assert isinstance(reader.failure, TimeoutException)
    assert "entry 0 can't be read from any of b0, b1, b2: late" in str(reader.failure)


def test_a_batch_that_no_bookie_of_an_unbounded_ledger_serves_is_read_singly() -> None:
    """To the end of its run; the bookies stay in favour, and later runs are batches again."""
    health = ReadHealth()
    reader = RangeReader(create_unbounded(metadata()), 0, 39, batches=LIMITS, health=health)
    for _ in range(3):
        (batch,) = reader.next_reads()
        assert isinstance(batch, BatchReadEffect)
        reader.on_error(batch.entry_id, batch.bookie_id, EIO)
    singles: list[ReadEffect] = []
    while len(singles) < 10:
        effects = reader.next_reads()
        assert effects, reader.failure
        for effect in effects:
            assert isinstance(effect, ReadEffect), effect
            singles.append(effect)
            reader.on_entries(effect.bookie_id, answer(effect))
    assert [effect.entry_id for effect in singles] == list(range(10))
    assert not any(health.avoids(bookie, 0.0) for bookie in ("b0", "b1", "b2"))
    assert all(isinstance(effect, BatchReadEffect) for effect in reader.next_reads())


def test_what_one_bookie_does_not_know_to_be_confirmed_is_not_called_missing() -> None:
    unsure = EntryNotConfirmedException("it may be dirty")
    for order in ([MISSING, unsure, MISSING], [unsure, MISSING, MISSING], [MISSING, MISSING, unsure]):
        reader = RangeReader(create_unbounded(metadata()), 0, 0)
        (effect,) = reader.next_reads()
        for error in order:
            reader.on_error(0, effect.bookie_id, error)
            for effect in reader.next_reads():  # noqa: B007 - the next replica
                pass
        assert isinstance(reader.failure, EntryNotConfirmedException)
