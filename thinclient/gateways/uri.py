"""Addresses of gateways: `grpc://host:port,host:port`, or `grpcs://…` for TLS.

The URI may contain the files of a TLS client, `grpcs://host:4181?ca=/path&cert=/path&key=/path`, for places that accept
only a metadata URI. Files in the URI take precedence over the client's settings (`tls_ca`, `tls_cert`, `tls_key`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from bookgate.ledger.errors import IncorrectParameterException

if TYPE_CHECKING:
    import grpc


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of a TLS client; None: the system's authorities, no client certificate."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """Reads the files. Raises IncorrectParameterException, which names an unusable file."""
        if (self.cert is None) != (self.key is None):
            raise IncorrectParameterException("a client certificate needs both its certificate and its key file")
        import grpc  # Commands that only print their help do without.

        return grpc.ssl_channel_credentials(_read(self.ca), _read(self.key), _read(self.cert))


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
    """Addresses as `host:port`, in the given order, and the TLS files; None for plain text."""

    addresses: tuple[str, ...]
    tls: TlsFiles | None


def is_gateway_uri(uri: str) -> bool:
    """True for `grpc://` and `grpcs://`, and for addresses without a scheme; other schemes name a metadata store."""
    scheme, separator, _ = uri.strip().partition("://")
    return not separator or scheme.lower() in ("grpc", "grpcs")


def parse_gateways(uri: str, tls: TlsFiles = TlsFiles()) -> GatewayUri:
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
    files = _tls_files(uri, query, tls)
    if scheme == "grpc" and query:
        raise IncorrectParameterException(f"gateway address {uri!r}: TLS files need the scheme grpcs://")
    return GatewayUri(tuple(dict.fromkeys(addresses)), files if scheme == "grpcs" else None)


def _tls_files(uri: str, query: str, tls: TlsFiles) -> TlsFiles:
    named = dict(parse_qsl(query, keep_blank_values=True))
    unknown = [f"{key}={value}" for key, value in named.items() if key not in ("ca", "cert", "key") or not value]
    if unknown:
        raise IncorrectParameterException(
            f"gateway address {uri!r}: {', '.join(unknown)} is not one of ca=FILE, cert=FILE, key=FILE"
        )

    def chosen(key: str, setting: Path | None) -> Path | None:
        return Path(named[key]) if key in named else setting

    return TlsFiles(chosen("ca", tls.ca), chosen("cert", tls.cert), chosen("key", tls.key))
