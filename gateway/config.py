"""The gateway's configuration: one definition of every key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from bookgate.gateway.http.settings import HttpSettings
from bookgate.gateway.limits import GatewayLimits
from bookgate.gateway.stores.settings import StoreSettings, settings_of_all_stores
from bookgate.runtime.descriptors import descriptor_limit, gateway_share, http_share
from bookgate.runtime.logs import LogSettings
from bookgate.runtime.security.access_control import AccessControl
from bookgate.runtime.security.authenticators import is_loopback
from bookgate.runtime.security.exposure import check_exposure
from bookgate.runtime.security.rate_limits import PrincipalLimits
from bookgate.runtime.security.settings import SecuritySettings
from bookgate.runtime.settings_loader import Settings
from bookgate.runtime.tls.files import ServerTlsFiles
from bookgate.runtime.tls.server_context import ServerContexts

_LIMITS = GatewayLimits()

if TYPE_CHECKING:
    _SettingsOfAllStores = StoreSettings
else:
    _SettingsOfAllStores = settings_of_all_stores()


class GatewayConfig(Settings, _SettingsOfAllStores, SecuritySettings, HttpSettings, LogSettings):
    """Every setting of a gateway, with its meaning and its bounds."""

    model_config = SettingsConfigDict(env_prefix="BOOKGATE_GATEWAY_", extra="forbid")

    metadata_uri: str = Field(description="where the metadata is: zk+hierarchical://… or sqlite:///…")
    host: str = Field(default="127.0.0.1", min_length=1, description="address to listen at")
    port: int = Field(default=4181, ge=0, le=65535, description="port to listen at; 0 chooses a free one")
    http_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="port of the console, /metrics, /heartbeat and /ready; not served without",
    )
    workers: int = Field(default=1, ge=1, le=256, description="processes that share the port")
    bookmark_seconds: float = Field(default=10.0, gt=0, description="silence on a Watch stream before a bookmark")
    drain_seconds: float = Field(default=5.0, ge=0, description="grace for calls under way when stopping")

    tls_cert: str | None = Field(default=None, description="PEM file of the certificate shown to clients")
    tls_key: str | None = Field(default=None, description="PEM file of that certificate's key")
    tls_client_ca: str | None = Field(
        default=None, description="PEM file of the authorities that vouch for clients; with tls_require_client_cert"
    )
    tls_require_client_cert: bool = Field(default=False, description="serve only clients with a certificate")

    max_request_bytes: int = Field(default=_LIMITS.request_bytes, ge=1024, description="of one request message")
    max_connections: int | None = Field(
        default=None, ge=1, description="connections of all clients; default: by the limit of open files, at most 10000"
    )
    max_subscriptions: int = Field(
        default=_LIMITS.subscriptions_a_stream, ge=1, description="subscriptions on one Watch stream"
    )
    max_subscriptions_in_all: int = Field(
        default=_LIMITS.subscriptions, ge=1, description="subscriptions on all Watch streams together"
    )
    max_streams_per_client: int = Field(
        default=_LIMITS.streams_a_client, ge=1, description="streaming calls under way on one connection"
    )
    max_streams: int = Field(default=_LIMITS.streams, ge=1, description="streaming calls under way, of all clients")
    max_listings: int = Field(
        default=_LIMITS.listings, ge=1, description="of these, Iterate calls with metadata, of all clients"
    )
    max_batch: int = Field(default=_LIMITS.batch, ge=1, description="ledgers in one batch")
    max_metadata_bytes: int = Field(default=_LIMITS.metadata_bytes, ge=1, description="metadata of one ledger")
    max_store_calls: int = Field(
        default=_LIMITS.store_calls, ge=2, description="calls to the metadata store under way at once"
    )
    cache_bytes: int = Field(default=_LIMITS.cache_bytes, ge=0, description="memory of cached metadata; 0: no cache")
    cache_idle_seconds: float = Field(
        default=_LIMITS.cache_idle_seconds, gt=0, description="a cached ledger that nobody asked for goes after this"
    )

    def contradictions(self) -> Iterator[str]:
        yield from super().contradictions()
        if self.http_tls and self.tls_cert is None:
            yield "http_tls needs a certificate; set tls_cert and tls_key too"
        if (self.tls_cert is None) != (self.tls_key is None):
            yield "tls_cert and tls_key go together; set both or none"
        if self.tls_require_client_cert and not self.tls_client_ca:
            yield "tls_require_client_cert needs tls_client_ca, the authorities that vouch for clients"
        if self.tls_client_ca and not self.tls_require_client_cert:
            yield "tls_client_ca has no effect without tls_require_client_cert; set that too"
        if self.tls_client_ca and not self.tls_cert:
            yield "tls_client_ca needs TLS; set tls_cert and tls_key too"

    @property
    def open_doors(self) -> list[str]:
        """The listeners that accept other machines without authentication."""
        if self.has_security or is_loopback(self.host):
            return []
        doors = [] if self.tls_require_client_cert else ["gateway"]
        if self.http_port is not None and self.http_token is None and self.http_token_file is None:
            doors.append("http")
        return doors

    def check_exposure(self) -> None:
        """Raises IncorrectParameterException for doors that are open although nobody has said so."""
        check_exposure(self.host, self.open_doors, insecure=self.insecure)

    def limits(self) -> GatewayLimits:
        return GatewayLimits(
            request_bytes=self.max_request_bytes,
            connections=self.max_connections or gateway_share(descriptor_limit()),
            subscriptions_a_stream=self.max_subscriptions,
            subscriptions=self.max_subscriptions_in_all,
            streams_a_client=self.max_streams_per_client,
            streams=self.max_streams,
            listings=self.max_listings,
            batch=self.max_batch,
            metadata_bytes=self.max_metadata_bytes,
            store_calls=self.max_store_calls,
            cache_bytes=self.cache_bytes,
            cache_idle_seconds=self.cache_idle_seconds,
        )

    def http_connections(self) -> int:
        """Maximum number of HTTP connections."""
        return self.http_max_connections or http_share(descriptor_limit())

    def tls_files(self) -> ServerTlsFiles | None:
        if self.tls_cert is None or self.tls_key is None:
            return None
        return ServerTlsFiles(self.tls_cert, self.tls_key, self.tls_client_ca)

    def access(self, rates: PrincipalLimits | None = None) -> AccessControl | None:
        """Who may do what; None: everybody everything. Raises IncorrectParameterException for files of no use."""
        return AccessControl.from_settings(self, certificates=self.tls_require_client_cert, rates=rates)

    def http_contexts(self) -> ServerContexts | None:
        """The TLS contexts of HTTP; None for plain HTTP. Raises IncorrectParameterException for unusable files."""
        if not self.http_tls or self.tls_cert is None or self.tls_key is None:
            return None
        # Who shows a certificate is known by it, where principals count; a browser has none.
        authorities = self.tls_client_ca if self.has_security else None
        return ServerContexts(ServerTlsFiles(self.tls_cert, self.tls_key, authorities))

    def for_worker(self, number: int, port: int) -> GatewayConfig:
        """The configuration of one of several workers: the shared gRPC port, and an HTTP port of its own."""
        http_port = self.http_port + number if self.http_port else self.http_port
        # Files that begin anew when they get long are one process's.
        audit = self.audit_file.with_stem(f"{self.audit_file.stem}-{number}") if self.audit_file and number else None
        own = {"port": port, "http_port": http_port, "workers": 1, "audit_file": audit or self.audit_file}
        return self.model_copy(update=own)

    def as_json_line(self) -> bytes:
        """All settings as one line for `model_validate_json`. It contains secrets: for a pipe, never for a log."""
        values = self.model_dump(mode="json")
        values |= {key: value.get_secret_value() for key, value in self if isinstance(value, SecretStr)}
        return json.dumps(values).encode() + b"\n"
