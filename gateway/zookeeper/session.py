"""One ZooKeeper session as asyncio: kazoo's asynchronous calls bridged to futures, with deadlines and typed failures.

States, as kazoo reports them: connecting → connected ⇄ suspended (connection lost, session maybe alive) → lost (session
expired) → connected (a new session) … → closed. kazoo forgets every watch at any disconnect; so on each way back to
connected `on_reconnected` is called, with whether the session is a new one, and whoever watches arms again.

Nothing read here is older than what was read before (M4). Within a session ZooKeeper sees to that; a new session may
begin at a server that lags, and know nothing of ledgers that the former one has shown. So it counts as connected only
once that server has caught up with the leader.

A call waits for the connection within its deadline and is sent once. If its answer is lost, a read fails with
MetaStoreException and a change with UnknownOutcomeException: it may have happened. Errors of the node itself (NoNode,
BadVersion, …) stay kazoo's exceptions, for the caller to translate. Callbacks arrive on the event loop; watch events
come in the order in which kazoo delivers them.

What kazoo has no call for (taking a watch away, reading many nodes at once) is in `requests`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    RequestTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
    SessionMovedError,
    ZookeeperError,
)
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.states import Callback, EventType, WatchedEvent, ZnodeStat
from kazoo.retry import KazooRetry
from kazoo.security import OPEN_ACL_UNSAFE

from gateway.store_settings import DEFAULTS, StoreSettings
from gateway.zookeeper.requests import (
    CREATOR_ONLY,
    OPEN_TO_ALL,
    CreateNodes,
    DeleteNodes,
    ListNumbered,
    NodeContent,
    ReadNodes,
    RemoveDataWatch,
    ReserveNumbers,
)
from gateway.zookeeper.security import check_files, security_arguments
from ledger.errors import (
    MetaStoreException,
    StoreUnreachableException,
    UnknownOutcomeException,
    ZKException,
)
from reporting.logs import log_event

_LOG = logging.getLogger(__name__)

# It warns at each attempt to connect; what matters of that is logged here, once a change of state.
_KAZOO_LOG = logging.getLogger("gateway.zookeeper.kazoo")
_KAZOO_LOG.setLevel(logging.CRITICAL)

_CONNECTION_ERRORS = (
    ConnectionLoss,
    ConnectionClosedError,
    SessionExpiredError,
    SessionMovedError,
    OperationTimeoutError,
    KazooTimeoutError,
    AuthFailedError,
    RequestTimeoutError,
)

_NODE_ERRORS = (NoNodeError, NodeExistsError, BadVersionError, NotEmptyError)

NodeWatch = Callable[[WatchedEvent], None]

MakeHandler = Callable[[], Any]
"""What kazoo runs on: its threads, sockets and sleeps. A simulator passes its own."""


class ZooKeeperSession:
    """See the module. One event loop, from `start` to `close`."""

    def __init__(
        self,
        servers: Sequence[str],
        session_timeout_seconds: float = 10.0,
        connect_timeout_seconds: float = 6.0,
        call_timeout_seconds: float = 8.0,
        settings: StoreSettings = DEFAULTS,
        make_handler: MakeHandler = SequentialThreadingHandler,
    ) -> None:
        self._settings = settings
        self._make_handler = make_handler
        self._acl = CREATOR_ONLY if settings.zookeeper_acl == "creator" else OPEN_TO_ALL
        self._servers = ",".join(servers)
        self.session_timeout_seconds = session_timeout_seconds
        self._connect_timeout = connect_timeout_seconds
        self._call_timeout = call_timeout_seconds
        self.on_reconnected: Callable[[bool], None] = lambda new_session: None
        """Called at each way back to connected; true: in a new session, the old one's ephemeral nodes are gone."""
        self._client: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connected = asyncio.Event()
        self._session_lost = False
        self._closed = False
        self.connection_epoch = 0
        """How often the connection was lost."""

    @property
    def connected(self) -> bool:
        return self._connected.is_set()

    @property
    def servers(self) -> str:
        return self._servers

    @property
    def session_id(self) -> int:
        """The owner that ZooKeeper writes into ephemeral nodes."""
        client_id = self._client.client_id if self._client is not None else None
        return int(client_id[0]) if client_id else 0

    @property
    def last_zxid(self) -> int:
        """The newest transaction of which an answer told."""
        return int(self._client.last_zxid) if self._client is not None else 0

    async def start(self) -> None:
        """Connects. Raises MetaStoreException when no server answers within the connect timeout."""
        self._loop = asyncio.get_running_loop()
        check_files(self._settings)
        handler = self._make_handler()
        retry = KazooRetry(max_tries=-1, delay=0.1, backoff=2, max_delay=1.0, sleep_func=handler.sleep_func)
        self._client = KazooClient(
            hosts=self._servers,
            handler=handler,
            timeout=self.session_timeout_seconds,
            connection_retry=retry,
            randomize_hosts=True,
            logger=_KAZOO_LOG,
            **security_arguments(self._settings),
        )
        self._client.add_listener(self._on_kazoo_state)
        event = self._client.start_async()
        await self._loop.run_in_executor(None, event.wait, self._connect_timeout)
        if not self._client.connected:
            await self.close()
            raise MetaStoreException(
                f"no ZooKeeper server of {self._servers} answered within {self._connect_timeout:g} s; "
                f"is it running, and is the address right{self._tls_question()}?"
            )
        self._connected.set()

    def _tls_question(self) -> str:
        if not self._settings.zookeeper_tls:
            return ""
        return ", does it serve TLS there, and do the certificates of both sides please the other"

    async def close(self) -> None:
        """Ends the session: its ephemeral nodes go. A second call does nothing."""
        if self._closed or self._client is None:
            return
        self._closed = True
        self._connected.clear()
        await asyncio.get_running_loop().run_in_executor(None, self._stop_client)

    def _stop_client(self) -> None:
        try:
            self._client.stop()
            self._client.close()
        except Exception as error:
            log_event(_LOG, "zookeeper_client_stopped_badly", logging.WARNING, error=error)

    # --- calls --------------------------------------------------------------------------------------------------

    async def get(self, path: str, watch: NodeWatch | None = None) -> tuple[bytes, ZnodeStat]:
        """Content and stat. Raises NoNodeError."""
        try:
            data, stat = await self._read(lambda client, w: client.get_async(path, watch=w), watch)
        except NoNodeError:
            # kazoo keeps the watch, but the server has none on a node that is not there.
            self._client._data_watchers.pop(path, None)
            raise
        return data, stat

    async def exists(self, path: str, watch: NodeWatch | None = None) -> ZnodeStat | None:
        stat: ZnodeStat | None = await self._read(lambda client, w: client.exists_async(path, watch=w), watch)
        return stat

    async def children(self, path: str, watch: NodeWatch | None = None) -> list[str]:
        """Names, in no order. Raises NoNodeError."""
        try:
            names: list[str] = await self._read(lambda client, w: client.get_children_async(path, watch=w), watch)
        except NoNodeError:
            self._client._child_watchers.pop(path, None)
            raise
        return names

    async def sync(self, path: str) -> None:
        """Reads after it are not older than the store was at the call."""
        await self._read(lambda client, _: client.sync_async(path), None)

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, open_to_all: bool = False) -> None:
        """Raises NodeExistsError, NoNodeError (no parent). `open_to_all`: whatever the settings say of the ACL."""
        acl = OPEN_ACL_UNSAFE if open_to_all else None
        await self._change(lambda client: client.create_async(path, data, acl=acl, ephemeral=ephemeral))

    async def set(self, path: str, data: bytes, version: int) -> ZnodeStat:
        """Raises NoNodeError, BadVersionError."""
        stat: ZnodeStat = await self._change(lambda client: client.set_async(path, data, version=version))
        return stat

    async def delete(self, path: str, version: int = -1) -> None:
        """Raises NoNodeError, BadVersionError, NotEmptyError."""
        await self._change(lambda client: client.delete_async(path, version=version))

    async def create_together(self, nodes: Sequence[tuple[str, bytes]]) -> None:
        """Creates all nodes, persistent, or none. Raises the error of the one that failed."""
        _raise_errors(await self._change(lambda client: self._send(CreateNodes(nodes, self._acl))))

    async def take_over(self, path: str, data: bytes, version: int) -> None:
        """Makes another session's ephemeral node one of this session, at no moment without it.

        Whoever is about to delete the node at its old version fails: the new one has another. Raises NoNodeError,
        BadVersionError.
        """

        def commit(client: Any) -> Any:
            transaction = client.transaction()
            transaction.delete(path, version)
            transaction.create(path, data, ephemeral=True)
            if version == 0:
                transaction.set_data(path, data)
            return transaction.commit_async()

        results = await self._change(commit)
        # The others are rolled back with a filler error; the culprit says more.
        _raise_errors([each for each in results if not isinstance(each, (RolledBackError, RuntimeInconsistency))])

    async def delete_together(self, paths: Sequence[str]) -> None:
        """Deletes all nodes or none. Raises the error of the one that failed."""
        _raise_errors(await self._change(lambda client: self._send(DeleteNodes(paths))))

    async def reserve_numbers(self, prefix: str, count: int, *, open_to_all: bool = False) -> str:
        """Takes `count` numbers in a row from a parent's counter of children.

        Returns the path of the ephemeral node that `prefix` and the first number make; the caller deletes it. Raises
        NoNodeError (no parent).
        """
        acl = OPEN_TO_ALL if open_to_all else self._acl
        paths = await self._change(lambda client: self._send(ReserveNumbers(prefix, count, acl)))
        _raise_errors(paths)
        path: str = paths[0]
        return path

    async def get_many(self, paths: Sequence[str]) -> list[NodeContent | Exception]:
        """Content and stat of each node, or kazoo's error for it; one request, so not too many at once."""
        results: list[NodeContent | Exception] = await self._read(lambda client, _: self._send(ReadNodes(paths)), None)
        return results

    async def numbered_children(self, path: str, mark: str, width: int) -> Sequence[int]:
        """The numbers of the children named `mark` and `width` digits, ascending. Raises NoNodeError."""
        numbers: Sequence[int] = await self._read(lambda client, _: self._send(ListNumbered(path, mark, width)), None)
        return numbers

    def delete_soon(self, path: str) -> None:
        """Deletes an ephemeral node without waiting for it; if that fails, it goes with the session."""
        if not self._closed and self.connected:
            self._client.delete_async(path)

    def remove_data_watch(self, path: str) -> None:
        """Takes the data watch of a node away, here and on the server, without waiting for it."""
        if self._closed or self._client._data_watchers.pop(path, None) is None or not self.connected:
            return
        self._send(RemoveDataWatch(path))

    async def drain_events(self) -> None:
        """Returns when every watch event that kazoo has received by now was delivered."""
        loop = self._running_loop()
        reached = loop.create_future()
        callback = Callback("watch", lambda: self._to_loop(_resolve, reached, None), ())
        self._client.handler.dispatch_callback(callback)
        try:
            await asyncio.wait_for(reached, self._call_timeout)
        except TimeoutError:
            raise MetaStoreException("watch events of ZooKeeper can't be delivered in time") from None

    def on_loop(self, handler: Callable[[WatchedEvent], None]) -> NodeWatch:
        """A watch for kazoo that calls `handler` on the event loop, and not for mere changes of the connection."""

        def watch(event: WatchedEvent) -> None:
            if event.type != EventType.NONE:
                self._to_loop(handler, event)

        return watch

    def _send(self, request: object) -> Any:
        """A request that kazoo does not know; returns kazoo's asynchronous result."""
        result = self._client.handler.async_result()
        self._client._call(request, result)
        return result

    async def _read(self, send: Callable[[Any, NodeWatch | None], Any], watch: NodeWatch | None) -> Any:
        try:
            return await self._call(lambda client: send(client, watch))
        except (*_CONNECTION_ERRORS, TimeoutError) as error:
            raise MetaStoreException(f"ZooKeeper ({self._servers}) did not answer: {_describe(error)}") from error
        except _NODE_ERRORS:
            raise
        except ZookeeperError as error:
            raise ZKException(f"ZooKeeper ({self._servers}) refused: {_describe(error)}") from error

    async def _change(self, send: Callable[[Any], Any]) -> Any:
        try:
            return await self._call(send)
        except (*_CONNECTION_ERRORS, TimeoutError) as error:
            raise UnknownOutcomeException(
                f"ZooKeeper ({self._servers}) did not answer a change, which may have happened: {_describe(error)}"
            ) from error
        except _NODE_ERRORS:
            raise
        except ZookeeperError as error:
            raise ZKException(f"ZooKeeper ({self._servers}) refused: {_describe(error)}") from error

    async def _call(self, send: Callable[[Any], Any]) -> Any:
        """Sends once connected. Not connected within the deadline: MetaStoreException, surely nothing was sent."""
        if self._closed or self._client is None:
            raise StoreUnreachableException(f"the ZooKeeper session with {self._servers} is closed")
        loop = self._running_loop()
        deadline = loop.time() + self._call_timeout
        if not self._connected.is_set():
            try:
                await asyncio.wait_for(self._connected.wait(), self._call_timeout)
            except TimeoutError:
                raise StoreUnreachableException(f"ZooKeeper ({self._servers}) is out of reach") from None
        future = loop.create_future()
        send(self._client).rawlink(lambda result: self._to_loop(_resolve, future, result))
        async with asyncio.timeout_at(deadline):
            return await future

    # --- from kazoo's threads -----------------------------------------------------------------------------------

    def _to_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        loop = self._running_loop()
        try:
            loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            # The loop was closed first; nobody waits any more.
            return

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None, "the session was not started"
        return self._loop

    def _on_kazoo_state(self, state: str) -> None:
        self._to_loop(self._state_changed, state)

    def _state_changed(self, state: str) -> None:
        if self._closed:
            return
        if state != KazooState.CONNECTED:
            if self._connected.is_set():
                self._log_state(state.lower(), logging.WARNING)
                self.connection_epoch += 1
            self._connected.clear()
            self._session_lost = self._session_lost or state == KazooState.LOST
            return
        if self._connected.is_set():
            return
        if self._session_lost:
            # Where this fails the connection is lost again, and the way back begins anew.
            self._client.sync_async("/").rawlink(lambda result: self._to_loop(self._caught_up, result))
        else:
            self._now_connected(new_session=False)

    def _caught_up(self, result: Any) -> None:
        """The server of a new session has what the leader had."""
        if not self._closed and result.exception is None and self._session_lost and self._client.connected:
            self._session_lost = False
            self._now_connected(new_session=True)

    def _now_connected(self, *, new_session: bool) -> None:
        self._connected.set()
        self._log_state("connected", logging.INFO, new=new_session)
        self.on_reconnected(new_session)

    def _log_state(self, state: str, level: int, **fields: object) -> None:
        log_event(_LOG, "zookeeper_session", level, state=state, session=f"{self.session_id:x}", **fields)


def _raise_errors(results: Sequence[Any]) -> None:
    for result in results:
        if isinstance(result, _NODE_ERRORS):
            raise result
        if isinstance(result, Exception):
            raise ZKException(f"ZooKeeper refused a transaction: {_describe(result)}") from result


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__} {error}".strip()


def _resolve(future: asyncio.Future[Any], result: Any) -> None:
    """Moves a kazoo result into a future that still waits."""
    if future.done():
        return
    if result is None or result.exception is None:
        future.set_result(None if result is None else result.value)
    else:
        future.set_exception(result.exception)
