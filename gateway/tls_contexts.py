"""TLS of what speaks it through Python's `ssl` (the entry port, HTTP): certificates from files.

Certificate files that have changed are taken up by the next connection. What can't be used is logged, once a change,
and the last good ones stay.
"""

from __future__ import annotations

import logging
import os
import ssl

from gateway.tls_files import TlsFiles
from ledger.errors import IncorrectParameterException
from reporting.logs import log_event

_LOG = logging.getLogger(__name__)


class ServerContexts:
    """What a server shows and whom it trusts, as the files have it."""

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
                log_event(_LOG, "tls", state="renewed", cert=self._files.cert)
        except IncorrectParameterException as error:
            if self._marks:
                log_event(_LOG, "tls", logging.ERROR, state="kept-old", reason=error)
            self._marks = ()
        return self._context

    def following(self) -> ssl.SSLContext:
        """One context for a listener that keeps it: each handshake goes on with the newest."""
        context = self._load()

        def choose(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
            connection.context = self.context()

        context.sni_callback = choose
        return context

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
