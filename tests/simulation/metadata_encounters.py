"""What seldom meets by chance in a run of the metadata layer, brought together on purpose, in a share of the seeds.

*A ledger that is made while it is looked for.* A client watches a ledger that is not there, and gives that up; the
ledger is made; another client watches it; all while the store's answers to the gateways are held up. Then these come
together while the gateways' loops are busy: the first says that there is no such node, the second what to watch. A
little later the ledger is changed, which the second client must hear of (M2, M3).

All delays are drawn, so the same steps also meet otherwise. The stream of random numbers is this module's own: seeds
without encounters do not depend on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import count

from tests.simulation.loop import Process
from tests.simulation.metadata_actors import MetadataClient
from tests.simulation.simulated_store import SimulatedStore
from tests.simulation.world import World

_SHARE = 0.4
"""Of seeds."""
_FIRST_ID = 50_000_000
"""Of the ledgers of encounters: far from those that clients choose."""
_PAUSE_SECONDS = 3.0


class MetadataEncounters:
    """See the module. `clients` are those of the run, by name, with their processes."""

    def __init__(
        self,
        world: World,
        store: SimulatedStore,
        clients: Mapping[str, MetadataClient],
        processes: Mapping[str, Process],
    ) -> None:
        self._world = world
        self._store = store
        self._clients = clients
        self._processes = processes
        self._rng = world.random("encounters")
        self._ids = count(_FIRST_ID)
        self.counts = 0

    async def run(self, until: float) -> None:
        """One after the other up to that time, if this seed has any."""
        if self._rng.random() >= _SHARE:
            return
        while True:
            await asyncio.sleep(self._rng.uniform(0, _PAUSE_SECONDS))
            if self._world.now >= until:
                return
            await self._made_while_looked_for(next(self._ids))

    async def _made_while_looked_for(self, ledger: int) -> None:
        rng, names = self._rng, list(self._clients)
        first, maker, second = (rng.choice(names) for _ in range(3))
        seconds = rng.uniform(0.3, 1.0)
        self._world.note("encounters", f"ledger {ledger} is made while {first} and {second} look for it")
        self._hold_answers_up(seconds)
        await self._on(first, self._clients[first].watch(ledger))
        await asyncio.sleep(self._a_moment())
        await self._on(first, self._clients[first].unwatch(ledger))
        await asyncio.sleep(self._a_moment())
        making = self._world.loop.create_task(self._on(maker, self._clients[maker].create(ledger)))
        await asyncio.sleep(self._a_moment())
        await self._on(second, self._clients[second].watch(ledger))
        await making
        await asyncio.sleep(self._a_moment())
        await self._on(maker, self._clients[maker].write(ledger))
        self.counts += 1

    def _a_moment(self) -> float:
        return self._rng.uniform(0.0, 0.12)

    def _hold_answers_up(self, seconds: float) -> None:
        """For so long, and the gateways are busy when they come."""
        busy_before = self._rng.uniform(0.0, 0.1)
        for gateway in self._store.gateways:
            for server in self._store.ensemble.servers:
                self._world.network.stall(server.name, gateway.name, seconds)
            process = gateway.process
            if process is not None:
                self._world.loop.call_later(max(0.0, seconds - busy_before), _keep_busy, process)

    async def _on(self, name: str, call: object) -> None:
        await self._world.on(self._processes[name], call)  # type: ignore[arg-type]


def _keep_busy(process: Process) -> None:
    if process.alive:
        process.keep_busy(0.3)
