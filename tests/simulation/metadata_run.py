"""A run of the metadata layer from a seed: ZooKeeper servers, gateways, clients, faults, and the checkers of M1 to M7.

Two phases. While faults come and go, clients do what they like and any call may fail. Then all is healed: every client
must get its calls through (P12) and work on for a while; once nothing happens any more, every watch must have heard the
newest (M2, M3) and the gateways must watch what they need to (M7), which is nothing after the clients have left.

Faults are drawn in two stages: which kinds a seed has, then when, whom and how long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.protos.bookkeeper.common.v1.status_pb2 import StatusCode
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2 import (
    LedgerMetadataRequest,
    LedgerMetadataResponse,
    WatchEvent,
)
from bookgate.thinclient.gateways.parallel_listing import ListingSizes
from tests.history import events
from tests.history.metadata_events import (
    GONE,
    ChangeAsked,
    GatewayShowed,
    GatewayWatches,
    ListingAsked,
    Quiet,
    QuotaSet,
    RecordAsked,
    StoreChanged,
    StreamAsked,
    StreamTold,
    WatchBegun,
)
from tests.history.recorder import Recorder
from tests.history.recording_client import metadata_seen
from tests.history.verdict import Verdict, check_history, watch
from tests.history.violations import NoProgress
from tests.simulation.intruder import HOARDER, INTRUDER, QUOTA, Hoarder, Intruder, guarded, password_of, sent_to_guests
from tests.simulation.metadata_actors import MetadataClient, mark_of
from tests.simulation.metadata_discovery import MetadataDiscovery
from tests.simulation.metadata_encounters import MetadataEncounters
from tests.simulation.outcome import Outcome
from tests.simulation.simulated_store import SimulatedStore
from tests.simulation.store_faults import StoreFaults
from tests.simulation.world import World
from tests.simulation.zookeeper import Ensemble

_PATIENCE_SECONDS = 40.0
_QUIET_SECONDS = 12.0
_GONE_SECONDS = 45.0
"""After which a gateway has given up a client whose going it could not hear."""
_PAUSE_SECONDS = 0.3
_MORE_ATTEMPTS = 5
"""Of a call after all is healed, before it counts as not getting through."""
_CALM_SECONDS = 2.0
"""Of work once all is healed: what begins to watch then has no trouble in its life (M2)."""
_OPERATIONS = (ChangeAsked, RecordAsked, ListingAsked, WatchBegun)
_METADATA = "/bookkeeper.gateway.v1.LedgerMetadataService/"
_WATCH = f"{_METADATA}Watch"
_OF_ONE_LEDGER = tuple(f"{_METADATA}{method}" for method in ("Create", "Read", "Write", "Remove"))


class StoreRecorder:
    """Writes into the history what the store commits and what gateways send on Watch streams."""

    def __init__(self, recorder: Recorder, ensemble: Ensemble) -> None:
        self._recorder = recorder
        self._ensemble = ensemble
        self._streams: dict[str, int] = {}
        self._shown: dict[str, int] = {}

    def changed(self, before: LedgerRecord | None, after: LedgerRecord | None) -> None:
        now, record = self._recorder.now, after or before
        assert record is not None, "one of them is there"
        name, version = str(record.ledger_id), GONE if after is None else after.version
        mark = "" if after is None else mark_of(after.metadata)
        self._recorder.add(StoreChanged(now, name, version, self._ensemble.zxid, mark))
        if after is not None:
            self._recorder.add(metadata_seen(now, events.STORE, after))

    def observed(self, gateway: str, method: str, stream: str, sent: bool, message: bytes) -> None:
        if sent and (method == _WATCH or method in _OF_ONE_LEDGER):
            self._showed(gateway, LedgerMetadataResponse.FromString(message).revision)
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

    def _showed(self, gateway: str, revision: int) -> None:
        if revision > self._shown.get(gateway, 0):
            self._shown[gateway] = revision
            self._recorder.add(GatewayShowed(self._recorder.now, gateway, revision))


async def _run(world: World, outcome: Outcome, recorder: Recorder, seconds: float, *, intruder: bool) -> None:
    rng = world.random("plan")
    store = SimulatedStore(world, gateways=rng.choice((1, 2, 2, 3)))
    store.listing_sizes = ListingSizes(alone=2, a_range=3)
    store_recorder = StoreRecorder(recorder, store.ensemble)
    store.on_change.append(store_recorder.changed)
    store.observers.append(store_recorder.observed)
    if intruder:
        store.access = guarded()
        store.observers.append(partial(sent_to_guests, recorder))
    await store.start()
    ledgers: dict[int, None] = {}
    names = [f"client-{number}" for number in range(1, 1 + rng.choice((2, 3, 4)))]
    guests: dict[str, type[MetadataClient]] = {INTRUDER: Intruder, HOARDER: Hoarder} if intruder else {}
    processes = {name: world.new_process(name, name) for name in [*names, *guests]}
    clients = {}

    async def connect(name: str, kind: type[MetadataClient] = MetadataClient) -> MetadataClient:
        factory = store.factory("grpc://gateways")
        await factory.initialize()
        client = kind(name, factory, recorder, world.random(name), ledgers)
        client.password = password_of(name) if intruder else b""
        return client

    for name in names:
        clients[name] = await world.on(processes[name], connect(name))
    guests_work = []
    for name, kind in guests.items():
        guest = await world.on(processes[name], connect(name, kind))
        tries = world.on(processes[name], guest.work(world.now + seconds, _PAUSE_SECONDS))
        guests_work.append(world.loop.create_task(tries))
        if name == INTRUDER:  # the other one may not see what all work on
            clients[name] = guest
    if intruder and len(store.gateways) == 1:
        recorder.add(QuotaSet(recorder.now, HOARDER, QUOTA))
    faults = StoreFaults(world, store, recorder, names)
    until = world.now + seconds
    work = [
        world.loop.create_task(world.on(processes[name], clients[name].work(until, _PAUSE_SECONDS))) for name in names
    ]
    encounters = world.loop.create_task(MetadataEncounters(world, store, clients, processes).run(until))
    discovery = world.loop.create_task(MetadataDiscovery(world, store, recorder).run(until))
    await faults.run(until)
    await faults.heal()
    recorder.add(events.Healed(recorder.now))
    outcome.faults = faults.counts
    await _within(world, "calls under way", asyncio.gather(*work, encounters, discovery, *guests_work))
    for name in names:
        await _within(world, f"calls of {name}", world.on(processes[name], _gets_through(clients[name], recorder)))
    calm = [world.on(processes[name], clients[name].work(world.now + _CALM_SECONDS, _PAUSE_SECONDS)) for name in names]
    await _within(world, "calls in calm times", asyncio.gather(*calm))
    await asyncio.sleep(_QUIET_SECONDS)
    recorder.add(Quiet(recorder.now))
    for gateway in store.gateways:
        recorder.add(GatewayWatches(recorder.now, gateway.name, gateway.watched, gateway.wanted))
    for name in clients:
        await world.on(processes[name], clients[name].unwatch_all())
    await asyncio.sleep(_GONE_SECONDS)
    for gateway in store.gateways:
        recorder.add(GatewayWatches(recorder.now, gateway.name, gateway.watched, ()))


async def _within(world: World, what: str, work: asyncio.Future[object] | object) -> None:
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await work  # type: ignore[misc]
    except TimeoutError:
        raise NoProgress(f"{what} do not end within {_PATIENCE_SECONDS:g} s though all is healed") from None


async def _gets_through(client: MetadataClient, recorder: Recorder) -> None:
    """P12 at the gateways."""
    ledger = await client.create(None)
    for _ in range(_MORE_ATTEMPTS):
        if ledger is not None:
            break
        # A connection may have died unnoticed while its host was out of reach, or the session have expired last.
        await asyncio.sleep(_PAUSE_SECONDS)
        ledger = await client.create(None)
    if ledger is None or not await client.write(ledger) or await client.read(ledger) is None:
        raise NoProgress(f"{client.name} does not get its calls through though all is healed", *recorder.history[-6:])
    if not await client.list():
        raise NoProgress(f"{client.name} can't list though all is healed", *recorder.history[-6:])


def run_metadata_seed(
    seed: int,
    *,
    seconds: float = 20.0,
    intruder: bool = False,
    transcript: bool = False,
    on_line: Callable[[str], None] | None = None,
) -> Outcome:
    """Runs a seed, with so many seconds of faults; with `transcript` every line is kept and told to `on_line`.

    `intruder`: the gateways have a policy, and there are two more clients: one whose changes it denies, and one that
    may have a few ledgers, and see no others.
    """
    world = World(seed, transcript=transcript)
    world.transcript.on_line = on_line
    recorder = Recorder(world.loop.time)
    outcome = Outcome(seed, history=recorder.history)
    watching = watch(recorder, world.fail, world.random("watch").randrange(50, 400))

    def run() -> Verdict:
        world.run(_run(world, outcome, recorder, seconds, intruder=intruder))
        return check_history(recorder.history, watching.rules)

    outcome.conclude(run)
    outcome.transcript = world.transcript.text()
    outcome.operations = sum(isinstance(event, _OPERATIONS) for event in recorder.history)
    outcome.simulated_seconds = world.now
    return outcome
