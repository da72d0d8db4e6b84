"""Server TLS contexts for Python's `ssl` (the entry port and HTTP), built from certificate files.

The next connection uses changed certificate files (`files`).
"""

from __future__ import annotations

import ssl

from bookgate.runtime.tls.files import LastGood, ServerTlsFiles, load_files


class ServerContexts:
    """The server's certificate and trusted authorities, kept up to date with the files."""

    def __init__(self, files: ServerTlsFiles, *, require_client_certificate: bool = False) -> None:
        """Raises IncorrectParameterException for unusable files."""
        self._files = files
        self._required = require_client_certificate
        self._loaded = LastGood(files, self._load)

    def context(self) -> ssl.SSLContext:
        """The context for a new connection."""
        self._loaded.refresh()
        return self._loaded.value

    def _load(self) -> ssl.SSLContext:
        context = load_context(self._files)
        if self._files.client_ca:
            context.verify_mode = ssl.CERT_REQUIRED if self._required else ssl.CERT_OPTIONAL
        return context


def load_context(files: ServerTlsFiles) -> ssl.SSLContext:
    """Builds the server's context from these files. Raises IncorrectParameterException if they are unusable."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_files(context, files.cert, files.key, files.client_ca or None)
    return context
