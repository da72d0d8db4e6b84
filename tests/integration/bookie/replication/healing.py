"""Clusters that heal themselves under load: stores and processes of the tests, writers, and the proof of all copies.

`Load` writes and keeps what was acknowledged. `until_healed` waits until no ledger names a lost bookie and no mark is
left. `audit` then reads every entry from every bookie that the metadata name for it, each from that bookie alone, with
its digest checked.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sqlite3
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import aclosing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

from bookgate import BookKeeper, ClientConfig
from bookgate.bookie.replication.audits.auditor import AuditorOptions
from bookgate.bookie.replication.auto_recovery import AutoRecovery, AutoRecoveryOptions
from bookgate.bookie.replication.copies.budget import CopyLimits
from bookgate.bookie.replication.repairs.worker import WorkerOptions
from bookgate.bookie.standalone.local_zookeeper import LocalZooKeeper
from bookgate.gateway.server import GatewayServer
from bookgate.gateway.stores.drivers import create_factory
from bookgate.ledger.errors import BKException, NotEnoughBookiesException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import BookieSet, LedgerManagerFactory
from bookgate.ledger.replication_control import records_of_all_scopes
from bookgate.thinclient.tools.single_replica import batches_of_bookie
from tests.integration.bookie.forked_bookie import ForkedProcess, when_the_parent_ends
from tests.integration.bookie.replication.test_auto_recovery import metadata_of
from tests.integration.bookie.replication.test_worker import PASSWORD
from tests.stores import made

AT_LENGTH = bool(os.environ.get("BOOKGATE_RECOVERY"))
"""Whether `make test-recovery` runs the tests."""
PATIENCE_SECONDS = 600 if AT_LENGTH else 120
STORES = ("zookeeper", "sqlite", "grpc")
GRACE_SECONDS, SLOW_SECONDS = 6.0, 3.0
"""The grace is longer than it takes a writer that lives to notice that a bookie is gone."""
WRITERS: dict[str, Any] = {"failed_bookie_interval_seconds": 1.0}
"""Bookies come back soon here; a writer that finds nobody else to write to has a lost one for too long."""
_MOST_ENTRIES = 120
_SCOPE = -77
CLIENT = ClientConfig(add_timeout_seconds=1.5, read_timeout_seconds=1.5, connect_timeout_seconds=1.5)

SETTINGS: dict[str, Any] = {
    "auto_recovery": True,
    "lost_bookie_recovery_delay_seconds": 0,
    "open_ledger_recovery_grace_seconds": GRACE_SECONDS,
    "journal_pre_alloc_size_mb": 1,
}
"""Of bookies that repair."""


# --- stores ------------------------------------------------------------------------------------------------------


class Store:
    """A metadata store of one test, which may be paused: nobody gets an answer from it, and leases go on to run."""

    uri: str

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    async def has_noticed(self, factory: LedgerManagerFactory) -> bool:
        """Whether the pause has lasted long enough to be noticed, as a client of the store sees it."""
        try:
            await factory.replication_metadata.is_enabled()
        except BKException:
            return True
        return False


class ZooKeeperStore(Store):
    def __init__(self, server: LocalZooKeeper) -> None:
        self.server = server
        self.uri = made(server.metadata_uri("/healing/ledgers"))

    def pause(self) -> None:
        self.server.suspend()

    def resume(self) -> None:
        self.server.resume()


class SqliteStore(Store):
    """Paused it can be read, but not written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._holder: sqlite3.Connection | None = None
        self.uri = made(f"sqlite://{path}")

    def pause(self) -> None:
        self._holder = sqlite3.connect(self._path, timeout=60, isolation_level=None)
        self._holder.execute("BEGIN IMMEDIATE")

    def resume(self) -> None:
        if self._holder is not None:
            self._holder.close()

    async def has_noticed(self, factory: LedgerManagerFactory) -> bool:
        """No lease was renewed: the bookies are held lost, all of them."""
        return not any(each.registered for each in await factory.service_discovery.bookies(BookieSet.ALL))


class GatewayStore(Store):
    """A gateway, which alone knows the store."""

    def __init__(self, root: Path) -> None:
        settings = {"uri": made(f"sqlite://{root}/behind.sqlite")}
        self.gateway = ForkedProcess(root / "gateway.log", _serve_gateway, settings)
        self.gateway.start()
        self.gateway.wait_until_serving()
        self.uri = f"grpc://{self.gateway.addresses['gateway']}"

    def pause(self) -> None:
        os.kill(self.gateway.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.gateway.pid, signal.SIGCONT)


