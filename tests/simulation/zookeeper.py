"""A simulated ZooKeeper ensemble that speaks ZooKeeper's protocol: servers over one replicated log.

Things: the *log* holds every committed transaction, in order; a *server* has applied a prefix of it to a tree of its
own, answers reads from there, and so lags behind the others by a moment, or by as much as a fault says. A change goes
from the server that took it to the leader (which is the log's end here), is committed there while a quorum stands, and
is answered once the server that took it has applied it. So an answer can be lost after the commit, a read can be older
than another server's, `sync` waits for what the leader had when it was asked, and what one client sees of one server
never goes back: a server refuses a client that has seen more than it has.

Sessions are the leader's: each belongs to one server at a time (a change through another one is refused as moved), and
is over when no server has told of it for its timeout; time without a leader does not count. The end of a session is a
transaction that takes its ephemeral nodes away; servers then cut its connection.

Watches belong to a connection at a server and fire when that server applies a change, before anything newer is answered
there: once, or (of a whole tree) as long as the connection lasts.

States of a server: stopped → serving ⇄ cut off (no leader in reach: after `_PATIENCE_SECONDS` clients are sent away and
nobody is let in) → stopped.

Faults: `cut_off` and `join` a server, its `lag`, `answers_lost`, `breaks_off` and `miscounts`, `lose_quorum`, `expire`
a session: each a method or an attribute. The network between clients and servers is the world's, with its own faults;
what clients say and are answered is `zookeeper_connection`'s.

Not simulated: access control (everybody may everything), quotas, observers, containers and TTL nodes, reconfiguration.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.simulation.znode_tree import (
    CloseSession,
    Code,
    Event,
    Happened,
    Multi,
    Operation,
    Result,
    Transaction,
    ZnodeTree,
)
from tests.simulation.zookeeper_connection import Connection

_PATIENCE_SECONDS = 1.0
_TICK_SECONDS = 0.5
_LONGEST_TIMEOUT_MS, _SHORTEST_TIMEOUT_MS = 40_000, 1_000

Delay = tuple[float, float]
"""Seconds, at least and at most."""


@dataclass(slots=True)
class Session:
    """A client's session, as the leader knows it."""

    number: int
    timeout: float
    owner: Server
    heard: float


