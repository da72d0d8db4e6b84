"""kazoo's client and the thread on which it runs: the only place where the event loop and that thread meet.

kazoo is made for callers that may block, on any thread: a call wakes kazoo's thread through a socket pair of small
capacity, with a byte that is read only while the connection works; and its tables of watchers change on whichever
thread changes them. Nothing of kazoo therefore runs on the event loop here. The loop appends a request to a queue and
wakes the thread, with one byte for any number of waiting requests, on a non-blocking socket. The thread takes them,
sends many in one write, and alone touches kazoo's state: pending requests, watchers, session.

There is one queue in the other direction as well: states, responses and watch events reach the loop in the order in
which they happened, so a response never overtakes an event that ZooKeeper sent before it.

A *generation* is the life of one connection. A request names the one that the loop knows; the thread sends it only
within that generation. So no request slips into a new session before the loop has dealt with it (see `session`).

The thread may end because of any error of kazoo or of ours. That is reported once; after it a new object is needed.

This relies on parts of kazoo that are not its interface, which is why its version is pinned: `ConnectionHandler` calls
`zk_loop` on the thread, `_send_request` when the socket pair is readable and `_read_watch_event` with each event, and
completes what is in `client._pending` in that order. kazoo has no watch on a tree of nodes: such events look like any
others, are recognised here by their path, and then passed on to kazoo, since a node's own watch shares the event.

Not its job: when to reconnect, deadlines, the meaning of errors (`session`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import ConnectionLoss, KazooException
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import Watch
from kazoo.protocol.states import EventType, WatchedEvent
from kazoo.retry import KazooRetry

from bookgate.gateway.stores.zookeeper.requests import RemoveDataWatch
from bookgate.runtime.logs import log_bug, log_event

_LOG = logging.getLogger(__name__)

# It warns at each attempt to connect; what matters of that is logged by the session, once a change of state.
_KAZOO_LOG = logging.getLogger("bookgate.gateway.stores.zookeeper.kazoo")
_KAZOO_LOG.setLevel(logging.CRITICAL)

_INT = struct.Struct(">i")
_HEADER = struct.Struct(">iii")
_LAST_XID = 0x7FFFFFFF
_BYTES_A_WRITE = 256 * 1024
_WAKE_UPS = 64
_NEWS_A_TURN = 64
"""What is handed to the loop in one of its turns: it has other work."""

NodeWatch = Callable[[WatchedEvent], None]
"""What a watch tells, on the event loop. Equal ones on one path count as one."""


@dataclass(frozen=True, slots=True)
class TreeListener:
    """Who hears of a tree of nodes that is watched. `select` is called on kazoo's thread, `tell` on the event loop."""

    select: Callable[[str], int | None]
    """What a path stands for; None for one of no interest."""
    tell: Callable[[int], None]


MakeHandler = Callable[[], Any]
"""What kazoo runs on: its threads, sockets and sleeps. A simulator passes its own."""


class NotSentError(Exception):
    """The connection was lost before the request was sent: certainly nothing was done."""


class Request(Protocol):
    """As kazoo has them, and `requests`; `deserialize` of the answer's body is for those that have an answer."""

    @property
    def type(self) -> int: ...

    def serialize(self) -> bytes: ...


class ThreadHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's handler with one thread, without the two that would run callbacks: the callbacks here only pass things
    on.
    """

    def start(self) -> None:
        self._running = True

    def stop(self) -> None:
        self._running = False

    def dispatch_callback(self, callback: Any) -> None:
        callback.func(*callback.args)


@dataclass(frozen=True, slots=True)
class SessionSeen:
    """A ZooKeeper session as kazoo's client knows it: enough to continue it in another client."""

    number: int
    password: bytes
    last_zxid: int = 0


class Call:
    """A request and the future for its response, if any. kazoo calls one of the setters, on its thread."""

    __slots__ = ("answer", "body", "generation", "request", "sent", "thread")

    def __init__(self, thread: KazooThread, request: Request, generation: int) -> None:
        self.thread = thread
        self.request = request
        self.body = request.serialize()
        self.generation = generation
        self.answer: asyncio.Future[Any] = thread.loop.create_future()
        self.sent = False
        """It may have been sent. Where the answer is cancelled before, it never is."""

    @property
    def wanted(self) -> bool:
        return not self.answer.done()

    def set(self, value: Any = None) -> None:
        self.thread.answered(self, value, None)

    def set_exception(self, error: Exception) -> None:
        if isinstance(error, KazooException):
            # kazoo has one error for all calls of a lost connection; raised in each, it would gather all their frames.
            error = type(error)(*error.args)
        elif not isinstance(error, NotSentError):
            # An answer that can't be read, or one to another request.
            error = ConnectionLoss(f"{type(error).__name__} {error}")
        self.thread.answered(self, None, error)


