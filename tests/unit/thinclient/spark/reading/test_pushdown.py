"""Filters on ids: taken exactly when they are carried out completely, and carried out exactly."""

from __future__ import annotations

import operator
import pickle
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
)

from bookgate.thinclient.spark.reading.pushdown import Bounds, Interval

_COMPARISONS: dict[type, Callable[[int, int], bool]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}


def taken(*filters: Filter) -> tuple[Bounds, list[Filter]]:
    bounds = Bounds()
    return bounds, list(bounds.take(filters))


conditions = st.builds(
    lambda kind, column, value: kind((column,), value),
    st.sampled_from(sorted(_COMPARISONS, key=lambda kind: kind.__name__)),
    st.sampled_from(["scope_id", "ledger_id", "entry_id"]),
    st.integers(-3, 3),
) | st.builds(lambda values: In(("ledger_id",), tuple(values)), st.lists(st.integers(-3, 3), max_size=4))


@given(st.lists(conditions, max_size=6))
def test_bounds_say_what_the_filters_say(filters: list[Filter]) -> None:
    bounds, left = taken(*filters)
    assert left == []

    def holds(row: dict[str, int]) -> bool:
        return all(
            row[f.attribute[0]] in f.value if isinstance(f, In) else _COMPARISONS[type(f)](row[f.attribute[0]], f.value)  # type: ignore[attr-defined]
            for f in filters
        )

    for scope_id in range(-4, 5):
        for ledger_id in range(-4, 5):
            for entry_id in (-4, 0, 4):
                row = {"scope_id": scope_id, "ledger_id": ledger_id, "entry_id": entry_id}
                said = bounds.takes_ledger(scope_id, ledger_id) and entry_id in bounds.entry_id
                assert said == holds(row)
                assert not said or ledger_id in bounds.listed_range()


@pytest.mark.parametrize(
    "condition",
    [
        EqualTo(("payload",), b"x"),
        EqualTo(("ledger_id", "inner"), 1),
        EqualTo(("ledger_id",), 1.0),
        EqualTo(("ledger_id",), True),
        In(("entry_id",), (1, 2)),
        In(("ledger_id",), (1, None)),
        IsNull(("ledger_id",)),
        IsNotNull(("payload",)),
        Not(EqualTo(("ledger_id",), 1)),
        StringContains(("state",), "x"),
    ],
)
def test_what_is_not_understood_goes_back_to_spark_the_very_same(condition: Filter) -> None:
    bounds, left = taken(IsNotNull(("ledger_id",)), condition)
    assert len(left) == 1
    assert left[0] is condition
    assert bounds == Bounds()


def test_bounds_travel() -> None:
    bounds, _ = taken(In(("ledger_id",), (5, 9)), GreaterThan(("ledger_id",), 5))
    assert pickle.loads(pickle.dumps(bounds)) == bounds
    assert bounds.listed_range() == Interval(6, 9)
