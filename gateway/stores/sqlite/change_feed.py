"""Notifies listeners of one process about changes that other processes made in the shared file.

As long as there are listeners, the event loop looks every 50 ms whether another connection has committed; if so the
rows of `changes` above the last revision seen are read on the store's thread. A change made by this process wakes the
reader at once. If rows that it needs are already pruned, it reports that anything may have changed. Without listeners
nothing runs; the next listener continues from the last revision seen, so that nothing is missed in between.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bookgate.gateway.stores.sqlite.store import (
    BOOKIES_CHANGE,
    LEDGER_CHANGE,
    REPLICATION_CHANGE,
    ReplicationChange,
    SqliteStore,
    revision_of,
)
from bookgate.ledger.errors import BKException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.runtime.background import keep_running
from bookgate.runtime.logs import log_event

_LOG = logging.getLogger(__name__)

_KEY = struct.Struct(">qq")


def ledger_key(ledger_id: LedgerId) -> bytes:
    """The key of a ledger's row: scope and id, big-endian, so that byte order is unsigned order."""
    return _KEY.pack(ledger_id.scope_id, ledger_id.low)


def ledger_id_of(key: bytes) -> LedgerId:
    return LedgerId(*_KEY.unpack(key))


def lows_of(keys: Sequence[bytes]) -> list[int]:
    """The lower halves of the ids with these keys: some tenths of a microsecond each, for the pages of listings."""
    return [low for _, low in _KEY.iter_unpack(b"".join(keys))]


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes since the last read. `anything`: too many to list."""

    ledgers: frozenset[LedgerId] = frozenset()
    bookies: bool = False
    anything: bool = False
    replication: frozenset[ReplicationChange] = frozenset()


class ChangeFeed:
    """Looks for changes of one store as long as there are listeners. Belongs to one event loop."""

    def __init__(self, store: SqliteStore, tell: Callable[[Changes], None], poll_seconds: float = 0.05) -> None:
        self._store = store
        self._tell = tell
        self._poll_seconds = poll_seconds
        self._revision = 0
        self._seen: int | None = None
        """The store's data version from before the last read; None if the next look is to cause a read."""
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def begin(self) -> None:
        """Sets the revision from which changes count."""
        self._revision = await self._store.read(revision_of)
        self._store.on_commit = self._wake.set

    def want(self, wanted: bool) -> None:
        """Starts or stops looking."""
        if wanted and self._task is None:
            self._task = keep_running("changes of the metadata", self._read_when_woken)
            self._look()
        elif not wanted and self._task is not None:
            self._stop().cancel()

    async def catch_up(self) -> None:
        """Reports everything that is committed by now."""
        await self._read_once()

    async def close(self) -> None:
        if self._task is not None:
            task = self._stop()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _stop(self) -> asyncio.Task[None]:
        assert self._task is not None
        task, self._task = self._task, None
        if self._timer is not None:
            self._timer.cancel()
        return task

    def _look(self) -> None:
        version = self._store.data_version()
        if version is None or version != self._seen:
            self._wake.set()
        self._timer = asyncio.get_running_loop().call_later(self._poll_seconds, self._look)

    async def _read_when_woken(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            self._seen = self._store.data_version()
            try:
                await self._read_once()
            except BKException as error:
                self._seen = None
                log_event(_LOG, "changes_not_read", logging.WARNING, error=error, note="it is tried again")

    async def _read_once(self) -> None:
        # What was read counts as seen, so it must be reported even if the caller is cancelled meanwhile.
        await asyncio.shield(self._read_and_tell())

    async def _read_and_tell(self) -> None:
        changes = await self._store.read(self._read)
        if changes is not None:
            self._tell(changes)

    def _read(self, connection: sqlite3.Connection) -> Changes | None:
        """Runs on the store's thread; the only place that advances the revision."""
        rows = connection.execute(
            "SELECT revision, kind, key FROM changes WHERE revision > ? ORDER BY revision", (self._revision,)
        ).fetchall()
        if not rows:
            return None
        pruned = rows[0][0] > self._revision + 1
        self._revision = rows[-1][0]
        if pruned:
            return Changes(anything=True)
        return Changes(
            frozenset(ledger_id_of(key) for _, kind, key in rows if kind == LEDGER_CHANGE),
            bookies=any(kind == BOOKIES_CHANGE for _, kind, _ in rows),
            replication=frozenset(
                ReplicationChange(ledger_id_of(key).low) for _, kind, key in rows if kind == REPLICATION_CHANGE
            ),
        )
