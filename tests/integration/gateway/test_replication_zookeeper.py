"""What auto-recovery's tree looks like to BookKeeper's auditors and workers, and what they may do to it."""

from __future__ import annotations

from typing import Any

import pytest

from bookgate.bookie.standalone.local_zookeeper import LocalZooKeeper
from bookgate.gateway.stores.zookeeper.kazoo_thread import TreeListener
from bookgate.gateway.stores.zookeeper.ledger_paths import paths_of
from bookgate.gateway.stores.zookeeper.replication import ZooKeeperReplicationMetadata
from bookgate.ledger.errors import (
    LockLostException,
    MetadataFormatException,
    MetaStoreException,
    UnknownOutcomeException,
)
from bookgate.ledger.replication import PeriodicCheck
from bookgate.ledger.replication_store import FeedBegan, FeedLost, LockLost, MarksChanged, RecordKind, VoteState
from tests.integration.gateway.conftest import some_metadata, unscoped
from tests.integration.gateway.test_replication_contract import Told, listed_ids, lock_when_free
from tests.integration.gateway.test_zookeeper import expire, kazoo, opened, root_of
from tests.stores import made

__all__ = ["kazoo"]

pytestmark = pytest.mark.asyncio


@pytest.fixture
def base(zookeeper_uri: str) -> str:
    return f"{root_of(zookeeper_uri)}/underreplication"