class _Order(Call):
    """A request whose answer nobody waits for."""

    __slots__ = ()

    def __init__(self, thread: KazooThread, request: Request, generation: int) -> None:
        super().__init__(thread, request, generation)
        self.answer.cancel()

    @property
    def wanted(self) -> bool:
        return True

    def set_exception(self, error: Exception) -> None:
        return

    def set(self, value: Any = None) -> None:
        return


class _WatchRemoval(_Order):
    """Takes all data watchers off a path, on the server and then here."""

    __slots__ = ()
    request: RemoveDataWatch

    @property
    def wanted(self) -> bool:
        """Whether something is watched, or will be by a request that is under way."""
        client, path = self.thread.client, self.request.path
        return path in client._data_watchers or any(
            getattr(request, "watcher", None) is not None and request.path == path for request, _, _ in client._pending
        )

    def set(self, value: Any = None) -> None:
        self.thread.client._data_watchers.pop(self.request.path, None)


class _Watcher(NamedTuple):
    """What kazoo calls when a watch fires, or is gone with the connection."""

    thread: KazooThread
    handler: NodeWatch

    def __call__(self, event: WatchedEvent) -> None:
        if event.type != EventType.NONE:
            self.thread.tell(self.handler, event)


class _Connection(ConnectionHandler):  # type: ignore[misc]
    """kazoo's connection, which takes its requests from `KazooThread` and says when its thread ends."""

    def __init__(self, owner: KazooThread, client: Any, retry: KazooRetry) -> None:
        super().__init__(client, retry, logger=_KAZOO_LOG)
        self._owner = owner

    def zk_loop(self) -> None:
        error: Exception | None = None
        try:
            super().zk_loop()
        except Exception as failure:
            error = failure
        finally:
            self._owner.tell(self._owner.ended, error)

    def _send_request(self, read_timeout: float, connect_timeout: float) -> None:
        with contextlib.suppress(OSError):
            self._read_sock.recv(_WAKE_UPS)
        message = self._owner.take_requests(self._next_xid)
        if message:
            self._write(message, connect_timeout)

    def _read_watch_event(self, buffer: Any, offset: int) -> None:
        self._owner.tree_event(buffer, offset)
        super()._read_watch_event(buffer, offset)

    def _next_xid(self) -> int:
        self._xid: int = self._xid % _LAST_XID + 1
        return self._xid


