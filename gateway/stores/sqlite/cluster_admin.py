"""Creating, describing, emptying and removing a cluster in an SQLite file.

An existing file is never created anew, and reading never creates one. Format is one transaction, which gateways with
the file open see as "anything may have changed". Nuke first makes SQLite leave WAL mode, which succeeds only if no
other process has the file open, so that no gateway continues with a deleted file.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import uuid
from collections.abc import Mapping
from pathlib import Path

from bookgate.gateway.stores.cluster_admin import NO_SETTINGS, ClusterAdmin, ClusterSummary
from bookgate.gateway.stores.sqlite.discovery import LEDGER_MANAGER_NAME
from bookgate.gateway.stores.sqlite.process_identity import surely_dead
from bookgate.gateway.stores.sqlite.registration import instance_id, wall_clock_ms
from bookgate.gateway.stores.sqlite.store import SqliteStore, Transaction
from bookgate.ledger.errors import IllegalOpException, MetaStoreException
from bookgate.ledger.replication_store import OF_LEDGERS_AND_BOOKIES

_SOLE_USER_SECONDS = 0.5


class SqliteClusterAdmin(ClusterAdmin):
    """See the module."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._store: SqliteStore | None = None

    async def connect(self) -> None:
        """Opens nothing yet, since the file may not exist."""

    async def close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            await store.close()

    async def initialize(self, settings: Mapping[str, bytes] = NO_SETTINGS) -> None:
        try:
            # The file contains the ledgers' passwords; SQLite gives the files beside it the same permissions.
            os.close(os.open(self._path, os.O_CREAT | os.O_WRONLY, 0o600))
        except OSError as error:
            raise MetaStoreException(f"the metadata database {self._path} can't be made: {error.strerror}") from error
        store = SqliteStore(self._path)
        try:
            await store.create(settings)
        except BaseException:
            await store.close()
            raise
        self._store = store

    async def require_cluster(self) -> None:
        await self._opened()

    async def summary(self) -> ClusterSummary:
        return await (await self._opened()).read(_summary)

    async def registered_bookies(self) -> list[str]:
        store = await self._opened()
        return sorted(bookie_id for bookie_id, _ in await store.read(_living))

    async def format(self) -> None:
        store = await self._opened()
        await self.refuse_if_bookies_live("formatted")
        await store.change(_format)

    async def advance_ids(self, beyond: int) -> int:
        def advance(transaction: Transaction) -> int:
            transaction.execute("UPDATE meta SET value = max(value, ?) WHERE name = 'next_ledger_id'", (beyond + 1,))
            first: int = transaction.execute("SELECT value FROM meta WHERE name = 'next_ledger_id'").fetchone()[0]
            return first

        return await (await self._opened()).change(advance)

    async def nuke(self) -> None:
        await self._opened()
        await self.refuse_if_bookies_live("removed")
        await self.close()
        if not await asyncio.to_thread(_sole_user, self._path):
            raise IllegalOpException(
                f"the cluster is not removed: another process has {self._path} open; stop the gateways first"
            )
        _remove(self._path)

    async def _opened(self) -> SqliteStore:
        if self._store is None:
            store = SqliteStore(self._path)
            try:
                await store.open()
            except BaseException:
                await store.close()
                raise
            self._store = store
        return self._store


def _remove(path: str) -> None:
    for suffix in ("-wal", "-shm", ""):
        Path(path + suffix).unlink(missing_ok=True)


def _living(connection: sqlite3.Connection) -> list[tuple[str, bool]]:
    """Registered bookies, each with whether it is read-only."""
    rows = connection.execute(
        "SELECT bookie_id, read_only, process FROM registrations WHERE expires_at_ms > ?", (wall_clock_ms(),)
    )
    return [(bookie_id, bool(read_only)) for bookie_id, read_only, process in rows if not surely_dead(process)]


def _summary(connection: sqlite3.Connection) -> ClusterSummary:
    living = _living(connection)
    read_only = sum(1 for _, is_read_only in living if is_read_only)
    return ClusterSummary(
        instance_id(connection),
        LEDGER_MANAGER_NAME,
        connection.execute("SELECT count(*) FROM ledgers").fetchone()[0],
        len(living) - read_only,
        read_only,
        connection.execute("SELECT count(*) FROM cookies").fetchone()[0],
    )


def _format(transaction: Transaction) -> None:
    for table in (
        "ledgers",
        "cookies",
        "registrations",
        "replication_marks",
        "replication_claims",
        "replication_scoped_marks",
    ):
        transaction.execute(f"DELETE FROM {table}")
    for kind in OF_LEDGERS_AND_BOOKIES:
        transaction.execute("DELETE FROM replication_values WHERE kind = ?", (kind.value,))
    transaction.execute("UPDATE meta SET value = ? WHERE name = 'instance_id'", (str(uuid.uuid4()),))
    transaction.execute("UPDATE meta SET value = 0 WHERE name = 'next_ledger_id'")
    # A gap in the changes makes every watching process read everything anew.
    transaction.bookies_changed()
    transaction.execute("DELETE FROM changes")
    transaction.bookies_changed()


def _sole_user(path: str) -> bool:
    """Whether no other connection has the file open. To ask it, this process may have none either."""
    connection = sqlite3.connect(path, timeout=_SOLE_USER_SECONDS, isolation_level=None)
    try:
        return bool(connection.execute("PRAGMA journal_mode=DELETE").fetchone()[0] == "delete")
    except sqlite3.OperationalError:
        return False
    finally:
        connection.close()
