"""A run of the metadata layer from a seed: ZooKeeper servers, gateways, clients, faults, and the checkers of M1 to M7.

Two phases. While faults come and go, clients do what they like and any call may fail. Then all is healed: every client
must get its calls through (P12), and once nothing happens any more, every watch must have heard the newest (M2, M3) and
the gateways must watch what they need to (M7), which is nothing after the clients have left.

Faults are drawn in two stages: which kinds a seed has, then when, whom and how long.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gateway.zookeeper.ledger_paths import paths_of
from ledger.ledger_id import LedgerId
from ledger.manager import LedgerRecord
from ledger.metadata_codec import decode
from protos.bookkeeper.common.v1.status_pb2 import StatusCode
from protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2 import (
    LedgerMetadataRequest,
    LedgerMetadataResponse,
    WatchEvent,
)
from tests.history import events
from tests.history.metadata_events import GONE, GatewayWatches, Quiet, StoreChanged, StreamAsked, StreamTold
from tests.history.recorder import Recorder
from tests.history.recording_client import metadata_seen
from tests.history.verdict import Verdict, judge
from tests.history.violations import NoProgress
from tests.simulation.metadata_actors import MetadataClient, mark_of
from tests.simulation.simulated_store import SimulatedGateway, SimulatedStore
from tests.simulation.world import World
from tests.simulation.znode_tree import Create, Delete, Multi, Operation, Result, SetData, Transaction
from tests.simulation.znode_tree import Event as TreeEvent

_PATIENCE_SECONDS = 40.0
_QUIET_SECONDS = 12.0
_PAUSE_SECONDS = 0.3
_ROOT = "/ledgers"
_WATCH = "/bookkeeper.gateway.v1.LedgerMetadataService/Watch"


@dataclass
class MetadataOutcome:
    """What a seed came to."""

    verdict: Verdict
    history: events.History
    faults: Counter[str] = field(default_factory=Counter)
    simulated_seconds: float = 0.0


class _StoreRecorder:
    """Writes into the history what the store commits and what gateways send on Watch streams."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._paths = paths_of("hierarchical", _ROOT)
        self._ledgers: dict[str, int] = {}
        self._versions: dict[str, int] = {}
        self._streams: dict[str, int] = {}

    def committed(self, transaction: Transaction, results: list[Result], changed: list[TreeEvent]) -> None:
        if not changed:
            return
        change = transaction.change
        operations: Sequence[object] = change.operations if isinstance(change, Multi) else (change,)
        for operation in operations:
            if isinstance(operation, Create | Delete | SetData):
                self._changed(operation, transaction.zxid)

    def _changed(self, operation: Operation, order: int) -> None:
        ledger = self._ledger(operation.path)
        if ledger is None:
            return
        now, name = self._recorder.now, str(ledger)
        if isinstance(operation, Delete):
            self._recorder.add(StoreChanged(now, name, GONE, order, ""))
            return
        version = 0 if isinstance(operation, Create) else self._versions[name] + 1
        self._versions[name] = version
        metadata = decode(operation.data)  # type: ignore[union-attr]
        self._recorder.add(StoreChanged(now, name, version, order, mark_of(metadata)))
        record = LedgerRecord(LedgerId.unscoped(ledger), metadata, version)
        self._recorder.add(metadata_seen(now, events.STORE, record))

    def _ledger(self, path: str) -> int | None:
        """The ledger whose node this is, if it is one's."""
        digits = path.removeprefix(_ROOT).replace("/", "").replace("L", "")
        if not digits.isdigit():
            return None
        ledger = int(digits)
        return ledger if self._paths.path(ledger) == path else None

    def observed(self, gateway: str, method: str, stream: str, sent: bool, message: bytes) -> None:
        if method != _WATCH:
            return
        number = self._streams.setdefault(f"{gateway} {stream}", len(self._streams))
        if not sent:
            request = LedgerMetadataRequest.FromString(message)
            self._recorder.add(StreamAsked(self._recorder.now, gateway, number, str(request.ledger_id)))
            return
        response = LedgerMetadataResponse.FromString(message)
        if response.event == WatchEvent.STATE and response.code == StatusCode.SUCCESS:
            version = response.version
        elif response.event == WatchEvent.REMOVED:
            version = GONE
        else:
            return
        self._recorder.add(StreamTold(self._recorder.now, gateway, number, str(response.ledger_id), version))