class KazooThread:
    """See the module. Made, started and called on the event loop; `stop` on another thread, since it blocks."""

    def __init__(
        self,
        servers: str,
        session_timeout_seconds: float,
        make_handler: MakeHandler,
        arguments: dict[str, Any],
        session: SessionSeen | None = None,
    ) -> None:
        """`arguments` are more of `KazooClient`'s; `session` is one to go on with, if it still lives."""
        self.loop = asyncio.get_running_loop()
        self._requests: deque[Call] = deque()
        self._woken = False
        self._news: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._delivering = False
        self._generation = 0
        self.on_state: Callable[[str, int], None] = lambda state, generation: None
        """On the loop: kazoo's state, and the generation that begins where it is CONNECTED."""
        self.on_ended: Callable[[str], None] = lambda why: None
        """On the loop: the thread has ended."""
        self.session = session
        """That of the connection of which the loop has heard last."""
        self.last_zxid = 0
        """The newest transaction of which the loop has been told by an answer; 0 when a session begins."""
        self.tree: TreeListener | None = None
        """Told of nodes whose tree is watched."""
        self._ended_in = "CLOSED"
        handler = make_handler()
        retry = KazooRetry(max_tries=-1, delay=0.1, backoff=2, max_delay=1.0, sleep_func=handler.sleep_func)
        self.client: Any = KazooClient(
            hosts=servers,
            handler=handler,
            timeout=session_timeout_seconds,
            client_id=(session.number, session.password) if session else None,
            connection_retry=retry,
            randomize_hosts=True,
            logger=_KAZOO_LOG,
            **arguments,
        )
        if session is not None:
            # A server that has seen less than this client refuses it.
            self.client.last_zxid = session.last_zxid
        self._connection = self.client._connection = _Connection(self, self.client, self.client._conn_retry.copy())
        self.client.add_listener(self._on_kazoo_state)

    # --- on the event loop --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins to connect. Raises RuntimeError where no thread can be had."""
        self.client.start_async()
        self._wake_sock = self._connection._write_sock
        self._wake_sock.setblocking(False)

    def call(self, request: Request, generation: int) -> Call:
        """Sends a request; its response may be kazoo's error, or NotSentError."""
        call = Call(self, request, generation)
        self._put(call)
        return call

    def send(self, request: Request, generation: int) -> None:
        """Sends a request whose outcome nobody waits for."""
        self._put(_Order(self, request, generation))

    def remove_data_watch(self, path: str, generation: int) -> None:
        """Takes all data watches off a path that were asked for before."""
        self._put(_WatchRemoval(self, RemoveDataWatch(path), generation))

    def watcher(self, handler: NodeWatch | None) -> _Watcher | None:
        """What a request gives kazoo for its watch."""
        return None if handler is None else _Watcher(self, handler)

    def give_up(self) -> None:
        """Fails what was not sent yet, because its connection is gone."""
        while self._requests:
            # The thread may take one in this moment.
            with contextlib.suppress(IndexError):
                self.answered(self._requests.popleft(), None, NotSentError())

    def _put(self, call: Call) -> None:
        self._requests.append(call)
        self._wake()

    def _wake(self) -> None:
        """From any thread. A byte that is there already does as well."""
        if not self._woken:
            self._woken = True
            with contextlib.suppress(OSError):
                self._wake_sock.send(b"\0")

    def _deliver(self) -> None:
        # First: whoever adds something from now on calls again.
        self._delivering = False
        for _ in range(_NEWS_A_TURN):
            if not self._news:
                return
            function, arguments = self._news.popleft()
            try:
                function(*arguments)
            except Exception as error:
                log_bug(_LOG, "zookeeper_news_failed", error)
        if self._news and not self._delivering:
            self._delivering = True
            self.loop.call_soon(self._deliver)

    def _settle(self, call: Call, value: Any, error: Exception | None, zxid: int = 0) -> None:
        self.last_zxid = max(self.last_zxid, zxid)
        if call.answer.done():
            return
        if error is None:
            call.answer.set_result(value)
        else:
            call.answer.set_exception(error)

    def ended(self, error: Exception | None) -> None:
        """The thread has ended; the loop has received everything that it reported before."""
        self.give_up()
        self.on_ended(self._ended_in if error is None else f"{type(error).__name__} {error}".strip())

    def _state_told(self, state: str, generation: int, session: SessionSeen | None) -> None:
        if state == KazooState.LOST:
            self.last_zxid = 0
        if session is not None:
            self.session = session
        if state != KazooState.CONNECTED:
            self.give_up()
        self.on_state(state, generation)

    # --- on kazoo's thread, but for what says more --------------------------------------------------------------

    def tell(self, function: Callable[..., None], *arguments: Any) -> None:
        """Calls a function on the loop, after everything that was passed on before. From any thread."""
        self._news.append((function, arguments))
        if self._delivering:
            return
        self._delivering = True
        # The loop may have been closed first: nobody waits any more.
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._deliver)

    def answered(self, call: Call, value: Any, error: Exception | None) -> None:
        """There is a response, or there will be none. From any thread."""
        # When a session is lost its calls fail afterwards: what it had seen counts no more.
        zxid = self.client.last_zxid if call.generation == self._generation else 0
        self.tell(self._settle, call, value, error, zxid)

    def take_requests(self, next_xid: Callable[[], int]) -> bytearray:
        """What is to be sent now, as bytes; from here on the responses are expected in this order."""
        # First: whoever adds a request from now on wakes again.
        self._woken = False
        message = bytearray()
        while self._requests and len(message) < _BYTES_A_WRITE:
            try:
                call = self._requests.popleft()
            except IndexError:
                break
            # In this order: who gives up and finds it not sent can rely on it.
            call.sent = True
            if call.generation != self._generation:
                call.set_exception(NotSentError())
            elif call.wanted:
                self._add(message, call.request, call.body, call, next_xid())
        if self._requests:
            self._wake()
            return message
        # kazoo's own: the one that closes the session.
        for request, result in _drained(self.client._queue):
            self._add(message, request, request.serialize(), result, next_xid())
        return message

    def _add(self, message: bytearray, request: Any, body: bytes, result: Any, xid: int) -> None:
        message += _HEADER.pack(len(body) + 2 * _INT.size, xid, request.type)
        message += body
        self.client._pending.append((request, result, xid))

    def tree_event(self, buffer: Any, offset: int) -> None:
        """A node was created, changed or deleted that somebody here watches, by itself or with its tree."""
        tree = self.tree
        if tree is None:
            return
        selected = tree.select(Watch.deserialize(buffer, offset)[0].path)
        if selected is not None:
            self.tell(tree.tell, selected)

    def _on_kazoo_state(self, state: str) -> None:
        client, session = self.client, None
        if state == KazooState.CONNECTED:
            session = SessionSeen(*client.client_id)
        else:
            self._ended_in = client.client_state
            self._generation += 1
        self.tell(self._state_told, state, self._generation, session)

    # --- on any other thread ------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Ends the session and the thread; blocks until both have ended."""
        try:
            self.client.stop()
            self.client.close()
        except Exception as error:
            log_event(_LOG, "zookeeper_client_stopped_badly", logging.WARNING, error=error)


def _drained(queue: deque[Any]) -> Sequence[Any]:
    drained = []
    while queue:
        drained.append(queue.popleft())
    return drained
