"""Turns Spark's filters on ids into bounds on what is read. Pure: filters in, bounds out.

Spark passes a list of filters that all hold; filters below an OR are never passed. A filter that `Bounds` applies
completely is accepted, so Spark does not apply it again; every other one must be returned to Spark as the same object.
Accepted are comparisons of the id columns with numbers: `=`, `<=>`, `<`, `<=`, `>`, `>=`, and `IN` for ledger ids; and
`IS NOT NULL`, since ids are never null.

Source: docs/spark.md#filters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

_MIN, _MAX = -(1 << 63), (1 << 63) - 1
_ID_COLUMNS = ("scope_id", "ledger_id", "entry_id")


@dataclass(slots=True)
class Interval:
    """Whole numbers from `first` to `last`, both included; empty when `last` is below `first`."""

    first: int = _MIN
    last: int = _MAX

    def __contains__(self, value: int) -> bool:
        return self.first <= value <= self.last

    def narrow(self, first: int = _MIN, last: int = _MAX) -> None:
        """Narrows the interval to its intersection with the given one."""
        self.first, self.last = max(self.first, first), min(self.last, last)


@dataclass(slots=True)
class Bounds:
    """Conditions on ids, all of which hold. Pickled with the reader."""

    scope_id: Interval = field(default_factory=Interval)
    ledger_id: Interval = field(default_factory=Interval)
    entry_id: Interval = field(default_factory=Interval)
    ledger_ids: frozenset[int] | None = None
    """When not None, no other ledgers."""

    def take(self, filters: Iterable[Filter]) -> Iterator[Filter]:
        """Narrows itself by the filters that it can apply; yields the others, which Spark must apply."""
        for condition in filters:
            if not self._take(condition):
                yield condition

    def takes_ledger(self, scope_id: int, ledger_id: int) -> bool:
        """Whether a ledger may have rows."""
        listed = self.ledger_ids is None or ledger_id in self.ledger_ids
        return listed and ledger_id in self.ledger_id and scope_id in self.scope_id

    def listed_range(self) -> Interval:
        """The ledger ids that a listing must cover."""
        whole = Interval(self.ledger_id.first, self.ledger_id.last)
        if self.ledger_ids is not None:
            whole.narrow(min(self.ledger_ids, default=_MAX), max(self.ledger_ids, default=_MIN))
        return whole

    def _take(self, condition: Filter) -> bool:
        name = ".".join(getattr(condition, "attribute", ()))
        if name not in _ID_COLUMNS:
            return False
        if isinstance(condition, IsNotNull):
            return True
        if isinstance(condition, In):
            return self._take_list(name, condition)
        value: object = getattr(condition, "value", None)
        if not isinstance(value, int) or isinstance(value, bool):
            return False
        interval: Interval = getattr(self, name)
        match condition:
            case EqualTo() | EqualNullSafe():
                interval.narrow(value, value)
            case GreaterThan():
                interval.narrow(first=value + 1)
            case GreaterThanOrEqual():
                interval.narrow(first=value)
            case LessThan():
                interval.narrow(last=value - 1)
            case LessThanOrEqual():
                interval.narrow(last=value)
            case _:
                return False
        return True

    def _take_list(self, name: str, condition: In) -> bool:
        wanted = frozenset(condition.value)
        if name != "ledger_id" or not all(type(value) is int for value in wanted):
            return False
        self.ledger_ids = wanted if self.ledger_ids is None else self.ledger_ids & wanted
        return True


EVERYTHING = Bounds()
"""The bounds of a reader without filters. Must not be narrowed."""
