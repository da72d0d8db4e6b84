"""Service discovery from the leases and cookies of the embedded store.

The end of a lease changes nothing in the file, so listeners also cause a read when the next lease would end. A lease
with an impossibly late end was renewed before the clock was set back; it counts as long as its process lives.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence

from bookgate.gateway.stores.bookie_listeners import BookieListeners, select
from bookgate.gateway.stores.sqlite.process_identity import surely_dead
from bookgate.gateway.stores.sqlite.registration import LONGEST_LEASE_SECONDS, instance_id, wall_clock_ms
from bookgate.gateway.stores.sqlite.store import SqliteStore
from bookgate.ledger.bookie_info import BookieServiceInfo
from bookgate.ledger.errors import BookieHandleNotAvailableException
from bookgate.ledger.metadata_store import BookieSet, BookiesListener, ClusterInfo, RegisteredBookie, ServiceDiscovery

LEDGER_MANAGER_NAME = "gateway.embedded.factory.SqliteLedgerManagerFactory"


class SqliteServiceDiscovery(ServiceDiscovery):
    """See the module. The factory reports changes to `listeners`."""

    def __init__(
        self, store: SqliteStore, interest_changed: Callable[[], None], now_ms: Callable[[], int] = wall_clock_ms
    ) -> None:
        self._store = store
        self._now_ms = now_ms
        self._interest_changed = interest_changed
        self.listeners = BookieListeners(self._read_for_listeners, interest_changed)
        self._next_look: asyncio.TimerHandle | None = None
        self._known: dict[tuple[str, int, bytes], RegisteredBookie] = {}
        """The registrations read last, by their rows. On the store's thread."""

    async def bookies(self, bookie_set: BookieSet) -> Sequence[RegisteredBookie]:
        found, _ = await self._store.read(self._select)
        return select(found, bookie_set)

    async def bookie_service_info(self, bookie_id: str) -> RegisteredBookie:
        found, _ = await self._store.read(self._select)
        for bookie in found:
            if bookie.bookie_id == bookie_id and bookie.registered:
                return bookie
        raise BookieHandleNotAvailableException(f"bookie {bookie_id} is not registered")

    async def watch_bookies(self, bookie_set: BookieSet, listener: BookiesListener) -> Callable[[], None]:
        remove = self.listeners.add(bookie_set, listener)
        self._interest_changed()
        return remove

    async def cluster_info(self) -> ClusterInfo:
        return ClusterInfo(await self._store.read(instance_id), LEDGER_MANAGER_NAME)

    async def close(self) -> None:
        self._cancel_look()
        await self.listeners.close()

    async def _read_for_listeners(self) -> Sequence[RegisteredBookie]:
        found, next_end_ms = await self._store.read(self._select)
        self._cancel_look()
        if next_end_ms is not None:
            delay = max(0.001, (next_end_ms - self._now_ms() + 1) / 1000)
            self._next_look = asyncio.get_running_loop().call_later(delay, self.listeners.changed)
        return found

    def _cancel_look(self) -> None:
        if self._next_look is not None:
            self._next_look.cancel()
            self._next_look = None

    def _select(self, connection: sqlite3.Connection) -> tuple[list[RegisteredBookie], int | None]:
        """All bookies, and when the first valid lease ends."""
        now = self._now_ms()
        latest = now + int(LONGEST_LEASE_SECONDS * 1000)
        rows = connection.execute(
            "SELECT bookie_id, read_only, content, process, expires_at_ms FROM registrations WHERE expires_at_ms > ?",
            (now,),
        ).fetchall()
        leases = [(*row[:3], min(row[4], latest)) for row in rows if row[4] <= latest or not surely_dead(row[3])]
        # Each call reads the rows; what they hold seldom changes. Nothing is kept that is not in them.
        self._known = {row[:3]: self._known.get(row[:3]) or _announced(*row[:3]) for row in leases}
        found = {bookie.bookie_id: bookie for bookie in self._known.values()}
        for (bookie_id,) in connection.execute("SELECT bookie_id FROM cookies"):
            found.setdefault(bookie_id, RegisteredBookie(BookieServiceInfo.legacy(bookie_id), False, False))
        return list(found.values()), min((end for *_, end in leases), default=None)


def _announced(bookie_id: str, read_only: int, content: bytes) -> RegisteredBookie:
    return RegisteredBookie(BookieServiceInfo.announced(bookie_id, content), not read_only, bool(read_only))
