"""How many entries a batch read answers with, in BookKeeper's arithmetic."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookgate.bookie.storage.batch_size import BatchSize

MIB = 1 << 20


def taken(sizes: list[int], max_count: int, max_size: int, limit: int = 5 * MIB) -> int:
    """How many entries of these sizes one answer holds."""
    batch = BatchSize(max_count, max_size, limit)
    count = 0
    for size in sizes:
        if not batch.take([size + 4]):
            break
        count += 1
    return count


@pytest.mark.parametrize(("max_count", "expected"), [(3, 3), (1, 1), (0, 10), (-7, 10), (100, 10)])
def test_a_count_of_0_or_less_is_no_limit(max_count: int, expected: int) -> None:
    assert taken([100] * 10, max_count, MIB) == expected


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_size_is_36_bytes_and_4_more_than_each_entry(count: int) -> None:
    exact = 36 + count * 104
    assert taken([100] * 10, 0, exact) == count
    assert taken([100] * 10, 0, exact - 1) == max(1, count - 1)


@pytest.mark.parametrize("max_size", [0, -1, 1, 50])
def test_the_first_entry_is_taken_whatever_its_size(max_size: int) -> None:
    assert taken([100] * 10, 0, max_size) == 1


def test_the_servers_limit_holds_where_it_is_the_smaller() -> None:
    assert taken([100] * 10, 0, MIB, limit=36 + 3 * 104) == 3


def test_the_count_is_capped_by_the_size_of_the_first_entry() -> None:
    """Entries that are smaller than the first don't make the batch longer."""
    assert taken([100] + [10] * 50, 0, 36 + 104 * 4) == 4


def test_a_larger_entry_that_does_not_fit_ends_the_batch() -> None:
    assert taken([10, 10, 500, 10], 0, 36 + 14 * 10) == 2


def test_nothing_is_taken_after_the_end() -> None:
    batch = BatchSize(0, 36 + 2 * 104, MIB)
    assert [batch.take([size + 4]) for size in (100, 500, 1)] == [1, 0, 0]


@given(st.lists(st.integers(0, 300), min_size=1, max_size=30), st.integers(-1, 20), st.integers(-1, 3000), st.data())
def test_records_taken_together_are_those_taken_one_by_one(
    sizes: list[int], max_count: int, max_size: int, data: st.DataObject
) -> None:
    batch, count, rest = BatchSize(max_count, max_size, 5 * MIB), 0, sizes
    while rest and batch.room:
        size = data.draw(st.integers(1, len(rest)))
        count += batch.take(list(itertools.accumulate(each + 4 for each in rest[:size])))
        rest = rest[size:]
    assert count == taken(sizes, max_count, max_size)
