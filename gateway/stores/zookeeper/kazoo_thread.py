"""kazoo's client and the thread on which it runs: the only place where the event loop and that thread meet.

kazoo is made for callers that may block, on any thread: a call wakes kazoo's thread through a socket pair of small
capacity, with a byte that is read only while the connection works; and its tables of watchers change on whichever
thread changes them. Therefore nothing of kazoo runs on the event loop here. The loop appends a request to a queue and
wakes the thread, with one byte for any number of waiting requests, on a non-blocking socket. The thread takes them,
sends many in one write, and alone touches kazoo's state: pending requests, watchers, session.

There is one queue in the other direction as well: states, responses and watch events reach the loop in the order in
which they happened, so a response never overtakes an event that ZooKeeper sent before it.

A *generation* is the life of one connection. A request names the generation that the loop knows, and the thread sends
it only within that generation. So no request reaches a new session before the loop has handled the change (see
`session`).

Any error of kazoo or of ours may end the thread. That is reported once; then a new object is needed.

This relies on parts of kazoo that are not its interface, which is why its version is pinned: `ConnectionHandler` calls
`zk_loop` on the thread, `_send_request` when the socket pair is readable and `_read_watch_event` with each event, and
completes the requests in `client._pending` in that order. kazoo has no watch on a tree of nodes: such events look like
any others, are recognised here by their path, and then passed on to kazoo, since a node's own watch shares the event.

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

# kazoo warns at each connection attempt; the session logs what matters, once per change of state.
_KAZOO_LOG = logging.getLogger("bookgate.gateway.stores.zookeeper.kazoo")
_KAZOO_LOG.setLevel(logging.CRITICAL)

_INT = struct.Struct(">i")
_HEADER = struct.Struct(">iii")
_LAST_XID = 0x7FFFFFFF
_BYTES_A_WRITE = 256 * 1024
_WAKE_UPS = 64
_NEWS_A_TURN = 64
"""Items passed to the loop in one of its turns, so that it is not blocked."""

NodeWatch = Callable[[WatchedEvent], None]
"""Called on the event loop with a watch's event. Equal ones on one path count as one."""


@dataclass(frozen=True, slots=True)
class TreeListener:
    """The listener of a watched tree of nodes. `select` is called on kazoo's thread, `tell` on the event loop."""

    select: Callable[[str], int | None]
    """The number that a path stands for; None if it is of no interest."""
    tell: Callable[[int], None]


MakeHandler = Callable[[], Any]
"""Creates kazoo's handler: its threads, sockets and sleeps. A simulator passes its own."""


class NotSentError(Exception):
    """The connection was lost before the request was sent: it was certainly not carried out."""


class RequestTooLargeError(Exception):
    """The request was not sent: ZooKeeper would close the connection, and with it fail every other call in flight."""


class Request(Protocol):
    """A request of kazoo or of `requests`; `deserialize` reads the body of the response, if it has one."""

    @property
    def type(self) -> int: ...

    def serialize(self) -> bytes: ...


class ThreadHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's handler with a single thread: without the two threads for callbacks, which here only pass things on."""

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

    __slots__ = ("answer", "body", "generation", "request", "sent", "thread", "zxid")

    def __init__(self, thread: KazooThread, request: Request, generation: int) -> None:
        self.thread = thread
        self.request = request
        self.body = request.serialize()
        self.generation = generation
        self.answer: asyncio.Future[Any] = thread.loop.create_future()
        self.sent = False
        """The request may have been sent. If the response is cancelled before that, it is never sent."""
        self.zxid = 0
        """The last transaction that the server had applied when it responded: that of a change, which is the czxid of
        the nodes that it created.
        """

    @property
    def wanted(self) -> bool:
        return not self.answer.done()

    def set(self, value: Any = None) -> None:
        # kazoo has just taken it from the header of this response.
        self.zxid = self.thread.client.last_zxid
        self.thread.answered(self, value, None)

    def set_exception(self, error: Exception) -> None:
        if isinstance(error, KazooException):
            # kazoo uses one error object for all calls of a lost connection; raised in each, it would collect all their
            # frames.
            error = type(error)(*error.args)
        elif not isinstance(error, NotSentError):
            # The response can't be read, or belongs to another request.
            error = ConnectionLoss(f"{type(error).__name__} {error}")
        self.thread.answered(self, None, error)


class _Order(Call):
    """A request without a caller that waits for the response."""

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
        """Whether a watch exists, or will be set by a request in flight."""
        client, path = self.thread.client, self.request.path
        return path in client._data_watchers or any(
            getattr(request, "watcher", None) is not None and request.path == path for request, _, _ in client._pending
        )

    def set(self, value: Any = None) -> None:
        self.thread.client._data_watchers.pop(self.request.path, None)


class _Watcher(NamedTuple):
    """Called by kazoo when a watch fires, or is lost with the connection."""

    thread: KazooThread
    handler: NodeWatch

    def __call__(self, event: WatchedEvent) -> None:
        if event.type != EventType.NONE:
            self.thread.tell(self.handler, event)


