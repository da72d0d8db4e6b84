"""What only the embedded store does: leases, and a file that several processes share."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from bookgate.gateway.stores.sqlite import ledger_manager, process_identity
from bookgate.gateway.stores.sqlite.claims import LOCK, VOTE, SqliteReplicationClaims
from bookgate.gateway.stores.sqlite.discovery import SqliteServiceDiscovery
from bookgate.gateway.stores.sqlite.factory import SqliteLedgerManagerFactory
from bookgate.gateway.stores.sqlite.process_identity import identity_of, surely_dead
from bookgate.gateway.stores.sqlite.registration import SqliteRegistrationManager, wall_clock_ms
from bookgate.gateway.stores.sqlite.store import SqliteStore, Transaction, revision_of
from bookgate.ledger.bookie_info import BookieServiceInfo
from bookgate.ledger.errors import LedgerExistException, LedgerIdOverflowException, MetaStoreException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import BookieSet, CreateRequest, LedgerRecord
from tests.integration.gateway.conftest import Recorder, all_ids, some_metadata, unscoped
from tests.stores import made, with_changing_connection

pytestmark = pytest.mark.asyncio

_SET_NEXT_ID = "UPDATE meta SET value = ? WHERE name = 'next_ledger_id'"

BOOKIE = BookieServiceInfo.legacy("h:1")

HOLDER = """
import asyncio, sys
from bookgate.gateway.stores.sqlite.factory import SqliteLedgerManagerFactory
from bookgate.ledger.bookie_info import BookieServiceInfo

