"""TLS in memory: the TLS of one server connection, between its transport and the decrypted data.

The transport stays unchanged, and its bytes pass through here from the first one on. So nothing depends on when an
event loop begins to read, both loops behave alike, and a connection counts, and can be closed, before its handshake is
done.

Users: the entry port (docs/protocol/wire.md#start_tls), which reads straight into its frame decoder's buffer and
changes to TLS when a client asks for it or begins with it, and HTTP (`transport`). Not its job: when a connection
changes to TLS, whether it must, the certificates (`server_context`).
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Mapping
from typing import Any, cast

CLIENT_HELLO = 0x16
"""First byte that a TLS client sends; no frame or packet of the entry protocol begins with it."""

_LEAST_READ = 4 * 1024
_MOST_READ = 64 * 1024
_STATE_BYTES = 48 * 1024
"""Approximate memory of OpenSSL per connection."""


class TlsChannel:
    """One connection's TLS. Every method may leave bytes for the client in `take_outgoing`, and raise ssl.SSLError."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._buffer = memoryview(bytearray(_LEAST_READ))
        self._filled = False
        self.established = False
        """Whether the handshake is done."""
        self.ended = False
        """Whether the client has ended TLS."""
        self._closed = False

    def get_buffer(self) -> memoryview:
        """The buffer for received bytes. It grows while reads fill it."""
        if self._filled and len(self._buffer) < _MOST_READ:
            self._buffer = memoryview(bytearray(4 * len(self._buffer)))
        return self._buffer

    def buffer_updated(self, count: int) -> None:
        self._filled = count == len(self._buffer)
        self._incoming.write(self._buffer[:count])

    @property
    def held_bytes(self) -> int:
        """Approximate memory in bytes."""
        return _STATE_BYTES + len(self._buffer) + self._incoming.pending + self._outgoing.pending

    def feed(self, data: bytes) -> None:
        """Takes bytes that were received before the change to TLS."""
        self._incoming.write(data)

    def handshake(self) -> bool:
        """Continues the handshake; True once it is done."""
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.do_handshake()
            self.established = True
        return self.established

    def read_into(self, buffer: memoryview) -> int:
        """Decrypts into the buffer; returns the number of bytes, 0 if more must be received first."""
        try:
            count = cast("int", self._tls.read(len(buffer), buffer))
        except ssl.SSLWantReadError:
            return 0
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            count = 0
        # A client that ends TLS properly shows as a read of 0 bytes.
        self.ended = count == 0
        return count

    def write(self, data: bytes) -> None:
        """Encrypts; ignored after `close`."""
        if self._closed:
            return
        view = memoryview(data)
        while view:
            view = view[self._tls.write(view) :]

    def close(self) -> None:
        """Ends TLS from this side."""
        if self.established and not self._closed:
            self._closed = True
            with contextlib.suppress(ssl.SSLError):
                self._tls.unwrap()

    def take_outgoing(self) -> bytes:
        """The bytes to send."""
        return self._outgoing.read()

    def certificate(self) -> Mapping[str, Any] | None:
        """The client's certificate, None if it presented none."""
        return self._tls.getpeercert() or None
