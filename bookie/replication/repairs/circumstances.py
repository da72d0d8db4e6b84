"""The state of the cluster that repairs need: which bookies are missed since when, and which are to be emptied.

It is read once for all repairs that begin within a second. A caller that knows of a possible change calls `forget`: a
mark made because of a change must be repaired with the state since then. Source:
docs/protocol/auto-recovery.md#worker. Not its job: the consequences (`worker`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from bookgate.ledger.replication_store import RecordKind, ReplicationMetadata
from bookgate.ledger.replication_survey import missed_bookies

_KEPT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Circumstances:
    """The state of the cluster according to the store."""

    missed_since: Mapping[str, int]
    """Missed bookies, with the time since when an auditor has missed them, in milliseconds since 1970."""
    draining: frozenset[str]
    """Bookies to be emptied."""
    delay_ms: int
    """Milliseconds for which a bookie may be missed before it is lost."""

    def is_lost(self, bookie_id: str, now_ms: int) -> bool:
        """Whether an auditor has missed the bookie for the delay, by the time `now_ms` in milliseconds since 1970."""
        since = self.missed_since.get(bookie_id)
        return since is not None and now_ms - since >= self.delay_ms

    def absent(self, away: Mapping[str, float | None], marked: Collection[str], now_ms: int) -> Mapping[str, bool]:
        """Bookies of a ledger that are not registered; True for those that are lost.

        Args:
            away: By bookie, the seconds for which this process has seen it away; None if it is registered.
            marked: The bookies that the ledger's mark names.
            now_ms: The current time, in milliseconds since 1970.
        """
        return {
            bookie_id: self.is_lost(bookie_id, now_ms) or (bookie_id in marked and 1000 * seconds >= self.delay_ms)
            for bookie_id, seconds in away.items()
            if seconds is not None
        }


class KnownCircumstances:
    """The cached state of one worker."""

    def __init__(self, metadata: ReplicationMetadata) -> None:
        self._metadata = metadata
        self._reading: asyncio.Lock = asyncio.Lock()
        self._known: Circumstances | None = None
        self._until = 0.0
        self._forgotten = 0

    def forget(self) -> None:
        """Discards the state, also one that is being read."""
        self._known = None
        self._forgotten += 1

    async def now(self) -> Circumstances:
        """The state, read after the last `forget` and within the last second. Raises BKException."""
        loop = asyncio.get_running_loop()
        async with self._reading:
            if self._known is not None and loop.time() < self._until:
                return self._known
            while True:
                forgotten, until = self._forgotten, loop.time() + _KEPT_SECONDS
                found = await self._read()
                if forgotten == self._forgotten:
                    self._known, self._until = found, until
                    return found

    async def _read(self) -> Circumstances:
        missed_since = await missed_bookies(self._metadata)
        draining = await self._metadata.records(RecordKind.DRAINING_BOOKIE)
        delay = await self._metadata.lost_bookie_delay()
        return Circumstances(missed_since, frozenset(draining), 1000 * (delay or 0))
