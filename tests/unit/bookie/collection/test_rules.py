"""What may be collected, as pure rules: a model of ledgers that come and go while the metadata is listed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookgate.bookie.collection.rules import (
    CompactionKind,
    CompactionPolicy,
    CompactionRule,
    CompactionSchedule,
    EntryLogUsage,
    IncompleteListingException,
    LedgerComparison,
    Trigger,
    logs_to_compact,
    usage_bucket,
)

ids = st.sets(st.integers(0, 40))
POLICY = CompactionPolicy(minor=CompactionRule(0.2, 3600), major=CompactionRule(0.8, 86400))


def add_all(comparison: LedgerComparison, ranges: Sequence[Sequence[int]]) -> None:
    for run in ranges:
        comparison.add_range(run)


def compared(local: Sequence[int], ranges: Sequence[Sequence[int]]) -> list[int]:
    comparison = LedgerComparison(local)
    add_all(comparison, ranges)
    return list(comparison.finish())


@given(
    stored=ids,
    here=ids,
    events=st.lists(st.tuples(st.integers(1, 5), ids, ids), max_size=8),
)
def test_exactly_what_was_deleted_before_the_listing_is_collected(
    stored: set[int], here: set[int], events: list[tuple[int, set[int], set[int]]]
) -> None:
    """Ledgers are created and deleted between the pages; a created one at once gets entries here."""
    metadata = stored | here
    deleted_before = {number for number in here if number % 3 == 0}
    metadata -= deleted_before
    comparison = LedgerComparison(sorted(here))
    after = -1
    never_deleted = set(metadata)
    for size, created, deleted in events:
        page = sorted(number for number in metadata if number > after)[:size]
        comparison.add_range(page)
        after = page[-1] if page else after
        # An id is never used twice: what is created was never here.
        metadata |= {number + 100 for number in created}
        metadata -= deleted
        never_deleted -= deleted
    comparison.add_range(sorted(number for number in metadata if number > after))
    collected = set(comparison.finish())
    assert not collected & never_deleted
    assert deleted_before <= collected
    assert collected <= here


def test_an_empty_listing_that_ends_means_that_all_were_deleted() -> None:
    assert compared([1, 2, 3], []) == [1, 2, 3]
    assert compared([1, 2, 3], [[]]) == [1, 2, 3]
    assert compared([], [[5]]) == []


def test_ranges_meet_without_gap_or_overlap() -> None:
    assert compared([1, 2, 3, 4, 5, 6], [[2], [3, 5], [9]]) == [1, 4, 6]
    largest = (1 << 63) - 1
    assert compared([0, largest], [[0, largest]]) == []
    assert compared([0, largest], [[0]]) == [largest]


@pytest.mark.parametrize("ranges", [[[5, 4]], [[4, 4]], [[5], [5]], [[5], [3]], [[1, 9], [7, 12]], [[-3]]])
def test_a_listing_out_of_order_gives_nothing_and_ends_the_pass(ranges: list[list[int]]) -> None:
    comparison = LedgerComparison([1, 2, 3])
    with pytest.raises(IncompleteListingException):
        add_all(comparison, ranges)
    with pytest.raises(IncompleteListingException):
        comparison.add_range([100])
    with pytest.raises(IncompleteListingException):
        comparison.finish()


def test_a_comparison_is_of_one_pass() -> None:
    comparison = LedgerComparison([1])
    comparison.finish()
    with pytest.raises(IncompleteListingException):
        comparison.finish()


def test_usage_follows_the_ledgers_that_exist() -> None:
    log = EntryLogUsage(7, 1000, {1: 300, 2: 200, 3: 500}, has_map=True)
    assert log.usage == 1.0
    log.keep({1, 2, 9})
    assert (log.remaining, log.usage, list(log.ledgers)) == (500, 0.5, [1, 2])
    log.keep({1, 2})
    log.keep(set())
    assert log.is_empty
    assert log.usage == 0.0
    assert EntryLogUsage(8, 0, {}, has_map=False).usage == 0.0


def test_the_emptiest_logs_are_compacted_first() -> None:
    usages = {0: 0.95, 1: 0.79, 2: 0.19, 3: 0.11, 4: 0.01, 5: 0.2}
    logs = [EntryLogUsage(log_id, 100, {1: int(usage * 100)}, has_map=True) for log_id, usage in usages.items()]
    assert [log.log_id for log in logs_to_compact(logs, 0.2)] == [4, 2, 3]
    assert [log.log_id for log in logs_to_compact(logs, 0.8)] == [4, 2, 3, 5, 1]
    assert [usage_bucket(usage) for usage in (0, 0.099, 0.1, 0.99, 1.0)] == [0, 0, 1, 9, 9]


def test_small_logs_are_merged_where_their_limit_is_what_counts() -> None:
    logs = [EntryLogUsage(log_id, size, {1: size}, has_map=True) for log_id, size in enumerate((100, 990, 10, 1000))]
    assert logs_to_compact(logs, 0.8) == []
    assert [log.log_id for log in logs_to_compact(logs, 0.8, target_bytes=1000)] == [2, 0]


def test_the_major_compaction_comes_first_and_counts_for_both() -> None:
    schedule = CompactionSchedule(POLICY, now=0)
    nothing = Trigger()
    assert schedule.due(3600, nothing) is None
    assert schedule.due(3601, nothing) is CompactionKind.MINOR
    assert schedule.due(86401, nothing) is CompactionKind.MAJOR
    schedule.done(CompactionKind.MAJOR, 86401)
    assert schedule.due(86402, nothing) is None
    assert schedule.due(90002, nothing) is CompactionKind.MINOR
    schedule.done(CompactionKind.MINOR, 90002)
    assert schedule.due(90003, nothing) is None
    assert schedule.due(2 * 86401, nothing) is CompactionKind.MAJOR


def test_what_is_asked_for_runs_at_once_unless_suspended() -> None:
    schedule = CompactionSchedule(POLICY, now=0)
    assert schedule.due(1, Trigger(force=True)) is CompactionKind.MAJOR
    assert schedule.due(1, Trigger(force=True, major=False)) is CompactionKind.MINOR
    assert schedule.due(1, Trigger(force=True, major=False, minor=False)) is None
    schedule.suspend(CompactionKind.MAJOR, "disk")
    schedule.suspend(CompactionKind.MAJOR, "admin")
    assert schedule.due(1, Trigger(force=True)) is CompactionKind.MINOR
    assert schedule.due(1, Trigger(force=True, major=True)) is CompactionKind.MAJOR
    schedule.resume(CompactionKind.MAJOR, "disk")
    assert schedule.is_suspended(CompactionKind.MAJOR)
    assert schedule.due(86401, Trigger()) is CompactionKind.MINOR
    schedule.resume(CompactionKind.MAJOR, "admin")
    assert schedule.due(86401, Trigger()) is CompactionKind.MAJOR


@pytest.mark.parametrize(("threshold", "interval"), [(0.0, 3600.0), (0.8, 0.0), (-1.0, 1.0), (0.8, -1.0)])
def test_a_compaction_without_threshold_or_interval_is_off(threshold: float, interval: float) -> None:
    off = CompactionRule(threshold, interval)
    schedule = CompactionSchedule(CompactionPolicy(minor=off, major=off), now=0)
    assert schedule.due(1e9, Trigger(force=True)) is None
    always = CompactionSchedule(CompactionPolicy(minor=off, major=off, forced_always=True), now=0)
    assert always.due(1e9, Trigger()) is None
    assert (always.due(1e9, Trigger(force=True)) is CompactionKind.MAJOR) == (threshold > 0)


def test_a_policy_says_what_is_wrong_with_it() -> None:
    assert POLICY.problem(600) is None
    assert "exceed 1" in str(CompactionPolicy(POLICY.minor, CompactionRule(1.1, 86400)).problem(600))
    assert "gc_wait_seconds" in str(POLICY.problem(7200))
    assert "interval" in str(CompactionPolicy(CompactionRule(0.2, 86400), POLICY.major).problem(600))
    assert "threshold" in str(CompactionPolicy(CompactionRule(0.8, 3600), POLICY.major).problem(600))
    assert CompactionPolicy(CompactionRule(0.9, 0), POLICY.major).problem(600) is None


def test_asks_that_wait_are_one_run() -> None:
    both = Trigger(major=True).merged(Trigger(force=True, minor=False))
    assert both == Trigger(force=True, major=True, minor=False)
    assert Trigger(major=True).merged(Trigger(major=False)).major is False
