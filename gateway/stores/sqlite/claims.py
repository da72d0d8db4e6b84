"""Locks and votes of auto-recovery in the embedded store: leases instead of ZooKeeper's ephemeral nodes.

A claim is a row that belongs to an owner (one object of this class) and ends at a wall-clock time unless the owner
renews it, which it does three times per lease. Transitions: absent → held (claim) → held (renew) → absent (give up), or
expired, which counts as absent for everyone. An expired claim is never renewed: its owner has lost it, and is notified.
The next claim of anyone deletes its row.
A claim of a process that has died on this machine counts as expired at once. A claim whose creation was not confirmed
is not renewed, and so expires. Each claim has a number above those of all earlier claims.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from bookgate.gateway.stores.sqlite.process_identity import identity_of, surely_dead
from bookgate.gateway.stores.sqlite.registration import wall_clock_ms
from bookgate.gateway.stores.sqlite.store import ReplicationChange, SqliteStore, Transaction
from bookgate.ledger.errors import BKException
from bookgate.runtime.background import keep_running
from bookgate.runtime.logs import log_event

_LOG = logging.getLogger(__name__)

LOCK = "lock"
SCOPED_LOCK = "scoped_lock"
"""Of a ledger with a scope; its key is that of the ledger's row."""
VOTE = "vote"


@dataclass(frozen=True, slots=True)
class Claim:
    """A lock (key: the ledger's number) or a vote (key: its number)."""

    kind: str
    key: int
    number: int

    @property
    def stored_key(self) -> int | bytes:
        """As the row has it."""
        return self.key if self.kind != SCOPED_LOCK else self.key.to_bytes(16)


@dataclass(frozen=True, slots=True)
class ClaimRow:
    """A valid claim of any owner, and when it ends unless it is renewed."""

    claim: Claim
    content: bytes
    expires_at_ms: int


def number_of_key(stored: int | bytes) -> int:
    """The ledger's number in the key of a row, which has the form of a number or, with a scope, 16 bytes."""
    return stored if isinstance(stored, int) else int.from_bytes(stored)


