"""One client's connection to a bookie: frames in, requests to the processor, answers out.

The first byte of a packet tells the protocols apart: 0x0A is v3, anything else the binary protocol, and a connection
that has once spoken the binary protocol stays with it (wire-protocol page, section 1.1).

Bytes are received in place into the frame decoder's buffer. Answers that come up in one turn of the loop leave in one
write. Memory stays bounded: while the client does not take its answers, or storage has no room, nothing more is read
from it. A frame or packet that can't be followed closes the connection, with a line in the log that says why.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import cast

from bookie.binary_client import BinaryClient
from bookie.entry_reads import QueuedRead
from bookie.request_processor import RequestProcessor
from bookie.statistics import BookieStatistics
from ledger import protocol_v2
from ledger.frames import FrameDecoder, FrameError
from ledger.protocol_v3 import ProtocolError, decode_request, encode_response, encode_stored
from ledger.requests import InvalidRequest, Response

_log = logging.getLogger(__name__)

_FLUSH_BYTES = 256 * 1024
_WRITE_HIGH_WATER = 1024 * 1024
_V3_FIRST_BYTE = 0x0A


class BookieConnection(asyncio.BufferedProtocol):
    """The server's end of a connection; as the processor sees it, a client that speaks v3."""

    encode = staticmethod(encode_response)
    encode_stored = staticmethod(encode_stored)

    def __init__(
        self,
        processor: RequestProcessor,
        connections: set[BookieConnection],
        statistics: BookieStatistics,
        max_frame_size: int,
    ) -> None:
        self._processor = processor
        self._connections = connections
        self._statistics = statistics
        self._decoder = FrameDecoder(max_frame_size)
        self._transport: asyncio.Transport | None = None
        self._answers: list[bytes] = []
        self._answer_bytes = 0
        self._peer = "?"
        self._reasons_to_wait: set[str] = set()
        self.takes_answers = True
        self.reads: deque[QueuedRead] = deque()
        self.reading = False
        self._binary: dict[int, BinaryClient] = {}

    # --- asyncio ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_WRITE_HIGH_WATER)
        self._peer = str(transport.get_extra_info("peername"))
        self._connections.add(self)
        self._statistics.connections += 1

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._answers.clear()
        self.reads.clear()
        for client in self._binary.values():
            client.reads.clear()
        self._processor.forget(self)
        self._connections.discard(self)
        self._statistics.connections -= 1

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for packet in self._decoder.buffer_updated(nbytes):
                if packet[0] == _V3_FIRST_BYTE and not self._binary:
                    self._processor.process(self, decode_request(packet))
                else:
                    self._take_binary(packet)
        except (FrameError, ProtocolError) as error:
            _log.warning("connection from %s is closed: %s", self._peer, error)
            self.close()
            return
        self._pump()
        self.flush()

    def _take_binary(self, packet: memoryview) -> None:
        request, version = protocol_v2.decode_request(packet)
        client = self._binary.get(version)
        if client is None:
            client = self._binary[version] = BinaryClient(self, version)
        if isinstance(request, InvalidRequest):
            client.answer(protocol_v2.refusal(request, request.status))
        else:
            self._processor.process(client, request)

    def _pump(self) -> None:
        if self.reads:
            self._processor.pump_reads(self)
        for client in self._binary.values():
            if client.reads:
                self._processor.pump_reads(client)

    def pause_writing(self) -> None:
        self.takes_answers = False
        self._wait("the client to take its answers")

    def resume_writing(self) -> None:
        self.takes_answers = True
        self._go_on("the client to take its answers")
        self._pump()
        self.flush()

    # --- the processor's view ---

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    def send(self, frame: bytes) -> None:
        if self._transport is None:
            return
        self._answers.append(frame)
        self._answer_bytes += len(frame)
        if self._answer_bytes > _FLUSH_BYTES:
            self.flush()

    def answer(self, response: Response) -> None:
        self.send(encode_response(response))

    def flush(self) -> None:
        if self._answers and self._transport is not None:
            self._transport.write(b"".join(self._answers))
        self._answers.clear()
        self._answer_bytes = 0

    def wait_for_room(self) -> None:
        self._wait("room in storage")

    # --- the server's view ---

    def room_in_storage(self) -> None:
        """Reads on after `wait_for_room`."""
        self._go_on("room in storage")

    def close(self) -> None:
        if self._transport is not None:
            self.flush()
            self._transport.close()

    def abort(self) -> None:
        """Closes at once: nothing more leaves."""
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