async def main():
    factory = SqliteLedgerManagerFactory(sys.argv[1], lease_seconds=3600)
    await factory.initialize()
    await factory.registration_manager.register_bookie(BookieServiceInfo.legacy("h:1"), read_only=False)
    print("held", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


WRITER = """
import asyncio, sys
from bookgate.gateway.stores.sqlite.factory import SqliteLedgerManagerFactory
from bookgate.ledger.metadata_store import CreateRequest
from bookgate.ledger.metadata import LedgerMetadata

METADATA = LedgerMetadata.new(['b'], 1, 1)

async def main():
    factory = SqliteLedgerManagerFactory(sys.argv[1])
    await factory.initialize()
    manager = factory.ledger_manager
    print("held", flush=True)
    while True:
        single = await manager.create(None, METADATA)
        print(single.ledger_id, 0, flush=True)
        print(single.ledger_id, (await manager.write(single.ledger_id, METADATA, 0)).version, flush=True)
        for record in await manager.create_many([CreateRequest(None, METADATA)] * 5):
            print(record.ledger_id, 0, flush=True)
        gone = await manager.create(None, METADATA)
        await manager.remove(gone.ledger_id)
        print(gone.ledger_id, "gone", flush=True)

asyncio.run(main())
"""


def start_holder(script: str, path: str) -> subprocess.Popen[bytes]:
    """A process that has done what the script says and still lives."""
    process = subprocess.Popen([sys.executable, "-c", script, path], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


def kill(process: subprocess.Popen[bytes]) -> None:
    with process:
        process.kill()


def read_until_killed(process: subprocess.Popen[bytes], lines: int) -> list[str]:
    """Kills a writer once it has told so much; returns all that it told, but for half a line."""
    assert process.stdout is not None
    told = [process.stdout.readline() for _ in range(lines)]
    process.kill()
    told += process.stdout.readlines()
    process.wait()
    process.stdout.close()
    return [line.decode() for line in told if line.endswith(b"\n")]


async def every_record(factory: SqliteLedgerManagerFactory) -> list[LedgerRecord]:
    ids = [unscoped(number) for number in await all_ids(factory)]
    return [found for found in await factory.ledger_manager.read_many(ids) if isinstance(found, LedgerRecord)]


def _value_of_pragma(pragma: str, connection: sqlite3.Connection) -> object:
    return connection.execute(f"PRAGMA {pragma}").fetchone()[0]


def put(path: str, content: bytes) -> None:
    Path(path).write_bytes(content)


def content_of(path: str) -> bytes:
    return Path(path).read_bytes()


@pytest.fixture
def empty_path(tmp_path: Path) -> str:
    return str(tmp_path / "metadata.db")


@pytest.fixture
def path(empty_path: str) -> str:
    made(f"sqlite://{empty_path}")
    return empty_path


async def opened(path: str, lease_seconds: float = 3600) -> SqliteLedgerManagerFactory:
    factory = SqliteLedgerManagerFactory(path, lease_seconds)
    await factory.initialize()
    return factory


class TestFile:
    @pytest.mark.parametrize(
        "content", [b"not a database at all, but long enough to look at", b"SQLite format 3\0garbage"]
    )
    async def test_file_that_is_no_database_is_named(self, empty_path: str, content: bytes) -> None:
        put(empty_path, content)
        with pytest.raises(MetaStoreException, match=empty_path):
            await opened(empty_path)
        assert content_of(empty_path) == content

    async def test_database_of_something_else_is_left_alone(self, empty_path: str) -> None:
        path = empty_path
        connection = sqlite3.connect(path)
        connection.execute("CREATE TABLE other (x)")
        connection.close()
        before = content_of(path)
        with pytest.raises(MetaStoreException, match="something else"):
            await opened(path)
        assert content_of(path) == before

    async def test_newer_schema_is_refused(self, path: str) -> None:
        await (await opened(path)).close()
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA user_version = 99")
        connection.close()
        with pytest.raises(MetaStoreException, match="schema version 99"):
            await opened(path)

    @pytest.mark.parametrize("lacking", ["metadata-sqlite-reads_0", "metadata-sqlite_0"])
    async def test_a_store_that_finds_no_thread_is_closed_all_the_same(
        self, path: str, lacking: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        start = threading.Thread.start

        def start_others(thread: threading.Thread) -> None:
            if thread.name == lacking:
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", start_others)
        factory = SqliteLedgerManagerFactory(path)
        with pytest.raises(MetaStoreException, match=f"{path} can't be used: can't start new thread"):
            await factory.initialize()
        async with asyncio.timeout(30):
            await factory.close()
        assert not await asyncio.to_thread(Path(f"{path}-wal").exists), "the file is given back"

    async def test_missing_directory_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(MetaStoreException, match=str(tmp_path / "no")):
            await opened(str(tmp_path / "no" / "metadata.db"))

    async def test_the_revision_follows_every_commit_and_only_those(
        self, path: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ours, others = await opened(path), await opened(path)
        reads = 0
        read = ours.store.read

        async def counted(operation: Any) -> Any:
            nonlocal reads
            reads += operation is revision_of
            return await read(operation)

        monkeypatch.setattr(ours.store, "read", counted)
        before = await ours.revision()
        for number, store in enumerate((ours, others, ours)):
            await store.ledger_manager.create(unscoped(number), some_metadata())
            after = [await ours.revision() for _ in range(3)]
            assert after == [await others.revision()] * 3
            assert after[0] > before
            before = after[0]
        assert reads == 4
        await ours.close()
        await others.close()

    async def test_closed_store_says_so(self, path: str) -> None:
        factory = await opened(path)
        await factory.close()
        await factory.close()
        assert not factory.connected
        with pytest.raises(MetaStoreException, match="closed"):
            await factory.revision()

    @pytest.mark.parametrize(
        ("taken", "free"),
        [
            (range(1_000), 1_000),
            ([*range(700), *range(701, 1_500)], 700),
            ([*range(1_023), *range(1_024, 3_000)], 1_023),
            ([1, *range(3, 500)], 0),
            ([0, 1, *range(3, 500)], 2),
            ([], 0),
        ],
    )
    async def test_a_run_of_taken_ids_is_passed_over_at_once(self, path: str, taken: Sequence[int], free: int) -> None:
        """Applications may have taken a million of them, and other changes wait meanwhile."""
        factory = await opened(path)
        await factory.ledger_manager.create_many([CreateRequest(unscoped(each), some_metadata()) for each in taken])
        statements: list[str] = []
        await with_changing_connection(factory.store, lambda c: c.set_trace_callback(statements.append))
        assert (await factory.ledger_manager.create(None, some_metadata())).ledger_id == unscoped(free)
        assert len(statements) < 60
        following = next(each for each in range(free + 1, 5_000) if each not in set(taken))
        assert (await factory.ledger_manager.create(None, some_metadata())).ledger_id == unscoped(following)
        await factory.close()

    async def test_the_last_id_is_given_and_none_behind_it(self, path: str) -> None:
        factory = await opened(path)
        largest = 2**63 - 1
        taken = [*range(largest - 5, largest)]
        # Above all ids of scope 0 are those of other scopes.
        await factory.ledger_manager.create(LedgerId(1, 0), some_metadata())
        await factory.ledger_manager.create_many([CreateRequest(unscoped(each), some_metadata()) for each in taken])
        await factory.store.change(lambda change: change.execute(_SET_NEXT_ID, (largest - 5,)).close())
        assert (await factory.ledger_manager.create(None, some_metadata())).ledger_id == unscoped(largest)
        with pytest.raises(LedgerIdOverflowException):
            await factory.ledger_manager.create(None, some_metadata())
        await factory.close()

    async def test_commits_wait_for_the_disk(self, path: str) -> None:
        factory = await opened(path)
        full, wal = 2, "wal"
        for pragma, expected in (("synchronous", full), ("journal_mode", wal)):
            set_to = await with_changing_connection(factory.store, partial(_value_of_pragma, pragma))
            assert set_to == expected
        await factory.close()

    @pytest.mark.parametrize("ledgers", [0, 2, 3, 4, 7])
    async def test_a_listing_goes_on_after_each_query(
        self, path: str, ledgers: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ledger_manager, "_RUN", 3)
        factory = await opened(path)
        for number in range(ledgers):
            await factory.ledger_manager.create(unscoped(number), some_metadata())
        assert await all_ids(factory) == list(range(ledgers))
        assert await all_ids(factory, start_after=0) == list(range(1, ledgers))
        await factory.close()

    async def test_change_log_is_pruned_and_who_slept_reads_everything_anew(
        self, path: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("bookgate.gateway.stores.sqlite.store.CHANGES_KEPT", 3)
        first, second = await opened(path), await opened(path)
        ledger_id = (await first.ledger_manager.create(None, some_metadata())).ledger_id
        told = Recorder()
        await second.ledger_manager.register_listener(ledger_id, told)
        await told.until_version(0)
        await second.ledger_manager.unregister_listener(ledger_id, told)
        await first.ledger_manager.write(ledger_id, some_metadata(), 0)
        for _ in range(10):
            await first.ledger_manager.create(None, some_metadata())
        connection = sqlite3.connect(path)
        assert connection.execute("SELECT count(*) FROM changes").fetchone() == (3,)
        connection.close()
        again = Recorder()
        await second.ledger_manager.register_listener(ledger_id, again)
        await again.until_version(1)
        await first.ledger_manager.write(ledger_id, some_metadata(), 1)
        for _ in range(10):
            await first.ledger_manager.create(None, some_metadata())
        await again.until_version(2)
        await second.close()
        await first.close()

    async def test_change_whose_caller_was_cancelled_is_told_all_the_same(self, path: str) -> None:
        """A call that its client gives up goes on in the store, and nothing else would wake the listeners then."""
        store = SqliteStore(path)
        await store.open()
        told, begun, let_go = asyncio.Event(), threading.Event(), threading.Event()
        store.on_commit = told.set

        def slow(transaction: Transaction) -> None:
            begun.set()
            let_go.wait(30)
            transaction.bookies_changed()

        call = asyncio.create_task(store.change(slow))
        await asyncio.to_thread(begun.wait, 30)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        let_go.set()
        await asyncio.wait_for(told.wait(), 30)
        assert await store.read(revision_of) == 1
        await store.close()

    async def test_a_change_that_fails_leaves_nothing_of_itself(self, path: str) -> None:
        store = SqliteStore(path)
        await store.open()

        def half_done(transaction: Transaction) -> None:
            transaction.bookies_changed()
            raise MetaStoreException("in the middle")

        with pytest.raises(MetaStoreException, match="in the middle"):
            await store.change(half_done)
        assert await store.read(revision_of) == 0
        assert await store.change(Transaction.bookies_changed) == 1
        await store.close()


class TestKill:
    async def test_what_a_killed_process_had_done_is_there(self, path: str) -> None:
        script = HOLDER.replace('print("held"', 'await factory.ledger_manager.create(None, METADATA); print("held"')
        script = (
            "from bookgate.ledger.metadata import LedgerMetadata\nMETADATA = LedgerMetadata.new(['b'], 1, 1)\n" + script
        )
        process = start_holder(script, path)
        kill(process)
        factory = await opened(path)
        assert await all_ids(factory) == [0]
        await factory.close()

    @pytest.mark.parametrize("lines", [1, 40, 150])
    async def test_nothing_acknowledged_is_lost_when_writers_are_killed(self, path: str, lines: int) -> None:
        """Several processes write, and are all killed in the middle of it; a fourth one watches all the time."""
        watching = await opened(path)
        writers = [start_holder(WRITER, path) for _ in range(3)]
        acknowledged = [await asyncio.to_thread(read_until_killed, writer, lines) for writer in writers]
        told = [line.split() for writer in acknowledged for line in writer]
        ids = [ledger_id for ledger_id, what in told if what == "0"]
        assert len(ids) == len(set(ids)) >= 1
        connection = sqlite3.connect(path)
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        connection.close()
        stored = {record.ledger_id.low: record.version for record in await every_record(watching)}
        for ledger_id, what in told:
            if what == "gone":
                assert int(ledger_id) not in stored
            else:
                assert stored[int(ledger_id)] >= int(what)
        # What nobody was told of may be there, at most what each had under way.
        assert len(set(stored) - {int(ledger_id) for ledger_id in ids}) <= 3 * 5
        again = await opened(path)
        created = await again.ledger_manager.create(None, some_metadata())
        assert created.ledger_id.low > max(stored)
        await again.close()
        await watching.close()

    async def test_watches_see_what_killed_processes_had_done(self, path: str) -> None:
        writer = start_holder(WRITER, path)
        watching, other = await opened(path), await opened(path)
        told = Recorder()
        await watching.ledger_manager.register_listener(unscoped(0), told)
        assert writer.stdout is not None
        await asyncio.to_thread(writer.stdout.readline)
        await asyncio.to_thread(writer.stdout.readline)
        kill(writer)
        if told.told == [None]:
            # It was asked for before it was made.
            await watching.ledger_manager.register_listener(unscoped(0), told)
        await told.until_version(1)
        await other.ledger_manager.remove(unscoped(0))
        await told.until_version(None)
        await other.close()
        await watching.close()

    async def test_bookie_id_of_a_killed_process_is_free_at_once(self, path: str) -> None:
        process = start_holder(HOLDER, path)
        factory = await opened(path)
        kill(process)
        async with asyncio.timeout(60):
            await factory.registration_manager.register_bookie(BOOKIE, read_only=False)
        await factory.close()

    async def test_only_what_surely_died_counts_as_dead(self) -> None:
        mine = identity_of(os.getpid())
        boot, namespace, pid, start = mine.split(" ")
        assert not surely_dead(mine)
        assert surely_dead(f"{boot} {namespace} {pid} {int(start) + 1}")
        assert not surely_dead(f"other-boot {namespace} {pid} {start}"), "a container may have a boot id of its own"
        assert not surely_dead(f"other-boot pid:[1] {pid} {int(start) + 1}")
        assert not surely_dead(f"{boot} pid:[1] {pid} 1")
        assert not surely_dead("")
        assert process_identity.identity_of(2**22 + 1) == ""

    async def test_a_process_that_proc_hides_is_not_dead_while_it_lives(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        other = subprocess.Popen(["sleep", "60"])  # noqa: ASYNC220
        identity = identity_of(other.pid)
        # As with hidepid: this process sees itself and the kernel's own files, and nothing of the other.
        for name in ("sys", "self", str(os.getpid())):
            (tmp_path / name).symlink_to(f"/proc/{name}")
        monkeypatch.setattr(process_identity, "_PROC", tmp_path)
        try:
            assert not surely_dead(identity)
            with monkeypatch.context() as patches:
                patches.setattr(os, "kill", Mock(side_effect=PermissionError))
                assert not surely_dead(identity), "of another user namespace"
        finally:
            other.kill()
            other.wait()
        assert surely_dead(identity)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        return self.now


class WatchedClock(Clock):
    """Tells when it was read, on whatever thread."""

    def __init__(self) -> None:
        super().__init__()
        self.read = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def __call__(self) -> int:
        self._loop.call_soon_threadsafe(self.read.set)
        return super().__call__()


def _leases(store: SqliteStore, clock: Clock) -> tuple[SqliteRegistrationManager, SqliteReplicationClaims]:
    claims = SqliteReplicationClaims(store, lambda claim: None, lambda: None, lease_seconds=0.3, now_ms=clock)
    return SqliteRegistrationManager(store, lease_seconds=0.3, now_ms=clock), claims


def _as_of_the_boot_before(change: Transaction) -> None:
    """The rows of this process become those of another one that had its process id before the machine was booted."""
    _, namespace, pid, start = identity_of(os.getpid()).split(" ")
    for table in ("registrations", "replication_claims"):
        change.execute(f"UPDATE {table} SET process = ?", (f"boot-before {namespace} {pid} {int(start) + 1}",))


class TestLeases:
    async def test_living_owner_keeps_its_id(self, path: str) -> None:
        first, second = await opened(path, lease_seconds=0.3), await opened(path, lease_seconds=0.3)
        await first.registration_manager.register_bookie(BOOKIE, read_only=False)
        with pytest.raises(LedgerExistException, match="h:1"):
            await second.registration_manager.register_bookie(BOOKIE, read_only=False)
        await first.close()
        await second.registration_manager.register_bookie(BOOKIE, read_only=False)
        await second.close()

    async def test_ended_lease_is_gone_and_may_be_taken(self, path: str) -> None:
        clock = Clock()
        store = SqliteStore(path)
        await store.open()
        first = SqliteRegistrationManager(store, lease_seconds=10, now_ms=clock)
        second = SqliteRegistrationManager(store, lease_seconds=10, now_ms=clock)
        await first.register_bookie(BOOKIE, read_only=False)
        clock.now += 10_000
        await second.register_bookie(BOOKIE, read_only=False)
        # What is another's now is not taken back by its former owner.
        await first.unregister_bookie("h:1")
        assert await store.read(lambda c: c.execute("SELECT count(*) FROM registrations").fetchone()) == (1,)
        await first.close()
        await second.close()
        await store.close()

    async def test_watchers_notice_the_end_of_a_lease_by_time(self, path: str) -> None:
        watcher = await opened(path)
        told = Recorder()
        await watcher.service_discovery.watch_bookies(BookieSet.WRITABLE, told)
        store = SqliteStore(path)
        await store.open()
        # Its owner does not come to renew: its lease is of a minute, and its clock almost that much behind.
        owner = SqliteRegistrationManager(store, lease_seconds=60, now_ms=lambda: wall_clock_ms() - 59_500)
        await owner.register_bookie(BOOKIE, read_only=False)
        await told.until(len)
        await told.until(lambda bookies: bookies == ())
        await owner.close()
        await store.close()
        await watcher.close()

    async def test_a_clock_that_is_put_back_keeps_no_dead_bookie(self, path: str) -> None:
        """Its lease ends hours ahead then. The living renew theirs, and are listed all the while."""
        clock, store = Clock(), SqliteStore(path)
        await store.open()
        living = SqliteRegistrationManager(store, lease_seconds=10, now_ms=clock)
        discovery = SqliteServiceDiscovery(store, lambda: None, now_ms=clock)
        await living.register_bookie(BOOKIE, read_only=False)
        await living.register_bookie(BookieServiceInfo.legacy("h:2"), read_only=False)
        dead = subprocess.Popen(["sleep", "60"])  # noqa: ASYNC220
        identity = identity_of(dead.pid)
        await store.change(
            lambda change: change.execute("UPDATE registrations SET process = ? WHERE bookie_id = 'h:2'", (identity,))
        )
        clock.now -= 5 * 3600 * 1000
        assert {each.bookie_id for each in await discovery.bookies(BookieSet.WRITABLE)} == {"h:1", "h:2"}
        dead.kill()
        dead.wait()
        assert {each.bookie_id for each in await discovery.bookies(BookieSet.WRITABLE)} == {"h:1"}
        _, next_end = await store.read(discovery._select)
        assert next_end is not None
        assert next_end <= clock.now + 60_000, "watchers look again before long"
        await living.close()
        await store.close()

    async def test_a_machine_that_was_booted_with_its_clock_behind_keeps_nothing_for_those_before(
        self, path: str
    ) -> None:
        clock, store = Clock(), SqliteStore(path)
        await store.open()
        before, claims_before = _leases(store, clock)
        await before.register_bookie(BOOKIE, read_only=False)
        await claims_before.claim(VOTE, None, b"before")
        await claims_before.claim(LOCK, 7, b"before")
        # Nobody else renews or gives back what they hold.
        before._held.clear()
        claims_before._held.clear()
        await store.change(_as_of_the_boot_before)
        clock.now -= 3600 * 1000
        after, claims_after = _leases(store, clock)
        discovery = SqliteServiceDiscovery(store, lambda: None, now_ms=clock)
        assert list(await discovery.bookies(BookieSet.WRITABLE)) == []
        await after.register_bookie(BOOKIE, read_only=False)
        await claims_after.claim(VOTE, None, b"after")
        assert [each.content for each in await claims_after.standing(VOTE)] == [b"after"]
        assert await claims_after.claim(LOCK, 7, b"after") is not None
        for each in (before, claims_before, after, claims_after):
            await each.close()
        await store.close()

    async def test_renewed_lease_does_not_disturb_watchers(self, path: str) -> None:
        clock, store = WatchedClock(), SqliteStore(path)
        await store.open()
        manager = SqliteRegistrationManager(store, lease_seconds=0.3, now_ms=clock)
        await manager.register_bookie(BOOKIE, read_only=False)
        before = await store.read(revision_of)
        clock.now += 150

        async def end() -> int:
            row = await store.read(lambda c: c.execute("SELECT expires_at_ms FROM registrations").fetchone())
            return int(row[0])

        async with asyncio.timeout(30):
            while await end() != clock.now + 300:
                clock.read.clear()
                await clock.read.wait()
        assert await store.read(revision_of) == before
        await manager.close()
        await store.close()
