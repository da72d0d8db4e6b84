"""Checks that an operator orders begin at once, whenever they ended last and whether or not they are made at all."""

from __future__ import annotations

import json

import pytest

from bookgate import ClientConfig
from bookgate.bookie.replication.audits.auditor import AuditorOptions
from bookgate.bookie.replication.auto_recovery import AutoRecovery, AutoRecoveryOptions
from bookgate.bookie.replication.checks import office_task
from bookgate.bookie.replication.checks.placement_check import PlacementCheckOptions
from bookgate.bookie.replication.checks.replica_check import ReplicaCheckOptions
from bookgate.gateway.stores.drivers import create_factory
from bookgate.ledger.errors import IllegalOpException
from bookgate.ledger.replication import PeriodicCheck
from bookgate.ledger.replication_checks import Check, order_check
from bookgate.ledger.replication_store import RecordKind
from bookgate.runtime.clock import now_ms
from tests.integration.bookie.replication.healing import Store, until

pytestmark = pytest.mark.asyncio


async def test_a_check_that_is_ordered_begins_at_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(office_task, "_ORDERS_SEEN_SECONDS", 0.02)
    factory = create_factory(store.uri)
    await factory.initialize()
    kept = factory.replication_metadata
    options = AutoRecoveryOptions(
        AuditorOptions(lost_bookie_delay_seconds=3600),
        # One that is made by itself, and one that is not.
        check=ReplicaCheckOptions(3600.0),
        placement=PlacementCheckOptions(0.0),
    )
    running = AutoRecovery(factory, "here", options, ClientConfig())

    async def done() -> tuple[int, int, int]:
        return (
            running.check.statistics.checks,
            running.placement_check.statistics.checks,
            running.scrub.statistics.passes,
        )

    async def are_done(*times: int) -> bool:
        return await done() == times

    try:
        for check in Check:
            with pytest.raises(IllegalOpException, match="there is no auditor"):
                await order_check(kept, check)
        await running.start()
        await until(lambda: are_done(1, 0, 1))
        assert await order_check(kept, Check.REPLICAS) == "here"
        await until(lambda: are_done(2, 0, 1))
        await order_check(kept, Check.PLACEMENT)
        await until(lambda: are_done(2, 1, 1))
        await order_check(kept, Check.SCRUB)
        await until(lambda: are_done(2, 1, 2))
        for kind in (PeriodicCheck.ALL_LEDGERS, PeriodicCheck.PLACEMENT_POLICY):
            assert abs(now_ms() - (await kept.check_time(kind) or 0)) < 60_000
        await kept.set_enabled(False)
        with pytest.raises(IllegalOpException, match="disabled"):
            await order_check(kept, Check.REPLICAS)
    finally:
        await running.stop()
        await factory.close()


async def test_a_scrub_under_way_and_one_that_never_ended_need_no_order(store: Store) -> None:
    factory = create_factory(store.uri)
    await factory.initialize()
    kept, kind = factory.replication_metadata, RecordKind.PROGRESS
    vote = await kept.stand_for_auditor("here", lambda _state: None)
    try:
        await order_check(kept, Check.SCRUB)
        assert await kept.read_record(kind, "scrub") is None
        for told, ordered in (
            ({"began_ms": 5, "ended_ms": 3, "ledger_id": 7}, False),
            ({"began_ms": None, "ended_ms": 3, "ledger_id": 0}, True),
        ):
            found = await kept.read_record(kind, "scrub")
            await kept.write_record(kind, "scrub", json.dumps(told).encode(), None if found is None else found.version)
            await order_check(kept, Check.SCRUB)
            stored = await kept.read_record(kind, "scrub")
            assert stored is not None
            assert json.loads(stored.value) == {**told, "ended_ms": 0 if ordered else 3}
    finally:
        await vote.withdraw()
        await factory.close()
