"""The simulated ZooKeeper answers as the real one does: the same random operations by two sessions on both.

Both are asked through the gateway's own session and the real kazoo. What can't be the same is left out: times, and
transaction numbers but for which of a node's are equal.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from kazoo.exceptions import KazooException
from kazoo.protocol.states import WatchedEvent, ZnodeStat

from bookgate.bookie.standalone.local_zookeeper import LocalZooKeeper
from bookgate.gateway.stores.zookeeper.kazoo_thread import TreeListener
from bookgate.gateway.stores.zookeeper.session import ZooKeeperSession
from bookgate.ledger.errors import BKException
from tests.simulation.kazoo_handler import SimulatedKazooHandler
from tests.simulation.simulated_store import ZOOKEEPER_PORT, SimulatedStore
from tests.simulation.threads import SimulatedThreads
from tests.simulation.world import World

_NAMES = ("a", "b", "a/x", "a/y", "b/x", "a/x/1", "a/x/2", "c")
_OPERATIONS = 250

Answers = list[str]


class _Asked:
    """Two sessions, and everything that they are answered and told."""

    def __init__(self, sessions: list[ZooKeeperSession], root: str, seed: int) -> None:
        self._sessions = sessions
        self._root = root
        self._rng = random.Random(seed)
        self._told: list[str] = []
        self._watches = [self._teller(number) for number in range(len(sessions))]
        self._paths: list[str] = []
        self._trees = [self._tree_listener(number) for number in range(len(sessions))]
        self.answers: Answers = []

    def _teller(self, number: int) -> Callable[[WatchedEvent], None]:
        return lambda event: self._told.append(f"{number} {event.type} {event.path.removeprefix(self._root)}")

    def _tree_listener(self, number: int) -> TreeListener:
        def select(path: str) -> int:
            self._paths.append(path.removeprefix(self._root))
            return len(self._paths) - 1

        return TreeListener(select, lambda place: self._told.append(f"{number} tree {self._paths[place]}"))

    async def run(self) -> Answers:
        await self._sessions[0].create(self._root)
        for _ in range(_OPERATIONS):
            number = self._rng.randrange(2)
            what, call = self._any(number)
            try:
                answer = self._words(await call)
            except (KazooException, BKException) as error:
                answer = type(error).__name__
            for session in self._sessions:
                await session.sync("/")
            self.answers.append(f"{number} {what}: {answer} {sorted(self._told)}")
            self._told.clear()
        return self.answers

    def _any(self, number: int) -> tuple[str, Awaitable[Any]]:
        rng, session = self._rng, self._sessions[number]
        name, other = rng.choice(_NAMES), rng.choice(_NAMES)
        path, second = f"{self._root}/{name}", f"{self._root}/{other}"
        version, data = rng.choice((-1, -1, 0, 1, 2)), rng.randbytes(rng.randrange(4))
        watch = self._watches[number] if rng.random() < 0.6 else None
        calls: list[tuple[str, Callable[[], Awaitable[Any]]]] = [
            (f"create {name}", lambda: self._numbered(session, path, session.create(path, data))),
            (f"create {name}", lambda: self._numbered(session, path, session.create(path, data))),
            (
                f"ephemeral {name}",
                lambda: self._numbered(session, path, session.create(path, data, ephemeral=True)),
            ),
            (f"set {name} {version}", lambda: session.set(path, data, version)),
            (f"set {name} {version}", lambda: session.set(path, data, version)),
            (f"delete {name} {version}", lambda: session.delete(path, version)),
            (f"get {name} {watch is not None}", lambda: session.get(path, watch)),
            (f"get {name} {watch is not None}", lambda: session.get(path, watch)),
            (f"exists {name} {watch is not None}", lambda: session.exists(path, watch)),
            (f"children {name} {watch is not None}", lambda: session.children(path, watch)),
            (
                f"create {name} and {other}",
                lambda: self._numbered(session, second, session.create_together([(path, data), (second, b"")])),
            ),
            (f"delete {name} and {other}", lambda: session.delete_together([path, second])),
            (f"take {name} over at {version}", lambda: session.take_over(path, data, max(0, version))),
            (f"numbers of {name}", lambda: session.reserve_numbers(f"{path}/ID-", 3)),
            (f"read {name} and {other}", lambda: session.get_many([path, second])),
            (f"numbered {name}", lambda: session.numbered_children(path, "ID-", 10)),
            (f"unwatch {name}", lambda: self._unwatch(session, path)),
            ("watch all", lambda: session.watch_tree(self._root, self._trees[number])),
            ("unwatch all", lambda: self._unwatch_all(number)),
        ]
        what, call = rng.choice(calls)
        return what, call()

    async def _numbered(self, session: ZooKeeperSession, path: str, creation: Awaitable[int]) -> bool:
        """Whether the number that a creation returns is that of the node."""
        czxid, node = await creation, await session.exists(path)
        return node is not None and node.czxid == czxid

    async def _unwatch(self, session: ZooKeeperSession, path: str) -> None:
        session.remove_data_watch(path)

    async def _unwatch_all(self, number: int) -> None:
        """Whatever the server goes on to tell is heard."""
        session = self._sessions[number]
        session.unwatch_tree(self._root)
        assert session.kazoo is not None
        session.kazoo.tree = self._trees[number]

    def _words(self, answer: Any) -> str:
        if isinstance(answer, ZnodeStat):
            owners = {0: "nobody", self._sessions[0].session_id: "0", self._sessions[1].session_id: "1"}
            same = answer.czxid == answer.mzxid, answer.czxid == answer.pzxid, answer.mzxid == answer.pzxid
            counts = answer.version, answer.cversion, answer.dataLength, answer.numChildren
            return f"stat {counts} {owners[answer.ephemeralOwner]} {same} {answer.ctime <= answer.mtime}"
        if isinstance(answer, tuple):
            return " ".join(map(self._words, answer))
        if isinstance(answer, Exception):
            return type(answer).__name__
        if isinstance(answer, list):
            words = [self._words(each) for each in answer]
            # Names of children come in no order.
            return str(sorted(words) if all(isinstance(each, str) for each in answer) else words)
        return str(answer).removeprefix(self._root)


async def _ask_the_real_one(server: LocalZooKeeper, root: str, seed: int) -> Answers:
    sessions = [ZooKeeperSession([server.address]) for _ in range(2)]
    try:
        for session in sessions:
            await session.start()
        return await _Asked(sessions, root, seed).run()
    finally:
        await asyncio.gather(*(session.close() for session in sessions))


def _ask_the_simulated_one(root: str, seed: int) -> Answers:
    world = World(seed)

    async def session(name: str) -> ZooKeeperSession:
        threads = SimulatedThreads(world.loop, process := world.new_process(name, name))
        made = ZooKeeperSession(
            [f"zk1:{ZOOKEEPER_PORT}"], make_handler=lambda: SimulatedKazooHandler(threads, pytest.fail)
        )
        await world.on(process, made.start())
        return made

    async def main() -> Answers:
        store = SimulatedStore(world, gateways=0, servers=1)
        await store.start()
        return await _Asked([await session("one"), await session("other")], root, seed).run()

    return world.run(main())


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_both_answer_alike(zookeeper: LocalZooKeeper, seed: int) -> None:
    root = f"/alike-{seed}"
    real = asyncio.run(_ask_the_real_one(zookeeper, root, seed))
    simulated = _ask_the_simulated_one(root, seed)
    for number, (expected, answered) in enumerate(zip(real, simulated, strict=True)):
        assert answered == expected, f"operation {number}"
