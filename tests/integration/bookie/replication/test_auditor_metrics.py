"""What the auditor in office tells of the cluster, and that nobody else does."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from bookgate.bookie.membership.cookie import Cookie
from bookgate.bookie.metrics.exposition import render
from bookgate.bookie.replication.audits.audit_rules import HELD_BACK, HeldBack
from bookgate.bookie.replication.audits.auditor import AuditorOptions
from bookgate.bookie.replication.auto_recovery import AutoRecovery, AutoRecoveryOptions
from bookgate.bookie.replication.statistics import AutoRecoveryCollector
from bookgate.gateway.stores.drivers import create_factory
from bookgate.ledger.bookie_info import BookieServiceInfo
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerManagerFactory
from bookgate.ledger.replication_store import RecordKind
from bookgate.thinclient.config import ClientConfig
from tests.stores import made

pytestmark = pytest.mark.asyncio

OF_THE_CLUSTER = {
    f"auditor_{name}"
    for name in (
        "ENABLED",
        "BOOKIES_MISSED",
        "BOOKIES_LOST",
        "AUDIT_HELD_BACK",
        "MARKED_LEDGERS",
        "UNRECOVERABLE_LEDGERS",
        "OLDEST_MARK_SECONDS",
    )
}


class Process:
    """Auto-recovery as one process of the cluster runs it, looked at as Prometheus would."""

    def __init__(self, factory: LedgerManagerFactory, name: str) -> None:
        options = AutoRecoveryOptions(AuditorOptions(lost_bookie_delay_seconds=3600, count_seconds=0.05))
        self.running = AutoRecovery(factory, name, options, ClientConfig())
        self._registry = CollectorRegistry()
        self._registry.register(AutoRecoveryCollector(self.running))

    def shown(self) -> dict[str, float]:
        lines = [line.rsplit(" ", 1) for line in render(self._registry).splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in lines}

    async def until_shown(self, **wanted: float) -> dict[str, float]:
        async with asyncio.timeout(30):
            while True:
                shown = self.shown()
                if all(shown.get(f"auditor_{name}") == value for name, value in wanted.items()):
                    return shown
                await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def process(uri: str, name: str) -> AsyncIterator[Process]:
    factory = create_factory(uri)
    await factory.initialize()
    running = Process(factory, name)
    await running.running.start()
    try:
        yield running
    finally:
        await running.running.stop()
        await factory.close()


async def register(factory: LedgerManagerFactory, *names: str, rack: str = "") -> None:
    for name in names:
        cookie = Cookie(name, "/j", "1\t/l", await factory.registration_manager.cluster_instance_id())
        await factory.registration_manager.write_cookie(name, cookie.encode(), None)
        info = BookieServiceInfo(name, (), {"rack": rack} if rack else {})
        await factory.registration_manager.register_bookie(info, read_only=False)


async def test_the_auditor_alone_speaks_for_the_cluster(tmp_path: Path) -> None:
    uri = made(f"sqlite://{tmp_path}/metadata.db")
    store = create_factory(uri)
    await store.initialize()
    await register(store, "b1", "b2", "b3", "b4")
    async with contextlib.AsyncExitStack() as running:
        first = await running.enter_async_context(process(uri, "first"))
        shown = await first.until_shown(IS_AUDITOR=1, MARKED_LEDGERS=0, BOOKIES_MISSED=0)
        second = await running.enter_async_context(process(uri, "second"))
        assert shown["auditor_OLDEST_MARK_SECONDS"] == 0
        assert (shown["auditor_ENABLED"], shown["auditor_AUDIT_HELD_BACK"]) == (1, 0)
        assert second.shown()["auditor_IS_AUDITOR"] == 0
        assert not OF_THE_CLUSTER & second.shown().keys()

        await store.ledger_manager.create(LedgerId(0, 5), LedgerMetadata.new(["b1", "b2", "b3"], 3, 2).close(9, 100))
        await store.replication_metadata.mark(5, ["b1"])
        by_class = {
            'LEDGERS_IN_DANGER{class="below_write_quorum"}': 1,
            'BYTES_TO_COPY{class="below_write_quorum"}': 100,
        }
        shown = await first.until_shown(**by_class, **{'LEDGERS_TO_REPAIR{bookie="b1"}': 1})
        assert shown['auditor_LEDGERS_IN_DANGER{class="last_copy"}'] == 0
        assert not [name for name in second.shown() if "DANGER" in name or "TO_" in name]
        await store.ledger_manager.remove(LedgerId(0, 5))
        await first.until_shown(**dict.fromkeys(by_class, 0))
        assert 'auditor_LEDGERS_TO_REPAIR{bookie="b1"}' not in first.shown()

        # Nothing is repaired: nobody can be asked about copies, so that marks stay.
        await store.replication_metadata.set_enabled(False)
        shown = await first.until_shown(ENABLED=0)
        assert "auditor_BOOKIES_MISSED" not in shown, "nobody calls the roll now"
        now_ms = int(time.time() * 1000)
        await store.replication_metadata.mark(3, ["b1"], now_ms - 600_000)
        await store.replication_metadata.mark(4, ["b1"], now_ms - 100_000)
        await store.replication_metadata.write_record(RecordKind.UNRECOVERABLE_LEDGER, "3", b"{}", None)
        shown = await first.until_shown(MARKED_LEDGERS=2, UNRECOVERABLE_LEDGERS=1)
        assert 100 <= shown["auditor_OLDEST_MARK_SECONDS"] < 400, "the unrecoverable one left out"

        await first.running.stop()
        assert not OF_THE_CLUSTER & first.shown().keys()
        await second.until_shown(IS_AUDITOR=1, MARKED_LEDGERS=2)
    await store.close()


async def until_held_back(store: LedgerManagerFactory, word: HeldBack | None) -> None:
    """The store says so."""
    async with asyncio.timeout(60):
        while True:
            stored = await store.replication_metadata.read_record(RecordKind.PROGRESS, HELD_BACK)
            if (None if stored is None else HeldBack.decode(stored.value)) == word:
                return
            await asyncio.sleep(0.01)


async def test_bookies_that_are_missed_and_a_storm(tmp_path: Path) -> None:
    uri = made(f"sqlite://{tmp_path}/metadata.db")
    store = create_factory(uri)
    await store.initialize()
    manager = store.registration_manager
    await register(store, "b1", "b2", "b3", "b4")
    await register(store, "b5", "b6", "b7", rack="/r1")
    await store.ledger_manager.create(LedgerId(0, 5), LedgerMetadata.new([f"b{n}" for n in range(1, 8)], 2, 1))
    async with process(uri, "first") as auditor:
        await auditor.until_shown(BOOKIES_MISSED=0)
        await manager.unregister_bookie("b1")
        await auditor.until_shown(BOOKIES_MISSED=1, BOOKIES_LOST=0, AUDIT_HELD_BACK=0)
        await store.replication_metadata.set_lost_bookie_delay(0)
        await auditor.until_shown(BOOKIES_MISSED=1, BOOKIES_LOST=1, AUDIT_HELD_BACK=0)
        for name in ("b2", "b3", "b4"):
            await manager.unregister_bookie(name)
        await auditor.until_shown(BOOKIES_MISSED=4, BOOKIES_LOST=0, AUDIT_HELD_BACK=1)
        await until_held_back(store, HeldBack(("b1", "b2", "b3", "b4"), 7))
        await manager.register_bookie(BookieServiceInfo("b3", ()), read_only=False)
        await auditor.until_shown(BOOKIES_MISSED=3, BOOKIES_LOST=3, AUDIT_HELD_BACK=0)
        await until_held_back(store, None)
        for name in ("b1", "b2", "b4"):
            await manager.register_bookie(BookieServiceInfo(name, ()), read_only=False)
        await auditor.until_shown(BOOKIES_MISSED=0, BOOKIES_LOST=0)
        # Three of seven are none; but these are all of their rack.
        for name in ("b5", "b6", "b7"):
            await manager.unregister_bookie(name)
        await until_held_back(store, HeldBack(("b5", "b6", "b7"), 3, "/r1"))
        await auditor.until_shown(BOOKIES_MISSED=3, BOOKIES_LOST=0, AUDIT_HELD_BACK=1)
    await store.close()
