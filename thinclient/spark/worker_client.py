"""One client per worker process.

PySpark's daemon forks its workers, and neither gRPC channels nor threads survive a fork. So nothing connects at import
time; a client is made on first use, kept for this process only, and discarded after a failure: the next task in the
same worker begins with fresh connections.

A client that plans a read, on the driver, connects as any other program's does: by default it fails at once where every
gateway rejects the connection. A task has its records and may need no gateway, so its client connects to one only when
it asks it, and then waits.

What a client reads of the metadata never goes back in time, but a new client knows nothing of what others have seen: of
an earlier driver of the query, of the tasks. So where a read is planned or a write is committed, it first catches up
with the metadata store.

Such a process goes through buffers of megabytes, which its allocator keeps (`runtime.allocator`).

Who concludes from what a listing lacks has a client of its own, whose listings are complete or fail: reads of the same
process list what a policy shows them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
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


class WorkerClients:
    """The clients of this process, by gateways and settings. A forked copy is recognised by its process id and starts
    anew.
    """

    def __init__(self, connect: Callable[[str, ClientSettings, bool], BookKeeper] = _connect) -> None:
        self._connect = connect
        self._pid = os.getpid()
        self._clients: dict[_Key, BookKeeper] = {}

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
        client = self._client(key, plans)
        try:
            if catches_up:
                _catch_up(client)
            yield client
        except Exception:
            self._discard(key, client)
            raise

    def metrics(self) -> list[ClientMetrics]:
        """The metrics of each client of this process."""
        return [client.metrics for client in self._clients.values()] if self._pid == os.getpid() else []

    def _client(self, key: _Key, plans: bool) -> BookKeeper:
        if self._pid != os.getpid():
            # The parent's clients can't be closed here: their threads did not survive the fork.
            self._pid, self._clients = os.getpid(), {}
        client = self._clients.get(key)
        if client is None:
            gateways, settings, lists_all = key
            keep_freed_buffers()
            client = self._clients[key] = self._connect(gateways, settings, plans)
            if lists_all:
                client.ledger_manager.demand_complete_listings()
        return client

    def _discard(self, key: _Key, client: BookKeeper) -> None:
        if self._clients.get(key) is client:
            del self._clients[key]
        with suppress(BKException, OSError, RuntimeError):
            client.close()


def _catch_up(client: BookKeeper) -> None:
    from bookgate.thinclient.gateways.discovery import NoRevisionException

    try:
        client.catch_up()
    except NoRevisionException as error:
        # Clients and gateways are upgraded in any order.
        _log.info("%s: what is read may be older than what others have seen", error)


clients = WorkerClients()
