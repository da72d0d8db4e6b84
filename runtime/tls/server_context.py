"""TLS of what speaks it through Python's `ssl` (the entry port, HTTP): certificates from files.

Certificate files that have changed are taken up by the next connection (`files`).
"""

from __future__ import annotations

import ssl

from bookgate.ledger.errors import IncorrectParameterException
from bookgate.runtime.tls.files import Loaded, TlsFiles, no_password


class ServerContexts:
    """What a server shows and whom it trusts, as the files have it."""

    def __init__(self, files: TlsFiles, *, require_client_certificate: bool = False) -> None:
        """Raises IncorrectParameterException for files that can't be used."""
        self._files = files
        self._required = require_client_certificate
        self._loaded = Loaded(files, self._load)

    def context(self) -> ssl.SSLContext:
        """The context for a new connection."""
        self._loaded.refresh()
        return self._loaded.value

    def _load(self) -> ssl.SSLContext:
        context = load_context(self._files)
        if self._files.client_ca:
            context.verify_mode = ssl.CERT_REQUIRED if self._required else ssl.CERT_OPTIONAL
        return context


def load_context(files: TlsFiles) -> ssl.SSLContext:
    """The server's context of these files. Raises IncorrectParameterException for what can't be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(files.cert, files.key, password=no_password)
        if files.client_ca:
            context.load_verify_locations(files.client_ca)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise IncorrectParameterException(
            f"the TLS files {', '.join(files.paths)} can't be used together: {reason}"
        ) from error
    return context
