"""One bookie, as the client sees it: requests go out pipelined, answers come back in any order.

States: *idle* (no connection; the next request makes one), *connecting* (requests wait), *open*, *closed* (for good).
Whatever ends a connection fails everything that is outstanding on it, with an error that names the bookie, and leads
back to idle. A request ends exactly once: with its answer, at its deadline, or with the connection.

An answer belongs to the request with the same transaction id and operation; others are dropped. Bytes that are not
the entry protocol end the connection. What is sent in one turn of the event loop leaves in one write; while the
transport's buffer is full frames wait here, each until its request's deadline, bounded by the handles' windows.

There is no future and no task for a request: the caller passes a `sink`, called with its own token and either the
response or the error.

Not its job: who is asked and what an answer means (`core`), finding the address (`bookie_pool`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, cast

from ledger.errors import BKException, BookieHandleNotAvailableException, ClientClosedException, TimeoutException
from ledger.frames import FrameDecoder, FrameError
from ledger.protocol_v3 import ProtocolError, decode_response, stored_txn_id
from ledger.requests import (
    AddResponse,
    AuthResponse,
    ForceLedgerResponse,
    GetBookieInfoResponse,
    ListEntriesResponse,
    Operation,
    ReadLacResponse,
    ReadResponse,
    Response,
    StartTlsResponse,
    Status,
    StatusResponse,
    WriteLacResponse,
)

Sink = Callable[[Any, Response | None, BKException | None], None]
"""Called on the event loop, never from within `send`: (token, response, None) or (token, None, error)."""

Connector = Callable[[Callable[[], asyncio.BufferedProtocol], str, int], Awaitable[object]]
"""Opens a transport to host and port for a protocol; the real one is `tcp_connector`."""

_OPERATIONS: dict[type, int] = {
    AddResponse: Operation.ADD_ENTRY,
    ReadResponse: Operation.READ_ENTRY,
    ReadLacResponse: Operation.READ_LAC,
    WriteLacResponse: Operation.WRITE_LAC,
    ForceLedgerResponse: Operation.FORCE_LEDGER,
    GetBookieInfoResponse: Operation.GET_BOOKIE_INFO,
    ListEntriesResponse: Operation.GET_LIST_OF_ENTRIES_OF_LEDGER,
    AuthResponse: Operation.AUTH,
    StartTlsResponse: Operation.START_TLS,
}

STORED = AddResponse(0, Status.EOK, 0, 0)
"""What a sink gets for an add that was stored: the token tells which, the ids here tell nothing."""


class Address(NamedTuple):
    """Where a bookie listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class ConnectionSettings(NamedTuple):
    """Seconds and bytes."""

    connect_timeout: float
    max_frame_size: int
    send_buffer_size: int


async def tcp_connector(factory: Callable[[], asyncio.BufferedProtocol], host: str, port: int) -> object:
    """Opens a TCP connection; asyncio and uvloop switch Nagle's algorithm off by themselves."""
    return await asyncio.get_running_loop().create_connection(factory, host, port)


