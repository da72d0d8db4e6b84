"""What bookies that are away were registered as, and since when they are, as far as somebody was looking.

Stores keep nothing of a registration that has ended, and whoever goes to start the bookie again has to know where it
was. Of bookies that were away before the first look nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from bookgate.ledger.bookie_info import BookieServiceInfo
from bookgate.ledger.metadata_store import RegisteredBookie


@dataclass(frozen=True, slots=True)
class _Seen:
    info: BookieServiceInfo
    away_since_ms: int | None = None


class LastSeen:
    """See the module. Holds no more bookies than the cluster has."""

    def __init__(self, wall_clock: Callable[[], float]) -> None:
        self._wall_clock = wall_clock
        self._seen: dict[str, _Seen] = {}

    def take(self, bookies: Iterable[RegisteredBookie]) -> None:
        """Takes note of all bookies of the cluster, as they are now."""
        self._seen = {bookie.bookie_id: seen for bookie in bookies if (seen := self._of(bookie)) is not None}

    def _of(self, bookie: RegisteredBookie) -> _Seen | None:
        if bookie.registered:
            return _Seen(bookie.info)
        before = self._seen.get(bookie.bookie_id)
        if before is None or before.away_since_ms is not None:
            return before
        return replace(before, away_since_ms=int(self._wall_clock() * 1000))

    def info(self, bookie: RegisteredBookie) -> BookieServiceInfo:
        """Its registration, or the last one that was seen."""
        seen = self._seen.get(bookie.bookie_id)
        return bookie.info if seen is None else seen.info

    def away_since_ms(self, bookie_id: str) -> int | None:
        """When it was first seen to be away, milliseconds since 1970; None: it is not, or that was never seen."""
        seen = self._seen.get(bookie_id)
        return None if seen is None else seen.away_since_ms
