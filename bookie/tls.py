"""TLS of the entry port: the certificates, and one connection's TLS between its transport and its frames.

A connection becomes one of TLS by START_TLS, or because its first bytes are those of a TLS client: as the length of a
frame they would be over any limit, so the same port serves both. The records are worked on in memory, which leaves the
transport as it is and reads straight into the frame decoder's buffer; so both event loops behave alike.

Certificate files that have changed are taken up by the next connection. What can't be used is logged, once a change,
and the last good ones stay.

Source: operations page, section 7.1; wire-protocol page, section 6. Not here: when a connection changes over
(`connection`), whether it must (`core.gate`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import ssl
from collections.abc import Mapping
from typing import Any

from gateway.tls_files import TlsFiles
from ledger.errors import IncorrectParameterException
from reporting.logs import log_event

_log = logging.getLogger(__name__)

CLIENT_HELLO = 0x16
"""First byte of a TLS client, which no frame and no packet of the protocol begins with."""

_READ_SIZE = 64 * 1024


class ServerCertificates:
    """What the bookie shows and whom it trusts, as the files have it."""

    def __init__(self, files: TlsFiles, *, require_client_certificate: bool = False) -> None:
        """Raises IncorrectParameterException for files that can't be used."""
        self._files = files
        self._required = require_client_certificate
        self._marks = self._read_marks()
        self._context = self._load()

    def context(self) -> ssl.SSLContext:
        """The context for a new connection."""
        try:
            marks = self._read_marks()
            if marks != self._marks:
                # Not tried again until the files change once more.
                self._marks = marks
                self._context = self._load()
                log_event(_log, "tls", state="renewed", cert=self._files.cert)
        except IncorrectParameterException as error:
            if self._marks:
                log_event(_log, "tls", logging.ERROR, state="kept-old", reason=error)
            self._marks = ()
        return self._context

    def _read_marks(self) -> tuple[tuple[int, int, int], ...]:
        try:
            stats = [os.stat(path) for path in self._files.paths]
        except OSError as error:
            raise IncorrectParameterException(f"TLS file {error.filename}: {error.strerror}") from error
        return tuple((stat.st_mtime_ns, stat.st_ino, stat.st_size) for stat in stats)

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self._files.cert, self._files.key, password=_no_password)
            if self._files.client_ca:
                context.load_verify_locations(self._files.client_ca)
                context.verify_mode = ssl.CERT_REQUIRED if self._required else ssl.CERT_OPTIONAL
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise IncorrectParameterException(
                f"the TLS files {', '.join(self._files.paths)} can't be used together: {reason}"
            ) from error
        return context


def _no_password() -> str:
    """Instead of OpenSSL's question at the terminal."""
    raise ValueError("the key is protected by a password; give one without")


class TlsChannel:
    """One connection's TLS. Every method may leave bytes for the client in `take_outgoing`. They raise ssl.SSLError."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._buffer = memoryview(bytearray(_READ_SIZE))
        self.established = False
        """Whether the handshake is done."""
        self.ended = False
        """Whether the client has said that nothing more comes."""
        self._closed = False

    def get_buffer(self) -> memoryview:
        """Where the transport may write what it receives."""
        return self._buffer

    def buffer_updated(self, count: int) -> None:
        self._incoming.write(self._buffer[:count])

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
