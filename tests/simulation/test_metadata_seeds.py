"""Runs of the metadata layer: a fixed set of seeds, and what single seeds have found, each told on its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from unittest.mock import patch

import pytest
from kazoo.exceptions import NoNodeError

from bookgate.ledger.errors import UnknownOutcomeException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import DigestType, LedgerMetadata
from bookgate.ledger.metadata_codec import encode
from bookgate.ledger.metadata_store import (
    BookieSet,
    LedgerManager,
    LedgerRecord,
    RegisteredBookie,
    ServiceDiscovery,
)
from tests.simulation.kinds import WorldKind
from tests.simulation.metadata_run import run_metadata_seed
from tests.simulation.simulated_store import SimulatedStore
from tests.simulation.world import World
from tests.simulation.znode_tree import Create, Delete, Event, Result, SetData, Transaction

METADATA = LedgerMetadata.new(("b1:1", "b2:1", "b3:1"), 2, 2, DigestType.CRC32C, b"")
SEVEN = LedgerId.unscoped(7)

SEEDS = (1, 2, 3, 4, 5)
SECONDS = 6.0
"""Of faults."""


def test_no_invariant_is_broken_and_each_is_put_to_the_test() -> None:
    """Not each in every run: a watch may have no life without trouble (M2)."""
    looked: Counter[str] = Counter()
    for seed in SEEDS:
        outcome = run_metadata_seed(seed, seconds=SECONDS)
        assert not outcome.failed, outcome.problem
        assert outcome.faults
        looked += outcome.looked
    assert set(WorldKind.METADATA.invariants) <= set(looked)


def test_the_same_seed_is_the_same_run() -> None:
    first, second = (run_metadata_seed(6, seconds=2.0, transcript=True) for _ in range(2))
    assert first.transcript == second.transcript
    assert first.history == second.history


class Scene:
    """A store with one gateway, and one client of it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.store = SimulatedStore(world, gateways=1)
        self.client = world.new_process("client", "client")
        self.manager: LedgerManager
        self.discovery: ServiceDiscovery

    async def start(self) -> None:
        await self.store.start()
        factory = self.store.factory("grpc://gateways")
        await self.world.on(self.client, factory.initialize())
        self.manager = factory.ledger_manager
        self.discovery = factory.service_discovery


def play(seed: int, story: Callable[[Scene], Awaitable[None]]) -> None:
    """Tells the story in a world of that seed; what it does itself is done in the client's process."""
    world = World(seed)

    async def main() -> None:
        scene = Scene(world)
        await scene.start()
        await world.on(scene.client, story(scene))  # type: ignore[arg-type]

    world.run(main())


@pytest.mark.parametrize("seed", range(1, 5))
def test_a_new_session_with_a_server_that_lags_shows_nothing_older(seed: int) -> None:
    """The gateway once said that there was no such ledger, and told whoever watched it that it was removed."""

    async def story(scene: Scene) -> None:
        ensemble, manager, told = scene.store.ensemble, scene.manager, list[int | None]()
        (session,) = ensemble.sessions.values()
        for server in ensemble.servers:
            server.lag = 0.0 if server is session.owner else 6.0
        await manager.create(SEVEN, METADATA)
        await manager.write(SEVEN, METADATA, 0)

        def listener(ledger_id: LedgerId, record: LedgerRecord | None) -> None:
            told.append(None if record is None else record.version)

        await manager.register_listener(SEVEN, listener)
        assert (await manager.read(SEVEN)).version == 1
        ensemble.expire(session.number)
        await asyncio.sleep(0.5)
        assert (await manager.read(SEVEN)).version == 1
        assert [ids async for ids in manager.ledger_ranges()] == [[7]]
        await asyncio.sleep(20)
        assert told == [1]

    play(seed, story)


def test_a_write_whose_answer_was_lost_is_not_refused_since_the_ledger_is_gone_by_now() -> None:
    """The client once said that there was no such ledger: that its write, which had happened, had not."""

    async def story(scene: Scene) -> None:
        ensemble = scene.store.ensemble
        await scene.manager.create(SEVEN, METADATA)
        (session,) = ensemble.sessions.values()
        session.owner.answers_lost = 1.0

        def remove_it(transaction: Transaction, results: list[Result], events: list[Event]) -> None:
            if isinstance(transaction.change, SetData):
                asyncio.get_running_loop().call_later(0.02, heal_and_delete, transaction.change.path)

        def heal_and_delete(path: str) -> None:
            session.owner.answers_lost = 0.0
            ensemble.commit(session.owner, session.number, Delete(path))

        ensemble.on_commit = remove_it
        with pytest.raises(UnknownOutcomeException):
            await scene.manager.write(SEVEN, METADATA, 0)

    play(1, story)