class Ensemble:
    """The leader's side: the log, the sessions, who stands in which relation to it."""

    def __init__(
        self,
        rng: random.Random,
        servers: int = 3,
        to_leader: Delay = (0.0005, 0.003),
        lag: Delay = (0.0005, 0.01),
    ) -> None:
        """`to_leader`: how long a server needs to reach the leader; `lag`: until it has applied what was committed."""
        self.rng = rng
        self._to_leader = to_leader
        self._lag = lag
        self.log: list[Transaction] = []
        self.tree = ZnodeTree()
        """As the log's end has it; for checkers."""
        self.on_commit: Callable[[Transaction, list[Result], list[Event]], None] = lambda change, results, events: None
        """Told of every transaction when it is committed."""
        self.sessions: dict[int, Session] = {}
        self.servers = [Server(self, f"zk{number}") for number in range(1, servers + 1)]
        self.counts: dict[str, int] = {}
        """How often what happened."""
        self.watches_trees = True
        """As servers do since 3.6; an older one answers that it knows no such request."""
        self._epoch = 1
        self._counter = 0
        self._last_session = 0
        self._leader_since: float | None = 0.0
        self._election = asyncio.Event()
        self._election.set()
        self._ticker: asyncio.Task[None] | None = None

    # --- faults -------------------------------------------------------------------------------------------------

    def lose_quorum(self, seconds: float) -> None:
        """No leader for a while: what was not committed is lost, every client is sent away."""
        self.count("quorum lost")
        self._leader_since = None
        self._election.clear()
        asyncio.get_running_loop().call_later(seconds, self._elected)
        for server in self.servers:
            server.leader_lost()

    @property
    def has_leader(self) -> bool:
        return self._leader_since is not None

    async def led(self) -> None:
        """Returns once there is a leader."""
        await self._election.wait()

    def _elected(self) -> None:
        now = asyncio.get_running_loop().time()
        self._leader_since = now
        self._election.set()
        self._epoch += 1
        self._counter = 0
        for session in self.sessions.values():
            session.heard = now
        for server in self.servers:
            server.leader_found()

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    # --- changes ------------------------------------------------------------------------------------------------

    @property
    def zxid(self) -> int:
        """Of the last committed transaction."""
        return self.log[-1].zxid if self.log else 0

    async def propose(
        self, server: Server, session: int, change: Operation | Multi
    ) -> tuple[Transaction, list[Result]] | Code:
        """Returns once `server` has applied the change. Raises ConnectionError where the leader was lost meanwhile."""
        epoch = self._epoch
        await asyncio.sleep(self.rng.uniform(*self._to_leader))
        if not server.joined or self._leader_since is None or epoch != self._epoch:
            raise ConnectionError("no leader")
        known = self.sessions.get(session)
        if known is None:
            return Code.SESSION_EXPIRED
        if known.owner is not server:
            return Code.SESSION_MOVED
        return await self.commit(server, session, change)

    def commit(
        self, server: Server, session: int, change: Operation | Multi | CloseSession
    ) -> asyncio.Future[tuple[Transaction, list[Result]] | Code]:
        """Puts it into the log. The future: what came of it, once `server` has applied it."""
        loop = asyncio.get_running_loop()
        self._counter += 1
        transaction = Transaction(self._epoch << 32 | self._counter, int(loop.time() * 1000), session, change)
        self.log.append(transaction)
        results, events = self.tree.apply(transaction)
        self.on_commit(transaction, results, events)
        done: asyncio.Future[tuple[Transaction, list[Result]] | Code] = loop.create_future()
        done.add_done_callback(_nobody_may_wait)
        server.expect(transaction.zxid, done)
        for each in self.servers:
            each.committed(self.rng.uniform(*self._lag))
        return done

    async def synced(self, server: Server) -> None:
        """Returns once the server has what the leader had when it was asked. Raises ConnectionError."""
        await asyncio.sleep(self.rng.uniform(*self._to_leader))
        if not server.joined or self._leader_since is None:
            raise ConnectionError("no leader")
        await server.applied_up_to(self.zxid)

    # --- sessions -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins to look for sessions that are over."""
        self._ticker = asyncio.get_running_loop().create_task(self._expire())

    async def open_session(self, server: Server, timeout_ms: int) -> Session | None:
        """None without a leader."""
        await asyncio.sleep(self.rng.uniform(*self._to_leader))
        if not server.joined or self._leader_since is None:
            return None
        self._last_session += 1
        timeout_ms = max(_SHORTEST_TIMEOUT_MS, min(_LONGEST_TIMEOUT_MS, timeout_ms))
        now = asyncio.get_running_loop().time()
        session = Session(self._last_session << 16 | 1, timeout_ms / 1000, server, now)
        self.sessions[session.number] = session
        return session

    async def take_session(self, server: Server, number: int) -> Session | None:
        """A client has come over with its session. None: it is over. Raises ConnectionError without a leader."""
        await asyncio.sleep(self.rng.uniform(*self._to_leader))
        if not server.joined or self._leader_since is None:
            raise ConnectionError("no leader")
        session = self.sessions.get(number)
        if session is not None:
            session.owner, session.heard = server, asyncio.get_running_loop().time()
        return session

    async def close_session(self, server: Server, number: int) -> None:
        await asyncio.sleep(self.rng.uniform(*self._to_leader))
        if self._leader_since is not None and self.sessions.pop(number, None) is not None:
            await self.commit(server, number, CloseSession())

    def heard_of(self, server: Server, number: int) -> None:
        """A server tells that a session's client lives."""
        session = self.sessions.get(number)
        if session is not None and server.joined and self._leader_since is not None and session.owner is server:
            session.heard = asyncio.get_running_loop().time()

    def expire(self, number: int) -> None:
        """Ends a session now."""
        session = self.sessions.pop(number, None)
        if session is not None:
            self.count("sessions expired")
            self.commit(session.owner, number, CloseSession())

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            now = asyncio.get_running_loop().time()
            for session in list(self.sessions.values()):
                if self._leader_since is not None and now - session.heard > session.timeout:
                    self.expire(session.number)

    def data_watches(self, session: int) -> tuple[str, ...]:
        """Paths that a session watches, sorted, on whichever server."""
        found = {
            path
            for server in self.servers
            for path, watchers in server.data_watches.items()
            if any(connection.session == session for connection in watchers)
        }
        return tuple(sorted(found))

    async def close(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)


