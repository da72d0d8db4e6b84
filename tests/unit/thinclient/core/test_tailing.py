"""Long polls and the steps of a tailing reader, under answers in any order."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookgate.ledger.entry import Entry
from bookgate.ledger.errors import (
    BKException,
    BookieHandleNotAvailableException,
    ClientClosedException,
    IllegalOpException,
    LedgerRecoveryException,
    NoSuchEntryException,
    NoSuchLedgerExistsException,
    TimeoutException,
    UnauthorizedAccessException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.thinclient.core.last_confirmed import TryLastConfirmedRead
from bookgate.thinclient.core.read_health import ReadHealth
from bookgate.thinclient.core.tailing import (
    Finished,
    LongPollRead,
    Look,
    Pause,
    PollTimes,
    ReadRange,
    TailSteps,
    WaitFor,
)

MISSING, NO_LEDGER, GONE, LATE = (
    NoSuchEntryException("missing"),
    NoSuchLedgerExistsException("no ledger"),
    BookieHandleNotAvailableException("gone"),
    TimeoutException("late"),
)


def metadata(ensemble_size: int = 3, write_quorum: int = 3, ack_quorum: int = 2) -> LedgerMetadata:
    return LedgerMetadata.new([f"b{i}" for i in range(ensemble_size)], write_quorum, ack_quorum)


def entry(entry_id: int) -> Entry:
    return Entry(1, entry_id, entry_id - 1, 0, b"")


def polling(entry_id: int = 7, parallel: bool = False, health: ReadHealth | None = None) -> LongPollRead:
    return LongPollRead(metadata(), entry_id, entry_id - 1, parallel=parallel, times=PollTimes(1.5, 5), health=health)


# --- one wait --------------------------------------------------------------------------------------------------------


def test_bookies_are_asked_from_the_entrys_place_on_or_all_at_once() -> None:
    assert list(polling(7).begin(0)) == ["b1"]
    assert list(polling(8, parallel=True).begin(0)) == ["b2", "b0", "b1"]
    assert polling(7).previous_lac == 6


def test_a_bookie_that_failed_lately_is_asked_last() -> None:
    health = ReadHealth()
    health.failed("b1", 10.0)
    assert list(polling(7, parallel=True, health=health).begin(20.0)) == ["b2", "b0", "b1"]


def test_the_first_entry_ends_it() -> None:
    poll = polling(7)
    poll.begin(0)
    assert poll.on_answer("b1", 9, entry(7), 1) == ()
    assert poll.result == (9, entry(7))
    assert poll.on_answer("b2", 20, entry(7), 2) == ()
    assert poll.result == (9, entry(7))


def test_a_lac_without_the_entry_ends_it_too() -> None:
    poll = polling(7)
    poll.begin(0)
    poll.on_answer("b1", 7, None, 1)
    assert poll.result == (7, None)


def test_empty_answers_of_so_many_bookies_that_nothing_can_be_hidden_end_it() -> None:
    poll = polling(7)
    poll.begin(0)
    assert list(poll.on_answer("b1", 5, None, 1)) == ["b2"]
    assert not poll.done
    assert list(poll.on_answer("b2", 6, None, 2)) == []
    assert poll.result == (6, None)


def test_answers_of_bookies_that_were_not_asked_are_ignored() -> None:
    poll = polling(7)
    poll.begin(0)
    assert poll.on_answer("b2", 9, entry(7), 1) == ()
    assert poll.on_error("b0", UnauthorizedAccessException(), 1) == ()
    assert not poll.done


def test_speculation_asks_the_next_and_waits_twice_as_long_up_to_the_longest() -> None:
    poll = polling(7)
    poll.begin(100)
    assert poll.next_time == 101.5
    assert poll.on_time(101.4) == ()
    assert list(poll.on_time(101.5)) == ["b2"]
    assert poll.next_time == 104.5
    assert list(poll.on_time(104.5)) == ["b0"]
    assert poll.next_time is None
    silent = LongPollRead(metadata(), 7, 6, times=PollTimes(1.5, 0))
    silent.begin(0)
    assert silent.next_time is None


def test_misses_end_a_parallel_wait_at_once_and_a_sequential_one_when_all_were_asked() -> None:
    poll = polling(7, parallel=True)
    poll.begin(0)
    poll.on_error("b1", MISSING, 1)
    assert not poll.done
    poll.on_error("b2", NO_LEDGER, 1)
    assert isinstance(poll.error, NoSuchLedgerExistsException)
    poll = polling(7)
    poll.begin(0)
    for bookie, following in (("b1", ["b2"]), ("b2", ["b0"])):
        assert list(poll.on_error(bookie, MISSING, 1)) == following
        assert not poll.done
    poll.on_error("b0", MISSING, 1)
    assert isinstance(poll.error, NoSuchEntryException)


@pytest.mark.parametrize(
    ("errors", "kind"),
    [
        ([GONE, GONE, GONE], BookieHandleNotAvailableException),
        ([GONE, MISSING, GONE], BookieHandleNotAvailableException),
        ([GONE, MISSING, MISSING], NoSuchEntryException),
        ([MISSING, MISSING, LATE], TimeoutException),
        ([GONE, LATE, MISSING], TimeoutException),
    ],
)
def test_what_is_told_when_nobody_can_serve(errors: list[BKException], kind: type[BKException]) -> None:
    poll = polling(7)
    poll.begin(0)
    for bookie, error in zip(("b1", "b2", "b0"), errors, strict=True):
        poll.on_error(bookie, error, 1)
    assert type(poll.error) is kind


def test_one_valid_answer_is_enough_for_a_good_end() -> None:
    poll = polling(7)
    poll.begin(0)
    poll.on_error("b1", GONE, 1)
    poll.on_answer("b2", 3, None, 1)
    poll.on_error("b0", GONE, 1)
    assert poll.result == (6, None)


def test_a_refusal_ends_it_at_once() -> None:
    poll = polling(7, parallel=True)
    poll.begin(0)
    poll.on_error("b1", UnauthorizedAccessException("no"), 1)
    assert isinstance(poll.error, UnauthorizedAccessException)


@settings(deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([(3, 3, 2), (3, 2, 1), (1, 1, 1), (5, 3, 2)]), st.booleans())
def test_a_wait_always_ends_and_never_tells_more_than_the_bookies(
    seed: int, sizes: tuple[int, int, int], parallel: bool
) -> None:
    rng = random.Random(seed)
    wanted, told, now = rng.randrange(20), -1, 0.0
    poll = LongPollRead(metadata(*sizes), wanted, wanted - 1, parallel=parallel)
    outstanding = list(poll.begin(now))
    asked = list(outstanding)
    while not poll.done:
        assert outstanding, "it waits for nobody"
        now += rng.random() * 2
        fresh: Sequence[str]
        if rng.random() < 0.3:
            fresh = poll.on_time(now)
        else:
            bookie = outstanding.pop(rng.randrange(len(outstanding)))
            if rng.random() < 0.4:
                fresh = poll.on_error(bookie, rng.choice([MISSING, NO_LEDGER, GONE, LATE]), now)
            else:
                lac = rng.randrange(wanted + 2) - 1
                told = max(told, lac)
                has = lac >= wanted and rng.random() < 0.5
                fresh = poll.on_answer(bookie, lac, entry(wanted) if has else None, now)
        outstanding += fresh
        asked += fresh
        assert len(asked) == len(set(asked))
    if poll.result is not None:
        assert poll.result.last_add_confirmed == max(told, wanted - 1)
        assert poll.result.entry is None or poll.result.last_add_confirmed >= wanted


# --- the steps -------------------------------------------------------------------------------------------------------


def test_reading_up_to_the_lac_then_waiting_then_the_end() -> None:
    steps = TailSteps(3)
    assert steps.next(10, False, 0) == ReadRange(3, 10)
    steps.delivered(10)
    assert steps.next(10, False, 0) == WaitFor(11)
    steps.on_waited(12, 0, 0)
    steps.delivered(11)
    assert steps.next(12, False, 0) == ReadRange(12, 12)
    steps.delivered(12)
    assert steps.next(12, True, 0) == Finished()
    assert TailSteps(20).next(12, True, 0) == Finished()


def test_waits_that_are_none_are_paced() -> None:
    steps, now, pauses = TailSteps(0, interval=0.1), 0.0, []
    for _ in range(8):
        assert steps.next(-1, False, now) == WaitFor(0)
        steps.on_waited(-1, now, now)
        pause = steps.next(-1, False, now)
        assert isinstance(pause, Pause)
        pauses.append(pause.seconds)
        now += pause.seconds + 1e-9
    assert pauses[0] < 0.01
    assert pauses[-1] == pytest.approx(0.1)
    steps.on_waited(-1, now, now + 1.0)
    assert steps.next(-1, False, now + 1.0) == WaitFor(0)


def test_a_change_of_the_ledger_cuts_a_pause_short() -> None:
    steps = TailSteps(0)
    steps.on_nothing_there(0)
    assert isinstance(steps.next(-1, False, 0), Pause)
    assert steps.next(4, False, 0) == ReadRange(0, 4)
    assert steps.next(-1, True, 0) == Finished()


def test_looking_has_its_interval() -> None:
    steps = TailSteps(0, long_polls=False, interval=0.1)
    assert steps.next(-1, False, 0) == Look()
    steps.on_waited(-1, 0, 0.02)
    pause = steps.next(-1, False, 0.02)
    assert isinstance(pause, Pause)
    assert pause.seconds == pytest.approx(0.1)
    assert steps.next(-1, False, 0.13) == Look()


def test_a_failed_wait_is_followed_by_a_look_and_that_by_another_wait() -> None:
    steps = TailSteps(0, interval=0.1)
    steps.on_failure(GONE, False, 0)
    assert isinstance(steps.next(-1, False, 0), Pause)
    assert steps.next(-1, False, 0.2) == Look()
    steps.on_waited(-1, 0.2, 0.2)
    assert steps.next(-1, False, 1.0) == WaitFor(0)


def test_a_connection_without_long_polls_is_looked_at_from_then_on() -> None:
    steps = TailSteps(0)
    steps.on_failure(IllegalOpException(), False, 0)
    assert steps.next(-1, False, 0) == Look()
    steps.on_waited(-1, 0, 9)
    assert steps.next(-1, False, 99) == Look()


def test_failures_are_told_when_they_last() -> None:
    steps = TailSteps(0, failure_timeout=30)
    steps.on_failure(GONE, False, 0)
    steps.on_failure(GONE, False, 29)
    steps.on_waited(-1, 29, 29)
    steps.on_failure(GONE, False, 40)
    steps.on_failure(GONE, False, 69)
    with pytest.raises(TimeoutException):
        steps.on_failure(LATE, False, 70)


@pytest.mark.parametrize("error", [ClientClosedException(), UnauthorizedAccessException()])
def test_some_failures_are_final(error: BKException) -> None:
    with pytest.raises(type(error)):
        TailSteps(0).on_failure(error, False, 0)


def test_what_is_lost_in_a_closed_ledger_is_not_waited_for() -> None:
    TailSteps(0).on_failure(MISSING, False, 0)
    TailSteps(0).on_failure(GONE, True, 0)
    with pytest.raises(NoSuchEntryException):
        TailSteps(0).on_failure(MISSING, True, 0)


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_everything_is_delivered_once_in_order_and_never_above_the_lac(seed: int) -> None:
    """A writer, a watch that lags, waits that end anyhow, and reads that fail half way (P4, P10)."""
    rng = random.Random(seed)
    first, total = rng.randrange(5), rng.randrange(1, 60)
    steps = TailSteps(first, long_polls=rng.random() < 0.8, interval=0.1)
    written, known, closed, now = -1, -1, False, 0.0
    delivered: list[int] = []
    for _ in range(20_000):
        now += rng.random() * 0.05
        written = min(total - 1, written + rng.choice([0, 0, 1, 5]))
        if written == total - 1 and rng.random() < 0.05:
            closed, known = True, written
        match steps.next(known, closed, now):
            case Finished():
                break
            case Pause(seconds):
                assert 0 < seconds <= 0.1 + 1e-9
                now += seconds if rng.random() < 0.8 else 0
            case ReadRange(start, last):
                assert start == steps.position <= last <= known <= written
                end = rng.randint(start - 1, last)
                if end >= start:
                    delivered += range(start, end + 1)
                    steps.delivered(end)
                if end < last:
                    steps.on_failure(GONE, closed, now)
            case WaitFor(wanted):
                assert wanted == steps.position > known
                began, now = now, now + rng.choice([0.0, 1.0])
                kind = rng.random()
                if kind < 0.2:
                    steps.on_failure(rng.choice([GONE, LATE]), closed, now)
                elif kind < 0.3:
                    steps.on_nothing_there(now)
                else:
                    known = max(known, rng.randint(-1, written))
                    steps.on_waited(known, began, now)
                    if known >= wanted and rng.random() < 0.7:
                        delivered.append(wanted)
                        steps.delivered(wanted)
            case Look():
                known = max(known, rng.randint(-1, written))
                steps.on_waited(known, now, now)
    assert delivered == list(range(first, total))


# --- try to read the LAC ---------------------------------------------------------------------------------------------


def tried(known: int = 3) -> TryLastConfirmedRead:
    return TryLastConfirmedRead(LedgerId.unscoped(1), metadata(), known)


def test_the_first_news_are_enough_and_later_ones_are_still_heard() -> None:
    read = tried()
    read.on_answer(0, 3)
    assert not read.done
    read.on_answer(1, 5)
    assert (read.done, read.result) == (True, 5)
    read.on_answer(2, 9)
    assert (read.result, read.error) == (9, None)


def test_without_news_one_valid_answer_is_enough_when_all_have_answered() -> None:
    read = tried()
    read.on_error(0, GONE)
    read.on_answer(1, -1)
    assert not read.done
    read.on_error(2, LATE)
    assert (read.done, read.result, read.error) == (True, 3, None)


def test_without_any_answer_it_fails_and_a_refusal_ends_it() -> None:
    read = tried()
    for index in range(3):
        read.on_error(index, GONE)
    assert isinstance(read.error, LedgerRecoveryException)
    read = tried()
    read.on_error(0, UnauthorizedAccessException())
    assert read.done
    assert isinstance(read.error, UnauthorizedAccessException)