class TestTree:
    async def test_contents_are_those_of_the_page(self, zookeeper_uri: str, kazoo: Any, base: str) -> None:
        factory = await opened(zookeeper_uri)
        store = factory.replication_metadata
        await store.mark(123, ["192.0.2.1:3181", "192.0.2.2:3181"], 1_700_000_000_000)
        await store.mark(2**32, [], 1_700_000_000_000)
        await store.mark(2**63 - 1, [])
        await store.try_lock(123, "worker7.example.org")
        told = Told()
        await store.stand_for_auditor("192.0.2.9:3181", told)
        await told.until(VoteState.ELECTED)
        await store.set_enabled(False)
        await store.set_lost_bookie_delay(300)
        await store.set_check_time(PeriodicCheck.ALL_LEDGERS, 1_700_000_000_000)
        await store.write_record(RecordKind.DRAINING_BOOKIE, "b:1", b"x", None)
        voter = b'bookieId: "192.0.2.9:3181"\n'
        expected = {
            "LAYOUT": b'type: "BASIC"\nversion: 1\n',
            "ledgers": b"",
            "ledgers/0000/0000/0000/007b/urL0000000123": (
                b'replica: "192.0.2.1:3181"\nreplica: "192.0.2.2:3181"\nctime: 1700000000000\n'
            ),
            "ledgers/0000/0001/0000/0000/urL4294967296": b"ctime: 1700000000000\n",
            "ledgers/7fff/ffff/ffff/ffff/urL9223372036854775807": b"",
            "locks/urL0000000123": b'bookieId: "worker7.example.org"\n',
            "disable": b"",
            "lostBookieRecoveryDelay": b"300",
            "checkallledgersctime": bytes.fromhex("0880d095ffbc31"),
            "auditorelection": voter,
            "auditorelection/V_0000000000": voter,
            "bookgate/draining/b:1": b"x",
        }
        assert {path: kazoo.get(f"{base}/{path}")[0] for path in expected} == expected
        ephemeral = {path for path in expected if kazoo.get(f"{base}/{path}")[1].ephemeralOwner}
        assert ephemeral == {"locks/urL0000000123", "auditorelection/V_0000000000"}
        await factory.close()

    async def test_deleted_mark_leaves_no_empty_directory(self, zookeeper_uri: str, kazoo: Any, base: str) -> None:
        factory = await opened(zookeeper_uri)
        store = factory.replication_metadata
        marks = [await store.mark(1, []), await store.mark(65536, [])]
        await store.delete_mark(1, marks[0].version)
        assert kazoo.get_children(f"{base}/ledgers/0000/0000") == ["0001"]
        await store.delete_mark(65536, marks[1].version)
        assert kazoo.get_children(f"{base}/ledgers") == []
        await factory.close()

    async def test_directories_that_were_left_empty_are_swept(self, zookeeper_uri: str, kazoo: Any, base: str) -> None:
        """By a process that died between two deletions. One that is used again meanwhile stays."""
        factory = await opened(zookeeper_uri)
        store = ZooKeeperReplicationMetadata(
            factory.session, root_of(zookeeper_uri), paths_of("hierarchical", root_of(zookeeper_uri)), sweep_seconds=0
        )
        await store.mark(1, [])
        kazoo.ensure_path(f"{base}/ledgers/0000/0000/0000/0002")
        kazoo.ensure_path(f"{base}/ledgers/0000/0007")
        assert await listed_ids(store) == [1]
        assert kazoo.get_children(f"{base}/ledgers/0000") == ["0000"]
        assert kazoo.get_children(f"{base}/ledgers/0000/0000/0000") == ["0001"]
        patient = factory.replication_metadata
        kazoo.ensure_path(f"{base}/ledgers/0000/0000/0000/0002")
        assert await listed_ids(patient) == [1]
        assert kazoo.exists(f"{base}/ledgers/0000/0000/0000/0002"), "somebody may be about to put a mark there"
        await factory.close()

    async def test_a_mark_that_bookkeeper_made_anew_survives_who_saw_the_former_one(
        self, zookeeper_uri: str, kazoo: Any, base: str
    ) -> None:
        factory = await opened(zookeeper_uri)
        store, path = factory.replication_metadata, f"{base}/ledgers/0000/0000/0000/0007/urL0000000007"
        kazoo.create(path, b'replica: "a:1"\n', makepath=True)
        seen = await store.read_mark(7)
        kazoo.delete(path)
        kazoo.create(path, b'replica: "b:1"\n', makepath=True)
        assert seen is not None
        assert not await store.delete_mark(7, seen.version)
        (again,) = [mark async for page in store.marks() for mark in page]
        assert again == await store.read_mark(7)
        assert (again.value.replicas, kazoo.get(path)[1].version) == (("b:1",), 0)
        assert await store.delete_mark(7, again.version)
        assert await store.delete_mark(7, again.version), "there is none any more"
        await factory.close()

    async def test_a_mark_is_created_as_bookkeeper_creates_it(self, zookeeper_uri: str, kazoo: Any, base: str) -> None:
        factory = await opened(zookeeper_uri)
        mark = await factory.replication_metadata.mark(7, ["b:1"])
        _, stat = kazoo.get(f"{base}/ledgers/0000/0000/0000/0007/urL0000000007")
        assert (stat.version, stat.mzxid) == (0, mark.version)
        await factory.close()

    async def test_unknown_fields_of_a_mark_are_kept(self, zookeeper_uri: str, kazoo: Any, base: str) -> None:
        factory = await opened(zookeeper_uri)
        path = f"{base}/ledgers/0000/0000/0000/0007/urL0000000007"
        kazoo.create(path, b'replica: "a:1"\nurgency: HIGH\n', makepath=True)
        await factory.replication_metadata.mark(7, ["b:1"], 5)
        assert kazoo.get(path)[0] == b'replica: "a:1"\nreplica: "b:1"\nctime: 5\nurgency: HIGH\n'
        kazoo.set(path, b"\xff")
        again = await factory.replication_metadata.mark(7, ["c:1"])
        content, stat = kazoo.get(path)
        assert (content, stat.version, stat.mzxid) == (b"\xff", 3, again.version), "as it was, and made again"
        await factory.replication_metadata.mark(8, ["c:1"])
        assert await listed_ids(factory.replication_metadata) == [7, 8], "it does not hide others"
        await factory.close()

    async def test_other_layout_is_refused(self, zookeeper_uri: str, kazoo: Any, base: str) -> None:
        kazoo.create(f"{base}/LAYOUT", b'type: "BASIC"\nversion: 2\n', makepath=True)
        factory = await opened(zookeeper_uri)
        for call in (factory.replication_metadata.mark(7, []), factory.replication_metadata.try_lock(7, "h")):
            with pytest.raises(MetadataFormatException, match="version 2"):
                await call
        await factory.close()

    async def test_marks_of_others_are_told(self, zookeeper_uri: str, kazoo: Any, base: str) -> None:
        factory = await opened(zookeeper_uri)
        told = Told()
        factory.replication_metadata.watch(told)
        await told.until(MarksChanged())
        await factory.replication_metadata.mark(1, [])
        for path in ("0000/0000/0000/0002/urL0000000002", "0000/0000/0001/0002/urL0000065538"):
            # It has settled when what another change causes has come.
            seen = len(told.events)
            kazoo.create(f"{base}/ledgers/{path}", b"", makepath=True)
            await told.until(MarksChanged(), seen)
        assert await listed_ids(factory.replication_metadata) == [1, 2, 65538]
        await factory.close()


