"""The client's connection to one bookie: requests are pipelined, responses may arrive in any order.

States: *idle* (no connection; the next request opens one), *connecting* (requests wait for the transport, then for TLS
and authentication where configured), *open*, *pausing* (attempts have failed: requests fail at once until the next
attempt, see `reconnect_backoff`), *closed* (final). When a connection ends, all outstanding requests on it fail with an
error that names the bookie, and the state becomes idle. A request ends exactly once: with its response, at its
deadline, or with the connection. If requests pass their deadlines and the bookie sends nothing for `GIVEN_UP_AFTER`
seconds, the connection is dropped, since nothing else reveals that a machine is gone.

A response belongs to the request with the same transaction id and operation; others are dropped. Bytes that violate the
entry protocol end the connection. Frames sent in one turn of the event loop leave in one write. While the transport's
buffer is full frames wait here, each until its request's deadline, bounded by the handles' windows.

A request needs no future and no task: the caller passes a `sink`, which is called with the caller's token and either
the response or the error.

The error of a request that was never handed to a transport says so (`BKException.request_over`): nothing of it can
arrive later.

Not its job: choosing bookies and interpreting responses (`core`), finding the address (`pool`), the steps before a
connection is open (`handshake`), protocol v2 (`connection_v2`).
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Any, ClassVar, NamedTuple

from bookgate.ledger.addresses import address_of
from bookgate.ledger.errors import (
    BKException,
    BookieHandleNotAvailableException,
    ClientClosedException,
    SecurityException,
    TimeoutException,
    TooManyRequestsException,
)
from bookgate.ledger.wire import v3
from bookgate.ledger.wire.frames import FrameError
from bookgate.ledger.wire.messages import (
    ADD_ENTRY,
    AddResponse,
    AuthResponse,
    BatchReadResponse,
    ForceLedgerResponse,
    GetBookieInfoResponse,
    ListEntriesResponse,
    Operation,
    ReadLacResponse,
    ReadResponse,
    Request,
    Response,
    StartTlsResponse,
    Status,
    StatusResponse,
    WriteLacResponse,
)
from bookgate.ledger.wire.v3 import ProtocolError, decode_response
from bookgate.runtime.logs import log_bug, log_event
from bookgate.thinclient.bookies.reconnect_backoff import ReconnectPauses
from bookgate.thinclient.bookies.wire import Wire

_log = logging.getLogger(__name__)

GIVEN_UP_AFTER = 10.0
"""Seconds without a byte after which a connection whose requests time out is dropped."""

_WRITELINES_NEVER_PAUSES = (3, 12) <= sys.version_info < (3, 12, 9) or (3, 13) <= sys.version_info < (3, 13, 2)
"""Asyncio of these versions fills memory without bound where a bookie takes nothing in (CVE-2024-12254)."""

_SINK = itemgetter(2)

_CLOSE_TIMEOUT = 2.0
"""Seconds for aborted transports to report that they are closed, which takes a few turns of the loop."""

Sink = Callable[[Any, Response | None, BKException | None], None]
"""Called on the event loop, never from within `send`: (token, response, None) or (token, None, error)."""


class AddSink:
    """A sink of adds that is told at once of several that a bookie has stored: `on_stored` gets their tokens, and
    `on_answer` is called like any sink with all other answers.
    """

    __slots__ = ("_on_answer", "on_stored")

    def __init__(self, on_answer: Sink, on_stored: Callable[[Sequence[Any]], None]) -> None:
        self._on_answer = on_answer
        self.on_stored = on_stored

    def __call__(self, token: Any, response: Response | None, error: BKException | None) -> None:
        self._on_answer(token, response, error)


Send = Callable[[int, int, bytes, float, Sink, Any], None]
"""`BookieConnection.send`."""

Connector = Callable[[Callable[[], asyncio.BufferedProtocol], str, int], Awaitable[object]]
"""Opens a transport to host and port for a protocol; the real one is `tcp_connector`."""

_OPERATIONS: dict[type, int] = {
    AddResponse: Operation.ADD_ENTRY,
    ReadResponse: Operation.READ_ENTRY,
    BatchReadResponse: Operation.BATCH_READ_ENTRY,
    ReadLacResponse: Operation.READ_LAC,
    WriteLacResponse: Operation.WRITE_LAC,
    ForceLedgerResponse: Operation.FORCE_LEDGER,
    GetBookieInfoResponse: Operation.GET_BOOKIE_INFO,
    ListEntriesResponse: Operation.GET_LIST_OF_ENTRIES_OF_LEDGER,
    AuthResponse: Operation.AUTH,
    StartTlsResponse: Operation.START_TLS,
}

STORED = AddResponse(0, Status.EOK, 0, 0)
"""The response for a stored add: the sink's token identifies the add; the ids here are meaningless."""


