"""TLS to bookies: certificate files, checks, and descriptions of failures.

There are two modes: `start-tls` begins in clear text, sends the START_TLS request and continues inside TLS on the same
connection, as BookKeeper's own client does; `native` is TLS from the first byte. The next connection uses changed
certificate files. If a file can't be read any more the connection fails with the reason instead of using the last good
files, since a withdrawn certificate must not remain in use.

Source: docs/protocol/wire.md#start_tls. Not its job: the steps on the wire (`handshake`), TLS to the gateways
(`gateways.uri`).
"""

from __future__ import annotations

import ssl
from functools import partial

from bookgate.ledger.errors import SecurityException
from bookgate.runtime.tls.files import Reloader, no_password
from bookgate.thinclient.config import BookieTls


class TlsContexts:
    """The SSL context for the current files."""

    def __init__(self, settings: BookieTls) -> None:
        paths = [str(path) for path in (settings.ca, settings.cert, settings.key) if path is not None]
        self._reloader = Reloader(paths, partial(_make, settings), SecurityException)

    def current(self) -> ssl.SSLContext:
        """A context, rebuilt when a file has changed. Raises SecurityException, which names an unusable file."""
        return self._reloader.current()


def _make(settings: BookieTls) -> ssl.SSLContext:
    if (settings.cert is None) != (settings.key is None):
        raise SecurityException("a client certificate needs both its certificate and its key file")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = settings.verify_host_name
    try:
        if settings.ca is None:
            context.load_default_certs()
        else:
            context.load_verify_locations(settings.ca)
    except (OSError, ssl.SSLError) as error:
        raise SecurityException(f"TLS file {settings.ca} holds no PEM certificates of authorities: {error}") from error
    if settings.cert is None or settings.key is None:
        return context
    try:
        context.load_cert_chain(settings.cert, settings.key, password=no_password)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise SecurityException(
            f"the client certificate {settings.cert} with key {settings.key} can't be used: {error}"
        ) from error
    return context


def explain(error: BaseException) -> str:
    """Describes why TLS failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message or error}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or error}"
    return f"TLS failed: {error or type(error).__name__}"
