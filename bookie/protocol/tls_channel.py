"""TLS of the entry port: one connection's TLS between its transport and its frames.

A connection becomes one of TLS by START_TLS, or because its first bytes are those of a TLS client: as the length of a
frame they would be over any limit, so the same port serves both. The records are worked on in memory, which leaves the
transport as it is and reads straight into the frame decoder's buffer; so both event loops behave alike.

Source: docs/protocol/wire.md#start_tls. Not here: when a connection changes over (`connection`), whether it must
(`core.gate`), the certificates (`bookgate.runtime.tls.server_context`).
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Mapping
from typing import Any

CLIENT_HELLO = 0x16
"""First byte of a TLS client, which no frame and no packet of the protocol begins with."""

_LEAST_READ = 4 * 1024
_MOST_READ = 64 * 1024
_STATE_BYTES = 48 * 1024
"""What OpenSSL keeps of one connection, about."""


class TlsChannel:
    """One connection's TLS. Every method may leave bytes for the client in `take_outgoing`. They raise ssl.SSLError."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._buffer = memoryview(bytearray(_LEAST_READ))
        self._filled = False
        self.established = False
        """Whether the handshake is done."""
        self.ended = False
        """Whether the client has said that nothing more comes."""
        self._closed = False

    def get_buffer(self) -> memoryview:
        """Where the transport may write what it receives. It grows while reads fill it."""
        if self._filled and len(self._buffer) < _MOST_READ:
            self._buffer = memoryview(bytearray(4 * len(self._buffer)))
        return self._buffer

    def buffer_updated(self, count: int) -> None:
        self._filled = count == len(self._buffer)
        self._incoming.write(self._buffer[:count])

    @property
    def held_bytes(self) -> int:
        """Memory, about."""
        return _STATE_BYTES + len(self._buffer) + self._incoming.pending + self._outgoing.pending

    def feed(self, data: bytes) -> None:
        """The same for bytes that were received before the change to TLS."""
        self._incoming.write(data)

    def handshake(self) -> bool:
        """Goes on with the handshake; True once it is done."""
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.do_handshake()
            self.established = True
        return self.established

    def read_into(self, buffer: memoryview) -> int:
        """Decrypts into the buffer; returns the count of bytes, 0 when more has to be received first."""
        try:
            return self._tls.read(len(buffer), buffer)  # type: ignore[return-value]  # a count, with a buffer
        except ssl.SSLWantReadError:
            return 0
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            self.ended = True
            return 0

    def write(self, data: bytes) -> None:
        """Encrypts; ignored after `close`."""
        if self._closed:
            return
        view = memoryview(data)
        while view:
            view = view[self._tls.write(view) :]

    def close(self) -> None:
        """Says that nothing more comes."""
        if self.established and not self._closed:
            self._closed = True
            with contextlib.suppress(ssl.SSLError):
                self._tls.unwrap()

    def take_outgoing(self) -> bytes:
        """What is to be sent."""
        return self._outgoing.read()

    def certificate(self) -> Mapping[str, Any] | None:
        """The client's, None when it showed none."""
        return self._tls.getpeercert() or None
