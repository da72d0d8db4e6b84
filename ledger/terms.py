"""What the metadata of an unbounded ledger have and others have not. Their transitions: `unbounded`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bookgate.ledger.errors import IncorrectParameterException


def check_limit(name: str, value: float | None) -> None:
    """Raises IncorrectParameterException unless a limit is a finite number above 0, or None for no limit."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (is_number and 0 < value < math.inf):
        raise IncorrectParameterException(f"{name} is a number above 0, or None for no limit, not {value!r}")


@dataclass(frozen=True, slots=True)
class FragmentCaps:
    """When a writer begins a new fragment by choice; None for a limit that there is not."""

    max_bytes: int | None = None
    """Payload bytes."""
    max_entries: int | None = None

    def __post_init__(self) -> None:
        if any(cap is not None and cap < 1 for cap in (self.max_bytes, self.max_entries)):
            raise IncorrectParameterException(f"a fragment's largest size must be at least 1: {self}")


NO_CAPS = FragmentCaps()


@dataclass(frozen=True, slots=True)
class Terms:
    """What the metadata of an unbounded ledger have and others have not."""

    term: int = 0
    """0 at creation; whoever takes over increments it."""
    holder: int = 0
    """A random number of the client that has the term: 63 bits, 0 until somebody has taken over."""
    length_before: int = 0
    """Payload bytes of all entries, also of deleted ones, before the last fragment."""
    caps: FragmentCaps = NO_CAPS

    def __post_init__(self) -> None:
        if min(self.term, self.holder, self.length_before) < 0:
            raise IncorrectParameterException(f"negative numbers in {self}")