class _Wire(asyncio.BufferedProtocol):
    """One TCP connection's end. A lost one may still call back; only the owner's present one is listened to."""

    def __init__(self, owner: BookieConnection, max_frame_size: int) -> None:
        self._owner = owner
        self._decoder = FrameDecoder(max_frame_size)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._owner.on_connected(self, cast("asyncio.Transport", transport))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for packet in self._decoder.buffer_updated(nbytes):
                txn_id = stored_txn_id(packet)
                if txn_id is None:
                    self._owner.on_response(self, decode_response(packet))
                else:
                    self._owner.on_stored(self, txn_id)
        except (FrameError, ProtocolError) as error:
            self._owner.on_lost(self, f"sent what is not the entry protocol ({error}); the connection is closed")

    def pause_writing(self) -> None:
        self._owner.on_writable(self, False)

    def resume_writing(self) -> None:
        self._owner.on_writable(self, True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.on_lost(self, f"lost the connection: {exc or 'closed by the bookie'}")


class BookieConnection:
    """The pipelined connection to one bookie, made when it is needed and again after it was lost."""

    def __init__(
        self,
        bookie_id: str,
        resolve: Callable[[str], Awaitable[Address]],
        settings: ConnectionSettings,
        connector: Connector = tcp_connector,
    ) -> None:
        self.bookie_id = bookie_id
        self._resolve = resolve
        self._settings = settings
        self._connector = connector
        self._loop = asyncio.get_running_loop()
        self._address: Address | None = None
        self._wire: _Wire | None = None
        self._transport: asyncio.Transport | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._outstanding: dict[int, tuple[int, float, Sink, Any]] = {}
        self._frames: list[bytes] = []
        self._waiting: dict[int, bytes] = {}
        """Frames by transaction id, while there is no connection or its buffer is full."""
        self._flush_scheduled = False
        self._writable = False
        self._closed = False

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
        """Sends a request's frame. `deadline` is in the loop's time; the sink is called in any case, later."""
        if self._closed:
            error = ClientClosedException(f"the client is closed; bookie {self} can't be asked any more")
            self._loop.call_soon(sink, token, None, error)
            return
        self._outstanding[txn_id] = (operation, deadline, sink, token)
        if self._writable:
            self._frames.append(frame)
            if not self._flush_scheduled:
                self._flush_scheduled = True
                self._loop.call_soon(self._flush)
            return
        self._waiting[txn_id] = frame
        if self._transport is None and self._connecting is None:
            self._connecting = self._loop.create_task(self._connect())

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._transport is None or not self._writable:
            return
        frames, self._frames = self._frames, []
        if self._waiting:
            frames += self._waiting.values()
            self._waiting.clear()
        if frames:
            self._transport.writelines(frames)

    async def _connect(self) -> None:
        wire = self._wire = _Wire(self, self._settings.max_frame_size)
        try:
            async with asyncio.timeout(self._settings.connect_timeout):
                self._address = await self._resolve(self.bookie_id)
                await self._connector(lambda: wire, *self._address)
        except TimeoutError:
            self.on_lost(wire, f"could not be reached within {self._settings.connect_timeout:g} s")
        except (OSError, BKException, ValueError, OverflowError) as error:  # the last two: no host name, no port
            self.on_lost(wire, f"could not be reached: {error}")

    # What the wire tells

    def on_connected(self, wire: _Wire, transport: asyncio.Transport) -> None:
        """The connection stands."""
        if wire is not self._wire:
            transport.abort()
            return
        self._transport = transport
        self._connecting = None
        self._writable = True
        transport.set_write_buffer_limits(high=self._settings.send_buffer_size)
        self._flush()

    def on_writable(self, wire: _Wire, writable: bool) -> None:
        """The transport's buffer is full, or has room again."""
        if wire is self._wire:
            self._writable = writable
            if writable:
                self._flush()

    def on_response(self, wire: _Wire, response: Response) -> None:
        """An answer; one that belongs to no request is dropped."""
        request = self._outstanding.get(response.txn_id)
        if request is None or wire is not self._wire:
            return
        operation = response.operation if type(response) is StatusResponse else _OPERATIONS[type(response)]
        if request[0] != operation:
            return
        del self._outstanding[response.txn_id]
        request[2](request[3], response, None)

    def on_stored(self, wire: _Wire, txn_id: int) -> None:
        """The answer "stored" to an add, by its transaction id alone; the sink gets `STORED`."""
        request = self._outstanding.get(txn_id)
        if request is None or request[0] != Operation.ADD_ENTRY or wire is not self._wire:
            return
        del self._outstanding[txn_id]
        request[2](request[3], STORED, None)

    def on_lost(self, wire: _Wire, reason: str) -> None:
        """The connection could not be made or is gone: everything outstanding fails, the next request makes another."""
        if wire is not self._wire:
            return
        self._drop_wire()
        self._fail_outstanding(BookieHandleNotAvailableException(f"bookie {self} {reason}"))

    # Endings

    def expire(self, now: float) -> None:
        """Ends the requests whose deadline has passed; their late answers will be dropped."""
        late = [txn_id for txn_id, request in self._outstanding.items() if request[1] <= now]
        for txn_id in late:
            self._waiting.pop(txn_id, None)
            request = self._outstanding.pop(txn_id, None)
            if request is not None:
                request[2](request[3], None, TimeoutException(f"bookie {self} did not answer in time"))

    def postpone(self, seconds: float) -> None:
        """Moves every deadline."""
        self._outstanding = {
            txn_id: (operation, deadline + seconds, sink, token)
            for txn_id, (operation, deadline, sink, token) in self._outstanding.items()
        }

    def close(self) -> None:
        """Ends the connection for good; what is outstanding fails with ClientClosedException."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        self._drop_wire()
        self._fail_outstanding(ClientClosedException(f"the client was closed while bookie {self} was asked"))

    def _drop_wire(self) -> None:
        transport, self._transport = self._transport, None
        self._wire = None
        self._connecting = None
        self._writable = False
        if transport is not None:
            transport.abort()

    def _fail_outstanding(self, error: BKException) -> None:
        outstanding, self._outstanding = self._outstanding, {}
        self._frames.clear()
        self._waiting.clear()
        for _, _, sink, token in outstanding.values():
            sink(token, None, error)
