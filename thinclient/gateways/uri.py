"""Addresses of gateways: `grpc://host:port,host:port`, or `grpcs://…` for TLS.

The URI may contain the files of a TLS client, `grpcs://host:4181?ca=/path&cert=/path&key=/path`, for settings that
accept only a metadata URI, and likewise the file of a token: `?token_file=/path`. Files in the URI take precedence over
the client's settings (`tls_ca`, `tls_cert`, `tls_key`, `token_file`).
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from bookgate.ledger.errors import IncorrectParameterException

if TYPE_CHECKING:
    import grpc


_FILES = ("ca", "cert", "key", "token_file")


@dataclass(frozen=True, slots=True)
class ClientTlsFiles:
    """PEM files of a TLS client; None: the system's authorities, no client certificate."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(str(path) for path in (self.cert, self.key, self.ca) if path is not None)

    def credentials(self) -> grpc.ChannelCredentials:
        """Reads the files. Raises IncorrectParameterException, which names unusable files."""
        if (self.cert is None) != (self.key is None):
            raise IncorrectParameterException("a client certificate needs both its certificate and its key file")
        # Commands that only print their help do without.
        import grpc

        from bookgate.runtime.tls.files import load_files

        contents = _read(self.ca), _read(self.key), _read(self.cert)
        # gRPC takes any files, and then fails at each handshake.
        load_files(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), self.cert, self.key, self.ca)
        return grpc.ssl_channel_credentials(*contents)


def _read(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        content = path.read_bytes()
    except OSError as error:
        raise IncorrectParameterException(f"TLS file {path} can't be read: {error.strerror or error}") from error
    if b"-----BEGIN" not in content:
        raise IncorrectParameterException(f"TLS file {path} is no PEM file")
    return content


@dataclass(frozen=True, slots=True)
class GatewayUri:
    """Addresses as `host:port`, in the given order, the TLS files (None for plain text), and the token's file."""

    addresses: tuple[str, ...]
    tls: ClientTlsFiles | None
    token_file: Path | None = None


def is_gateway_uri(uri: str) -> bool:
    """True for `grpc://` and `grpcs://`, and for addresses without a scheme; other schemes name a metadata store."""
    scheme, separator, _ = uri.strip().partition("://")
    return not separator or scheme.lower() in ("grpc", "grpcs")


def parse_gateways(uri: str, tls: ClientTlsFiles = ClientTlsFiles()) -> GatewayUri:
    """Parses a URI; one without a scheme is `grpc://`. `tls` provides the files that the URI does not name.

    Raises IncorrectParameterException.
    """
    scheme, separator, rest = uri.strip().partition("://")
    if not separator:
        scheme, rest = "grpc", uri.strip()
    if scheme not in ("grpc", "grpcs"):
        raise IncorrectParameterException(
            f"gateway address {uri!r}: scheme {scheme!r} is unknown; it is grpc:// or grpcs://"
        )
    rest, _, query = rest.partition("?")
    addresses = [address.strip() for address in rest.rstrip("/").split(",") if address.strip()]
    if not addresses:
        raise IncorrectParameterException(f"gateway address {uri!r} names no gateway; write grpc://host:4181,host:4181")
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise IncorrectParameterException(f"gateway address {address!r} is not host:port")
    files = _files(uri, query)
    token_file = files.pop("token_file", None)
    if scheme == "grpc" and files:
        raise IncorrectParameterException(f"gateway address {uri!r}: TLS files need the scheme grpcs://")
    secured = ClientTlsFiles(files.get("ca", tls.ca), files.get("cert", tls.cert), files.get("key", tls.key))
    return GatewayUri(tuple(dict.fromkeys(addresses)), secured if scheme == "grpcs" else None, token_file)


def _files(uri: str, query: str) -> dict[str, Path]:
    named = dict(parse_qsl(query, keep_blank_values=True))
    unknown = [f"{key}={value}" for key, value in named.items() if key not in _FILES or not value]
    if unknown:
        known = ", ".join(f"{key}=FILE" for key in _FILES)
        raise IncorrectParameterException(f"gateway address {uri!r}: {', '.join(unknown)} is not one of {known}")
    return {key: Path(value) for key, value in named.items()}
