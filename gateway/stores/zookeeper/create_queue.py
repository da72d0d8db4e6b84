"""Combines concurrent creations of nodes into few ZooKeeper transactions.

A single node is sent at once. While transactions are in progress further nodes queue up and share the next one, as in
group commit: under load one request, one commit and one response serve up to `_MAX_NODES` creations. States of a node:
queued → sent → created | not created (its transaction failed, perhaps because of another node) | unknown (the response
was lost). The caller creates the nodes of a failed transaction one by one, which reveals the cause.
"""

from __future__ import annotations

import asyncio
from collections import deque

from kazoo.exceptions import KazooException

from bookgate.gateway.stores.zookeeper.session import ZooKeeperSession
from bookgate.ledger.errors import BKException, MetaStoreException, UnknownOutcomeException, ZKException

_MAX_NODES = 128
_MAX_BYTES = 256 * 1024
_MAX_TRANSACTIONS = 4

_Waiting = tuple[str, bytes, "asyncio.Future[int | None]"]


class CreateQueue:
    """See the module. Belongs to one event loop."""

    def __init__(self, session: ZooKeeperSession) -> None:
        self._session = session
        self._queue: deque[_Waiting] = deque()
        self._under_way: dict[asyncio.Task[None], None] = {}
        self._scheduled = False
        self._closed = False

    def create(self, path: str, data: bytes) -> asyncio.Future[int | None]:
        """Creates a persistent node.

        Returns:
            A future: the node's czxid, or None if it was not created. It may raise MetaStoreException or
            UnknownOutcomeException.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[int | None] = loop.create_future()
        if self._closed:
            future.set_exception(MetaStoreException("the metadata store was closed"))
            return future
        self._queue.append((path, data, future))
        if not self._scheduled and len(self._under_way) < _MAX_TRANSACTIONS:
            # Sent at the end of this turn of the loop, together with other nodes requested in it.
            self._scheduled = True
            loop.call_soon(self._send_next)
        return future

    async def close(self) -> None:
        """Gives up what is queued or in progress."""
        self._closed = True
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        _settle(list(self._queue), MetaStoreException("the metadata store was closed before the node was created"))
        self._queue.clear()

    def _send_next(self) -> None:
        self._scheduled = False
        loop = asyncio.get_running_loop()
        while self._queue and not self._closed and len(self._under_way) < _MAX_TRANSACTIONS:
            task = loop.create_task(self._send(self._next_transaction()))
            self._under_way[task] = None
            task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._under_way.pop(task, None)
        self._send_next()

    def _next_transaction(self) -> list[_Waiting]:
        nodes: list[_Waiting] = []
        size = 0
        while self._queue and len(nodes) < _MAX_NODES:
            path, data, future = self._queue[0]
            size += len(path) + len(data)
            if nodes and size > _MAX_BYTES:
                break
            self._queue.popleft()
            # A cancelled creation has no caller, and the ledger would remain although no client knows it.
            if not future.cancelled():
                nodes.append((path, data, future))
        return nodes

    async def _send(self, nodes: list[_Waiting]) -> None:
        if not nodes:
            return
        try:
            czxid = await self._session.create_together([(path, data) for path, data, _ in nodes])
        except (KazooException, ZKException):
            _settle(nodes, None)
        except BKException as error:
            _settle(nodes, error)
        except asyncio.CancelledError:
            _settle(nodes, UnknownOutcomeException("the metadata store was closed while the node was created"))
            raise
        else:
            _settle(nodes, czxid)


def _settle(nodes: list[_Waiting], outcome: int | BKException | None) -> None:
    for _, _, future in nodes:
        if future.done():
            continue
        if isinstance(outcome, BKException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
