"""One ZooKeeper session for asyncio: calls with deadlines and typed failures, states, and a client that is kept alive.

States, as kazoo reports them: connecting → connected ⇄ suspended (connection lost, session perhaps alive) → lost
(session expired) → connected (a new session) … → closed. kazoo forgets every watch at any disconnect; `on_reconnected`
is therefore called after each reconnect, with whether the session is a new one, and its users set their watches again.

kazoo's thread may end for good: a response that it does not understand, a failed authentication, a bug. Then everything
of kazoo is created again, at most once a second, and continues the same session if that is still alive; it counts as a
new one nevertheless.

Nothing read here is older than what was read before (M4). Within a session ZooKeeper ensures that; a new session may
begin at a server that lags behind and does not know ledgers that the former session has shown. It counts as connected
only once that server has caught up with the leader.

A call waits for the connection within its deadline and is sent once. If its response is lost, a read fails with
MetaStoreException and a change with UnknownOutcomeException: it may have happened. A call that was certainly not sent
fails with StoreUnreachableException. A request larger than the server takes (jute.maxbuffer) fails with
IncorrectParameterException and is never sent: the server would close the connection that all callers share. Errors of
the node itself (NoNode, BadVersion, …) remain kazoo's exceptions, for the caller to translate. Responses, events and
states arrive in the order in which ZooKeeper sent them: after a response, every event of earlier changes has been
delivered.

Not its job: requests that kazoo lacks (`requests`), kazoo itself (`kazoo_thread`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kazoo.client import KazooState
from kazoo.exceptions import BadVersionError, NoNodeError, UnimplementedError, ZookeeperError
from kazoo.protocol.serialization import (
    CheckVersion,
    Create,
    Delete,
    Exists,
    GetChildren,
    GetData,
    SetData,
    Sync,
    Transaction,
)
from kazoo.protocol.states import ZnodeStat
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from bookgate.gateway.stores.zookeeper.kazoo_errors import (
    CONNECTION_ERRORS,
    NODE_ERRORS,
    describe,
    raise_culprit,
    raise_errors,
)
from bookgate.gateway.stores.zookeeper.kazoo_thread import (
    Call,
    KazooThread,
    MakeHandler,
    NodeWatch,
    NotSentError,
    Request,
    RequestTooLargeError,
    ThreadHandler,
    TreeListener,
)
from bookgate.gateway.stores.zookeeper.requests import (
    CREATOR_ONLY,
    OPEN_TO_ALL,
    AddTreeWatch,
    CreateNodes,
    DeleteNodes,
    ListNumbered,
    NodeContent,
    ReadNodes,
    RemoveWatches,
    ReserveNumbers,
)
from bookgate.gateway.stores.zookeeper.security import check_files, security_arguments
from bookgate.gateway.stores.zookeeper.settings import DEFAULTS, ZooKeeperSettings
from bookgate.ledger.errors import (
    IllegalOpException,
    IncorrectParameterException,
    MetaStoreException,
    StoreUnreachableException,
    UnknownOutcomeException,
    ZKException,
)
from bookgate.runtime.logs import log_event

_LOG = logging.getLogger(__name__)

_EPHEMERAL = 1
_EPHEMERAL_SEQUENTIAL = 3
_RETRY_SECONDS = 1.0
"""Delay between one client and the next, and between attempts to catch up with the leader."""


class GuardGoneError(Exception):
    """The node that guards a change was changed or removed; nothing was done."""


class ZooKeeperSession:
    """See the module. Belongs to one event loop, from `start` to `close`."""

    def __init__(
        self,
        servers: Sequence[str],
        session_timeout_seconds: float = 10.0,
        connect_timeout_seconds: float = 6.0,
        call_timeout_seconds: float = 8.0,
        settings: ZooKeeperSettings = DEFAULTS,
        make_handler: MakeHandler = ThreadHandler,
    ) -> None:
        self._settings = settings
        self._make_handler = make_handler
        creator_only = settings.zookeeper_acl == "creator"
        self._acl = CREATOR_ONLY if creator_only else OPEN_TO_ALL
        self._node_acl = CREATOR_ALL_ACL if creator_only else OPEN_ACL_UNSAFE
        self._servers = ",".join(servers)
        self.session_timeout_seconds = session_timeout_seconds
        self._connect_timeout = connect_timeout_seconds
        self._call_timeout = call_timeout_seconds
        self.on_reconnected: Callable[[bool], None] = lambda new_session: None
        """Called at each reconnect. True: the session is new, and the old one's ephemeral nodes are gone."""
        self.kazoo: KazooThread | None = None
        self._started_at = 0.0
        self._connected = asyncio.Event()
        self._generation = 0
        self._session_lost = False
        self._closed = False
        self.connection_epoch = 0
        """Number of lost connections."""
        self.client_restarts = 0
        """Number of clients created because kazoo's thread had ended."""

    @property
    def connected(self) -> bool:
        return self._connected.is_set()

    @property
    def servers(self) -> str:
        return self._servers

    @property
    def session_id(self) -> int:
        """The owner that ZooKeeper records in ephemeral nodes."""
        session = self.kazoo.session if self.kazoo is not None else None
        return session.number if session is not None else 0

    @property
    def last_zxid(self) -> int:
        """The newest transaction seen in a response; 0 when a session begins."""
        return self.kazoo.last_zxid if self.kazoo is not None else 0

    async def start(self) -> None:
        """Connects. Raises MetaStoreException if no server responds within the connect timeout."""
        check_files(self._settings)
        self._start_client()
        try:
            async with asyncio.timeout(self._connect_timeout):
                await self._connected.wait()
        except TimeoutError:
            await self.close()
            raise MetaStoreException(
                f"no ZooKeeper server of {self._servers} answered within {self._connect_timeout:g} s; "
                f"is it running, and is the address right{self._tls_question()}?"
            ) from None

    def _tls_question(self) -> str:
        question = ", does it serve TLS there, and does each side accept the other's certificate"
        return question if self._settings.zookeeper_tls else ""

    async def close(self) -> None:
        """Ends the session and with it its ephemeral nodes. A second call does nothing."""
        if self._closed or self.kazoo is None:
            return
        self._closed = True
        self._connected.clear()
        self.kazoo.give_up()
        await asyncio.get_running_loop().run_in_executor(None, self.kazoo.stop)

    # --- calls --------------------------------------------------------------------------------------------------

    async def get(self, path: str, watch: NodeWatch | None = None) -> tuple[bytes, ZnodeStat]:
        """Content and stat. Raises NoNodeError; then no watch is set."""
        found: tuple[bytes, ZnodeStat] = await self._read(lambda kazoo: GetData(path, kazoo.watcher(watch)))
        return found

    async def exists(self, path: str, watch: NodeWatch | None = None) -> ZnodeStat | None:
        """The stat; None if the node does not exist, which is watched too."""
        stat: ZnodeStat | None = await self._read(lambda kazoo: Exists(path, kazoo.watcher(watch)))
        return stat

    async def children(self, path: str, watch: NodeWatch | None = None) -> list[str]:
        """Names, in no order. Raises NoNodeError; then no watch is set."""
        names: list[str] = await self._read(lambda kazoo: GetChildren(path, kazoo.watcher(watch)))
        return names

    async def sync(self, path: str) -> None:
        """On return, later reads are at least as new as the call, and every earlier event has been delivered."""
        await self._read(lambda _: Sync(path))

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, open_to_all: bool = False) -> int:
        """Creates a node; returns its czxid. `open_to_all` overrides the ACL of the settings. Raises NodeExistsError,
        NoNodeError (no parent).
        """
        acl = OPEN_ACL_UNSAFE if open_to_all else self._node_acl
        flags = _EPHEMERAL if ephemeral else 0
        return (await self._change_call(lambda _: Create(path, data, acl, flags))).zxid

    async def set(self, path: str, data: bytes, version: int) -> ZnodeStat:
        """Replaces a node's content at a version. Raises NoNodeError, BadVersionError."""
        stat: ZnodeStat = await self._change(SetData(path, data, version))
        return stat

    async def delete(self, path: str, version: int = -1) -> None:
        """Deletes a node at a version; -1: at any. Raises NoNodeError, BadVersionError, NotEmptyError."""
        await self._change(Delete(path, version))

    async def create_together(self, nodes: Sequence[tuple[str, bytes]]) -> int:
        """Creates all nodes, persistent, or none; returns the czxid that they share. Raises the error of the one that
        failed.
        """
        # Not by creations that return stats: in a transaction, servers before 3.7.2 and 3.8.2 understand none.
        call = await self._change_call(lambda _: CreateNodes(nodes, self._acl))
        raise_errors(call.answer.result())
        return call.zxid

    async def take_over(self, path: str, data: bytes, version: int) -> None:
        """Makes another session's ephemeral node one of this session, in one transaction.

        The new node has another version, so a deletion of the old version fails. Raises NoNodeError, BadVersionError.
        """
        operations = [Delete(path, version), Create(path, data, self._node_acl, _EPHEMERAL)]
        if version == 0:
            operations.append(SetData(path, data, -1))
        raise_culprit(await self._change(Transaction(operations)))

    async def create_ephemeral_at(self, path: str, data: bytes, version: int) -> None:
        """Creates an ephemeral node that begins at `version`, which distinguishes it from one created by `create`.

        Raises NodeExistsError, NoNodeError (no parent).
        """
        changes = [SetData(path, data, -1)] * version
        raise_culprit(await self._change(Transaction([Create(path, data, self._node_acl, _EPHEMERAL), *changes])))

    async def create_sequential(self, prefix: str, data: bytes) -> str:
        """Creates an ephemeral node named `prefix` and a number; returns its path. Raises NoNodeError (no parent)."""
        path: str = await self._change(Create(prefix, data, self._node_acl, _EPHEMERAL_SEQUENTIAL))
        return path

    async def set_guarded(
        self, path: str, data: bytes, version: int, guard: tuple[str, int], session_id: int
    ) -> ZnodeStat:
        """`set`, in one transaction with the check that the node `guard` exists at its version.

        It is sent in the session `session_id` only. Raises GuardGoneError if the guard or that session is gone,
        otherwise like `set`.
        """
        operations: Request = Transaction([CheckVersion(*guard), SetData(path, data, version)])

        def in_session(kazoo: KazooThread) -> Request:
            if self.session_id != session_id:
                raise GuardGoneError
            return operations

        checked, changed = await self._change_made(in_session)
        if isinstance(checked, (NoNodeError, BadVersionError)):
            raise GuardGoneError
        raise_culprit([checked, changed])
        stat: ZnodeStat = changed
        return stat

    async def delete_together(self, paths: Sequence[str]) -> None:
        """Deletes all nodes or none. Raises the error of the one that failed."""
        raise_errors(await self._change(DeleteNodes(paths)))

    async def reserve_numbers(self, prefix: str, count: int, *, open_to_all: bool = False) -> str:
        """Takes `count` consecutive numbers from a parent's counter of children.

        Returns the path of an ephemeral node, whose name is `prefix` and the first number; the caller deletes it.
        Raises NoNodeError (no parent).
        """
        paths = await self._change(ReserveNumbers(prefix, count, OPEN_TO_ALL if open_to_all else self._acl))
        raise_errors(paths)
        path: str = paths[0]
        return path

    async def get_many(self, paths: Sequence[str]) -> list[NodeContent | Exception]:
        """Content and stat of each node, or kazoo's error for it; all in one request, so the number must be limited."""
        results: list[NodeContent | Exception] = await self._read(lambda _: ReadNodes(paths))
        return results

    async def numbered_children(self, path: str, mark: str, width: int) -> tuple[Sequence[int], ZnodeStat]:
        """The numbers of the children named `mark` and `width` digits, ascending, and the node's stat.

        Raises NoNodeError.
        """
        found: tuple[Sequence[int], ZnodeStat] = await self._read(lambda _: ListNumbered(path, mark, width))
        return found

    async def watch_tree(self, path: str, listener: TreeListener) -> None:
        """Reports every creation, change and deletion of a node at `path` or below to the session's one listener.

        Effective on return, and until the connection is lost. Raises IllegalOpException if the server has no such
        watches; a server before 3.5 also closes the connection then.
        """

        def request(kazoo: KazooThread) -> Request:
            kazoo.tree = listener
            return AddTreeWatch(path)

        try:
            await self._read(request)
        except ZKException as error:
            if isinstance(error.__cause__, UnimplementedError):
                raise IllegalOpException("ZooKeeper has no watches of whole trees before version 3.6") from error
            raise

    def unwatch_tree(self, path: str) -> None:
        """Removes the tree watch, and every watch of the node `path` itself, without waiting."""
        if self.kazoo is None:
            return
        self.kazoo.tree = None
        if self.connected:
            self.kazoo.send(RemoveWatches(path), self._generation)

    def delete_soon(self, path: str) -> None:
        """Deletes an ephemeral node without waiting; if that fails, the node is deleted with the session."""
        if self.kazoo is not None and self.connected:
            self.kazoo.send(Delete(path, -1), self._generation)

    def remove_data_watch(self, path: str) -> None:
        """Removes every data watch of a node requested before, here and on the server, without waiting."""
        if self.kazoo is not None and self.connected:
            self.kazoo.remove_data_watch(path, self._generation)

    async def _read(self, make: Callable[[KazooThread], Request]) -> Any:
        try:
            return await self._call(make)
        except (*CONNECTION_ERRORS, TimeoutError) as error:
            raise MetaStoreException(f"ZooKeeper ({self._servers}) did not answer: {describe(error)}") from error

    async def _change(self, request: Request) -> Any:
        return await self._change_made(lambda _: request)

    async def _change_made(self, make: Callable[[KazooThread], Request]) -> Any:
        return (await self._change_call(make)).answer.result()

    async def _change_call(self, make: Callable[[KazooThread], Request]) -> Call:
        try:
            return await self._answered(make)
        except (*CONNECTION_ERRORS, TimeoutError) as error:
            raise UnknownOutcomeException(
                f"ZooKeeper ({self._servers}) did not answer a change, which may have happened: {describe(error)}"
            ) from error

    async def _call(self, make: Callable[[KazooThread], Request]) -> Any:
        return (await self._answered(make)).answer.result()

    async def _answered(self, make: Callable[[KazooThread], Request]) -> Call:
        """Sends once connected, and waits for the response.

        Raises StoreUnreachableException if certainly nothing was sent within the deadline, IncorrectParameterException
        if the request is larger than ZooKeeper takes.
        """
        if self._closed or self.kazoo is None:
            raise StoreUnreachableException(f"the ZooKeeper session with {self._servers} is closed")
        deadline = asyncio.get_running_loop().time() + self._call_timeout
        if not self._connected.is_set():
            try:
                async with asyncio.timeout(self._call_timeout):
                    await self._connected.wait()
            except TimeoutError:
                raise StoreUnreachableException(f"ZooKeeper ({self._servers}) is out of reach") from None
        try:
            call = self.kazoo.call(make(self.kazoo), self._generation)
        except RequestTooLargeError as error:
            raise IncorrectParameterException(
                f"the request to the metadata store has {error} (jute.maxbuffer); nothing was sent"
            ) from None
        try:
            async with asyncio.timeout_at(deadline):
                await call.answer
            return call
        except (*CONNECTION_ERRORS, *NODE_ERRORS):
            raise
        except ZookeeperError as error:
            raise ZKException(f"ZooKeeper ({self._servers}) refused: {describe(error)}") from error
        except (TimeoutError, NotSentError) as error:
            if call.sent and isinstance(error, TimeoutError):
                raise
            raise StoreUnreachableException(f"ZooKeeper ({self._servers}) was not asked: out of reach") from None

    # --- the client and its states ------------------------------------------------------------------------------

    def _start_client(self) -> None:
        before = self.kazoo
        self._started_at = asyncio.get_running_loop().time()
        kazoo = KazooThread(
            self._servers,
            self.session_timeout_seconds,
            self._make_handler,
            security_arguments(self._settings),
            before.session if before is not None else None,
            max_request_bytes=self._settings.zookeeper_max_request_bytes,
        )
        kazoo.on_state = partial(self._state_changed, kazoo)
        kazoo.on_ended = partial(self._client_ended, kazoo)
        self.kazoo = kazoo
        kazoo.start()

    def _client_ended(self, kazoo: KazooThread, why: str) -> None:
        """kazoo's thread has ended, so this client would never respond again: schedules a new one."""
        if self._closed or kazoo is not self.kazoo:
            return
        self._disconnected("ended", new_session=True)
        log_event(_LOG, "zookeeper_client_ended", logging.ERROR, why=why, note="a new one is made")
        loop = asyncio.get_running_loop()
        loop.run_in_executor(None, kazoo.stop)
        loop.call_at(max(loop.time(), self._started_at + _RETRY_SECONDS), self._start_anew)

    def _start_anew(self) -> None:
        if self._closed:
            return
        self.client_restarts += 1
        try:
            self._start_client()
        except Exception as error:
            # No thread or descriptor was available; there may be some later.
            log_event(_LOG, "zookeeper_client_not_started", logging.ERROR, error=error, note="it is tried again")
            asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._start_anew)

    def _state_changed(self, kazoo: KazooThread, state: str, generation: int) -> None:
        if self._closed or kazoo is not self.kazoo:
            return
        if state != KazooState.CONNECTED:
            self._disconnected(state.lower(), new_session=state == KazooState.LOST)
            return
        self._generation = generation
        if self._session_lost:
            self._catch_up(kazoo, generation)
        else:
            self._now_connected(new_session=False)

    def _disconnected(self, how: str, *, new_session: bool) -> None:
        self._generation = -1
        if self._connected.is_set():
            self._log_state(how, logging.WARNING)
            self.connection_epoch += 1
        self._connected.clear()
        self._session_lost = self._session_lost or new_session

    def _catch_up(self, kazoo: KazooThread, generation: int) -> None:
        """Waits until the new session's server has caught up with what the former session has shown."""
        if self._closed or kazoo is not self.kazoo or generation != self._generation:
            return

        def caught_up(answer: asyncio.Future[Any]) -> None:
            failed = answer.cancelled() or answer.exception() is not None
            if self._closed or kazoo is not self.kazoo or generation != self._generation:
                return
            if failed:
                loop.call_later(_RETRY_SECONDS, self._catch_up, kazoo, generation)
                return
            self._session_lost = False
            self._now_connected(new_session=True)

        loop = asyncio.get_running_loop()
        kazoo.call(Sync("/"), generation).answer.add_done_callback(caught_up)

    def _now_connected(self, *, new_session: bool) -> None:
        self._connected.set()
        self._log_state("connected", logging.INFO, new=new_session)
        self.on_reconnected(new_session)

    def _log_state(self, state: str, level: int, **fields: object) -> None:
        log_event(_LOG, "zookeeper_session", level, state=state, session=f"{self.session_id:x}", **fields)