@lru_cache(maxsize=256)
def _stored_at(term: int) -> AddResponse:
    return STORED._replace(term=term)


class Address(NamedTuple):
    """Host and port of a bookie."""

    host: str
    port: int

    def __str__(self) -> str:
        return address_of(self.host, self.port)


def _not_counted(_metric: str) -> None:
    """For connections without a client's metrics."""


class ConnectionSettings(NamedTuple):
    """Times in seconds and sizes in bytes.

    `backpressure_timeout` is how long a connection's buffer may stay full before waiting requests are rejected; with
    None they wait until their deadlines. `setup` runs between opening the transport and using the connection.
    `on_counted` is called with the name of a client metric.
    """

    connect_timeout: float
    max_frame_size: int
    send_buffer_size: int
    backpressure_timeout: float | None = None
    setup: Setup | None = None
    on_counted: Callable[[str], None] = _not_counted


async def tcp_connector(factory: Callable[[], asyncio.BufferedProtocol], host: str, port: int) -> object:
    """Opens a TCP connection; asyncio and uvloop disable Nagle's algorithm themselves."""
    return await asyncio.get_running_loop().create_connection(factory, host, port)


Setup = Callable[["BookieConnection", Wire, Address], Awaitable[asyncio.Transport]]
"""Prepares a new connection and returns the transport to use from then on. Raises BKException."""