class _Connection(ConnectionHandler):  # type: ignore[misc]
    """kazoo's connection, which takes its requests from `KazooThread` and reports the end of its thread."""

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
    """See the module. Create, start and call it on the event loop; call `stop` on another thread, since it blocks."""

    def __init__(
        self,
        servers: str,
        session_timeout_seconds: float,
        make_handler: MakeHandler,
        arguments: dict[str, Any],
        session: SessionSeen | None = None,
        *,
        max_request_bytes: int,
    ) -> None:
        """`arguments` are passed to `KazooClient`; `session` is one to continue, if it is still alive.

        `max_request_bytes` bounds a request with its header.
        """
        self.loop = asyncio.get_running_loop()
        self._max_request_bytes = max_request_bytes
        self._requests: deque[Call] = deque()
        self._woken = False
        self._news: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._delivering = False
        self._generation = 0
        self.on_state: Callable[[str, int], None] = lambda state, generation: None
        """On the loop: kazoo's state, and the generation that begins if the state is CONNECTED."""
        self.on_ended: Callable[[str], None] = lambda why: None
        """On the loop: the thread has ended."""
        self.session = session
        """The session of the connection that was last reported to the loop."""
        self.last_zxid = 0
        """The newest transaction in a response that reached the loop; 0 when a session begins."""
        self.tree: TreeListener | None = None
        """The listener of the watched tree."""
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
            # A server that has seen less than this client rejects the session.
            self.client.last_zxid = session.last_zxid
        self._connection = self.client._connection = _Connection(self, self.client, self.client._conn_retry.copy())
        self.client.add_listener(self._on_kazoo_state)

    # --- on the event loop --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins to connect. Raises RuntimeError if no thread can be started."""
        self.client.start_async()
        self._wake_sock = self._connection._write_sock
        self._wake_sock.setblocking(False)

    def call(self, request: Request, generation: int) -> Call:
        """Sends a request; its response may be kazoo's error, or NotSentError. Raises RequestTooLargeError."""
        call = Call(self, request, generation)
        self._put(call)
        return call

    def send(self, request: Request, generation: int) -> None:
        """Sends a request without waiting for its outcome. Raises RequestTooLargeError."""
        self._put(_Order(self, request, generation))

    def remove_data_watch(self, path: str, generation: int) -> None:
        """Removes all data watches of a path that were requested before."""
        self._put(_WatchRemoval(self, RemoveDataWatch(path), generation))

    def watcher(self, handler: NodeWatch | None) -> _Watcher | None:
        """The watcher that a request passes to kazoo."""
        return None if handler is None else _Watcher(self, handler)

    def give_up(self) -> None:
        """Fails the requests that were not sent yet, because their connection is gone."""
        while self._requests:
            # The thread may take one at this moment.
            with contextlib.suppress(IndexError):
                self.answered(self._requests.popleft(), None, NotSentError())

    def _put(self, call: Call) -> None:
        size = _frame_bytes(call.body)
        if size > self._max_request_bytes:
            raise RequestTooLargeError(f"{size} bytes, more than the {self._max_request_bytes} that ZooKeeper takes")
        self._requests.append(call)
        self._wake()

    def _wake(self) -> None:
        """Wakes the thread; callable from any thread. A byte that is already waiting suffices."""
        if not self._woken:
            self._woken = True
            with contextlib.suppress(OSError):
                self._wake_sock.send(b"\0")

    def _deliver(self) -> None:
        # First, so that callers that add something from now on wake it again.
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

    def _on_state(self, state: str, generation: int, session: SessionSeen | None) -> None:
        if state == KazooState.LOST:
            self.last_zxid = 0
        if session is not None:
            self.session = session
        if state != KazooState.CONNECTED:
            self.give_up()
        self.on_state(state, generation)

    # --- on kazoo's thread, unless stated otherwise ---------------------------------------------------------------

    def tell(self, function: Callable[..., None], *arguments: Any) -> None:
        """Calls a function on the loop, after everything passed on before. From any thread."""
        self._news.append((function, arguments))
        if self._delivering:
            return
        self._delivering = True
        # The loop may have been closed first; then nobody waits any more.
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._deliver)

    def answered(self, call: Call, value: Any, error: Exception | None) -> None:
        """A response has arrived, or never will. From any thread."""
        # The calls of a lost session fail after its end, when its zxid no longer counts.
        zxid = self.client.last_zxid if call.generation == self._generation else 0
        self.tell(self._settle, call, value, error, zxid)

    def take_requests(self, next_xid: Callable[[], int]) -> bytearray:
        """Returns the bytes to send now; the responses are expected in this order."""
        # First, so that callers that add a request from now on wake the thread again.
        self._woken = False
        message = bytearray()
        while self._requests and len(message) < _BYTES_A_WRITE:
            try:
                call = self._requests.popleft()
            except IndexError:
                break
            # In this order: a caller that gives up and sees the request unsent can rely on that.
            call.sent = True
            if call.generation != self._generation:
                call.set_exception(NotSentError())
            elif call.wanted:
                self._add(message, call.request, call.body, call, next_xid())
        if self._requests:
            self._wake()
            return message
        # kazoo's own request, which closes the session.
        for request, result in _drained(self.client._queue):
            self._add(message, request, request.serialize(), result, next_xid())
        return message

    def _add(self, message: bytearray, request: Any, body: bytes, result: Any, xid: int) -> None:
        message += _HEADER.pack(_frame_bytes(body), xid, request.type)
        message += body
        self.client._pending.append((request, result, xid))

    def tree_event(self, buffer: Any, offset: int) -> None:
        """A node was created, changed or deleted that is watched here, by itself or with its tree."""
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
        self.tell(self._on_state, state, self._generation, session)

    # --- on any other thread ------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Ends the session and the thread; blocks until both have ended."""
        try:
            self.client.stop()
            self.client.close()
        except Exception as error:
            log_event(_LOG, "zookeeper_client_stopped_badly", logging.WARNING, error=error)


def _frame_bytes(body: bytes) -> int:
    """The length of a request as ZooKeeper compares it with its limit: with number and type, without itself."""
    return len(body) + 2 * _INT.size


def _drained(queue: deque[Any]) -> Sequence[Any]:
    drained = []
    while queue:
        drained.append(queue.popleft())
    return drained