@contextlib.contextmanager
def store_of(kind: str, root: Path) -> Iterator[Store]:
    """A store for one test."""
    match kind:
        case "zookeeper":
            # A short tick bounds sessions to two seconds, so that a killed bookie is missed soon.
            with LocalZooKeeper(root / "zookeeper", tick_time_ms=100) as server:
                yield ZooKeeperStore(server)
        case "sqlite":
            yield SqliteStore(root / "metadata.sqlite")
        case _:
            behind = GatewayStore(root)
            try:
                yield behind
            finally:
                behind.gateway.kill()


async def _serve_gateway(settings: dict[str, Any], pipe: Connection) -> None:
    stopped = asyncio.Event()
    factory = create_factory(settings["uri"])
    await factory.initialize()
    server = GatewayServer(factory, lease_seconds=2.0)
    pipe.send({"gateway": f"127.0.0.1:{await server.start()}"})
    when_the_parent_ends(pipe, stopped.set)
    await stopped.wait()
    await server.stop(0)
    await factory.close()


# --- auto-recovery beside the bookies ----------------------------------------------------------------------------


@contextlib.contextmanager
def recoverers(root: Path, count: int, uri: str, mib_a_second: float = 0.0) -> Iterator[list[ForkedProcess]]:
    """Auto-recovery in processes of its own, beside bookies that run none."""
    processes = []
    try:
        for number in range(count):
            settings = {"uri": uri, "name": f"recoverer-{number}", "bytes_a_second": mib_a_second * 2**20}
            processes.append(ForkedProcess(root / f"recoverer-{number}.log", _serve_recovery, settings))
            start(processes[-1])
        yield processes
    finally:
        for process in processes:
            with contextlib.suppress(ValueError):  # it was killed
                process.kill()


def start(process: ForkedProcess) -> None:
    """Returns once it serves."""
    process.start()
    process.wait_until_serving()


async def _serve_recovery(settings: dict[str, Any], pipe: Connection) -> None:
    stopped = asyncio.Event()
    factory = create_factory(settings["uri"])
    await factory.initialize()
    options = AutoRecoveryOptions(
        AuditorOptions(lost_bookie_delay_seconds=0),
        WorkerOptions(open_ledger_grace_seconds=GRACE_SECONDS),
        CopyLimits(worker=settings["bytes_a_second"]),
    )
    running = AutoRecovery(factory, settings["name"], options, CLIENT)
    await running.start()
    pipe.send({})
    when_the_parent_ends(pipe, stopped.set)
    await stopped.wait()
    await running.stop()
    await factory.close()


# --- load --------------------------------------------------------------------------------------------------------


class Load:
    """Writers that live, each with one ledger after the other, one with a single one; and such as leave theirs open.

    What a writer is told is kept. That of those that live any append fails ends the test.
    """

    def __init__(self, client: BookKeeper, slow: int = 0) -> None:
        """So many writers more write an entry in a few seconds only, within the grace."""
        self.acknowledged: dict[LedgerId, list[bytes]] = {}
        self._client = client
        self._rng = random.Random(1)
        self._enough = asyncio.Event()
        work = [self._write_ledger(None), self._write(), self._write()]
        work += [self._write_ledger(None, SLOW_SECONDS) for _ in range(slow)]
        self._writers = [asyncio.create_task(each) for each in work]

    async def _write(self) -> None:
        while not self._enough.is_set():
            with contextlib.suppress(NotEnoughBookiesException):  # of a new ledger: on a busy machine leases end
                await self._write_ledger(self._rng.randrange(1, _MOST_ENTRIES))
            await asyncio.sleep(0.02)

    async def _write_ledger(self, entries: int | None, pause: float = 0.02) -> None:
        """As many entries, or until it is enough."""
        ledger = await self._client.create_ledger(3, 3, 2, password=PASSWORD)
        known = self.acknowledged[ledger.ledger_id] = []
        while not self._enough.is_set() and len(known) != entries:
            payload = b"%s/%d;" % (str(ledger.ledger_id).encode(), len(known)) * self._rng.randrange(1, 200)
            await ledger.append(payload)
            known.append(payload)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._enough.wait(), pause)
        if entries is None or entries % 5:
            await ledger.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for writer in self._writers:
            writer.cancel()
        await asyncio.gather(*self._writers, return_exceptions=True)

    async def stop(self) -> None:
        """Ends the writers. Raises what any of them was told instead of an acknowledgement."""
        self._enough.set()
        await asyncio.gather(*self._writers)

    def check(self) -> None:
        """Raises what has ended a writer."""
        for writer in self._writers:
            if writer.done():
                writer.result()


