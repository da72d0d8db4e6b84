"""One client per worker process.

PySpark's daemon forks its workers, and neither gRPC channels nor threads survive a fork. So nothing connects at import
time; a client is made on first use, kept for this process only, and discarded after a failure: the next task in the
same worker begins with fresh connections. Threads share clients: one that a failing thread discards is closed when the
others have done with it. A process may live through many jobs with settings of their own: a few of the
clients that nobody uses are kept. The collector may end a use that was abandoned, in any thread and whatever lock that
holds: such an end waits for nothing and closes nothing, and the next use counts it.

A client that plans a read, on the driver, connects as any other program's does: by default it fails at once where every
gateway rejects the connection. A task has its records and may need no gateway, so its client connects to one only when
it asks it, and then waits.

What a client reads of the metadata never goes back in time, but a new client knows nothing of what others have seen: of
an earlier driver of the query, of the tasks. So where a read is planned, ledgers are listed, a write is committed, or
something is taken for lost, deleted or uncommitted, it first catches up with the metadata store.

Such a process goes through buffers of megabytes, which its allocator keeps (`runtime.allocator`).

Who concludes from what a listing lacks has a client of its own, whose listings are complete or fail: reads of the same
process list what a policy shows them.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bookgate.ledger.errors import BKException
from bookgate.runtime.allocator import keep_freed_buffers
from bookgate.thinclient.blocking.loop_thread import is_abandoned
from bookgate.thinclient.gateways.uri import is_gateway_uri
from bookgate.thinclient.spark.options.read_options import CONFIG_VARIABLE, ClientSettings

if TYPE_CHECKING:
    from bookgate.thinclient.blocking.client import BookKeeper
    from bookgate.thinclient.config import ClientConfig
    from bookgate.thinclient.metrics import ClientMetrics


def _connect(gateways: str, settings: ClientSettings, plans: bool) -> BookKeeper:
    from bookgate.thinclient.blocking.client import BookKeeper

    lazily = is_gateway_uri(gateways) and not plans
    connect = BookKeeper.connect_lazily if lazily else BookKeeper.connect
    return connect(gateways, client_config(settings))


def client_config(settings: ClientSettings) -> ClientConfig:
    """The client's settings in this process: its file, overridden by the options."""
    from bookgate.thinclient.config import ClientConfig

    file = os.environ.get(CONFIG_VARIABLE)
    return ClientConfig.load(Path(file) if file else None, options=dict(settings))


_Key = tuple[str, ClientSettings, bool]

_MOST_UNUSED = 4
"""Clients that are kept for the next task. Settings may differ from job to job: in a token that is renewed, say."""


@dataclass(slots=True, eq=False)
class _Kept:
    """A client, and the number that it has as long as it lives.

    `made` has the client once it is connected. Whoever ended a use with an error sets `has_failed`: the client is given
    to nobody else then, and closed by the last of those that use it.
    """

    key: _Key
    number: int
    made: Future[BookKeeper] = field(default_factory=Future)
    users: int = 0
    last_use: int = 0
    has_failed: bool = False

    @property
    def is_connected(self) -> bool:
        return self.made.done() and self.made.exception() is None


@dataclass(slots=True)
class _Process:
    """The clients of a process. `lock` is held for a moment only: nobody connects, closes or waits meanwhile. `ended`
    has the users that have ended and are not counted yet.
    """

    clients: dict[_Key, _Kept] = field(default_factory=dict)
    ended: deque[_Kept] = field(default_factory=deque)
    lock: threading.Lock = field(default_factory=threading.Lock)
    uses: int = 0

    def begin(self, key: _Key) -> tuple[_Kept, bool]:
        """Counts a user. Also whether it is the first one, who has to connect."""
        with self.lock:
            kept, is_first = self.clients.get(key), False
            if kept is None or kept.has_failed:
                taken = {other.number for other in self.clients.values()}
                kept, is_first = _Kept(key, min(set(range(len(taken) + 1)) - taken)), True
                self.clients[key] = kept
            kept.users += 1
        return kept, is_first

    def settle(self) -> list[_Kept]:
        """Counts what has ended; returns what is to be closed."""
        found = list[_Kept]()
        with self.lock:
            while self.ended:
                found += self._ended(self.ended.popleft())
            found += self._unused()
        return [kept for kept in found if kept.is_connected]

    def _ended(self, kept: _Kept) -> list[_Kept]:
        self.uses += 1
        kept.users, kept.last_use = kept.users - 1, self.uses
        if kept.has_failed and self.clients.get(kept.key) is kept:
            del self.clients[kept.key]
        return [kept] if kept.has_failed and not kept.users else []

    def _unused(self) -> list[_Kept]:
        """Those that were not used for longest; they are kept no longer."""
        unused = sorted((each for each in self.clients.values() if not each.users), key=lambda each: -each.last_use)
        for kept in unused[_MOST_UNUSED:]:
            del self.clients[kept.key]
        return unused[_MOST_UNUSED:]