class SqliteReplicationClaims:
    """The claims of one owner, and a view of all owners' claims."""

    def __init__(
        self,
        store: SqliteStore,
        lost: Callable[[Claim], None],
        interest_changed: Callable[[], None],
        lease_seconds: float,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        """`lost` is called with a claim that ended without `give_up`."""
        self._store = store
        self._lost = lost
        self._interest_changed = interest_changed
        self._lease_seconds = lease_seconds
        self.now_ms = now_ms
        self._owner = str(uuid.uuid4())
        self._process = identity_of(os.getpid())
        self._held: dict[Claim, None] = {}
        self._renewal: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._held)

    async def claim(self, kind: str, key: int | None, content: bytes) -> Claim | None:
        """Makes a claim; None if another owner's is valid. Without a key, the claim's number is its key."""
        claim = await self._store.change(lambda transaction: self._insert(transaction, kind, key, content))
        if claim is not None:
            self._held[claim] = None
            self._interest_changed()
            if self._renewal is None:
                self._renewal = keep_running("renewal of locks and votes", self._renew_forever)
        return claim

    async def give_up(self, claim: Claim) -> None:
        """Removes a claim of this owner; if that fails, the claim expires by itself."""
        if claim not in self._held:
            return
        del self._held[claim]
        self._interest_changed()
        await self._store.change(lambda transaction: self._delete(transaction, [claim]))

    async def stands(self, claim: Claim) -> bool:
        """Whether the store still has this claim of this owner."""
        if claim not in self._held:
            return False
        if await self._store.read(lambda connection: self.is_own(connection, claim)):
            return True
        self.lose(claim)
        return False

    def is_own(self, connection: sqlite3.Connection | Transaction, claim: Claim) -> bool:
        """Runs on the store's thread: whether the claim is this owner's and has not ended."""
        row = connection.execute(
            "SELECT 1 FROM replication_claims "
            "WHERE kind = ? AND key = ? AND number = ? AND owner = ? AND expires_at_ms > ?",
            (claim.kind, claim.stored_key, claim.number, self._owner, self.now_ms()),
        ).fetchone()
        return row is not None

    def lose(self, claim: Claim) -> None:
        """The claim was found to have ended."""
        if claim in self._held:
            del self._held[claim]
            log_event(_LOG, "claim_lost", logging.WARNING, kind=claim.kind, key=claim.key)
            self._lost(claim)
            self._interest_changed()

    async def standing(self, kind: str) -> list[ClaimRow]:
        """All owners' valid claims of a kind, the oldest first."""
        return await self._store.read(lambda connection: self._standing(connection, kind))

    async def look(self) -> None:
        """Finds held claims that have ended."""
        held = list(self._held)
        standing = await self._store.read(lambda connection: [self.is_own(connection, claim) for claim in held])
        for claim, stands in zip(held, standing, strict=True):
            if not stands:
                self.lose(claim)

    async def close(self) -> None:
        """Gives every claim up."""
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.gather(self._renewal, return_exceptions=True)
            self._renewal = None
        held, self._held = list(self._held), {}
        if held:
            await self._store.change(lambda transaction: self._delete(transaction, held))

    def _insert(self, transaction: Transaction, kind: str, key: int | None, content: bytes) -> Claim | None:
        if key is not None:
            row = transaction.execute(
                "SELECT process, expires_at_ms FROM replication_claims WHERE kind = ? AND key = ?",
                (kind, Claim(kind, key, 0).stored_key),
            ).fetchone()
            if row is not None and row[1] > self.now_ms() and not surely_dead(row[0]):
                return None
        number = transaction.replication_changed(ReplicationChange.CLAIMS)
        # Their owners, who would delete them, may have died; each vote, and each ledger's lock, has a row of its own.
        transaction.execute("DELETE FROM replication_claims WHERE expires_at_ms <= ?", (self.now_ms(),))
        claim = Claim(kind, number if key is None else key, number)
        transaction.execute(
            "INSERT OR REPLACE INTO replication_claims (kind, key, number, content, owner, process, expires_at_ms) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            (kind, claim.stored_key, number, content, self._owner, self._process, self._end_ms()),
        )
        return claim

    def _delete(self, transaction: Transaction, claims: list[Claim]) -> None:
        for claim in claims:
            transaction.execute(
                "DELETE FROM replication_claims WHERE kind = ? AND key = ? AND number = ? AND owner = ?",
                (claim.kind, claim.stored_key, claim.number, self._owner),
            )
        transaction.replication_changed(ReplicationChange.CLAIMS)

    def _standing(self, connection: sqlite3.Connection, kind: str) -> list[ClaimRow]:
        rows = connection.execute(
            "SELECT key, number, content, process, expires_at_ms FROM replication_claims "
            "WHERE kind = ? AND expires_at_ms > ? ORDER BY number",
            (kind, self.now_ms()),
        ).fetchall()
        return [
            ClaimRow(Claim(kind, number_of_key(key), number), content, expires)
            for key, number, content, process, expires in rows
            if not surely_dead(process)
        ]

    async def _renew_forever(self) -> None:
        while True:
            await asyncio.sleep(self._lease_seconds / 3)
            if not self._held:
                continue
            try:
                lost = await self._store.change(self._renew_all, keeps_lease=True)
            except BKException as error:
                log_event(_LOG, "claims_not_renewed", logging.WARNING, error=error, note="it is tried again")
                continue
            for claim in lost:
                self.lose(claim)

    def _renew_all(self, transaction: Transaction) -> list[Claim]:
        """Renews the valid claims; returns the ended ones."""
        lost = []
        for claim in list(self._held):
            if self.is_own(transaction, claim):
                transaction.execute(
                    "UPDATE replication_claims SET expires_at_ms = ? WHERE kind = ? AND key = ?",
                    (self._end_ms(), claim.kind, claim.stored_key),
                )
            else:
                lost.append(claim)
        return lost

    def _end_ms(self) -> int:
        return self.now_ms() + int(self._lease_seconds * 1000)
