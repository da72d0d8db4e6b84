"""The bookie's settings: one definition of every key.

Sources are a TOML file, the environment (`BOOKGATE_BOOKIE_…`) and options, in rising order of precedence. Sizes are in
the unit that the key names. Where BookKeeper has the same setting, the description gives its name.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from bookgate.bookie.config.auto_recovery import AutoRecoverySettings
from bookgate.bookie.config.collection import GcSettings
from bookgate.bookie.config.descriptor_shares import DescriptorShares, share_out
from bookgate.bookie.config.gateway_table import GATEWAY_TABLE, gather_gateway
from bookgate.bookie.config.own_client import OwnClientSettings
from bookgate.bookie.config.storage import StorageSettings
from bookgate.bookie.disks.rules import DiskThresholds
from bookgate.bookie.protocol.authentication import load_provider
from bookgate.bookie.protocol.connections import ConnectionLimits
from bookgate.bookie.protocol.principals import PrincipalProvider
from bookgate.bookie.protocol.read_scheduler import MAX_BATCH_READ_SIZE
from bookgate.bookie.protocol.security import Security
from bookgate.gateway.config import GatewayConfig
from bookgate.gateway.http.settings import HttpSettings
from bookgate.ledger.wire.frames import DEFAULT_MAX_FRAME_SIZE
from bookgate.runtime.descriptors import descriptor_limit
from bookgate.runtime.logs import LogSettings
from bookgate.runtime.security.access_control import AccessControl
from bookgate.runtime.security.authenticators import is_loopback
from bookgate.runtime.security.exposure import check_exposure
from bookgate.runtime.security.settings import SecuritySettings
from bookgate.runtime.settings import SECRET, Renamed, TableOf, with_unit
from bookgate.runtime.settings_loader import Gathered
from bookgate.runtime.settings_problems import Given
from bookgate.runtime.tls.files import ServerTlsFiles
from bookgate.runtime.tls.server_context import ServerContexts

_MIB = 1024 * 1024
_FILES_OF_A_DIRECTORY = 8
"""File descriptors per ledger or journal directory: the current file, the next one, an index file, a sync of the
directory.
"""
_MOST_INSTANCES = 256
_ROCKSDB_FILES = 128
"""File descriptors that an index in RocksDB keeps open, approximately."""


class BookieConfig(
    StorageSettings,
    GcSettings,
    AutoRecoverySettings,
    OwnClientSettings,
    SecuritySettings,
    HttpSettings,
    LogSettings,
):
    """All settings of a bookie. Raises pydantic's ValidationError for a value out of range."""

    model_config = SettingsConfigDict(env_prefix="BOOKGATE_BOOKIE_", frozen=True, extra="forbid")
    RENAMED: ClassVar[Mapping[str, Renamed]] = {
        **with_unit("_bytes", "max_frame_size", "max_batch_read_size"),
        "tls_certificate": Renamed("tls_cert"),
        "tls_require_client_certificate": Renamed("tls_require_client_cert"),
    }

    metadata_uri: str = Field(
        description="metadata store: sqlite:///path or zk+hierarchical://host:port/ledgers; or gateways: grpc://host:port,…"
    )
    host: str = Field("0.0.0.0", description="address to listen on, for all ports")
    advertised_address: str | None = Field(None, description="advertisedAddress: what clients are told to connect to")
    announced_host: str | None = Field(
        None,
        description="the machine, where the address does not tell it: no two copies of an entry are placed on one",
    )
    port: int = Field(3181, ge=0, le=65535, description="bookiePort: entry protocol; 0 = choose a free one")
    gateway_port: int = Field(4181, ge=0, le=65535, description="metadata gateway (gRPC); 0 = choose a free one")
    http_port: int = Field(8080, ge=0, le=65535, description="httpServerPort: HTTP admin; 0 = choose a free one")
    gateway_process: bool = Field(
        False,
        description="the gateway, and the listings of HTTP, in a process of their own, which the bookie minds: "
        "readers of metadata do not take its turns",
    )
    auto_recovery: bool | None = Field(
        None,
        description="autoRecoveryDaemonEnabled: this bookie is a candidate for auditor, and repairs ledgers that lack "
        "copies; default: where `bookgate cluster init` has made the cluster, and while no auditor of BookKeeper's is "
        "in office",
    )
    bookie_id: str | None = Field(None, description="bookieId; default: advertised address and port")
    instances: int | Literal["auto"] = Field(
        1,
        description="bookies of this host, each a process with id, ports and directories of its own; auto: one a core "
        "at the first start, later as many as there were",
    )
    instance: int | None = Field(None, ge=1, description="which of these a command means; `start` runs that one alone")
    max_frame_size_bytes: int = Field(
        DEFAULT_MAX_FRAME_SIZE, ge=1024, le=256 * _MIB, description="nettyMaxFrameSizeBytes, length bytes included"
    )
    max_batch_read_size_bytes: int = Field(
        MAX_BATCH_READ_SIZE, ge=1, le=256 * _MIB, description="maxBatchReadSize: bytes of an answer to a batch read"
    )
    max_connections: int | None = Field(
        None, ge=1, description="of the entry port; over it the longest idle goes; default: by the limit of open files"
    )
    connection_memory_mb: int = Field(
        512,
        ge=16,
        description="receive buffers, answers that clients don't take, requests under way, of all connections; over it "
        "those go that hold the most for the longest",
    )
    handshake_timeout_seconds: float = Field(
        10.0, gt=0, description="a connection that must authenticate, or begins TLS, is closed unless done by then"
    )
    tls_cert: Path | None = Field(None, description="PEM file; sets up TLS on the entry port, beside clear")
    tls_key: Path | None = Field(None, description="PEM file of that certificate's key")
    tls_client_ca: Path | None = Field(None, description="PEM file of the authorities that vouch for clients")
    tls_require_client_cert: bool = Field(False, description="TLS clients must show a certificate")
    tls_required: bool = Field(False, description="serve nothing on connections in clear")
    auth_provider: str | None = Field(
        None, description="bookieAuthProviderFactoryClass: bookgate-token, bookgate-tls-role or an installed one"
    )
    auth_options: Annotated[dict[str, str], SECRET] = Field(
        default_factory=dict, description="settings of the authentication provider"
    )
    disk_check_interval_seconds: float = Field(10.0, gt=0, description="diskCheckInterval")
    disk_usage_threshold: float = Field(0.95, gt=0, le=1, description="diskUsageThreshold, as a fraction")
    disk_usage_warn_threshold: float = Field(0.90, gt=0, le=1, description="diskUsageWarnThreshold")
    disk_usage_low_water_mark: float | None = Field(
        None,
        gt=0,
        le=1,
        description="diskUsageLwmThreshold: below, a full disk is written again; default: threshold",
    )
    min_usable_for_high_priority_writes_mb: int = Field(
        1024, ge=0, description="minUsableSizeForHighPriorityWrites: left for recovery while read-only"
    )
    min_usable_for_entry_log_mb: int = Field(
        1024, ge=0, description="minUsableSizeForEntryLogCreation: left where a log may begin while all disks are full"
    )
    min_usable_for_index_mb: int = Field(100, ge=0, description="minUsableSizeForIndexFileCreation")
    read_only_mode_enabled: bool = Field(True, description="readOnlyModeEnabled: off, the bookie stops instead")
    read_only_on_any_disk_full: bool = Field(True, description="readOnlyModeOnAnyDiskFullEnabled")
    persist_bookie_status: bool = Field(False, description="persistBookieStatusEnabled: the mode outlives a restart")
    force_read_only: bool = Field(False, description="forceReadOnlyBookie")
    gateway: Annotated[dict[str, Any], TableOf(GatewayConfig)] = Field(
        default_factory=dict, description="settings of the hosted gateway; also in the environment, BOOKGATE_GATEWAY_…"
    )

    _source_of_gateway: str = ""
    """Where the table comes from, which decides whether the environment is above it."""

    @classmethod
    def made_of(cls, gathered: Gathered) -> Self:
        config = super().made_of(gathered)
        if GATEWAY_TABLE in gathered.given and not gathered.given[GATEWAY_TABLE].precedes_environment:
            config._source_of_gateway = f"table {GATEWAY_TABLE}"
        return config

    def contradictions(self) -> Iterator[str]:
        yield from super().contradictions()
        if (self.tls_cert is None) != (self.tls_key is None):
            yield "tls_cert and tls_key go together; set both or none"
        elif self.tls_cert is None and (self.tls_client_ca or self.tls_required):
            yield "tls_client_ca and tls_required need TLS; set tls_cert and tls_key too"
        if self.http_tls and self.tls_cert is None:
            yield "http_tls needs a certificate; set tls_cert and tls_key too"
        if self.tls_require_client_cert and self.tls_client_ca is None:
            yield "tls_require_client_cert needs tls_client_ca, the authorities that vouch for clients"
        if self.instances != "auto" and not 1 <= self.instances <= _MOST_INSTANCES:
            yield f"instances must be a number from 1 to {_MOST_INSTANCES}, or auto"
        elif self.instance is not None and self.instances != "auto" and self.instance > self.instances:
            yield f"there is no instance {self.instance}: instances is {self.instances}, and they count from 1"
        if self.auth_options and self.auth_provider is None:
            yield "auth_options have no effect without auth_provider; set that too"

    def access_control(self) -> AccessControl | None:
        """The access rules of all ports; None without security.

        Raises:
            IncorrectParameterException: The policy or the tokens can't be used.
        """
        return AccessControl.from_settings(self, certificates=self.tls_client_ca is not None)

    def security(self, access: AccessControl | None = None) -> Security:
        """How the entry port is protected.

        Args:
            access: The access rules; None without security.

        Raises:
            IncorrectParameterException: Files or options can't be used.
        """
        provider = load_provider(self.auth_provider, self.auth_options) if self.auth_provider else None
        return Security(
            certificates=self._certificates(),
            tls_required=self.tls_required,
            provider=provider if access is None else PrincipalProvider(access, provider),
            handshake_seconds=self.handshake_timeout_seconds,
        )

    def _certificates(self) -> ServerContexts | None:
        if self.tls_cert is None or self.tls_key is None:
            return None
        authorities = str(self.tls_client_ca) if self.tls_client_ca else None
        files = ServerTlsFiles(str(self.tls_cert), str(self.tls_key), authorities)
        return ServerContexts(files, require_client_certificate=self.tls_require_client_cert)

    def http_contexts(self) -> ServerContexts | None:
        """TLS of HTTP; None for HTTP in clear text.

        Raises:
            IncorrectParameterException: The certificate files can't be used.
        """
        if not self.http_tls or self.tls_cert is None or self.tls_key is None:
            return None
        # Where principals count, a client that presents a certificate is identified by it; a browser has none.
        authorities = str(self.tls_client_ca) if self.tls_client_ca and self.has_security else None
        return ServerContexts(ServerTlsFiles(str(self.tls_cert), str(self.tls_key), authorities))

    @property
    def metadata_behind_gateway(self) -> bool:
        """True if the metadata is reached through gateways: this bookie then hosts none."""
        return self.metadata_uri.lower().startswith(("grpc:", "grpcs:"))

    def hosted_gateway(self) -> GatewayConfig:
        """The settings of the hosted gateway, including its access to the metadata store.

        Raises:
            IncorrectParameterException: Names the keys that are wrong.
        """
        own = {"metadata_uri": self.metadata_uri, "host": self.host, "port": self.gateway_port}
        gathered = gather_gateway(Given(self.gateway, self._source_of_gateway))
        given = {**gathered.given, **{key: Given(value) for key, value in own.items()}}
        hosted = GatewayConfig.made_of(replace(gathered, given=given))
        hosted = hosted.model_copy(update=self._security_of_gateway(hosted))
        if self.gateway_process:
            # The gateway gets a number of descriptors of its own, and divides them itself.
            return hosted
        share = hosted.max_connections or self.descriptor_shares().gateway
        return hosted.model_copy(update={"max_connections": share})

    def _security_of_gateway(self, hosted: GatewayConfig) -> dict[str, Any]:
        """The security settings of this bookie that the gateway takes over, because it does not have them itself."""
        own = {key: getattr(self, key) for key in SecuritySettings.model_fields if key not in hosted.model_fields_set}
        if hosted.audit_file is not None and self.instance is not None:
            # Wherever it is set: the gateways of all instances have it, and a file is one process's.
            own["audit_file"] = hosted.audit_file.with_stem(f"{hosted.audit_file.stem}-{self.instance}")
        elif self.audit_file is not None and "audit_file" in own:
            # A process has one audit file, so in this process the bookie's file gets the gateway's lines too.
            path = self.audit_file
            own["audit_file"] = path.with_stem(f"{path.stem}-gateway") if self.gateway_process else None
        return own

    @property
    def open_doors(self) -> list[str]:
        """Ports at which other machines are admitted without authentication."""
        if self.has_security or is_loopback(self.host):
            return []
        by_certificate = self.tls_required and self.tls_require_client_cert
        doors = [] if by_certificate or self.auth_provider else ["entry"]
        if not self.metadata_behind_gateway:
            doors += self.hosted_gateway().open_doors
        if self.http_token is None and self.http_token_file is None:
            doors.append("http")
        return doors

    def check_exposure(self) -> None:
        """Raises IncorrectParameterException if ports are open to other machines and the settings do not allow it."""
        check_exposure(self.host, self.open_doors, insecure=self.insecure)

    def descriptor_shares(self) -> DescriptorShares:
        """How the process's file descriptors are divided between ports and storage."""
        is_db = self.storage_type == "db"
        files = _FILES_OF_A_DIRECTORY * (len(self.journals) + len({*self.ledgers, *self.indexes}))
        files += _ROCKSDB_FILES * len(self.ledgers) * is_db
        shares = share_out(descriptor_limit(), files, self.open_log_limit, len(self.ledgers) if is_db else 1)
        entry = shares.entry + shares.gateway if self.gateway_process else shares.entry
        return shares._replace(entry=self.max_connections or entry, http=self.http_max_connections or shares.http)

    def connection_limits(self) -> ConnectionLimits:
        """The connection limits of the entry port."""
        return ConnectionLimits(self.descriptor_shares().entry, self.connection_memory_mb * _MIB)

    def disk_thresholds(self) -> DiskThresholds:
        """The settings of the disk monitor."""
        return DiskThresholds(
            full=self.disk_usage_threshold,
            warn=self.disk_usage_warn_threshold,
            low_water=self.disk_usage_low_water_mark,
            any_full=self.read_only_on_any_disk_full,
            min_high_priority_bytes=self.min_usable_for_high_priority_writes_mb * _MIB,
            min_entry_log_bytes=self.min_usable_for_entry_log_mb * _MIB,
            min_index_bytes=self.min_usable_for_index_mb * _MIB,
        )

    def advertised_host(self) -> str:
        """The host that clients connect to: the setting, else the listening address, else this host's own address."""
        if self.advertised_address:
            return self.advertised_address
        return own_address() if _is_wildcard(self.host) else self.host


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def own_address() -> str:
    """The address of the interface that this host's name resolves to, or loopback if it does not resolve."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"


def load_config(file: Path | None = None, **values: Any) -> BookieConfig:
    """The bookie's settings from all sources.

    Args:
        file: TOML file; None: without a file.
        values: Options by name, which override file and environment.

    Raises:
        IncorrectParameterException: Names what is wrong.
    """
    return BookieConfig.load(file, values)