class WorkerClients:
    """The clients of this process, by gateways and settings. A forked copy is recognised by its process id and starts
    anew.
    """

    def __init__(self, connect: Callable[[str, ClientSettings, bool], BookKeeper] = _connect) -> None:
        self._connect = connect
        self._processes: dict[int, _Process] = {}

    def plan(self, gateways: str, settings: ClientSettings = ()) -> AbstractContextManager[BookKeeper]:
        """As `use`, for the planning of a read: does not wait for gateways that all reject connections, and nothing
        that is read in the block is older than its beginning.
        """
        return self.use(gateways, settings, plans=True, catches_up=True)

    @contextmanager
    def use(
        self,
        gateways: str,
        settings: ClientSettings = (),
        *,
        plans: bool = False,
        lists_all: bool = False,
        catches_up: bool = False,
    ) -> Iterator[BookKeeper]:
        """The client for these gateways and settings; it is discarded if the block raises. `lists_all`: another one,
        whose listings fail where a policy would leave ledgers out. `catches_up`: it reads nothing older than this call.
        """
        process = self._own()
        kept = self._begin(process, (gateways, settings, lists_all), plans)
        may_wait = True
        try:
            client = kept.made.result()
            if catches_up:
                catch_up(client)
            yield client
        except BaseException as error:
            may_wait = not is_abandoned(error)
            if isinstance(error, Exception):
                kept.has_failed = True
            raise
        finally:
            process.ended.append(kept)
            if may_wait:
                self._settle(process)

    def metrics(self) -> dict[int, ClientMetrics]:
        """The metrics of each client of this process, by its number."""
        clients = list(self._own().clients.values())
        return {kept.number: kept.made.result().metrics for kept in clients if kept.is_connected}

    def _own(self) -> _Process:
        # The parent's clients can't be closed after a fork, nor its lock be released: its threads did not survive it.
        # Of threads that come here at once all get the same: `setdefault` is one step.
        pid = os.getpid()
        return self._processes.get(pid) or self._processes.setdefault(pid, _Process())

    def _begin(self, process: _Process, key: _Key, plans: bool) -> _Kept:
        """The client, connected. Of threads that need the same one, one connects; if it fails, each of the others
        tries, as they may connect in another way.
        """
        while True:
            kept, is_first = process.begin(key)
            is_ready = False
            try:
                if is_first:
                    self._make(kept, plans)
                is_ready = kept.made.exception() is None
            finally:
                if not is_ready:
                    process.ended.append(kept)
                self._settle(process)
            if is_ready:
                return kept

    def _make(self, kept: _Kept, plans: bool) -> None:
        gateways, settings, lists_all = kept.key
        try:
            keep_freed_buffers()
            client = self._connect(gateways, settings, plans)
            if lists_all:
                client.ledger_manager.demand_complete_listings()
            kept.made.set_result(client)
        except BaseException as error:
            kept.has_failed = True
            kept.made.set_exception(error)
            raise

    def _settle(self, process: _Process) -> None:
        if process is not self._own():
            return
        for kept in process.settle():
            with suppress(BKException, OSError, RuntimeError):
                kept.made.result().close()


def catch_up(client: BookKeeper) -> None:
    """Has the client read nothing that is older than this call, if its gateways can tell. Raises BKException."""
    from bookgate.thinclient.gateways.discovery import may_lack_revision

    with may_lack_revision():
        client.catch_up()


clients = WorkerClients()