class Server:
    """One server of the ensemble, on a host of its own."""

    def __init__(self, ensemble: Ensemble, name: str) -> None:
        self.ensemble = ensemble
        self.name = name
        self.tree = ZnodeTree()
        self.joined = True
        """The leader is in reach."""
        self.lag = 0.0
        """Seconds by which it is later than it would be."""
        self.answers_lost = 0.0
        """How likely a client loses its connection between a commit and the answer."""
        self.breaks_off = 0.0
        """Seconds between the two halves of the next answer."""
        self.miscounts = False
        """The next answer names a request that was not made."""
        self._applied = 0
        self._due: deque[tuple[float, int]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: dict[int, asyncio.Future[tuple[Transaction, list[Result]] | Code]] = {}
        self._synced: list[tuple[int, asyncio.Future[None]]] = []
        self._connections: dict[Connection, None] = {}
        self._patience: asyncio.TimerHandle | None = None
        self._listener: asyncio.AbstractServer | None = None
        self._context = contextvars.copy_context()
        self.data_watches: dict[str, dict[Connection, None]] = {}
        self.child_watches: dict[str, dict[Connection, None]] = {}
        self.tree_watches: dict[str, dict[Connection, None]] = {}

    async def start(self, host: str, port: int) -> None:
        """Listens, in the process that calls. A server that was down has what was committed meanwhile."""
        loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._listener = await loop.create_server(lambda: Connection(self), host, port)
        self._apply_up_to(len(self.ensemble.log))

    def gone(self) -> None:
        """Its process has ended: connections, watches and what was under way are forgotten."""
        self._listener = None
        self._connections.clear()
        self.data_watches.clear()
        self.child_watches.clear()
        self.tree_watches.clear()
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        self._waiting.clear()
        self._synced.clear()

    @property
    def serving(self) -> bool:
        return self._listener is not None and self._patience is None and self.joined and self.ensemble.has_leader

    @property
    def watch_count(self) -> int:
        watches = (self.data_watches, self.child_watches, self.tree_watches)
        return sum(len(watchers) for each in watches for watchers in each.values())

    # --- faults -------------------------------------------------------------------------------------------------

    def cut_off(self) -> None:
        """The leader is out of reach."""
        self.joined = False
        self.leader_lost()

    def join(self) -> None:
        self.joined = True
        self.leader_found()

    def leader_lost(self) -> None:
        self._drop_waiting()
        if self._patience is None and self._listener is not None:
            loop = asyncio.get_running_loop()
            self._patience = loop.call_later(_PATIENCE_SECONDS, self.send_away, context=self._context)

    def leader_found(self) -> None:
        if self.joined and self.ensemble.has_leader:
            if self._patience is not None:
                self._patience.cancel()
                self._patience = None
            self.committed(0.0)

    def send_away(self) -> None:
        """Ends every connection."""
        for connection in list(self._connections):
            connection.end()

    def _drop_waiting(self) -> None:
        waiting, self._waiting = list(self._waiting.values()), {}
        synced, self._synced = self._synced, []
        futures: list[asyncio.Future[Any]] = [*waiting, *(future for _, future in synced)]
        for each in futures:
            if not each.done():
                each.set_exception(ConnectionError("no leader"))

    # --- the log ------------------------------------------------------------------------------------------------

    def expect(self, zxid: int, done: asyncio.Future[tuple[Transaction, list[Result]] | Code]) -> None:
        self._waiting[zxid] = done

    def committed(self, delay: float) -> None:
        """What the log holds now is to be applied here after so many seconds, and the server's lag."""
        if not self.joined or self._listener is None:
            return
        when = asyncio.get_running_loop().time() + delay + self.lag
        if self._due:
            when = max(when, self._due[-1][0])
        self._due.append((when, len(self.ensemble.log)))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(when, self._apply_due, context=self._context)

    def _apply_due(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        while self._due and self._due[0][0] <= loop.time():
            length = self._due.popleft()[1]
            if self.joined:
                self._apply_up_to(length)
        if self._due:
            self._timer = loop.call_at(self._due[0][0], self._apply_due, context=self._context)

    def _apply_up_to(self, length: int) -> None:
        while self._applied < length:
            transaction = self.ensemble.log[self._applied]
            self._applied += 1
            results, events = self.tree.apply(transaction)
            for happened, path in events:
                self._fire(happened, path)
            waiting = self._waiting.pop(transaction.zxid, None)
            if waiting is not None and not waiting.done():
                waiting.set_result((transaction, results))
            if isinstance(transaction.change, CloseSession):
                self._session_over(transaction.session)
        reached = [future for zxid, future in self._synced if zxid <= self.tree.zxid]
        self._synced = [each for each in self._synced if each[0] > self.tree.zxid]
        for future in reached:
            if not future.done():
                future.set_result(None)

    async def applied_up_to(self, zxid: int) -> None:
        if zxid > self.tree.zxid:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            future.add_done_callback(_nobody_may_wait)
            self._synced.append((zxid, future))
            await future

    # --- watches ------------------------------------------------------------------------------------------------

    def _fire(self, happened: Happened, path: str) -> None:
        told: dict[Connection, None] = {}
        if happened is not Happened.CHILDREN:
            told = self.data_watches.pop(path, {})
        if happened in (Happened.CHILDREN, Happened.DELETED):
            told = told | self.child_watches.pop(path, {})
        if happened is not Happened.CHILDREN:
            for root, watchers in self.tree_watches.items():
                if path == root or path.startswith(f"{root}/"):
                    told = told | watchers
        for connection in told:
            connection.tell(happened, path)

    # --- connections --------------------------------------------------------------------------------------------

    def entered(self, connection: Connection) -> None:
        self._connections[connection] = None

    def left(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        for watches in (self.data_watches, self.child_watches, self.tree_watches):
            for path in [path for path, watchers in watches.items() if connection in watchers]:
                del watches[path][connection]
                if not watches[path]:
                    del watches[path]

    def _session_over(self, number: int) -> None:
        for connection in [each for each in self._connections if each.session == number]:
            connection.end()


def _nobody_may_wait(future: asyncio.Future[Any]) -> None:
    """Whoever asked may have gone by the time it fails."""
    if not future.cancelled():
        future.exception()
