"""One connection's end of entry protocol v3: receives frames, and passes responses to the connection that owns it.

While TLS and authentication are set up it is a mailbox (packets wait for `receive`); from `open` on it passes packets
on. Without a setup it is open at once. Bytes that are not valid frames or responses end it. Not its job: requests,
their deadlines and the consequences of a lost connection for them (`connection`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, cast

from bookgate.ledger.wire.fast_responses import found_entry, stored_add, stored_adds
from bookgate.ledger.wire.frames import FrameDecoder, FrameError
from bookgate.ledger.wire.messages import ADD_ENTRY, READ_ENTRY
from bookgate.ledger.wire.v3 import ProtocolError, decode_response

if TYPE_CHECKING:
    from bookgate.thinclient.bookies.connection import BookieConnection

_OPERATION_AT = 5
"""Position of the operation in nearly every response: after tag and length of the header, and its version."""
_LEAST_RUN = 128
"""Received bytes that may be several responses to adds; below, looking for a run costs more than it saves."""


class Wire(asyncio.BufferedProtocol):
    """One connection's end. A lost wire may still make calls; the owner accepts only those of its current one.

    With a setup it begins as a mailbox: packets wait for `receive`, until `open`.
    """

    transport: asyncio.Transport
    reads_runs: ClassVar[bool] = True
    """Whether successful adds are read many at once."""

    def __init__(self, owner: BookieConnection, max_frame_size: int, setting_up: bool) -> None:
        self._owner = owner
        self._max_frame_size = max_frame_size
        self._decoder = FrameDecoder(max_frame_size)
        self._mailbox: deque[bytes] | None = deque() if setting_up else None
        self._reader: asyncio.Future[None] | None = None
        self._ended: Exception | None = None
        self.heard = False
        """Something was received since the last scan."""
        self.proven = False
        """Something was received before the last scan."""
        self.hint = ""
        """What it may mean if the bookie closes the connection without a response."""

    # asyncio's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._owner.on_transport(self, opened=self._mailbox is None)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self.heard = True
        try:
            if self._mailbox is None:
                self._take_received(nbytes)
            else:
                self._mailbox += map(bytes, self._decoder.buffer_updated(nbytes))
                self._wake()
        except (FrameError, ProtocolError) as error:
            self._end(f"sent what is not the entry protocol ({error}); the connection is closed", error)

    def pause_writing(self) -> None:
        self._owner.on_writable(self, False)

    def resume_writing(self) -> None:
        self._owner.on_writable(self, True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.on_transport_lost(self)
        self._end(f"lost the connection: {exc or 'closed by the bookie'}", exc)

    def trim(self) -> None:
        """Releases receive buffer space that was not needed since the last call."""
        self._decoder.trim()

    # Responses of an open connection

    def _take_received(self, nbytes: int) -> None:
        stored: Sequence[int] = ()
        received = self._decoder.received(nbytes)
        if nbytes >= _LEAST_RUN and self.reads_runs:
            stored, size = stored_adds(received)
            self._decoder.skip(size)
        packets = self._decoder.packets()
        if stored:
            self._owner.on_stored(self, stored)
        self.take(packets)

    def take(self, packets: Sequence[memoryview]) -> None:
        """Passes responses to the owner. Raises ProtocolError."""
        owner = self._owner
        for packet in packets:
            kind = packet[_OPERATION_AT] if len(packet) > _OPERATION_AT else 0
            if kind == ADD_ENTRY and (stored := stored_add(packet)) is not None:
                txn_id, term = stored
                owner.on_stored(self, (txn_id,), term)
            elif kind == READ_ENTRY and (found := found_entry(packet)) is not None:
                owner.on_response(self, found)
            else:
                owner.on_response(self, decode_response(packet))

    # While the connection is set up

    async def receive(self) -> bytes:
        """The next packet. Raises FrameError for an invalid one, and ConnectionError once the connection is gone."""
        while not self._mailbox:
            if self._ended is not None:
                raise self._ended
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        return self._mailbox.popleft()

    def begin_tls(self) -> bool:
        """Discards clear-text input; False if there was any, because nobody can vouch for it."""
        clean = not self._mailbox and not self._decoder.pending
        self._decoder = FrameDecoder(self._max_frame_size)
        return clean

    def abandon(self) -> None:
        """Closes the transport during a TLS handshake, the end of which event loops do not always report."""
        self.transport.abort()
        asyncio.get_running_loop().call_soon(self._owner.on_transport_lost, self)

    def open(self) -> None:
        """Ends the setup. Raises ConnectionError or FrameError if the connection has ended meanwhile."""
        if self._ended is not None:
            raise self._ended
        self._mailbox = None

    def _end(self, reason: str, error: Exception | None) -> None:
        if self._mailbox is None:
            reason += "" if self.heard or self.proven else self.hint
            self._owner.on_lost(self, self._owner.loss(reason, error))
            return
        # `handshake` knows what the end of a connection means at the current step.
        self._ended = error or ConnectionResetError("closed by the bookie")
        self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
