"""One client a worker process.

PySpark's daemon forks its workers, and neither gRPC channels nor threads survive a fork. So nothing connects at import
time, a client is made where it is first used, is kept for this process only, and is thrown away after a failure: the
next task in the same worker begins with fresh connections.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from ledger.errors import BKException
from thinclient.gateway_uri import is_gateway_uri

if TYPE_CHECKING:
    from thinclient.blocking import BookKeeper


def _connect(gateways: str) -> BookKeeper:
    from thinclient.blocking import BookKeeper

    return BookKeeper.connect_lazily(gateways) if is_gateway_uri(gateways) else BookKeeper.connect(gateways)


class WorkerClients:
    """The clients of this process, by gateways. The process id tells a forked copy, which starts anew."""

    def __init__(self, connect: Callable[[str], BookKeeper] = _connect) -> None:
        self._connect = connect
        self._pid = os.getpid()
        self._clients: dict[str, BookKeeper] = {}

    @contextmanager
    def use(self, gateways: str) -> Iterator[BookKeeper]:
        """The client for these gateways; an exception inside throws it away."""
        client = self._client(gateways)
        try:
            yield client
        except Exception:
            self._discard(gateways, client)
            raise

    def _client(self, gateways: str) -> BookKeeper:
        if self._pid != os.getpid():
            # What the parent made can't be closed here: its threads did not come along.
            self._pid, self._clients = os.getpid(), {}
        client = self._clients.get(gateways)
        if client is None:
            client = self._clients[gateways] = self._connect(gateways)
        return client

    def _discard(self, gateways: str, client: BookKeeper) -> None:
        if self._clients.get(gateways) is client:
            del self._clients[gateways]
        with suppress(BKException, OSError, RuntimeError):
            client.close()


clients = WorkerClients()
