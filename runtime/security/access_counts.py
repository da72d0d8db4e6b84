"""What was asked for at the doors of a process, as its metrics show it: by door, kind of principal and outcome.

Each combination that can occur is there from the start, at zero: Prometheus sees no increase in a counter that begins
with its first event. Principals are told apart by their kind only, so that their number is bounded. Where nobody is
asked who they are, all are anonymous and none is counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from bookgate.runtime.security.principal import ANONYMOUS, Kind

LABELS: Final = ("door", "principal", "outcome")
TEXT: Final = (
    "what was asked for, by door, kind of principal and outcome: allowed, denied, unauthenticated, limited, quota"
)
_OUTCOMES: Final = ("allowed", "denied", "limited", "quota", "unauthenticated")

AccessKey = tuple[str, str, str]
"""Door, kind of principal, outcome."""


def access_samples(counts: Mapping[AccessKey, int] | None, doors: Sequence[str]) -> list[tuple[AccessKey, int]]:
    """All combinations with their counts, in order. `counts` None: nobody is asked."""
    kinds = (ANONYMOUS.kind,) if counts is None else tuple(Kind)
    found = {
        (door, str(kind), outcome): 0
        for door in doors
        for kind in kinds
        for outcome in _OUTCOMES
        # Whoever fails to authenticate is nobody yet; the other outcomes are of somebody.
        if counts is None or (outcome != "unauthenticated" or kind == ANONYMOUS.kind)
    }
    found.update(counts or {})
    return sorted(found.items())