@pytest.mark.parametrize("then", ["changed", "removed"])
def test_a_creation_whose_answer_was_lost_is_not_refused_since_others_changed_the_ledger(then: str) -> None:
    """The token that tells whose a ledger is goes with its first change; its creator was told that it was another's."""

    async def story(scene: Scene) -> None:
        ensemble = scene.store.ensemble

        def lose_the_answer(transaction: Transaction, results: list[Result], events: list[Event]) -> None:
            change = transaction.change
            if events and isinstance(change, Create) and change.path.endswith("L0007"):
                ensemble.on_commit = lambda *_: None
                set_answers_lost(1.0)
                asyncio.get_running_loop().call_soon(meddle, change.path)
                asyncio.get_running_loop().call_later(0.01, set_answers_lost, 0.0)

        def set_answers_lost(share: float) -> None:
            for server in ensemble.servers:
                server.answers_lost = share

        def meddle(path: str) -> None:
            change = SetData(path, encode(METADATA.begin_recovery())) if then == "changed" else Delete(path)
            (session,) = ensemble.sessions.values()
            ensemble.commit(session.owner, session.number, change)

        ensemble.on_commit = lose_the_answer
        if then == "changed":
            with pytest.raises(UnknownOutcomeException):
                await scene.manager.create(SEVEN, METADATA)
            return
        # Of a ledger that is gone nobody can tell that it was there: it is created anew.
        assert (await scene.manager.create(SEVEN, METADATA)).version == 0

    play(1, story)


@pytest.mark.parametrize("seed", range(1, 4))
def test_a_further_listener_hears_nothing_older_than_what_its_client_has_seen(seed: int) -> None:
    """It was once told what the first one had heard last, though the client had written a newer version since."""

    async def story(scene: Scene) -> None:
        manager, told = scene.manager, list[int]()

        def listener(ledger_id: LedgerId, record: LedgerRecord | None) -> None:
            assert record is not None
            told.append(record.version)

        await manager.create(SEVEN, METADATA)
        await manager.register_listener(SEVEN, lambda ledger_id, record: None)
        await asyncio.sleep(1)
        await manager.write(SEVEN, METADATA, 0)
        await manager.register_listener(SEVEN, listener)
        await asyncio.sleep(1)
        assert told == [1]

    play(seed, story)


@pytest.mark.parametrize("seed", range(1, 4))
def test_a_creation_whose_answers_were_lost_makes_one_ledger(seed: int) -> None:
    """The store's answers were lost to the gateway, which was then asked again and made a second ledger."""

    async def story(scene: Scene) -> None:
        for server in scene.store.ensemble.servers:
            server.answers_lost = 0.5
        for _ in range(12):
            with contextlib.suppress(UnknownOutcomeException):
                await scene.manager.create(None, METADATA)
        tokens = [record.metadata.creator_token for record in scene.store.ledgers.values()]
        assert tokens
        assert len(tokens) == len(set(tokens))

    play(seed, story)


@pytest.mark.parametrize("seed", range(1, 4))
def test_a_creation_is_not_carried_out_again_by_a_gateway_that_was_started_anew(seed: int) -> None:
    """Asked again at the same address, another process had no trace of the request and made a second ledger."""

    async def story(scene: Scene) -> None:
        store, network = scene.store, scene.world.network
        (gateway,) = store.gateways
        ways = [(gateway.name, scene.client.host), (scene.client.host, gateway.name)]
        restarts: list[asyncio.Task[None]] = []

        def die(before: LedgerRecord | None, after: LedgerRecord | None) -> None:
            for source, target in ways if not restarts else ():
                network.cut(source, target)
            if not restarts:
                gateway.kill()
                restarts.append(scene.world.spawn(scene.client, restart()))

        async def restart() -> None:
            assert await gateway.start()
            network.heal()

        store.on_change.append(die)
        with pytest.raises(UnknownOutcomeException, match="another instance of the gateway"):
            await scene.manager.create(None, METADATA)
        assert len(store.ledgers) == 1
        await scene.manager.create(None, METADATA)
        assert len(store.ledgers) == 2

    play(seed, story)


