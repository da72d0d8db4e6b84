"""ZooKeeper servers and metadata gateways as hosts of a simulated world, and the world's metadata through them.

The store's servers run the simulated ensemble. A gateway runs the real gateway: services, cache, watch hub, ledger
managers, and the real kazoo, each process on a host of its own name. Clients and bookies are given the real client of
gateways; a bookie may also speak to ZooKeeper itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from bookgate.gateway.config import GatewayConfig
from bookgate.gateway.limits import GatewayLimits
from bookgate.gateway.server import GatewayServer
from bookgate.gateway.stores.zookeeper.cluster_admin import ZooKeeperClusterAdmin
from bookgate.gateway.stores.zookeeper.factory import ZooKeeperLedgerManagerFactory
from bookgate.gateway.stores.zookeeper.ledger_paths import paths_of
from bookgate.gateway.stores.zookeeper.uri import parse_zookeeper
from bookgate.ledger.errors import BKException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_codec import decode
from bookgate.ledger.metadata_store import LedgerManagerFactory, LedgerRecord
from bookgate.runtime.security.access_control import AccessControl
from bookgate.thinclient.gateways.factory import RpcLedgerManagerFactory
from bookgate.thinclient.gateways.parallel_listing import DEFAULT_SIZES
from bookgate.thinclient.gateways.tokens import TokenSource
from tests.history.violations import NoProgress
from tests.simulation.grpc_channel import open_simulated
from tests.simulation.grpc_server import SimulatedGrpcServer
from tests.simulation.kazoo_handler import SimulatedKazooHandler
from tests.simulation.loop import CURRENT, Process
from tests.simulation.threads import SimulatedThreads
from tests.simulation.znode_tree import Create, Delete, Event, Multi, Result, SetData, Transaction
from tests.simulation.zookeeper import Ensemble, Server

if TYPE_CHECKING:
    from tests.simulation.world import World

ZOOKEEPER_PORT, GATEWAY_PORT = 2181, 4181
SESSION_SECONDS = 4.0
CALL_SECONDS = 10.0


class SimulatedGateway:
    """One gateway. States: down → starting → up → (draining →) down; a start that fails ends the process."""

    def __init__(self, store: SimulatedStore, name: str) -> None:
        self._store = store
        self.name = name
        self.process: Process | None = None
        self.factory: ZooKeeperLedgerManagerFactory | None = None
        self.serving = False
        self._stop: asyncio.Event | None = None

    async def start(self) -> bool:
        """Whether it serves; it may be killed meanwhile, or find no store."""
        world = self._store.world
        if self.process is not None:
            raise RuntimeError(f"{self.name} runs already")
        world.note(self.name, "starts")
        world.network.host(self.name).up = True
        process = self.process = world.new_process(self.name, self.name)
        settled: asyncio.Future[bool] = world.loop.create_future()
        process.on_end.append(partial(_settle, settled, False))
        world.spawn(process, self._main(process, settled))
        return await settled

    async def _main(self, process: Process, settled: asyncio.Future[bool]) -> None:
        world, stop = self._store.world, asyncio.Event()
        self._stop = stop
        factory = self._store.zookeeper_factory(process)
        try:
            await factory.initialize()
            server = self._server(factory)
            await server.start()
            self.factory, self.serving = factory, True
            world.note(self.name, "serves")
            _settle(settled, True)
            await stop.wait()
            world.note(self.name, "drains")
            self.serving = False
            await server.stop(2.0)
        except (BKException, OSError) as error:
            world.note(self.name, f"ends by itself: {error}")
        with contextlib.suppress(BKException):
            await factory.close()
        self._ends()

    def _server(self, factory: LedgerManagerFactory) -> GatewayServer:
        make_server: Any = partial(SimulatedGrpcServer, observe=self._observe)
        return GatewayServer(
            factory,
            self.name,
            GATEWAY_PORT,
            bookmark_seconds=5.0,
            lease_seconds=4.0,
            limits=GatewayLimits(cache_idle_seconds=4.0),
            make_server=make_server,
            access=self._store.access,
        )

    def _observe(self, method: str, peer: str, number: int, sent: bool, message: bytes) -> None:
        for observe in self._store.observers:
            observe(self.name, method, f"{peer}/{number}", sent, message)

    async def stop(self) -> None:
        """SIGTERM: drains; returns when the process is gone."""
        process = self.process
        if process is None or self._stop is None:
            return
        self.serving = False
        gone: asyncio.Future[bool] = self._store.world.loop.create_future()
        process.on_end.append(partial(_settle, gone, True))
        self._store.world.loop.call_soon(self._stop.set, context=process.context)
        await gone

    def kill(self) -> None:
        """SIGKILL."""
        if self.process is not None:
            self._store.world.note(self.name, "is killed")
            self._ends()

    def _ends(self) -> None:
        process, self.process = self.process, None
        self.factory, self.serving, self._stop = None, False, None
        if process is not None:
            self._store.world.end_process(process, host_is_up=True)

    @property
    def watched(self) -> tuple[str, ...]:
        """Paths of ledgers on which the store has a data watch of this gateway's, sorted."""
        session = 0 if self.factory is None else self.factory.session.session_id
        watches = self._store.ensemble.data_watches(session)
        return tuple(path for path in watches if self._store.ledger_of(path) is not None)

    @property
    def wanted(self) -> tuple[str, ...]:
        """Paths of the ledgers that have listeners here, sorted."""
        manager = None if self.factory is None else self.factory._manager
        if manager is None:
            return ()
        return tuple(sorted(manager._path(ledger_id) for ledger_id in manager.listeners._ledgers))


