"""Locks and votes of the embedded store are leases, which end by time and with their process."""

from __future__ import annotations

import sqlite3
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from bookgate.gateway.stores.sqlite.claims import LOCK, VOTE, Claim, SqliteReplicationClaims
from bookgate.gateway.stores.sqlite.factory import SqliteLedgerManagerFactory
from bookgate.gateway.stores.sqlite.process_identity import identity_of
from bookgate.gateway.stores.sqlite.registration import wall_clock_ms
from bookgate.gateway.stores.sqlite.replication import SqliteReplicationMetadata
from bookgate.gateway.stores.sqlite.store import ReplicationChange, SqliteStore
from bookgate.ledger.errors import MetadataVersionException
from bookgate.ledger.replication_store import DelayChanged, MarksChanged, VoteState
from tests.integration.gateway.conftest import some_metadata, unscoped
from tests.integration.gateway.test_replication_contract import Told, listed_ids
from tests.stores import made

pytestmark = pytest.mark.asyncio


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = f"{tmp_path}/metadata.db"
    made(f"sqlite://{path}")
    return path


@pytest_asyncio.fixture
async def store(path: str) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path)
    await store.open()
    yield store
    await store.close()


async def test_a_ledger_created_after_the_lock_is_not_written_under_it(path: str) -> None:
    """It may have the version that was read of the ledger that had its id before."""
    factory = SqliteLedgerManagerFactory(path)
    await factory.initialize()
    manager, metadata = factory.ledger_manager, factory.replication_metadata
    try:
        await manager.create(unscoped(7), some_metadata())
        lock = await metadata.try_lock(7, "h")
        assert lock is not None
        await manager.remove(unscoped(7))
        await manager.create(unscoped(7), some_metadata(x=b"new"))
        with pytest.raises(MetadataVersionException, match="another created with its id"):
            await metadata.write_ledger(lock, some_metadata(), 0)
        await metadata.release(lock)
        later = await metadata.try_lock(7, "h")
        assert later is not None
        assert (await metadata.write_ledger(later, some_metadata(), 0)).version == 1
    finally:
        await factory.close()


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        return self.now


