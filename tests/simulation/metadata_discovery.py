"""Bookies that come, change and go in a run of the metadata layer, and clients that watch and list them (M4).

In a share of the seeds. The stream of random numbers is this module's own, and the other seeds do not depend on it.
What gateways answer is heard where they send it; each registration carries a label of its own, so that an answer shows
how old it is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from itertools import count

from bookgate.ledger.bookie_info import BookieServiceInfo
from bookgate.ledger.errors import BKException
from bookgate.ledger.metadata_store import BookieSet, LedgerManagerFactory, RegisteredBookie
from bookgate.protos.bookkeeper.gateway.v1.service_discovery_pb2 import ListBookiesResponse, WatchBookiesResponse
from tests.history.metadata_events import BookieChanged, BookiesAsked, BookiesTold
from tests.history.recorder import Recorder
from tests.simulation.simulated_store import SimulatedStore
from tests.simulation.world import World
from tests.simulation.znode_tree import Event, Transaction

_SHARE = 0.5
"""Of seeds."""
_BOOKIES = ("b1:1", "b2:1", "b3:1")
_LOOKERS = 2
_PAUSE_SECONDS = 0.1
_LABEL = "label"
_SERVICE = "/bookkeeper.gateway.v1.ServiceDiscovery/"
_ANSWERS: dict[str, type[ListBookiesResponse | WatchBookiesResponse]] = {
    f"{_SERVICE}ListBookies": ListBookiesResponse,
    f"{_SERVICE}WatchBookies": WatchBookiesResponse,
}


class MetadataDiscovery:
    """See the module."""

    def __init__(self, world: World, store: SimulatedStore, recorder: Recorder) -> None:
        self._world = world
        self._store = store
        self._recorder = recorder
        self._rng = world.random("discovery")
        self._labels = count(1)
        self._streams: dict[str, int] = {}
        self._list = f"{store.ledgers_root}/available/"

    async def run(self, until: float) -> None:
        """Up to that time, if this seed has any. What watches the bookies is gone then."""
        if self._rng.random() >= _SHARE:
            return
        self._store.observers.append(self._observed)
        self._store.on_transaction.append(self._committed)
        names = ["registrar", *(f"looker-{number}" for number in range(_LOOKERS))]
        work = []
        for name in names:
            process = self._world.new_process(name, name)
            self._world.network.host(name).up = True
            of_name = self._register(until) if name == names[0] else self._look(until)
            work.append(self._world.on(process, of_name))
        await asyncio.gather(*work)

    async def _register(self, until: float) -> None:
        """As bookies that speak to ZooKeeper themselves; a registration is cleared away with its session, too."""
        factory = self._store.factory("zk://store")
        with contextlib.suppress(BKException):
            await factory.initialize()
            while self._world.now < until:
                await asyncio.sleep(self._rng.uniform(0, 2 * _PAUSE_SECONDS))
                with contextlib.suppress(BKException):
                    await self._change(factory, self._rng.choice(_BOOKIES))
        await factory.close()

    async def _change(self, factory: LedgerManagerFactory, bookie: str) -> None:
        manager = factory.registration_manager
        if self._rng.random() < 0.2:
            await manager.unregister_bookie(bookie)
            return
        info = BookieServiceInfo(bookie, properties={_LABEL: f"{bookie}/{next(self._labels)}"})
        await manager.register_bookie(info, read_only=False)

    async def _look(self, until: float) -> None:
        factory = self._store.factory("grpc://gateways")
        with contextlib.suppress(BKException):
            await factory.initialize()
            await factory.service_discovery.watch_bookies(BookieSet.WRITABLE, _heard)
            while self._world.now < until:
                await asyncio.sleep(self._rng.uniform(0, _PAUSE_SECONDS))
                with contextlib.suppress(BKException):
                    await factory.service_discovery.bookies(BookieSet.WRITABLE)
        await factory.close()

    def _committed(self, transaction: Transaction, changed: list[Event]) -> None:
        tree = self._store.ensemble.tree
        for path in dict.fromkeys(path for _, path in changed if path.startswith(self._list)):
            bookie = path.removeprefix(self._list)
            if bookie in _BOOKIES:
                label = _label(bookie, tree.content(path)[0]) if tree.has(path) else ""
                self._recorder.add(BookieChanged(self._recorder.now, bookie, label, transaction.zxid))

    def _observed(self, gateway: str, method: str, stream: str, sent: bool, message: bytes) -> None:
        answer = _ANSWERS.get(method)
        if answer is None:
            return
        number = self._streams.setdefault(f"{gateway} {method} {stream}", len(self._streams))
        if not sent:
            self._recorder.add(BookiesAsked(self._recorder.now, gateway, number))
            return
        bookies = answer.FromString(message).bookies
        labels = tuple((each.bookie_id, each.properties[_LABEL]) for each in bookies)
        self._recorder.add(BookiesTold(self._recorder.now, gateway, number, labels))


def _heard(bookies: Sequence[RegisteredBookie]) -> None:
    """What is told is judged where the gateway sends it."""


def _label(bookie: str, content: bytes) -> str:
    return BookieServiceInfo.decode(bookie, content).properties[_LABEL]
