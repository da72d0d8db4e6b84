"""The bytes that a worker may copy in a time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bookgate.bookie.replication.copies.answer_times import Asked
from bookgate.bookie.replication.copies.budget import ByteBudget, CopyLimits, WorkerBudget
from bookgate.ledger.errors import NoSuchEntryException, TimeoutException, TooManyRequestsException

MIB = 1024 * 1024


def test_no_bound() -> None:
    budget = ByteBudget(0, 0.0)
    budget.overloaded(0.0)
    assert budget.take(1000 * MIB, 0.0) == 0.0


@given(st.lists(st.integers(1, 4 * MIB), min_size=50, max_size=100))
def test_whoever_waits_as_told_keeps_to_the_rate(sizes: list[int]) -> None:
    budget, now = ByteBudget(MIB, 0.0), 0.0
    for size in sizes:
        now += budget.take(size, now)
    assert now >= (sum(sizes) - MIB / 2) / MIB - 1e-6


def test_overload_halves_the_rate_and_it_grows_back() -> None:
    budget = ByteBudget(MIB, 0.0)
    for _ in range(3):
        budget.overloaded(0.0)
    assert budget.rate == MIB / 2  # what was under way then says it again
    budget.overloaded(1.0)
    assert round(budget.rate / MIB, 3) == 0.3
    budget.take(1, 3.0)
    assert round(budget.rate / MIB, 3) == 0.5
    budget.take(1, 100.0)
    assert budget.rate == MIB


def test_bookies_that_are_only_slow_leave_an_eighth_and_raise_nothing() -> None:
    budget = ByteBudget(MIB, 0.0)
    for number in range(1000):
        budget.overloaded(number / 3, only_slow=True)
    assert round(8 * budget.rate / MIB, 2) == 1.0
    for number in range(1000):
        budget.overloaded(1000 + number / 3)
    budget.overloaded(1000 + 333.3, only_slow=True)
    assert budget.rate < MIB / 12


def test_it_never_stands_still() -> None:
    budget = ByteBudget(MIB, 0.0)
    for number in range(1000):
        budget.overloaded(number / 3)
    assert budget.take(MIB, 1000 / 3) <= 64


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, MIB)), min_size=60, max_size=120))
def test_whoever_waits_keeps_to_the_rate_of_the_worker_and_of_each_bookie(
    copies: list[tuple[str, int]],
) -> None:
    budget, now, at = WorkerBudget(CopyLimits(worker=2 * MIB, bookie=MIB), 0.0), 0.0, dict.fromkeys("abc", 0.0)
    for target, size in copies:
        sizes = {each: size / 2 for each in "abc" if each != target} | {target: size}
        now += budget.take(sizes, now)
        for bookie_id, cost in sizes.items():
            at[bookie_id] += cost
    assert now >= (sum(at.values()) - MIB / 2) / (2 * MIB) - 1e-6
    assert now >= max((cost - MIB / 4) / MIB for cost in at.values()) - 1e-6


def seconds_for(budget: WorkerBudget, size: int, *bookies: str) -> float:
    """How long copies of a mebibyte a piece take from a moment when nothing was copied for long."""
    began = now = 1000.0
    for _ in range(size // MIB):
        now += budget.take(dict.fromkeys(bookies, MIB / len(bookies)), now)
    return round(now - began, 1)


def test_a_worker_takes_its_share_of_the_common_limits() -> None:
    budget = WorkerBudget(CopyLimits(worker=50 * MIB, bookie=20 * MIB), 0.0)
    assert seconds_for(budget, 100 * MIB, "a") == 5.0
    budget = WorkerBudget(CopyLimits(worker=50 * MIB, bookie=20 * MIB), 0.0)
    budget.share(0.25, 0.0, 0.0)
    assert seconds_for(budget, 100 * MIB, "a") == 20.0
    budget.share(0.25, 8 * MIB, 0.0)
    assert budget.rate == 2 * MIB
    assert seconds_for(WorkerBudget(CopyLimits(), 0.0), 1000 * MIB, "a") == 0.0


def test_only_the_overloaded_bookie_and_the_worker_slow_down() -> None:
    budget = WorkerBudget(CopyLimits(worker=100 * MIB, bookie=10 * MIB), 0.0)
    budget.overloaded("a", 0.0)
    assert budget.rate == 50 * MIB
    slow, fast = budget.take({"a": 10 * MIB}, 0.1), budget.take({"b": 10 * MIB}, 0.1)
    assert slow > 1.5 * fast > 0


def test_answers_that_are_slow_or_refused_lower_the_rate_of_who_gave_them() -> None:
    full = CopyLimits(worker=100 * MIB, bookie=10 * MIB)
    for refusal in (TooManyRequestsException("full"), TimeoutException("late")):
        budget = WorkerBudget(full, 0.0)
        budget.failed("a", refusal, 0.0)
        assert budget.rate == 50 * MIB
        assert budget.take({"a": MIB}, 0.0) > budget.take({"b": MIB}, 0.0)
    budget = WorkerBudget(full, 0.0)
    budget.failed("a", NoSuchEntryException("none"), 0.0)
    for asked in Asked:
        for seconds in (0.01, 0.4, 0.01, 0.4, 0.01):
            budget.answered("a", asked, MIB, seconds, 0.0)
    assert budget.rate == 100 * MIB
    budget.answered("a", Asked.READ, MIB, 0.51, 0.0)
    assert budget.rate == 50 * MIB
    budget = WorkerBudget(full, 0.0)
    for seconds in (0.01, 0.1, 0.1, 0.1):
        budget.answered("a", Asked.READ, MIB, seconds, 0.0)
    assert budget.rate == 50 * MIB


LITTLE = CopyLimits(worker=MIB / 100, bookie=MIB / 100, last_copies=MIB)


def seconds_of_last_copies(budget: WorkerBudget, size: int) -> float:
    began = now = 1000.0
    for _ in range(8 * size // MIB):
        now += budget.take({"a": MIB / 16, "b": MIB / 16}, now, last_copies=True)
    return round(now - began, 1)


def test_the_last_copies_have_a_rate_of_their_own_however_low_the_others_are() -> None:
    budget = WorkerBudget(LITTLE, 0.0)
    budget.share(1 / 100, 100.0, 0.0)
    for number in range(100):
        budget.overloaded("a", 950 + number / 2)
    assert 9 < seconds_of_last_copies(budget, 10 * MIB) <= 10


def test_the_last_copies_take_nothing_of_the_others() -> None:
    budget, alone = WorkerBudget(LITTLE, 0.0), WorkerBudget(LITTLE, 0.0)
    alone.take({"a": 0}, 1000.0)
    seconds_of_last_copies(budget, 10 * MIB)
    assert budget.take({"a": 1000}, 1010.0) == alone.take({"a": 1000}, 1010.0)


@given(st.lists(st.tuples(st.integers(1, MIB), st.booleans()), min_size=60, max_size=120))
def test_the_rates_bound_all_copies_together(copies: list[tuple[int, bool]]) -> None:
    budget, now = WorkerBudget(CopyLimits(worker=4 * MIB, last_copies=MIB), 0.0), 0.0
    others, waiting = 0, 0.0
    for size, last_copies in copies:
        wait = budget.take({"a": size}, now, last_copies=last_copies)
        waiting = max(waiting, now + wait)
        if not last_copies:
            others += size
            now += wait
    assert waiting >= (sum(size for size, _ in copies) - MIB / 4) / (5 * MIB) - 1e-6
    assert waiting >= (others - MIB / 4) / (4 * MIB) - 1e-6


def test_without_such_a_rate_the_last_copies_wait_like_all() -> None:
    budget = WorkerBudget(CopyLimits(worker=MIB), 0.0)
    assert seconds_of_last_copies(budget, 10 * MIB) == 10.0
    assert WorkerBudget(CopyLimits(last_copies=1), 0.0).take({"a": MIB}, 0.0, last_copies=True) == 0.0


def test_what_was_taken_at_a_low_rate_is_waited_for_at_the_rate_that_was_raised_since() -> None:
    for raised, seconds in ((MIB, 1.0), (0.0, 0.0)):
        budget = WorkerBudget(CopyLimits(bookie=50 * MIB), 0.0)
        budget.share(1.0, MIB / 1000, 0.0)
        assert budget.take({"a": MIB}, 0.0) > 900
        assert budget.backlog(["a"], 1.0) > 900
        budget.share(1.0, raised, 1.0)
        assert round(budget.backlog(["a"], 1.0), 1) == seconds
        assert round(budget.take({"a": MIB}, 1.0), 1) == 2 * seconds
    budget = WorkerBudget(CopyLimits(worker=MIB), 0.0)
    budget.take({"a": MIB}, 0.0)
    budget.share(1.0, MIB / 10, 0.5)
    assert 4.5 < budget.backlog(["a"], 0.5) < 5.5, "a rate that was lowered counts too"
