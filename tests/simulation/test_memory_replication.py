"""The simple store's marks, locks and votes keep the contract that the real stores keep."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

from bookgate.ledger.metadata_store import LedgerManagerFactory
from bookgate.ledger.replication_store import LockLost, VoteState
from tests.integration.gateway import test_replication_contract as contract
from tests.simulation.loop import Process
from tests.simulation.metadata import HOST, MemoryMetadata
from tests.simulation.world import World

_OPENS_A_STORE_ITSELF = "test_closing_gives_locks_and_votes_back"
STATEMENTS = [
    (group, name)
    for group in (
        contract.TestMarks,
        contract.TestLocks,
        contract.TestElection,
        contract.TestSwitches,
        contract.TestChanges,
        contract.TestLedgerFeed,
    )
    for name, _ in inspect.getmembers(group, inspect.isfunction)
    if name.startswith("test_") and name != _OPENS_A_STORE_ITSELF
]


class Stores:
    """A world's store, and factories of processes on hosts of their own."""

    def __init__(self, world: World) -> None:
        assert isinstance(world.metadata, MemoryMetadata)
        self.world = world
        self.metadata = world.metadata
        self.metadata.replication.feed_gaps = 0.0
        self.processes: dict[LedgerManagerFactory, Process] = {}

    def factory(self, name: str) -> LedgerManagerFactory:
        process = self.world.new_process(name, name)
        made: LedgerManagerFactory = process.context.run(self._open)
        self.processes[made] = process
        return made

    def _open(self) -> LedgerManagerFactory:
        factory = self.metadata.factory("sim://metadata")
        assert factory.replication_metadata is not None
        return factory

    async def end_claims(self, factory: LedgerManagerFactory) -> None:
        self.metadata.replication.end_sessions_of(self.processes[factory])


@pytest.mark.parametrize(("group", "name"), STATEMENTS, ids=[name for _, name in STATEMENTS])
def test_contract(group: type[Any], name: str) -> None:
    world = World(name)

    async def main() -> None:
        stores = Stores(world)
        factories = stores.factory("one"), stores.factory("two")
        given = {
            "stores": tuple(factory.replication_metadata for factory in factories),
            "factories": factories,
            "end_claims": stores.end_claims,
        }
        test = getattr(group(), name)
        await test(**{argument: given[argument] for argument in inspect.signature(test).parameters})

    world.run(main())


def test_closing_gives_locks_and_votes_back() -> None:
    world = World("closing")

    async def main() -> None:
        stores = Stores(world)
        one, two = stores.factory("one"), stores.factory("two")
        assert await one.replication_metadata.try_lock(7, "h") is not None
        await one.replication_metadata.stand_for_auditor("one:1", lambda state: None)
        await one.close()
        assert await two.replication_metadata.try_lock(7, "h") is not None
        assert await two.replication_metadata.auditor() is None

    world.run(main())


@pytest.mark.parametrize("how", ["cut off", "paused", "dead"])
def test_claims_end_with_their_session_and_whoever_is_heard_of_again_is_told(how: str) -> None:
    world = World(how)

    async def main() -> None:
        stores = Stores(world)
        one, two = stores.factory("one"), stores.factory("two")
        process = stores.processes[one]
        told, states = contract.Told(), contract.Told()
        one.replication_metadata.watch(told)
        lock = await one.replication_metadata.try_lock(7, "one")
        assert lock is not None
        await one.replication_metadata.stand_for_auditor("one:1", states)
        await states.until(VoteState.ELECTED)
        later = contract.Told()
        await two.replication_metadata.stand_for_auditor("two:1", later)
        links = ("one", HOST), (HOST, "one")
        if how == "cut off":
            for link in links:
                world.network.cut(*link)
        elif how == "paused":
            process.pause()
        else:
            world.end_process(process, host_is_up=True)
        assert await two.replication_metadata.try_lock(7, "two") is None
        await later.until(VoteState.ELECTED)
        assert await two.replication_metadata.try_lock(7, "two") is not None
        assert LockLost(lock) not in told.events
        for link in links:
            world.network.mend(*link)
        if how == "paused":
            process.resume()
        if how != "dead":
            await told.until(LockLost(lock))
            await states.until(VoteState.LOST)
        await asyncio.sleep(0)

    world.run(main())
