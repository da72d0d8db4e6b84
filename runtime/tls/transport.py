"""A transport that speaks TLS, passed to a protocol's `connection_made` in place of the one below it.

`loop.start_tls` is no alternative: it swaps the protocol one turn of the loop after `connection_made`, and bytes that
the client sent until then reach the wrong protocol (uvloop begins to read regardless of `pause_reading` there). The
handshake then waits for bytes that have already arrived.

The transport below keeps its own protocol, which passes received bytes to `receive` and itself handles requests to
pause writing. Not its job: how long a handshake may take, how many connections there are.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Any

from bookgate.runtime.tls.channel import TlsChannel

_READ_BYTES = 64 * 1024


class TlsTransport(asyncio.Transport):
    """The server's end of one connection."""

    def __init__(self, below: asyncio.Transport, context: ssl.SSLContext) -> None:
        super().__init__({"sslcontext": context})
        self._below = below
        self._tls = TlsChannel(context)

    def receive(self, data: bytes) -> bytes:
        """Decrypts received bytes, as far as they are complete. Raises ssl.SSLError, after the alert was sent."""
        self._tls.feed(data)
        try:
            return self._read() if self._tls.established or self._tls.handshake() else b""
        finally:
            self._send()

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        """The client's certificate in the form of `ssl.getpeercert`; None before the handshake, or if it presented
        none.
        """
        return self._tls.certificate() if self._tls.established else None

    @property
    def ended(self) -> bool:
        """Whether the client has ended TLS."""
        return self._tls.ended

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self.is_closing():
            self._tls.write(bytes(data))
            self._send()

    def close(self) -> None:
        if not self.is_closing():
            self._tls.close()
            self._send()
            self._below.close()

    def abort(self) -> None:
        self._below.abort()

    def is_closing(self) -> bool:
        return self._below.is_closing()

    def pause_reading(self) -> None:
        self._below.pause_reading()

    def resume_reading(self) -> None:
        self._below.resume_reading()

    def is_reading(self) -> bool:
        return self._below.is_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        own = super().get_extra_info(name)
        return self._below.get_extra_info(name, default) if own is None else own

    def _read(self) -> bytes:
        buffer = memoryview(bytearray(_READ_BYTES))
        parts = []
        while count := self._tls.read_into(buffer):
            parts.append(bytes(buffer[:count]))
        return b"".join(parts)

    def _send(self) -> None:
        data = self._tls.take_outgoing()
        if data and not self.is_closing():
            self._below.write(data)
