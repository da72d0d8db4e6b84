"""A transport that speaks TLS, as a protocol's `connection_made` gets it in place of the one below.

`loop.start_tls` can't do this: it swaps the protocol a turn of the loop after `connection_made`, and what the client
sent until then goes to the wrong one (uvloop begins to read whatever `pause_reading` said there). The handshake then
waits for what has come already.

The protocol below stays the transport's own: it passes what it receives to `receive`, and hears itself when it should
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
        """What the client said in clear, as far as it is whole. Raises ssl.SSLError, the alert being under way."""
        self._tls.feed(data)
        try:
            return self._read() if self._tls.established or self._tls.handshake() else b""
        finally:
            self._send()

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        """The client's, as `ssl.getpeercert` tells it; None before the handshake, and without one."""
        return self._tls.certificate() if self._tls.established else None

    @property
    def ended(self) -> bool:
        """Whether the client has said that nothing more comes."""
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