async def filled(
    client: BookKeeper, ledgers: int, entries: int = 20, size: int = 4096, ensemble: int = 3
) -> dict[LedgerId, list[bytes]]:
    """Closed ledgers of three copies, every third one with a scope, and what is in them."""
    room = asyncio.Semaphore(16)

    async def write(place: int) -> tuple[LedgerId, list[bytes]]:
        scope_id = _SCOPE if place % 3 == 2 else 0
        async with room, await client.create_ledger(ensemble, 3, 2, password=PASSWORD, scope_id=scope_id) as ledger:
            payloads = [b"%s/%d;" % (str(ledger.ledger_id).encode(), number) for number in range(entries)]
            payloads = [payload * (size // len(payload)) for payload in payloads]
            await ledger.append_all(payloads)
            return ledger.ledger_id, payloads

    return dict(await asyncio.gather(*(write(place) for place in range(ledgers))))


# --- what is waited for, what has to be --------------------------------------------------------------------------


async def until(holds: Callable[[], Any], what: Callable[[], object] = lambda: "") -> None:
    """Asks again and again, since a store has no event for it; it may be out of reach meanwhile."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
    while True:
        with contextlib.suppress(BKException):
            if await holds():
                return
        assert asyncio.get_running_loop().time() < deadline, f"waited {PATIENCE_SECONDS} s in vain: {what()}"
        await asyncio.sleep(0.1)


async def naming(factory: LedgerManagerFactory, lost: Collection[str]) -> set[int]:
    """The ledgers that name any of the bookies, by their numbers."""
    pages = [page async for page in records_of_all_scopes(factory.ledger_manager)]
    return {each.ledger_id.number for page in pages for each in page if each.metadata.bookies & set(lost)}


async def marked(factory: LedgerManagerFactory) -> set[int]:
    pages = [page async for page in factory.replication_metadata.marks()]
    return {mark.value.ledger_id for page in pages for mark in page}


async def until_healed(factory: LedgerManagerFactory, lost: Collection[str]) -> None:
    """No ledger names the lost bookies, and nothing is marked any more."""
    left: list[set[int]] = []

    async def healed() -> bool:
        left[:] = [await naming(factory, lost), await marked(factory)]
        return not any(left)

    await until(healed, lambda: f"naming {sorted(lost)} and marked: {left}")


async def until_fewer(factory: LedgerManagerFactory, lost: str, before: set[int]) -> set[int]:
    """Returns the ledgers that name the bookie, once they are fewer than before."""
    now = before

    async def fewer() -> bool:
        nonlocal now
        now = await naming(factory, {lost})
        return len(now) < len(before)

    await until(fewer, lambda: f"{len(now)} ledgers name {lost} still")
    return now


async def audit(factory: LedgerManagerFactory, client: BookKeeper, acknowledged: dict[LedgerId, list[bytes]]) -> int:
    """Every acknowledged entry is there, and every entry of a closed ledger is on every bookie that is to hold it.

    Returns how many copies were read.
    """
    assert await marked(factory) == set()
    return sum([await _audit_ledger(factory, client, *each) for each in acknowledged.items()])


async def _audit_ledger(
    factory: LedgerManagerFactory, client: BookKeeper, ledger_id: LedgerId, known: list[bytes]
) -> int:
    async with await client.open_ledger(ledger_id, PASSWORD, recovery=True) as handle:
        assert handle.last_add_confirmed + 1 >= len(known), f"ledger {ledger_id} has lost its end"
    record = await factory.ledger_manager.read(ledger_id)
    metadata = record.metadata
    assert metadata.is_closed
    copies = 0
    for bookie_id in sorted(metadata.bookies):
        batches = batches_of_bookie(client, record, PASSWORD, bookie_id, 0, metadata.last_entry_id)
        async with aclosing(batches):
            async for batch in batches:
                copies += len(batch)
                for entry in batch:
                    expected = [*known, entry.payload][min(entry.entry_id, len(known))]
                    assert entry.payload == expected, f"entry {entry.entry_id} of ledger {ledger_id} at {bookie_id}"
    assert copies == (metadata.last_entry_id + 1) * metadata.write_quorum_size, f"ledger {ledger_id}"
    return copies


@contextlib.asynccontextmanager
async def healing(cluster: Any) -> AsyncIterator[tuple[LedgerManagerFactory, BookKeeper]]:
    """The metadata and a client."""
    async with metadata_of(cluster) as factory, await cluster.client(**WRITERS) as client:
        yield factory, client
