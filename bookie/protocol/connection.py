"""One client's connection to a bookie: frames in, requests to the processor, responses out.

The first byte of a packet tells the protocols apart: 0x0A is v3, anything else v2, and a connection on which v2 was
spoken once stays with it (docs/protocol/wire.md#telling-v2-from-v3).

A connection may switch to TLS (`runtime.tls.channel`), by START_TLS or by starting with TLS, as long as it has served
nothing but AUTH in clear text: otherwise an attacker in the middle could have sent a request, and the response would
arrive inside TLS, as if for the client. If authentication or TLS is required, requests pass a gate first (`auth_gate`),
which is bypassed once it is open. A connection that does not pass the gate, or complete its TLS handshake, in time is
closed.

Bytes are received in place into the frame decoder's buffer. Responses of one iteration of the loop are sent in one
write. Memory is bounded: while the client does not read its responses, or storage has no capacity, the bookie reads
nothing more from it; before the gate is open frames are limited to a small size. `connections` limits the memory of all
connections together, and is notified when this one's buffers grow. An invalid frame or packet closes the connection,
with the reason in the log.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import cast

from bookgate.bookie.protocol.auth_gate import AuthenticationException, Gate
from bookgate.bookie.protocol.completions import Client
from bookgate.bookie.protocol.connections import Connections
from bookgate.bookie.protocol.read_scheduler import QueuedRead
from bookgate.bookie.protocol.request_processor import RequestProcessor
from bookgate.bookie.protocol.security import OPEN, Security
from bookgate.bookie.protocol.v2_client import BinaryClient
from bookgate.bookie.statistics import BookieStatistics
from bookgate.ledger.addresses import address_of
from bookgate.ledger.wire import fast_add, fast_read, v2
from bookgate.ledger.wire.fast_add import AddReader, AddRun
from bookgate.ledger.wire.fast_read import FastRead
from bookgate.ledger.wire.frames import FrameDecoder, FrameError
from bookgate.ledger.wire.messages import (
    AuthRequest,
    AuthResponse,
    InvalidRequest,
    Request,
    Response,
    StartTlsRequest,
    StartTlsResponse,
    Status,
)
from bookgate.ledger.wire.v2 import CURRENT_VERSION
from bookgate.ledger.wire.v3 import ProtocolError, decode_request, encode_response
from bookgate.runtime.logs import log_event
from bookgate.runtime.tls.channel import CLIENT_HELLO, TlsChannel

_log = logging.getLogger(__name__)

_FLUSH_BYTES = 256 * 1024
_WRITE_HIGH_WATER = 1024 * 1024
_MAX_FRAME_AT_GATE = 64 * 1024
"""Maximum bytes of a frame before the gate is open: enough for any plugin's payloads."""
_OWN_BYTES = 6 * 1024
"""Approximate memory of a connection's objects, in bytes."""
_REQUEST_BYTES = 512
"""Approximate memory of a request in progress, in bytes: in a queue of reads, or as a long poll."""
_V3_FIRST_BYTE = 0x0A

Serve = Callable[[Client, Request], None]
FastPath = Callable[[Sequence[memoryview], int, bool], int]

_CAPACITY = "capacity in storage"
_CLIENT = "the client to take its answers"
"""The reason for which a paused connection waits, for the log."""