class BookieConnection:
    """The pipelined connection to one bookie, opened on demand and reopened after a loss."""

    wire_class: ClassVar[type[Wire]] = Wire
    answers_have_txn_ids: ClassVar[bool] = True
    """Whether each response identifies its request."""

    def __init__(
        self,
        bookie_id: str,
        resolve: Callable[[str], Awaitable[Address]],
        settings: ConnectionSettings,
        connector: Connector = tcp_connector,
        rng: random.Random | None = None,
    ) -> None:
        self.bookie_id = bookie_id
        self._resolve = resolve
        self._settings = settings
        self._connector = connector
        self._loop = asyncio.get_running_loop()
        self._address: Address | None = None
        self._wire: Wire | None = None
        self._transport: asyncio.Transport | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._wires: set[Wire] = set()
        """Wires whose transports are not closed yet."""
        self._pauses = ReconnectPauses(rng or random.SystemRandom())
        self._outstanding: dict[int, tuple[int, float, Sink, Any]] = {}
        self._frames: list[bytes] = []
        self._waiting: dict[int, bytes] = {}
        """Frames by transaction id, waiting while there is no connection or its buffer is full."""
        self._flush_scheduled = False
        self._writable = False
        self._full_since: float | None = None
        self._silent_since: float | None = None
        """When a request first passed its deadline since the bookie last sent anything."""
        self._last_used = self._loop.time()
        """When a request last had to wait or was refused, or `rested` found one or a transport."""
        self.losses = 0
        """Number of open connections that were lost."""
        self._losses_before = 0
        self._closed = False
        self._all_closed: asyncio.Future[None] | None = None

    def __str__(self) -> str:
        if self._address is None or str(self._address) == self.bookie_id:
            return self.bookie_id
        return f"{self.bookie_id} ({self._address})"

    @property
    def connected(self) -> bool:
        return self._transport is not None

    @property
    def outstanding_count(self) -> int:
        return len(self._outstanding)

    @property
    def waiting_count(self) -> int:
        """Requests not yet handed to the transport."""
        return len(self._waiting) + len(self._frames)

    def send(self, operation: int, txn_id: int, frame: bytes, deadline: float, sink: Sink, token: Any) -> None:
        """Sends a request's frame. `deadline` is in loop time; the sink is always called, but never before this
        returns.
        """
        if self._writable:
            self._outstanding[txn_id] = (operation, deadline, sink, token)
            self._frames.append(frame)
            self._flush_soon()
            return
        self._last_used = self._loop.time()
        refusal = self._refusal()
        if refusal is not None:
            self._refuse(sink, token, refusal)
            return
        self._outstanding[txn_id] = (operation, deadline, sink, token)
        self._waiting[txn_id] = frame
        if self._transport is None and self._connecting is None:
            task = self._connecting = self._loop.create_task(self._connect())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def send_adds(
        self, txn_ids: Sequence[int], frames: Sequence[bytes], deadline: float, sink: AddSink, tokens: Sequence[Any]
    ) -> None:
        """Sends the frames of adds in this order, each as `send` does."""
        if not (self._writable and self.answers_have_txn_ids):
            for txn_id, frame, token in zip(txn_ids, frames, tokens, strict=True):
                self.send(ADD_ENTRY, txn_id, frame, deadline, sink, token)
            return
        requests = [(ADD_ENTRY, deadline, sink, token) for token in tokens]
        self._outstanding.update(zip(txn_ids, requests, strict=True))
        self._frames += frames
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def encode(self, request: Request) -> bytes:
        """The frame of a request in this connection's protocol. Raises ValueError if the protocol can't express it."""
        return v3.encode_request(request)

    def decode(self, packet: bytes) -> Response:
        """A response in this connection's protocol. Raises ProtocolError."""
        return decode_response(packet)

    def _refuse(self, sink: Sink, token: Any, error: BKException) -> None:
        """Ends a request that is not sent."""
        self._loop.call_soon(sink, token, None, error.of_request_over())

    def _refusal(self) -> BKException | None:
        """Why a request can't even wait, or None."""
        if self._closed:
            return ClientClosedException(f"the client is closed; bookie {self} can't be asked any more")
        if self._transport is not None:
            return self._overloaded()
        if self._connecting is not None:
            return None
        pause = self._pauses.remaining(self._loop.time())
        last = self._pauses.last_error
        if not pause or last is None:
            return None
        return type(last)(f"bookie {self} is not asked: it is tried again in {pause:.1f} s, since: {last}")

    def _overloaded(self) -> BKException | None:
        limit, since = self._settings.backpressure_timeout, self._full_since
        if limit is None or since is None or self._loop.time() - since < limit:
            return None
        return TooManyRequestsException(
            f"bookie {self} takes in no requests: {self._settings.send_buffer_size} bytes wait for it and have for "
            f"{limit:g} s or more"
        )

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._transport is None or not self._writable:
            return
        frames, self._frames = self._frames, []
        if self._waiting:
            frames += self._waiting.values()
            self._waiting.clear()
        if frames:
            if _WRITELINES_NEVER_PAUSES:
                self._transport.write(b"".join(frames))
            else:
                self._transport.writelines(frames)

    async def _connect(self) -> None:
        setup, timeout = self._settings.setup, self._settings.connect_timeout
        wire = self._wire = self.wire_class(self, self._settings.max_frame_size, setup is not None)
        try:
            async with asyncio.timeout(timeout):
                address = self._address = await self._resolve(self.bookie_id)
                await self._connector(lambda: wire, *address)
            if setup is not None:
                wire.transport = await setup(self, wire, address)
                wire.open()
                self.on_opened(wire)
        except TimeoutError:
            self.on_lost(wire, self.loss(f"could not be reached within {timeout:g} s", None))
        except BKException as error:
            self.on_lost(wire, type(error)(f"bookie {self} could not be reached: {error}"))
        except (OSError, ValueError, OverflowError, FrameError, ProtocolError) as error:  # invalid host name or port
            self.on_lost(wire, self.loss(f"could not be reached: {error}", error))
        except Exception as error:  # raised by an authentication provider; waiting requests must get the error
            log_bug(_log, "bookie_not_reached", error, bookie=self)
            self.on_lost(wire, self.loss(f"could not be reached: {type(error).__name__}: {error}", None))

    # Events of the wire

    def on_transport(self, wire: Wire, opened: bool) -> None:
        """The transport exists; `opened` if no setup remains."""
        self._wires.add(wire)
        if wire is not self._wire:
            wire.transport.abort()
        elif opened:
            self.on_opened(wire)

    def on_opened(self, wire: Wire) -> None:
        """The connection is open."""
        if wire is not self._wire:
            wire.transport.abort()
            return
        wire.heard = False
        self._transport = wire.transport
        self._connecting = None
        self._writable = True
        self._silent_since = None
        log_event(_log, "bookie_connected", bookie=self)
        self._transport.set_write_buffer_limits(high=self._settings.send_buffer_size)
        self._flush()

    def on_writable(self, wire: Wire, writable: bool) -> None:
        """The transport's buffer became full, or has capacity again."""
        if wire is not self._wire or self._transport is None:
            return
        self._writable = writable
        self._full_since = None if writable else self._loop.time()
        if writable:
            self._flush()

    def on_response(self, wire: Wire, response: Response) -> None:
        """A response arrived; one that belongs to no request is dropped."""
        request = self._outstanding.get(response.txn_id)
        if request is None or wire is not self._wire:
            return
        operation = response.operation if type(response) is StatusResponse else _OPERATIONS[type(response)]
        if request[0] != operation:
            return
        del self._outstanding[response.txn_id]
        request[2](request[3], response, None)

    def on_stored(self, wire: Wire, txn_ids: Sequence[int], term: int | None = None) -> None:
        """Adds were stored, identified by their transaction ids alone; sinks get `STORED`, or the same at a term."""
        if wire is not self._wire:
            return
        outstanding, answered = self._outstanding, []
        for txn_id in txn_ids:
            request = outstanding.get(txn_id)
            if request is not None and request[0] == ADD_ENTRY:
                del outstanding[txn_id]
                answered.append(request)
        for sink, requests in groupby(answered, _SINK):
            if type(sink) is AddSink and term is None:
                sink.on_stored([request[3] for request in requests])
                continue
            for request in requests:
                sink(request[3], STORED if term is None else _stored_at(term), None)

    def loss(self, reason: str, error: Exception | None) -> BKException:
        """The error for the requests of a connection that ended."""
        if isinstance(error, ssl.SSLError):  # in TLS 1.3 a client learns only after the handshake that it was rejected
            return SecurityException(f"bookie {self} {reason}")
        return BookieHandleNotAvailableException(f"bookie {self} {reason}")

    def on_lost(self, wire: Wire, error: BKException) -> None:
        """The connection failed or was lost: everything outstanding fails, the next request opens another."""
        if wire is not self._wire:
            return
        if self._transport is not None and (wire.heard or wire.proven):
            self._pauses.succeeded()
        else:
            self._pauses.failed(self._loop.time(), error)
        if self._transport is None:
            self._settings.on_counted("per_channel_bookie_client_FAILED_CONNECTION_COUNTER")
            log_event(_log, "bookie_not_reached", bookie=self, error=error)
        else:
            self.losses += 1
            log_event(_log, "bookie_lost", bookie=self, error=error)
        self._drop_wire()
        self._fail_outstanding(error)

    def on_transport_lost(self, wire: Wire) -> None:
        """A transport is closed, perhaps one that was dropped long before."""
        self._wires.discard(wire)
        if not self._wires and self._all_closed is not None and not self._all_closed.done():
            self._all_closed.set_result(None)

    # Endings

    def expire(self, now: float) -> None:
        """Ends the requests whose deadline has passed; late responses to them are dropped."""
        late = [txn_id for txn_id, request in self._outstanding.items() if request[1] <= now]
        for txn_id in late:
            unsent = self._waiting.pop(txn_id, None) is not None
            request = self._outstanding.pop(txn_id, None)
            if request is not None:
                self.forget(txn_id, unsent)
                self._settings.on_counted("per_channel_bookie_client_TIMEOUT")
                error = TimeoutException(f"bookie {self} did not answer in time")
                request[2](request[3], None, error.of_request_over() if unsent else error)
        wire = self._wire
        if wire is not None and self._transport is not None:
            wire.trim()
            self._judge_silence(wire, now, bool(late))
        overload = self._overloaded() if self._waiting else None
        if overload is not None:
            self._refuse_waiting(overload)

    def forget(self, txn_id: int, unsent: bool) -> None:
        """A request has ended without a response."""

    def _judge_silence(self, wire: Wire, now: float, late: bool) -> None:
        if wire.heard:
            wire.heard, wire.proven, self._silent_since = False, True, None
            self._pauses.succeeded()
        elif late and self._silent_since is None:
            self._silent_since = now
        elif late and self._silent_since is not None and now - self._silent_since >= GIVEN_UP_AFTER:
            silence = now - self._silent_since
            self.on_lost(wire, self.loss(f"has said nothing for {silence:.0f} s and was asked; it is given up", None))

    def _refuse_waiting(self, error: BKException) -> None:
        waiting, self._waiting = self._waiting, {}
        error = error.of_request_over()
        for txn_id in waiting:
            request = self._outstanding.pop(txn_id, None)
            if request is not None:
                self.forget(txn_id, True)
                request[2](request[3], None, error)

    def postpone(self, seconds: float) -> None:
        """Moves every deadline."""
        self._outstanding = {
            txn_id: (operation, deadline + seconds, sink, token)
            for txn_id, (operation, deadline, sink, token) in self._outstanding.items()
        }

    def rested(self, now: float) -> float:
        """Seconds without a request and without a transport. Call it regularly: it notices only what is there then."""
        if self._outstanding or self._tasks or self._wires:
            self._last_used = now
        return now - self._last_used

    @property
    def recent_losses(self) -> int:
        """Those since `begin_anew`."""
        return self.losses - self._losses_before

    def begin_anew(self) -> None:
        """From now on it is like a new one, but for the losses that its holders know of."""
        self._pauses.succeeded()
        self._losses_before = self.losses

    def close(self) -> None:
        """Ends the connection permanently; outstanding requests fail with ClientClosedException."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        self._drop_wire()
        self._fail_outstanding(ClientClosedException(f"the client was closed while bookie {self} was asked"))

    async def wait_closed(self) -> None:
        """After `close`: returns once the connection's task and sockets are gone."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSE_TIMEOUT)
        if self._wires:
            self._all_closed = self._loop.create_future()
            await asyncio.wait([self._all_closed], timeout=_CLOSE_TIMEOUT)

    def _drop_wire(self) -> None:
        wire, self._wire = self._wire, None
        self._transport = None
        self._connecting = None
        self._writable = False
        self._full_since = None
        if wire is not None and wire in self._wires:
            wire.transport.abort()

    def _fail_outstanding(self, error: BKException) -> None:
        outstanding, self._outstanding = self._outstanding, {}
        waiting, self._waiting = self._waiting, {}
        self._frames.clear()
        unsent = error.of_request_over() if waiting else error
        for txn_id, (_, _, sink, token) in outstanding.items():
            sink(token, None, unsent if txn_id in waiting else error)