class _Faults:
    """What goes wrong, until it is healed."""

    def __init__(self, world: World, store: SimulatedStore, recorder: Recorder, clients: Sequence[str]) -> None:
        self._world = world
        self._store = store
        self._recorder = recorder
        self._rng = world.random("faults")
        self._clients = clients
        self.counts: Counter[str] = Counter()
        self._kinds: dict[str, Callable[[float], str]] = {
            "gateway-kill": self._kill_gateway,
            "gateway-drain": self._drain_gateway,
            "gateway-pause": self._pause_gateway,
            "quorum-lost": self._lose_quorum,
            "server-cut-off": self._cut_off,
            "server-kill": self._kill_server,
            "server-lags": self._lag,
            "answers-lost": self._lose_answers,
            "session-expired": self._expire,
            "link-cut": self._cut,
            "link-reset": self._reset,
            "link-stalls": self._stall,
        }

    async def run(self, until: float) -> None:
        kinds = [kind for kind in self._kinds if self._rng.random() < 0.4]
        every = self._rng.choice((0.5, 1.0, 2.0, 5.0))
        while kinds and self._world.now < until:
            await asyncio.sleep(self._rng.expovariate(1 / every))
            kind = self._rng.choice(kinds)
            seconds = self._rng.choice((0.05, 0.3, 1.0, 3.0, 8.0)) * self._rng.uniform(0.5, 1.5)
            target = self._kinds[kind](seconds)
            if target:
                self.counts[kind] += 1
                self._world.note("faults", f"{kind} of {target} for {seconds:.2f} s")
                self._recorder.add(events.Fault(self._recorder.now, kind, target, f"{seconds:.2f} s"))

    async def heal(self) -> None:
        """Everything is there and in reach."""
        world, store = self._world, self._store
        world.network.heal()
        for server in store.ensemble.servers:
            server.lag = server.answers_lost = 0.0
            if not store.running(server):
                await store.start_server(server)
            server.join()
        await store.ensemble.led()
        for gateway in store.gateways:
            if gateway.process is not None and gateway.process.paused:
                gateway.process.resume()
        await asyncio.gather(*(self._is_up(gateway) for gateway in store.gateways))

    async def _is_up(self, gateway: SimulatedGateway) -> None:
        deadline = self._world.now + _PATIENCE_SECONDS
        while not gateway.serving:
            if gateway.process is None:
                await gateway.start()
            await asyncio.sleep(0.5)
            if self._world.now > deadline:
                raise NoProgress(f"{gateway.name} does not serve though all is healed")

    def _later(self, seconds: float, undo: Callable[[], None]) -> None:
        self._world.loop.call_later(seconds, undo)

    def _gateway(self) -> SimulatedGateway | None:
        up = [gateway for gateway in self._store.gateways if gateway.serving]
        return self._rng.choice(up) if up else None

    def _start_again(self, gateway: SimulatedGateway, seconds: float) -> None:
        async def start() -> None:
            await asyncio.sleep(seconds)
            if gateway.process is None:
                await gateway.start()

        self._world.spawn(self._world.loop.outside, start())

    def _kill_gateway(self, seconds: float) -> str:
        gateway = self._gateway()
        if gateway is None:
            return ""
        gateway.kill()
        self._start_again(gateway, seconds)
        return gateway.name

    def _drain_gateway(self, seconds: float) -> str:
        gateway = self._gateway()
        if gateway is None:
            return ""

        async def drain() -> None:
            await gateway.stop()
            self._start_again(gateway, seconds)

        self._world.spawn(self._world.loop.outside, drain())
        return gateway.name

    def _pause_gateway(self, seconds: float) -> str:
        gateway = self._gateway()
        if gateway is None or gateway.process is None:
            return ""
        gateway.process.pause()
        self._later(seconds, gateway.process.resume)
        return gateway.name

    def _lose_quorum(self, seconds: float) -> str:
        if not self._store.ensemble.has_leader:
            return ""
        self._store.ensemble.lose_quorum(seconds)
        return "zookeeper"

    def _cut_off(self, seconds: float) -> str:
        server = self._rng.choice(self._store.ensemble.servers)
        server.cut_off()
        self._later(seconds, server.join)
        return server.name

    def _kill_server(self, seconds: float) -> str:
        server = self._rng.choice(self._store.ensemble.servers)
        if not self._store.running(server):
            return ""
        self._store.kill_server(server)

        async def start() -> None:
            await asyncio.sleep(seconds)
            if not self._store.running(server):
                await self._store.start_server(server)

        self._world.spawn(self._world.loop.outside, start())
        return server.name

    def _lag(self, seconds: float) -> str:
        server = self._rng.choice(self._store.ensemble.servers)
        server.lag = self._rng.choice((0.05, 0.5, 3.0))
        self._later(2 * seconds, lambda: setattr(server, "lag", 0.0))
        return server.name

    def _lose_answers(self, seconds: float) -> str:
        server = self._rng.choice(self._store.ensemble.servers)
        server.answers_lost = self._rng.choice((0.05, 0.5))
        self._later(seconds, lambda: setattr(server, "answers_lost", 0.0))
        return server.name

    def _expire(self, seconds: float) -> str:
        sessions = list(self._store.ensemble.sessions)
        if not sessions or not self._store.ensemble.has_leader:
            return ""
        number = self._rng.choice(sessions)
        self._store.ensemble.expire(number)
        return f"session {number:x}"

    def _link(self) -> tuple[str, str]:
        gateway = self._rng.choice(self._store.gateways).name
        if self._rng.random() < 0.5:
            return gateway, self._rng.choice(self._store.ensemble.servers).name
        return self._rng.choice(list(self._clients)), gateway

    def _cut(self, seconds: float) -> str:
        one, other = self._link()
        directions = self._rng.choice((((one, other),), ((other, one),), ((one, other), (other, one))))
        for source, target in directions:
            self._world.network.cut(source, target)
            self._later(seconds, lambda s=source, t=target: self._world.network.mend(s, t))  # type: ignore[misc]
        return f"{one} and {other}"

    def _reset(self, seconds: float) -> str:
        one, other = self._link()
        return f"{one} and {other}" if self._world.network.reset(one, other) else ""

    def _stall(self, seconds: float) -> str:
        one, other = self._link()
        self._world.network.stall(one, other, seconds)
        return f"{one} and {other}"


