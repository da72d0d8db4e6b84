"""TLS of a gateway: certificates from files, read anew when the files change.

gRPC asks at each handshake whether there is something new; connections that stand keep what they were made with. A
change that can't be read, or is half of one (a certificate without its key), is logged and the old pair stays in use.
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
from collections.abc import Callable
from typing import cast

import grpc

from gateway.tls_files import TlsFiles
from ledger.errors import IncorrectParameterException
from reporting.logs import log_event

_LOG = logging.getLogger(__name__)

_Marks = tuple[tuple[int, int, int], ...]


class ServerCertificates:
    """What the server shows and whom it trusts, as the files have it."""

    def __init__(self, files: TlsFiles) -> None:
        """Raises IncorrectParameterException for files that can't be used."""
        self._files = files
        # gRPC asks from its own threads.
        self._lock = threading.Lock()
        self._marks = self._read_marks()
        self._configuration = self._load()

    def credentials(self) -> grpc.ServerCredentials:
        return grpc.dynamic_ssl_server_credentials(
            self._configuration,
            # None, for no change, is what gRPC documents and its types lack.
            cast(Callable[[], grpc.ServerCertificateConfiguration], self._changed),
            require_client_authentication=self._files.client_ca is not None,
        )

    def _changed(self) -> grpc.ServerCertificateConfiguration | None:
        """The new configuration, or None where nothing has changed."""
        with self._lock:
            try:
                marks = self._read_marks()
                if marks == self._marks:
                    return None
                # Not tried again until the files change once more.
                self._marks = marks
                self._configuration = self._load()
            except IncorrectParameterException as error:
                log_event(_LOG, "tls", logging.ERROR, state="kept-old", reason=error)
                return None
            log_event(_LOG, "tls", state="renewed", cert=self._files.cert)
            return self._configuration

    def _read_marks(self) -> _Marks:
        try:
            stats = [os.stat(path) for path in self._files.paths]
        except OSError as error:
            raise IncorrectParameterException(f"TLS file {error.filename}: {error.strerror}") from error
        return tuple((stat.st_mtime_ns, stat.st_ino, stat.st_size) for stat in stats)

    def _load(self) -> grpc.ServerCertificateConfiguration:
        _check_pair(self._files)
        ca = _read(self._files.client_ca) if self._files.client_ca else None
        return grpc.ssl_server_certificate_configuration([(_read(self._files.key), _read(self._files.cert))], ca)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise IncorrectParameterException(f"TLS file {path}: {error.strerror}") from error


def _check_pair(files: TlsFiles) -> None:
    """gRPC would serve nothing without a word."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(files.cert, files.key)
        if files.client_ca:
            context.load_verify_locations(files.client_ca)
    except OSError as error:
        raise IncorrectParameterException(
            f"the TLS files {', '.join(files.paths)} can't be used together: {error.strerror or error}"
        ) from error