@pytest.mark.parametrize("seed", range(1, 4))
def test_an_answer_that_there_is_no_node_leaves_the_watch_of_a_later_request_alone(seed: int) -> None:
    """It threw it away where the event loop was busy until both were answered: its changes were never told."""
    world = World(seed)
    told: list[int] = []

    async def main() -> None:
        store = SimulatedStore(world, gateways=0, servers=1)
        await store.start()
        process, other = (world.new_process(name, name) for name in ("one", "other"))
        one = store.zookeeper_factory(process)
        await world.on(process, one.initialize())
        writer = store.zookeeper_factory(other)
        await world.on(other, writer.initialize())
        session = one.session

        async def read(listener: int) -> None:
            with contextlib.suppress(NoNodeError):
                await session.get("/node", lambda event: told.append(listener))

        for listener in (1, 2):
            if listener == 2:
                await world.on(other, writer.session.create("/node"))
            world.network.stall("zk1", "one", 1.0)
            world.spawn(process, read(listener))
            await asyncio.sleep(0.2)
        process.keep_busy(3.0)
        await asyncio.sleep(5.0)
        await world.on(other, writer.session.set("/node", b"", 0))
        await asyncio.sleep(1.0)
        assert told == [2]

    world.run(main())


class BookieScene:
    """Bookies in a store whose gateway watches them: nodes of the operator, and the requests of the gateway."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.ensemble = scene.store.ensemble
        (self.session,) = self.ensemble.sessions.values()

    async def start(self) -> None:
        heard = asyncio.Event()
        self.commit(Create("/ledgers/available/b1:1", b""))

        def listener(bookies: Sequence[RegisteredBookie]) -> None:
            if bookies:
                heard.set()

        await self.scene.discovery.watch_bookies(BookieSet.WRITABLE, listener)
        await heard.wait()
        await asyncio.sleep(1)

    def commit(self, change: Create | Delete) -> None:
        self.ensemble.commit(self.session.owner, self.session.number, change)

    async def lose_session_and(self, change: Delete) -> None:
        """Returns once the gateway has a new session, whose server knows the change."""
        (gateway,) = self.scene.store.gateways
        assert gateway.factory is not None
        session, number = gateway.factory.session, self.session.number
        self.ensemble.expire(number)
        self.ensemble.commit(self.session.owner, number, change)
        while session.session_id == number or not session.connected:  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    async def listed(self) -> list[str]:
        return [bookie.bookie_id for bookie in await self.scene.discovery.bookies(BookieSet.WRITABLE)]

    async def reads_of_a_listing(self) -> int:
        """Number of requests that the gateway sends to the store meanwhile."""
        (gateway,) = self.scene.store.gateways
        assert gateway.factory is not None
        kazoo = gateway.factory.session.kazoo
        assert kazoo is not None
        with patch.object(kazoo, "call", wraps=kazoo.call) as call:
            await self.listed()
        return call.call_count


def test_watched_bookies_are_listed_with_one_read_of_the_store() -> None:
    """However many there are; and with what changed meanwhile."""

    async def story(scene: Scene) -> None:
        bookies = BookieScene(scene)
        without_watch = await bookies.reads_of_a_listing()
        await bookies.start()
        for number in range(2, 10):
            bookies.commit(Create(f"/ledgers/available/b{number}:1", b""))
        await asyncio.sleep(1)
        assert await bookies.listed() == [f"b{number}:1" for number in range(1, 10)]
        assert await bookies.reads_of_a_listing() == 1 < without_watch
        bookies.commit(Delete("/ledgers/available/b1:1"))
        await asyncio.sleep(1)
        assert "b1:1" not in await bookies.listed()

    play(1, story)


@pytest.mark.parametrize("seed", range(1, 4))
def test_bookies_that_go_while_the_session_is_lost_are_not_listed(seed: int) -> None:
    """The gateway sets its watches again a little after it has a new session, and is asked before that."""

    async def story(scene: Scene) -> None:
        bookies = BookieScene(scene)
        await bookies.start()
        assert await bookies.listed() == ["b1:1"]
        await bookies.lose_session_and(Delete("/ledgers/available/b1:1"))
        assert await bookies.listed() == []

    play(seed, story)