class AcceptedConnection(asyncio.BufferedProtocol):
    """The server's end of a connection; for the processor it is a client that uses v3."""

    encode = staticmethod(encode_response)

    def __init__(
        self,
        processor: RequestProcessor,
        connections: Connections,
        statistics: BookieStatistics,
        max_frame_size: int,
        security: Security = OPEN,
    ) -> None:
        self._processor = processor
        self._security = security
        self._served_in_clear = False
        self._gate: Gate | None = None
        self._tls: TlsChannel | None = None
        self._tls_is_next = False
        self._serve: Serve = self._behind_gate()
        self._handshake: asyncio.TimerHandle | None = None
        self._connections = connections
        self._statistics = statistics
        self._max_frame_size = max_frame_size
        self._decoder = FrameDecoder(max_frame_size, self._resized)
        self._transport: asyncio.Transport | None = None
        self._answers: list[bytes] = []
        self._answer_count = 0
        self._answer_bytes = 0
        self._unsent = 0
        """Bytes that the transport had not sent after the last write."""
        self.asked = 0
        """Requests received."""
        self._answered = 0
        self._heard = False
        self._asked_before = 0
        self.heard_at = 0.0
        self.stalled_since: float | None = None
        self.peer = "?"
        """The address of the client, as it is logged."""
        self._reasons_to_wait: set[str] = set()
        self._waits_since = 0.0
        """When the connection began to wait for capacity; 0 if it does not wait."""
        self.takes_answers = True
        self.reads: deque[QueuedRead] = deque()
        self.reading = False
        self._binary: dict[int, BinaryClient] = {}
        self._adds = AddReader()

    # --- asyncio ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_WRITE_HIGH_WATER)
        peer = transport.get_extra_info("peername")
        self.peer = address_of(*peer[:2]) if isinstance(peer, tuple) else str(peer)
        self._gate = self._security.new_gate(self.peer)
        if self._gate is not None and not self._gate.is_open:
            self._serve = self._serve_at_gate
            self._decoder.max_frame_size = min(self._max_frame_size, _MAX_FRAME_AT_GATE)
            self._expect_handshake()
        self.heard_at = asyncio.get_running_loop().time()
        self._connections.opened(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._end_handshake()
        self._answers.clear()
        self.reads.clear()
        for client in self._binary.values():
            client.reads.clear()
        self._processor.long_polls.forget(self)
        self._connections.closed(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.get_buffer(sizehint) if self._tls is None else self._tls.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self._heard = True
        try:
            if self._tls is not None:
                self._tls.buffer_updated(nbytes)
                self._take_encrypted(self._tls)
            else:
                self._take(nbytes)
        except FrameError as error:
            if self._tls is not None or not self._begins_tls():
                self._give_up(error)
                return
        except (ProtocolError, AuthenticationException, ssl.SSLError) as error:
            self._give_up(error)
            return
        self._pump()
        self.flush()

    def _take(self, nbytes: int) -> None:
        try:
            packets = self._decoder.buffer_updated(nbytes)
        except FrameError as error:
            # Complete packets before the error are served: the client could not know of the error.
            self._take_packets(error.packets)
            raise
        self._take_packets(packets)

    def _take_packets(self, packets: list[memoryview]) -> None:
        serve, binary = self._serve, self._binary
        self.asked += len(packets)
        shortcut = self._fast_path(serve)
        at, count = 0, len(packets)
        while at < count:
            packet = packets[at]
            is_v3 = packet[0] == _V3_FIRST_BYTE and not binary
            served = 0 if shortcut is None else shortcut(packets, at, is_v3)
            at += served or 1
            if served:
                continue
            if is_v3:
                serve(self, decode_request(packet))
                if self._tls_is_next:
                    self._upgrade(is_last=at == count)
                    return
            else:
                self._take_binary(packet)
            if self._serve is not serve:
                # AUTH among them opened the gate, or changed the principal: the rest must be served by the new rules.
                serve = self._serve
                shortcut = self._fast_path(serve)

    def _fast_path(self, serve: Serve) -> FastPath | None:
        """The fast path for common requests; None if requests must take the general path."""
        return self._serve_fast if serve == self._processor.process else None

    def _serve_fast(self, packets: Sequence[memoryview], at: int, is_v3: bool) -> int:
        """Serves a common add, or a run of reads, on the fast path; returns how many packets it served, 0 if the
        packet must be decoded.
        """
        packet = packets[at]
        run = self._adds.read_run(packets, at) if is_v3 else None
        if run is not None and (served := self._serve_adds(run)):
            return served
        add = self._adds.read(packet) if is_v3 else fast_add.read_v2(packet)
        if add is not None:
            return self._processor.add(self if is_v3 else self._binary_client(CURRENT_VERSION), add)
        read = fast_read.read_v3(packet) if is_v3 else fast_read.read_v2(packet)
        if read is None:
            copy = fast_add.read_copy(packet) if is_v3 else None
            return copy is not None and self._processor.add_copy(self, copy)
        return self._serve_reads(read, packets, at, is_v3)

    def _serve_adds(self, run: AddRun) -> int:
        """Serves a run of adds; returns how many it served: all, or none, each of which is then to be read singly."""
        count = len(run.entry_ids)
        if self._processor.add_run(self, run):
            return count
        self._adds.read_singly(count)
        return 0

    def _serve_reads(self, first: FastRead, packets: Sequence[memoryview], at: int, is_v3: bool) -> int:
        """Serves a read, and those of the next entries behind it; returns how many it served."""
        client = self if is_v3 else self._binary_client(CURRENT_VERSION)
        return self._processor.reads.serve_now(client, first, packets, at + 1)

    def _take_binary(self, packet: memoryview) -> None:
        request, version = v2.decode_request(packet)
        client = self._binary_client(version)
        if isinstance(request, InvalidRequest):
            self._served_in_clear = True
            client.answer(v2.error_response(request, request.status))
        else:
            self._serve(client, request)

    def _binary_client(self, version: int) -> BinaryClient:
        client = self._binary.get(version)
        if client is None:
            client = self._binary[version] = BinaryClient(self, version)
        return client

    def _behind_gate(self) -> Serve:
        """The function that serves requests once the gate is open."""
        may_become_tls = self._security.certificates is not None and self._tls is None
        return self._serve_in_clear if may_become_tls else self._processor.process

    def _serve_in_clear(self, client: Client, request: Request) -> None:
        """Serves requests in clear text until the first one that rules out a switch to TLS."""
        if not isinstance(request, AuthRequest | StartTlsRequest):
            self._served_in_clear = True
            self._serve = self._processor.process
        self._processor.process(client, request)

    def _serve_at_gate(self, client: Client, request: Request) -> None:
        gate = self._gate
        if gate is None:
            raise RuntimeError("a connection without a gate serves by itself")
        verdict = gate.check(request, binary=client is not self)
        if isinstance(request, AuthRequest) and not isinstance(verdict.answer, AuthResponse):
            self._statistics.auth_failures += 1
        if verdict.answer is not None:
            client.answer(verdict.answer)
        if verdict.ends is not None:
            raise ProtocolError(verdict.ends)
        if verdict.passes:
            self._processor.process(client, request)
        if gate.is_open:
            self._let_in()

    def _let_in(self) -> None:
        # Another object each time, also for another principal: `_take_packets` compares identities.
        self._serve = self._behind_gate()
        self._decoder.max_frame_size = self._max_frame_size
        self._end_handshake()

    @property
    def awaits_handshake(self) -> bool:
        """Whether the client still has to be secured or authenticated, for which it has a limited time."""
        return self._handshake is not None

    def _expect_handshake(self) -> None:
        if self._handshake is None:
            loop = asyncio.get_running_loop()
            self._handshake = loop.call_later(self._security.handshake_seconds, self._handshake_is_late)

    def _end_handshake(self) -> None:
        if self._handshake is not None:
            self._handshake.cancel()
            self._handshake = None

    def _handshake_is_late(self) -> None:
        self._handshake = None
        seconds = self._security.handshake_seconds
        self._give_up(TimeoutError(f"it was not secured or authenticated within {seconds:g} s"))

    def _give_up(self, error: Exception) -> None:
        self._statistics.auth_failures += isinstance(error, AuthenticationException)
        if self._tls is not None and not self._tls.established:
            self._statistics.tls_failures += 1
        log_event(_log, "connection_closed", logging.WARNING, peer=self.peer, error=error)
        self.close()

    def _pump(self) -> None:
        if self.reads:
            self._processor.reads.pump(self)
        for client in self._binary.values():
            if client.reads:
                self._processor.reads.pump(client)

    # --- TLS ---

    def start_tls(self, txn_id: int) -> bool:
        if self._tls is not None or self._served_in_clear or self._security.certificates is None:
            return False
        self.answer(StartTlsResponse(txn_id, Status.EOK))
        self._tls_is_next = True
        return True

    def _upgrade(self, *, is_last: bool) -> None:
        """Continues in TLS after START_TLS. Clear-text bytes after it may come from anybody, and are ignored."""
        if self._decoder.unread or not is_last:
            raise ProtocolError("something came in clear behind START_TLS")
        self.flush()
        self._tls_is_next = False
        self._tls = self._new_channel()

    def _begins_tls(self) -> bool:
        """Whether an invalid frame is the start of TLS; if so, TLS is served."""
        begin = self._decoder.unread
        if self._security.certificates is None or begin[0] != CLIENT_HELLO or self._served_in_clear:
            return False
        self._tls = self._new_channel()
        self._tls.feed(begin)
        self._decoder = FrameDecoder(self._decoder.max_frame_size, self._resized)
        try:
            self._take_encrypted(self._tls)
        except (FrameError, ProtocolError, AuthenticationException, ssl.SSLError) as error:
            self._give_up(error)
        return True

    def _new_channel(self) -> TlsChannel:
        certificates = self._security.certificates
        if certificates is None:
            raise RuntimeError("TLS begins where certificates are set only")
        self._expect_handshake()
        return TlsChannel(certificates.context())

    def _take_encrypted(self, tls: TlsChannel) -> None:
        if not tls.established and tls.handshake():
            self._secured(tls)
        if tls.established:
            while count := tls.read_into(self._decoder.get_buffer()):
                self._take(count)
        self._write_outgoing(tls)
        if tls.ended:
            self.close()

    def _secured(self, tls: TlsChannel) -> None:
        self._statistics.tls_handshakes += 1
        if self._gate is not None:
            self._gate.secured(tls.certificate())
            if not self._gate.is_open:
                return
        self._let_in()

    def _write_outgoing(self, tls: TlsChannel) -> None:
        data = tls.take_outgoing()
        if data and self._transport is not None:
            self._transport.write(data)

    # --- back-pressure ---

    def pause_writing(self) -> None:
        self.takes_answers = False
        self._wait(_CLIENT)

    def resume_writing(self) -> None:
        self.takes_answers = True
        self.stalled_since = None
        self._go_on(_CLIENT)
        self._pump()
        self.flush()

    # --- the processor's view ---

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    def send(self, frame: bytes, count: int = 1) -> None:
        if self._transport is None:
            return
        self._answers.append(frame)
        self._answer_count += count
        self._answer_bytes += len(frame)
        if self._answer_bytes > _FLUSH_BYTES:
            self.flush()

    def answer(self, response: Response) -> None:
        self.send(encode_response(response))

    def flush(self) -> None:
        if not self._answers:
            return
        transport, unsent = self._transport, 0
        if transport is not None:
            if self._tls is None:
                transport.write(b"".join(self._answers))
            elif self._tls.established:
                self._tls.write(b"".join(self._answers))
                self._write_outgoing(self._tls)
            else:
                return
            unsent = transport.get_write_buffer_size()
        self._answered += self._answer_count
        self._answer_count = 0
        self._answers.clear()
        self._answer_bytes = 0
        if unsent != self._unsent:
            self._unsent = unsent
            self._resized()

    def pause_reading(self) -> None:
        if not self._waits_since:
            self._waits_since = time.perf_counter()
        self._wait(_CAPACITY)

    # --- the server's view ---

    @property
    def is_paused(self) -> bool:
        """Whether it reads no requests, because storage is full or the client does not read its responses."""
        return bool(self._reasons_to_wait)

    @property
    def answer_bytes_held(self) -> int:
        """Bytes of responses that the client has not read yet."""
        return self._answer_bytes + (self._transport.get_write_buffer_size() if self._transport is not None else 0)

    @property
    def held_bytes(self) -> int:
        """Approximate memory in use, in bytes."""
        held = _OWN_BYTES + self._decoder.size + self.answer_bytes_held
        held += _REQUEST_BYTES * (self.asked - self._answered)
        return held if self._tls is None else held + self._tls.held_bytes

    @property
    def owed(self) -> int:
        """Number of requests without a response, plus bytes of responses waiting; 0 for an idle connection."""
        return self.asked - self._answered + self.answer_bytes_held

    def look(self, now: float) -> None:
        """Called about once a second: releases unused memory, and records whether the connection makes progress."""
        if self._heard:
            self._heard, self.heard_at = False, now
        begun = self._decoder.pending > 0 and self.asked == self._asked_before
        self._asked_before = self.asked
        if not begun and not self.answer_bytes_held:
            self.stalled_since = None
        elif self.stalled_since is None:
            self.stalled_since = now
        self._decoder.trim()

    def release_unused(self) -> None:
        """Releases the receive buffer unless a request is incomplete; the next request allocates a new one."""
        self._decoder.release()

    def _resized(self) -> None:
        self._connections.resized(self)

    def resume_reading(self) -> None:
        """Continues after `pause_reading`."""
        if self._waits_since:
            self._statistics.waits_for_capacity.success(time.perf_counter() - self._waits_since)
            self._waits_since = 0.0
        self._go_on(_CAPACITY)

    def close(self) -> None:
        if self._transport is not None:
            self.flush()
            if self._tls is not None:
                self._tls.close()
                self._write_outgoing(self._tls)
            self._transport.close()

    def abort(self) -> None:
        """Closes at once: nothing more is sent."""
        if self._transport is not None:
            self._transport.abort()

    def _wait(self, reason: str) -> None:
        if not self._reasons_to_wait and self._transport is not None:
            self._transport.pause_reading()
        self._reasons_to_wait.add(reason)

    def _go_on(self, reason: str) -> None:
        if reason not in self._reasons_to_wait:
            return
        self._reasons_to_wait.discard(reason)
        if not self._reasons_to_wait and self._transport is not None:
            self._transport.resume_reading()
