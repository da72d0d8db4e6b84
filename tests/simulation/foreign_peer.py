"""A process of BookKeeper's on the same tree: an auditor, a worker and a collector, as far as the tree shows them.

It does what BookKeeper's do there, in their formats: it stands for auditor, and marks while its vote is the oldest; it
takes locks of marked ledgers, as a worker does, and of any others, as a collector does, and holds them for a while; it
gives a lock back without looking whose it is by then; its session may be over in the middle of all this. What it does
not do is copy: a ledger that it has locked stays as it is. Now and then a mark of its has a field that only a later
BookKeeper knows, which nobody may lose.

It goes in the end, with its session, and leaves its marks to the others.
Source: docs/protocol/auto-recovery.md#tree, docs/protocol/auto-recovery.md#marks.

Not its job: judging what the others do meanwhile (`tree_watch`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from bookgate.gateway.stores.zookeeper.replication_paths import ReplicationPaths
from bookgate.ledger.replication import mark_name
from tests.simulation.simulated_store import SimulatedStore
from tests.simulation.world import World
from tests.simulation.znode_tree import Code, Create, Delete, Multi, Operation, SetData, parent_of
from tests.simulation.zookeeper import Session

VOTER, HOLDER = "192.0.2.99:3181", "java.example.org"
UNKNOWN_FIELD = "urgency: 7"
_SESSION_MS = 4000
_CALL_SECONDS = 5.0
_STAYS_SECONDS = (2.0, 60.0)
"""After the time of faults, at most."""
_NEVER_THERE = 77_000_000
"""Ids of ledgers that nobody makes."""
_STANDS = 0.6
"""Share of runs in which it is a candidate for auditor; in the others it is a worker only."""
_STEALS = 0.15
"""Share of writes under a lock just before which the lock is taken away."""


class ForeignPeer:
    """See the module. `run` it beside the faults."""

    def __init__(self, world: World, store: SimulatedStore) -> None:
        self._world = world
        self._ensemble = store.ensemble
        self._store = store
        self._rng = world.random("peer")
        self._paths = ReplicationPaths(store.ledgers_root)
        self._session: Session | None = None
        self.sessions: set[int] = set()
        """Every one that it ever had."""
        self._vote: str | None = None
        self._held: dict[int, float] = {}
        """Ledgers whose locks it believes to hold, and until when it means to."""
        self.counts: Counter[str] = Counter()

    async def run(self, seconds: float) -> None:
        """So long and for a while more, then it is gone for good."""
        rng, until = self._rng, self._world.now + seconds + self._rng.uniform(*_STAYS_SECONDS)
        steps: list[Callable[[], Coroutine[Any, Any, None]]] = [
            self._mark,
            self._mark,
            self._lock,
            self._lock,
            self._lose_session,
        ]
        if rng.random() < _STANDS:
            steps += [self._stand, self._resign] if rng.random() < 0.5 else [self._stand]
        while self._world.now < until:
            await asyncio.sleep(rng.choice((0.05, 0.3, 1.0)) * rng.random())
            if await self._is_connected():
                await rng.choice(steps)()
                await self._give_back(self._world.now)
        await self._leave()

    def steal(self, ledger: int) -> None:
        """As a worker that gives back a lock which is another's by now; it happens at once."""
        session = self._session
        path = self._paths.lock(ledger)
        if session is None or not self._ensemble.has_leader or self._rng.random() >= _STEALS or not self._is(path):
            return
        self.counts["lock taken away"] += 1
        self._world.note("peer", f"takes away the lock of ledger {ledger}")
        self._ensemble.commit(session.owner, session.number, Delete(path))

    # --- what it does

    async def _stand(self) -> None:
        if self._vote is not None and self._is(self._vote):
            return
        content = f'bookieId: "{VOTER}"\n'.encode()
        if not self._is(self._paths.election):
            return
        results = await self._change(Create(f"{self._paths.election}/V_", content, ephemeral=True, sequential=True))
        if results and isinstance(results[0], str):
            self._vote = results[0]
            self.counts["vote"] += 1

    async def _resign(self) -> None:
        if self._vote is not None:
            vote, self._vote = self._vote, None
            await self._change(Delete(vote))

    async def _mark(self) -> None:
        """As the auditor: a ledger of a bookie that is away, or one that a check of all ledgers found bad."""
        if not self._is_auditor():
            return
        rng, ledgers = self._rng, sorted(self._store.ledgers)
        number = rng.choice(ledgers) if ledgers and rng.random() < 0.9 else _NEVER_THERE + rng.randrange(5)
        record = self._store.ledgers.get(number)
        members = sorted(record.metadata.bookies) if record is not None else ["192.0.2.1:3181"]
        away = [each for each in members if not self._is(f"{self._paths.root}/available/{each}")]
        replica = rng.choice(away or members)
        path, now_ms = self._paths.mark(number), int(self._world.loop.wall_clock() * 1000)
        content = f'replica: "{replica}"\nctime: {now_ms}\n'
        if not self._is(path):
            content += f"{UNKNOWN_FIELD}\n" if rng.random() < 0.5 else ""
            await self._create_with_parents(path, content.encode())
            return
        before, stat = self._ensemble.tree.content(path)
        if f'"{replica}"'.encode() not in before:
            await self._change(SetData(path, f'replica: "{replica}"\n'.encode() + before, stat.version))
            self.counts["mark"] += 1

    async def _create_with_parents(self, path: str, content: bytes) -> None:
        missing: list[Operation] = [Create(path, content)]
        above = parent_of(path)
        while not self._is(above):
            missing.append(Create(above, b""))
            above = parent_of(above)
        if await self._change(Multi(tuple(reversed(missing)))):
            self.counts["mark"] += 1

    async def _lock(self) -> None:
        """A marked ledger, as a worker, or any one, as a collector."""
        prefix = f"{self._paths.marks}/"
        marked = [path.rpartition("/urL")[2] for path in self._ensemble.tree.paths() if path.startswith(prefix)]
        numbers = sorted(int(digits) for digits in marked if digits.isdigit())
        if not numbers or self._rng.random() < 0.4:
            numbers = sorted(self._store.ledgers)
        if not numbers or not self._is(self._paths.locks):
            return
        number = self._rng.choice(numbers)
        path = f"{self._paths.locks}/{mark_name(number)}"
        results = await self._change(Create(path, f'bookieId: "{HOLDER}"\n'.encode(), ephemeral=True))
        if results and isinstance(results[0], str):
            self._held[number] = self._world.now + self._rng.choice((0.5, 4.0, 20.0)) * self._rng.random()
            self.counts["lock"] += 1

    async def _give_back(self, at: float) -> None:
        for number in [number for number, until in self._held.items() if until <= at]:
            del self._held[number]
            await self._change(Delete(self._paths.lock(number)))

    async def _lose_session(self) -> None:
        if self._session is not None and self._ensemble.has_leader and self._rng.random() < 0.15:
            self._ensemble.expire(self._session.number)
            self.counts["session lost"] += 1

    async def _leave(self) -> None:
        if self._session is not None and self._session.number in self._ensemble.sessions:
            self._ensemble.expire(self._session.number)
        self._session, self._vote = None, None
        self._held.clear()

    def _is_auditor(self) -> bool:
        if self._vote is None or not self._is(self._vote):
            return False
        votes = [name for name in self._ensemble.tree.children(self._paths.election) if name.startswith("V_")]
        return min(votes) == self._vote.rpartition("/")[2]

    # --- its way to the tree

    def _is(self, path: str) -> bool:
        return self._ensemble.tree.has(path)

    async def _is_connected(self) -> bool:
        """Tells that it lives; a session that is over is followed by another one, which knows nothing of its locks."""
        session, ensemble = self._session, self._ensemble
        if session is not None and session.number in ensemble.sessions:
            if session.owner.joined and self._store.running(session.owner):
                ensemble.heard_of(session.owner, session.number)
                return True
            return await self._move(session)
        self._session = None
        for server in self._running():
            opened = await ensemble.open_session(server, _SESSION_MS)
            if opened is not None:
                self._session = opened
                self.sessions.add(opened.number)
                return True
        return False

    async def _move(self, session: Session) -> bool:
        for server in self._running():
            try:
                if await self._ensemble.take_session(server, session.number) is not None:
                    return True
            except ConnectionError:
                continue
        return False

    def _running(self) -> list[Any]:
        return [each for each in self._ensemble.servers if each.joined and self._store.running(each)]

    async def _change(self, change: Operation | Multi) -> list[Any] | None:
        """What came of it; None where it failed, or nobody knows."""
        session = self._session
        if session is None:
            return None
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                answer = await self._ensemble.propose(session.owner, session.number, change)
        except (ConnectionError, TimeoutError):
            return None
        if isinstance(answer, Code) or any(isinstance(each, Code) and each is not Code.OK for each in answer[1]):
            return None
        return answer[1]