class SimulatedStore:
    """The servers and the gateways; `factory` makes it a world's metadata."""

    def __init__(self, world: World, gateways: int = 2, servers: int = 3) -> None:
        self.world = world
        self.ensemble = Ensemble(world.random("zookeeper"), servers)
        addresses = ",".join(f"{server.name}:{ZOOKEEPER_PORT}" for server in self.ensemble.servers)
        self._zookeeper = parse_zookeeper(f"zk+hierarchical://{addresses}/ledgers")
        self.gateways = [SimulatedGateway(self, f"gateway-{number}") for number in range(1, gateways + 1)]
        self.on_change: list[Callable[[LedgerRecord | None, LedgerRecord | None], None]] = []
        """Hears of every change of a ledger as it is committed: its record before and after."""
        self.ledgers: dict[int, LedgerRecord] = {}
        self.on_transaction: list[Callable[[Transaction, list[Event]], None]] = []
        """Hears of every transaction that changed anything, before `on_change` does: it, and what it changed."""
        self.ensemble.on_commit = self._committed
        self._paths = paths_of("hierarchical", self._zookeeper.ledgers_root)
        self.ledgers_root = self._zookeeper.ledgers_root
        self.observers: list[Callable[[str, str, str, bool, bytes], None]] = []
        """Told of every message of every gateway: gateway, method, stream, whether it is sent, the message."""
        self._processes: dict[str, Process] = {}
        self._clients = 0
        self.access: AccessControl | None = None
        """Of gateways that start from now on."""
        self.listing_sizes = DEFAULT_SIZES
        """Of clients made from now on."""
        self.gateway_uri = "grpc://" + ",".join(f"{gateway.name}:{GATEWAY_PORT}" for gateway in self.gateways)

    async def start(self) -> None:
        """All servers, then all gateways."""
        self.ensemble.start()
        for server in self.ensemble.servers:
            await self.start_server(server)
        operator = self.world.new_process("operator", "operator")
        self.world.network.host("operator").up = True
        await self.world.on(operator, self._make_cluster(operator))
        for gateway in self.gateways:
            if not await gateway.start():
                raise RuntimeError(f"{gateway.name} did not start")

    async def _make_cluster(self, process: Process) -> None:
        """What `bookgate cluster init` does."""
        admin = ZooKeeperClusterAdmin(self._zookeeper, make_handler=self._handlers(process))
        async with admin:
            await admin.initialize()

    async def start_server(self, server: Server) -> None:
        process = self._processes[server.name] = self.world.new_process(server.name, server.name)
        await self.world.on(process, server.start(server.name, ZOOKEEPER_PORT))

    def kill_server(self, server: Server) -> None:
        """SIGKILL. Where it was the leader, use `lose_quorum` as well."""
        process = self._processes.pop(server.name, None)
        if process is not None:
            self.world.note(server.name, "is killed")
            server.gone()
            self.world.end_process(process, host_is_up=True)

    def running(self, server: Server) -> bool:
        return server.name in self._processes

    def _committed(self, transaction: Transaction, results: list[Result], changed: list[Event]) -> None:
        if not changed:
            return
        for hear in self.on_transaction:
            hear(transaction, changed)
        change = transaction.change
        operations = change.operations if isinstance(change, Multi) else (change,)
        for operation in operations:
            if isinstance(operation, Create | Delete | SetData):
                self._changed(operation)

    def _changed(self, operation: Create | Delete | SetData) -> None:
        number = self.ledger_of(operation.path)
        if number is None:
            return
        before, after = self.ledgers.pop(number, None), None
        if not isinstance(operation, Delete):
            version = 0 if before is None else before.version + 1
            after = self.ledgers[number] = LedgerRecord(LedgerId.unscoped(number), decode(operation.data), version)
        for observe in self.on_change:
            observe(before, after)

    def ledger_of(self, path: str) -> int | None:
        """The ledger whose node this is, if it is one's."""
        digits = path.removeprefix(self._paths.root).replace("/", "").replace("L", "")
        if not digits.isdigit() or self._paths.path(int(digits)) != path:
            return None
        return int(digits)

    # --- the world's metadata -----------------------------------------------------------------------------------

    def factory(self, uri: str, config: GatewayConfig | None = None) -> LedgerManagerFactory:
        """For the process that calls: ZooKeeper itself for `zk` URIs, else through the gateways.

        Where these have a policy the token is the host's name.
        """
        if uri.startswith("zk"):
            return self.zookeeper_factory(CURRENT.get())
        self._clients += 1
        rng = self.world.random(f"metadata of client {self._clients}")
        factory = RpcLedgerManagerFactory(
            self.gateway_uri, CALL_SECONDS, rng, connector=open_simulated, sizes=self.listing_sizes
        )
        if self.access is not None:
            # The simulated network has no TLS, without which a client sends no token to another machine.
            for gateway in factory.gateways._gateways:
                gateway.tokens = TokenSource(CURRENT.get().host)
        return factory

    def _handlers(self, process: Process) -> Callable[[], SimulatedKazooHandler]:
        threads = SimulatedThreads(self.world.loop, process)

        def blocked(how: str) -> None:
            self.world.fail(NoProgress(f"{process.name}: {how}"))

        return lambda: SimulatedKazooHandler(threads, blocked)

    def zookeeper_factory(self, process: Process) -> ZooKeeperLedgerManagerFactory:
        return ZooKeeperLedgerManagerFactory(
            self._zookeeper,
            session_timeout_seconds=SESSION_SECONDS,
            call_timeout_seconds=5.0,
            make_handler=self._handlers(process),
        )


def _settle(future: asyncio.Future[bool], value: bool) -> None:
    if not future.done():
        future.set_result(value)
