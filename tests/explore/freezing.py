"""Snapshots of an actor: a canonical value that tells its states apart, and bytes to bring one back.

Two objects have equal frozen values exactly when no method of theirs could tell them apart: classes, fields, containers
and which of several references lead to one object. Exceptions count by their class alone, since no core decides by a
message. Sets and dictionaries with the same content are equal, whatever order they were filled in.

Not its job: what an actor does, or which of its fields matter (an actor drops what it needs no more).
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Hashable, Iterator
from enum import Enum
from typing import Any

_PLAIN = (int, str, bytes, float, type(None))


def freeze(value: object) -> Hashable:
    """The canonical value. Raises TypeError for what has no state to look at, as a function."""
    return _Freezing().of(value)


def pack(value: object) -> bytes:
    """Bytes from which `unpack` makes an independent copy."""
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def unpack(data: bytes) -> Any:
    return pickle.loads(data)


class _Freezing:
    """One walk through an object: numbers objects as it meets them, so that shared ones show."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._kept: list[object] = []

    def of(self, value: object) -> Hashable:
        if isinstance(value, Enum):
            return (type(value).__name__, value.name)
        if isinstance(value, _PLAIN):
            return value
        if isinstance(value, BaseException):
            return type(value).__name__
        if isinstance(value, tuple):
            return (type(value).__name__, *map(self.of, value))
        if isinstance(value, frozenset | set):
            return ("set", *sorted(map(self.of, value), key=repr))
        number = self._numbers.get(id(value))
        if number is not None:
            return ("met", number)
        self._numbers[id(value)] = len(self._numbers)
        self._kept.append(value)  # an id is one object's as long as that lives
        return self._met_first(value)

    def _met_first(self, value: object) -> Hashable:
        if isinstance(value, list | deque):
            return ("list", *map(self.of, value))
        if isinstance(value, dict):
            items = sorted(value.items(), key=lambda item: repr(self.of(item[0])))
            return ("dict", *((self.of(key), self.of(each)) for key, each in items))
        if isinstance(value, Iterator):
            reduced = value.__reduce__()
            assert isinstance(reduced, tuple)
            return ("iterator", *map(self.of, reduced[1:]))
        if callable(value):
            raise TypeError(f"{value!r} has no state that can be told from another's")
        return (type(value).__name__, *((name, self.of(each)) for name, each in _fields(value)))


def _fields(value: object) -> list[tuple[str, object]]:
    names = {name for base in type(value).__mro__ for name in getattr(base, "__slots__", ())}
    names |= set(getattr(value, "__dict__", ()))
    return [(name, getattr(value, name)) for name in sorted(names) if hasattr(value, name)]
