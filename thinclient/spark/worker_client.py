"""One client per worker process.

PySpark's daemon forks its workers, and neither gRPC channels nor threads survive a fork. So nothing connects at import
time; a client is made on first use, kept for this process only, and discarded after a failure: the next task in the
same worker begins with fresh connections. A process may live through many jobs with settings of their own: a few of the
clients that nobody uses are kept.

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

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bookgate.ledger.errors import BKException
from bookgate.runtime.allocator import keep_freed_buffers
from bookgate.thinclient.gateways.uri import is_gateway_uri
from bookgate.thinclient.spark.options.read_options import CONFIG_VARIABLE, ClientSettings

if TYPE_CHECKING:
    from bookgate.thinclient.blocking.client import BookKeeper
    from bookgate.thinclient.config import ClientConfig
    from bookgate.thinclient.metrics import ClientMetrics

_log = logging.getLogger(__name__)


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


@dataclass(slots=True)
class _Kept:
    """A client, the number that it has as long as it lives, how many use it, and when it was used last."""

    client: BookKeeper
    number: int
    users: int = 0
    last_use: int = 0


class WorkerClients:
    """The clients of this process, by gateways and settings. A forked copy is recognised by its process id and starts
    anew.
    """

    def __init__(self, connect: Callable[[str, ClientSettings, bool], BookKeeper] = _connect) -> None:
        self._connect = connect
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._clients: dict[_Key, _Kept] = {}
        self._uses = 0

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
        key = gateways, settings, lists_all
        kept = self._begin(key, plans)
        try:
            if catches_up:
                catch_up(kept.client)
            yield kept.client
        except Exception:
            self._discard(key, kept)
            raise
        finally:
            self._end(kept)

    def metrics(self) -> dict[int, ClientMetrics]:
        """The metrics of each client of this process, by its number."""
        clients = list(self._clients.values()) if self._pid == os.getpid() else []
        return {kept.number: kept.client.metrics for kept in clients}

    def _own_lock(self) -> threading.RLock:
        """Held for every change, also while a client connects: of threads that need the same one, one connects."""
        if self._pid != os.getpid():
            # The parent's clients can't be closed here, nor its lock be released: its threads did not survive the fork.
            self._pid, self._clients, self._lock = os.getpid(), {}, threading.RLock()
        return self._lock

    def _begin(self, key: _Key, plans: bool) -> _Kept:
        with self._own_lock():
            kept = self._clients.get(key)
            if kept is None:
                gateways, settings, lists_all = key
                keep_freed_buffers()
                client = self._connect(gateways, settings, plans)
                taken = {other.number for other in self._clients.values()}
                kept = self._clients[key] = _Kept(client, min(set(range(len(taken) + 1)) - taken))
                if lists_all:
                    client.ledger_manager.demand_complete_listings()
            kept.users += 1
            return kept

    def _end(self, kept: _Kept) -> None:
        with self._own_lock():
            self._uses += 1
            kept.users, kept.last_use = kept.users - 1, self._uses
            self._close_unused()

    def _close_unused(self) -> None:
        """Closes those that were not used for longest."""
        clients = list(self._clients.items())
        unused = sorted((each for each in clients if not each[1].users), key=lambda each: -each[1].last_use)
        for key, kept in unused[_MOST_UNUSED:]:
            self._discard(key, kept)

    def _discard(self, key: _Key, kept: _Kept) -> None:
        with self._own_lock():
            if self._clients.get(key) is kept:
                del self._clients[key]
        with suppress(BKException, OSError, RuntimeError):
            kept.client.close()


def catch_up(client: BookKeeper) -> None:
    """Has the client read nothing that is older than this call, if its gateways can tell. Raises BKException."""
    from bookgate.thinclient.gateways.discovery import NoRevisionException

    try:
        client.catch_up()
    except NoRevisionException as error:
        # Clients and gateways are upgraded in any order.
        _log.info("%s: what is read may be older than what others have seen", error)


clients = WorkerClients()