class TestLocks:
    async def test_lock_of_another_kind_of_worker_is_honoured(self, zookeeper_uri: str, kazoo: Any, base: str) -> None:
        factory = await opened(zookeeper_uri)
        kazoo.create(f"{base}/locks/urL0000000007", b'bookieId: "java"\n', ephemeral=True, makepath=True)
        assert await factory.replication_metadata.try_lock(7, "h") is None
        assert await factory.replication_metadata.lock_holders() == {7: "java"}
        kazoo.delete(f"{base}/locks/urL0000000007")
        assert await factory.replication_metadata.try_lock(7, "h") is not None
        await factory.close()

    async def test_lock_that_another_took_away_is_lost(self, zookeeper_uri: str, kazoo: Any, base: str) -> None:
        """BookKeeper's worker deletes what it takes for its own; then the next one locks the ledger."""
        factory = await opened(zookeeper_uri)
        store = factory.replication_metadata
        await factory.ledger_manager.create(unscoped(7), some_metadata())
        told = Told()
        store.watch(told)
        lock = await store.try_lock(7, "h")
        assert lock is not None
        kazoo.delete(f"{base}/locks/urL0000000007")
        kazoo.create(f"{base}/locks/urL0000000007", b"", ephemeral=True)
        with pytest.raises(LockLostException):
            await store.write_ledger(lock, some_metadata(), 0)
        await told.until(LockLost(lock))
        await store.release(lock)
        assert kazoo.exists(f"{base}/locks/urL0000000007")
        assert (await factory.ledger_manager.read(unscoped(7))).version == 0
        await factory.close()

    async def test_loss_is_told_without_a_call(self, zookeeper_uri: str, kazoo: Any, base: str) -> None:
        factory = await opened(zookeeper_uri)
        told = Told()
        factory.replication_metadata.watch(told)
        lock = await factory.replication_metadata.try_lock(7, "h")
        assert lock is not None
        kazoo.delete(f"{base}/locks/urL0000000007")
        await told.until(LockLost(lock))
        await factory.close()

    async def test_lost_answer_to_a_lock_or_a_vote_leaves_none(self, own_zookeeper: LocalZooKeeper) -> None:
        uri = made(own_zookeeper.metadata_uri())
        first, second = await opened(uri, call_timeout_seconds=0.5), await opened(uri, call_timeout_seconds=20)
        store = first.replication_metadata
        await store.mark(7, [])
        other = await store.try_lock(8, "h")
        assert other is not None
        own_zookeeper.suspend()
        for call in (store.try_lock(7, "h"), store.stand_for_auditor("lost:1", lambda state: None)):
            with pytest.raises(UnknownOutcomeException):
                await call
        with pytest.raises(MetaStoreException):
            await store.release(other)
        own_zookeeper.resume()
        assert await lock_when_free(second.replication_metadata, 7) is not None
        assert await lock_when_free(second.replication_metadata, 8) is not None
        told = Told()
        await second.replication_metadata.stand_for_auditor("b:2", told)
        await told.until(VoteState.ELECTED)
        await second.close()
        await first.close()


class TestElection:
    async def test_votes_of_others_count(self, zookeeper_uri: str, kazoo: Any, base: str) -> None:
        factory = await opened(zookeeper_uri)
        vote = kazoo.create(
            f"{base}/auditorelection/V_", b'bookieId: "java:1"\n', ephemeral=True, sequence=True, makepath=True
        )
        told = Told()
        await factory.replication_metadata.stand_for_auditor("b:1", told)
        await told.until(VoteState.WAITING)
        assert await factory.replication_metadata.auditor() == "java:1"
        kazoo.delete(vote)
        await told.until(VoteState.ELECTED)
        assert kazoo.get(f"{base}/auditorelection")[0] == b'bookieId: "b:1"\n'
        (own,) = kazoo.get_children(f"{base}/auditorelection")
        kazoo.delete(f"{base}/auditorelection/{own}")
        await told.until(VoteState.LOST)
        assert await factory.replication_metadata.auditor() is None
        await factory.close()


class TestLedgerFeed:
    async def test_a_lost_connection_is_a_gap(self, zookeeper: LocalZooKeeper, zookeeper_uri: str) -> None:
        factory, other = await opened(zookeeper_uri), await opened(zookeeper_uri)
        told = Told()
        feed = factory.replication_metadata.watch_ledgers(told)
        assert feed is not None
        await told.until(FeedBegan())
        await expire(zookeeper, factory)
        assert await told.until(FeedBegan(), 1) == 3
        assert told.events[1] == FeedLost()
        await other.ledger_manager.create(unscoped(7), some_metadata())
        await feed.catch_up()
        assert told.touched(2) == {7}
        await factory.close()
        await other.close()

    async def test_nothing_is_sent_when_nobody_listens(self, zookeeper_uri: str) -> None:
        factory, other = await opened(zookeeper_uri), await opened(zookeeper_uri)
        told = Told()
        feed = factory.replication_metadata.watch_ledgers(told)
        assert feed is not None
        await told.until(FeedBegan())
        feed.close()
        sent: list[int] = []
        kazoo = factory.session.kazoo
        assert kazoo is not None
        kazoo.tree = TreeListener(lambda path: len(path), sent.append)
        await other.ledger_manager.create(unscoped(7), some_metadata())
        await factory.catch_up(None)
        assert sent == []
        await factory.close()
        await other.close()
