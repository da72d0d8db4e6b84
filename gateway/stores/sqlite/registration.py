"""Registrations of bookies in the embedded store: leases instead of ZooKeeper's ephemeral nodes.

A registration belongs to an owner (one object of this class) and expires at a wall-clock time unless the owner renews
it, which it does three times per lease. Expired means gone, for everyone, without anyone deleting the row. Transitions
of a row: absent → held (register) → held (renew, move between the lists) → absent (unregister, close); held → expired →
held by another owner. A row of an owner whose process has died on this machine may be taken over at once, so that a
bookie is back quickly after kill -9. A row of a living owner rejects others; a caller waits once for the lease's end,
since the row may be from its own previous life. A bookie that registers through gateways moves between them: its row,
recognised by the same life, is taken over at once, in one transaction, so discovery never misses it. The former gateway
no longer renews its copy: whether the row belongs to the next gateway or is removed is up to the bookie.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import time
import uuid
from collections.abc import Callable
from typing import TypeVar

from bookgate.gateway.stores.claims import Claims, Held, MovedOnException, held_by_another, moved_on
from bookgate.gateway.stores.sqlite.process_identity import identity_of, surely_dead
from bookgate.gateway.stores.sqlite.store import SqliteStore, Transaction
from bookgate.ledger.bookie_info import BookieServiceInfo, Lease, check_bookie_id, lease_of, same_life
from bookgate.ledger.errors import BKException, MetadataVersionException, WrongClusterException
from bookgate.ledger.metadata_store import RegistrationManager, Versioned
from bookgate.runtime.background import keep_running
from bookgate.runtime.logs import log_event

T = TypeVar("T")

_LOG = logging.getLogger(__name__)

DEFAULT_LEASE_SECONDS = 10.0
LONGEST_LEASE_SECONDS = 60.0
"""A lease that ends later was renewed before the clock was set back."""


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class SqliteRegistrationManager(RegistrationManager):
    """Registrations of this process's bookies, kept by a background task, and the cookies."""

    def __init__(
        self,
        store: SqliteStore,
        lease_seconds: float = DEFAULT_LEASE_SECONDS,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self._store = store
        self._lease_seconds = lease_seconds
        self._now_ms = now_ms
        self._owner = str(uuid.uuid4())
        self._process = identity_of(os.getpid())
        self._claims = Claims()
        self._held = self._claims.held
        self._renewal: asyncio.Task[None] | None = None
        self._cluster: str | None = None
        """The cluster whose registrations are renewed."""

    async def cluster_instance_id(self) -> str:
        return await self._store.read(instance_id)

    def reserve(self, bookie_id: str) -> None:
        self._claims.reserve(bookie_id)

    async def register_bookie(self, info: BookieServiceInfo, *, read_only: bool) -> None:
        check_bookie_id(info.bookie_id)
        self._claims.check(info)
        await self.check_membership(info.bookie_id)
        if info.bookie_id in self._held:
            # A renewal between the change and its end must not undo it.
            self._held[info.bookie_id] = (info, read_only)
        wait_ms = await self._change(lambda transaction: self._take(transaction, info, read_only))
        if wait_ms:
            log_event(
                _LOG,
                "registration_waits",
                bookie=info.bookie_id,
                milliseconds=wait_ms,
                reason="another lease for this id has not ended",
            )
            await asyncio.sleep(wait_ms / 1000)
            wait_ms = await self._change(lambda transaction: self._take(transaction, info, read_only))
        if wait_ms:
            raise held_by_another(info.bookie_id)
        self._held[info.bookie_id] = (info, read_only)
        if self._renewal is None:
            self._renewal = keep_running("renewal of registrations", self._renew_forever)

    async def unregister_bookie(self, bookie_id: str, lease: Lease | None = None) -> None:
        if not self._claims.may_change(bookie_id, lease):
            return
        self._held.pop(bookie_id, None)
        await self._change(lambda transaction: self._give_back(transaction, {bookie_id: lease}))

    async def is_registered(self, info: BookieServiceInfo, *, read_only: bool) -> bool:
        def look(connection: sqlite3.Connection) -> bool:
            row = connection.execute(
                "SELECT 1 FROM registrations "
                "WHERE bookie_id = ? AND owner = ? AND expires_at_ms > ? AND read_only = ? AND content = ?",
                (info.bookie_id, self._owner, self._now_ms(), read_only, info.encode()),
            ).fetchone()
            return row is not None

        return await self._store.read(look)

    async def read_cookie(self, bookie_id: str) -> Versioned[bytes] | None:
        def select(connection: sqlite3.Connection) -> tuple[bytes, int] | None:
            row: tuple[bytes, int] | None = connection.execute(
                "SELECT content, version FROM cookies WHERE bookie_id = ?", (bookie_id,)
            ).fetchone()
            return row

        row = await self._store.read(select)
        return None if row is None else Versioned(*row)

    async def write_cookie(self, bookie_id: str, cookie: bytes, expected_version: int | None) -> None:
        check_bookie_id(bookie_id)

        def put(transaction: Transaction) -> None:
            _require_cookie_version(transaction, bookie_id, expected_version)
            transaction.bookies_changed()
            transaction.execute(
                "INSERT INTO cookies (bookie_id, version, content) VALUES (?, 0, ?) "
                "ON CONFLICT (bookie_id) DO UPDATE SET version = version + 1, content = excluded.content",
                (bookie_id, cookie),
            )

        await self._store.change(put)

    async def remove_cookie(self, bookie_id: str, expected_version: int) -> None:
        def delete(transaction: Transaction) -> None:
            _require_cookie_version(transaction, bookie_id, expected_version)
            transaction.bookies_changed()
            transaction.execute("DELETE FROM cookies WHERE bookie_id = ?", (bookie_id,))

        await self._store.change(delete)

    async def close(self) -> None:
        """Removes every registration made here."""
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.gather(self._renewal, return_exceptions=True)
            self._renewal = None
        leases = {bookie_id: info.lease for bookie_id, (info, _) in self._held.items()}
        self._held.clear()
        if leases:
            await self._change(lambda transaction: self._give_back(transaction, leases))

    async def _change(self, operation: Callable[[Transaction], T]) -> T:
        """Changes registrations, before what waits of ledgers: to move to another gateway a bookie has as long as its
        lease. All go the same way, so that none overtakes another.
        """
        return await self._store.change(operation, keeps_lease=True)

    def _take(self, transaction: Transaction, info: BookieServiceInfo, read_only: bool) -> int:
        """Takes or renews a registration; returns 0, or the milliseconds left of another owner's lease."""
        row = transaction.execute(
            "SELECT owner, process, expires_at_ms, read_only, content FROM registrations WHERE bookie_id = ?",
            (info.bookie_id,),
        ).fetchone()
        now, content = self._now_ms(), info.encode()
        held_by_another = row is not None and row[0] != self._owner and row[2] > now
        if held_by_another and info.superseded_by(row[4]):
            raise moved_on(info.bookie_id)
        if held_by_another and not surely_dead(row[1]) and not info.may_replace(row[4]):
            left: int = row[2] - now
            return max(1, min(left, int(self._lease_seconds * 1000) + 1))
        if row is None or row[2] <= now or row[0] != self._owner or (bool(row[3]), row[4]) != (read_only, content):
            transaction.bookies_changed()
        transaction.execute(
            "INSERT OR REPLACE INTO registrations (bookie_id, read_only, content, owner, process, expires_at_ms) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            (info.bookie_id, read_only, content, self._owner, self._process, now + int(self._lease_seconds * 1000)),
        )
        return 0

    def _give_back(self, transaction: Transaction, leases: dict[str, Lease | None]) -> None:
        for bookie_id, lease in leases.items():
            row = transaction.execute(
                "SELECT content FROM registrations WHERE bookie_id = ? AND owner = ?", (bookie_id, self._owner)
            ).fetchone()
            if row is not None and same_life(lease_of(row[0]), lease):
                transaction.execute("DELETE FROM registrations WHERE bookie_id = ?", (bookie_id,))
                transaction.bookies_changed()

    async def _renew_forever(self) -> None:
        while True:
            await asyncio.sleep(self._lease_seconds / 3)
            try:
                moved = await self._change(self._renew_all)
            except BKException as error:
                log_event(_LOG, "registrations_not_renewed", logging.WARNING, error=error, note="it is tried again")
                continue
            for bookie_id, held in moved.items():
                self._claims.drop(bookie_id, held)

    def _renew_all(self, transaction: Transaction) -> dict[str, Held]:
        """Renews the held registrations; returns those that no longer belong to this owner.

        A registration in this cluster is not renewed in another cluster that was created in the same file.
        """
        cluster = instance_id(transaction)
        if self._cluster not in (None, cluster):
            raise WrongClusterException(f"the metadata store is cluster {cluster} now, it was {self._cluster}")
        self._cluster = cluster
        moved: dict[str, Held] = {}
        for bookie_id, held in list(self._held.items()):
            try:
                if self._renew(transaction, *held):
                    log_event(_LOG, "registration_taken_over", logging.ERROR, bookie=bookie_id)
            except MovedOnException as error:
                log_event(_LOG, "registration_not_renewed", error=error)
                moved[bookie_id] = held
        return moved

    def _renew(self, transaction: Transaction, info: BookieServiceInfo, read_only: bool) -> int:
        """Like `_take`, but a lease's row that is gone was removed at another gateway, and is not created again."""
        if info.lease is not None:
            row = transaction.execute(
                "SELECT owner FROM registrations WHERE bookie_id = ?", (info.bookie_id,)
            ).fetchone()
            if row is None or row[0] != self._owner:
                raise moved_on(info.bookie_id)
        return self._take(transaction, info, read_only)


def instance_id(connection: sqlite3.Connection | Transaction) -> str:
    value: str = connection.execute("SELECT value FROM meta WHERE name = 'instance_id'").fetchone()[0]
    return value


def _require_cookie_version(transaction: Transaction, bookie_id: str, expected_version: int | None) -> None:
    row = transaction.execute("SELECT version FROM cookies WHERE bookie_id = ?", (bookie_id,)).fetchone()
    version = None if row is None else row[0]
    if version != expected_version:
        found = "there is none" if version is None else f"it is at version {version}"
        wanted = "none was expected" if expected_version is None else f"version {expected_version} was expected"
        raise MetadataVersionException(f"cookie of bookie {bookie_id}: {found}, {wanted}")