async def _run(world: World, outcome: MetadataOutcome, recorder: Recorder, seconds: float) -> None:
    rng = world.random("plan")
    store = SimulatedStore(world, gateways=rng.choice((1, 2, 2, 3)))
    store_recorder = _StoreRecorder(recorder)
    store.ensemble.on_commit = store_recorder.committed
    store.observers.append(store_recorder.observed)
    await store.start()
    ledgers: dict[int, None] = {}
    names = [f"client-{number}" for number in range(1, 1 + rng.choice((2, 3, 4)))]
    processes = {name: world.new_process(name, name) for name in names}
    clients = {}

    async def connect(name: str) -> MetadataClient:
        factory = store.factory("grpc://gateways")
        await factory.initialize()
        return MetadataClient(name, factory, recorder, world.random(name), ledgers)

    for name in names:
        clients[name] = await world.on(processes[name], connect(name))
    faults = _Faults(world, store, recorder, names)
    until = world.now + seconds
    work = [
        world.loop.create_task(world.on(processes[name], clients[name].work(until, _PAUSE_SECONDS))) for name in names
    ]
    await faults.run(until)
    await faults.heal()
    recorder.add(events.Healed(recorder.now))
    outcome.faults = faults.counts
    await _within(world, "calls under way", asyncio.gather(*work))
    for name in names:
        await _within(world, f"calls of {name}", world.on(processes[name], _gets_through(clients[name], recorder)))
    await asyncio.sleep(_QUIET_SECONDS)
    recorder.add(Quiet(recorder.now))
    for gateway in store.gateways:
        recorder.add(GatewayWatches(recorder.now, gateway.name, gateway.watched, gateway.wanted))
    for name in names:
        await world.on(processes[name], clients[name].unwatch_all())
    await asyncio.sleep(_QUIET_SECONDS)
    for gateway in store.gateways:
        recorder.add(GatewayWatches(recorder.now, gateway.name, gateway.watched, ()))
    outcome.simulated_seconds = world.now


async def _within(world: World, what: str, work: asyncio.Future[object] | object) -> None:
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await work  # type: ignore[misc]
    except TimeoutError:
        raise NoProgress(f"{what} do not end within {_PATIENCE_SECONDS:g} s though all is healed") from None


async def _gets_through(client: MetadataClient, recorder: Recorder) -> None:
    """P12 at the gateways."""
    ledger = await client.create(None)
    if ledger is None:
        # A connection may have died unnoticed while its host was out of reach.
        ledger = await client.create(None)
    if ledger is None or not await client.write(ledger) or await client.read(ledger) is None:
        raise NoProgress(f"{client.name} does not get its calls through though all is healed", *recorder.history[-6:])
    if not await client.list():
        raise NoProgress(f"{client.name} can't list though all is healed", *recorder.history[-6:])


def run_metadata_seed(seed: int, *, seconds: float = 20.0, transcript: bool = False) -> tuple[MetadataOutcome, World]:
    """Runs a seed, with so many seconds of faults; what the checkers find is in the outcome.

    Raises what is found while it runs.
    """
    world = World(seed, transcript=transcript)
    recorder = Recorder(world.loop.time)
    outcome = MetadataOutcome(Verdict(), recorder.history)
    world.run(_run(world, outcome, recorder, seconds))
    outcome.verdict = judge(recorder.history)
    return outcome, world
