"""TLS of a gateway: certificates that are reloaded when their files change (`runtime.tls.files`).

gRPC asks for the current configuration at each handshake; existing connections keep the certificates they began with.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import cast

import grpc

from bookgate.ledger.errors import IncorrectParameterException
from bookgate.runtime.tls.files import LastGood, ServerTlsFiles
from bookgate.runtime.tls.server_context import load_context


class ServerCertificates:
    """The server's certificate and the authorities whose clients it accepts, as in the files."""

    def __init__(self, files: ServerTlsFiles) -> None:
        """Raises IncorrectParameterException for files that can't be used."""
        self._files = files
        # gRPC asks from its own threads.
        self._lock = threading.Lock()
        self._loaded = LastGood(files, self._load)

    def credentials(self) -> grpc.ServerCredentials:
        return grpc.dynamic_ssl_server_credentials(
            self._loaded.value,
            # None, for no change, is what gRPC documents and its types lack.
            cast(Callable[[], grpc.ServerCertificateConfiguration], self.changed),
            require_client_authentication=self._files.client_ca is not None,
        )

    def changed(self) -> grpc.ServerCertificateConfiguration | None:
        """The new configuration, or None if nothing has changed."""
        with self._lock:
            return self._loaded.value if self._loaded.refresh() else None

    def _load(self) -> grpc.ServerCertificateConfiguration:
        load_context(self._files)  # gRPC would serve nothing without a word
        ca = _read(self._files.client_ca) if self._files.client_ca else None
        return grpc.ssl_server_certificate_configuration([(_read(self._files.key), _read(self._files.cert))], ca)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise IncorrectParameterException(f"TLS file {path}: {error.strerror}") from error