class TestLeases:
    async def test_ended_claim_is_anybodys_and_its_owner_is_told(self, store: SqliteStore) -> None:
        clock, lost = Clock(), list[Claim]()
        first = SqliteReplicationClaims(store, lost.append, lambda: None, 10, clock)
        second = SqliteReplicationClaims(store, lost.append, lambda: None, 10, clock)
        claim = await first.claim(LOCK, 7, b"")
        assert claim is not None
        clock.now += 9_999
        assert await second.claim(LOCK, 7, b"") is None
        assert await first.stands(claim)
        clock.now += 1
        assert await second.standing(LOCK) == []
        taken = await second.claim(LOCK, 7, b"")
        assert taken is not None
        assert taken != claim
        assert not await first.stands(claim)
        assert lost == [claim]
        await first.give_up(claim)
        assert await second.stands(taken)
        await first.close()
        await second.close()

    async def test_claim_that_ended_unnoticed_is_not_revived(self, store: SqliteStore) -> None:
        clock, lost = Clock(), list[Claim]()
        claims = SqliteReplicationClaims(store, lost.append, lambda: None, 10, clock)
        claim = await claims.claim(VOTE, None, b"")
        clock.now += 10_000
        await claims.look()
        assert lost == [claim]
        clock.now -= 10_000
        assert claim is not None
        assert not await claims.stands(claim)
        await claims.close()

    async def test_claims_of_a_dead_process_are_gone(self, store: SqliteStore) -> None:
        """Also where its lease ends far ahead, as after the clock was put back."""
        clock = Clock()
        claims = SqliteReplicationClaims(store, lambda claim: None, lambda: None, 10, clock)
        await claims.claim(LOCK, 7, b"")
        dead = subprocess.Popen(["sleep", "60"])  # noqa: ASYNC220
        identity = identity_of(dead.pid)
        await store.change(lambda change: change.execute("UPDATE replication_claims SET process = ?", (identity,)))
        other = SqliteReplicationClaims(store, lambda claim: None, lambda: None, 10, clock)
        assert await other.claim(LOCK, 7, b"") is None
        dead.kill()
        dead.wait()
        assert await other.standing(LOCK) == []
        assert await other.claim(LOCK, 7, b"") is not None
        await claims.close()
        await other.close()

    async def test_the_next_claim_deletes_those_that_ended(self, store: SqliteStore) -> None:
        """Their owners, who died, do not; and each had a vote and locks of its own."""
        clock = Clock()
        dead = SqliteReplicationClaims(store, lambda claim: None, lambda: None, 10, clock)
        await dead.claim(VOTE, None, b"")
        for key in range(3):
            await dead.claim(LOCK, key, b"")
        clock.now += 5_000
        living = SqliteReplicationClaims(store, lambda claim: None, lambda: None, 10, clock)
        vote = await living.claim(VOTE, None, b"")
        clock.now += 5_000
        lock = await living.claim(LOCK, 7, b"")
        query = "SELECT kind, key FROM replication_claims ORDER BY kind"
        rows = await store.read(lambda connection: connection.execute(query).fetchall())
        assert vote is not None
        assert lock is not None
        assert rows == [(LOCK, 7), (VOTE, vote.key)]
        assert await living.stands(vote)
        await living.close()
        await dead.close()

    async def test_living_owner_keeps_its_claims_beyond_a_lease(self, path: str) -> None:
        """And the next candidate follows one who never renews, though nothing changes in the file then."""
        living = SqliteLedgerManagerFactory(path, lease_seconds=0.6)
        await living.initialize()
        store = SqliteStore(path)
        await store.open()
        # Its leases are of a minute, and its clock is almost that much behind.
        late = lambda: wall_clock_ms() - 59_100  # noqa: E731
        silent = SqliteReplicationClaims(store, lambda claim: None, lambda: None, 60, late)
        await silent.claim(VOTE, None, b'bookieId: "silent:1"\n')
        lock = await living.replication_metadata.try_lock(7, "h")
        told = Told()
        await living.replication_metadata.stand_for_auditor("b:1", told)
        await told.until(VoteState.WAITING)
        await told.until(VoteState.ELECTED)
        assert lock is not None
        assert await living.replication_metadata.is_held(lock)
        await silent.close()
        await living.close()
        await store.close()


async def test_file_of_an_earlier_version_gets_the_tables(path: str) -> None:
    connection = sqlite3.connect(path)
    for table in ("replication_marks", "replication_values", "replication_claims"):
        connection.execute(f"DROP TABLE {table}")
    connection.close()
    factory = SqliteLedgerManagerFactory(path)
    await factory.initialize()
    await factory.replication_metadata.mark(7, ["a:1"], 5)
    assert await listed_ids(factory.replication_metadata) == [7]
    await factory.close()
    connection = sqlite3.connect(path)
    row = connection.execute("SELECT * FROM replication_marks").fetchone()
    connection.close()
    assert row == (7, 1, b'replica: "a:1"\nctime: 5\n')


async def test_one_writing_of_the_delay_is_told_once_however_often_it_is_read(path: str) -> None:
    """Told twice it would be the order to audit at once."""
    factory = SqliteLedgerManagerFactory(path)
    await factory.initialize()
    metadata, told = factory.replication_metadata, Told()
    assert isinstance(metadata, SqliteReplicationMetadata)
    metadata.watch(told)
    await metadata.set_lost_bookie_delay(5)
    seen = await told.until(DelayChanged(5))
    metadata.changed([ReplicationChange.DELAY, ReplicationChange.MARKS])
    await told.until(MarksChanged(), seen)
    assert told.events.count(DelayChanged(5)) == 1
    await metadata.set_lost_bookie_delay(5)
    await told.until(DelayChanged(5), seen)
    await factory.close()
