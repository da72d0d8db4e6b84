"""State machines as data: which event leads from which state to which.

A core with states declares them as an enum whose values say in words what holds, its events as another, and one table.
All changes of its state go through `after`, so the table can't say anything but what happens; docs/reference/states.md
is drawn from the tables. An event that a state has no entry for is a bug in the core or its shell, never input.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Generic, TypeVar

_S = TypeVar("_S", bound=Enum)
_E = TypeVar("_E", bound=Enum)


class Transitions(Generic[_S, _E]):
    """A transition table: the initial state, and for each state the events that may occur in it.

    A state without events is final. Every event of a state not listed under it is impossible there.
    """

    __slots__ = ("initial", "table")

    def __init__(self, initial: _S, table: Mapping[_S, Mapping[_E, _S]]) -> None:
        self.initial = initial
        self.table = table
        missing = [state.name for state in type(initial) if state not in table]
        assert not missing, f"states without a row: {missing}"

    def after(self, state: _S, event: _E) -> _S:
        """The state that follows. Raises AssertionError for an event that can't occur in this state."""
        following = self.table[state].get(event)
        if following is None:
            raise AssertionError(f"{event.name} can't occur in state {state.name}")
        return following
