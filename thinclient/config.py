"""The client's settings: one definition of every key, from a TOML file, the environment (`BOOKGATE_…`) and arguments,
in rising order. Timeouts are in seconds, sizes in bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from bookgate.ledger.wire.frames import DEFAULT_MAX_FRAME_SIZE
from bookgate.runtime.settings import SECRET, Renamed, with_unit
from bookgate.runtime.settings_loader import Settings
from bookgate.thinclient.gateways.retry_policy import DEFAULT_RETRIES, RetryPolicy
from bookgate.thinclient.gateways.tokens import TokenSource
from bookgate.thinclient.gateways.uri import ClientTlsFiles

FRAME_HEADROOM = 500
"""Bytes of a frame that an entry packet leaves free: what a bookie of another configuration still takes."""

_RISING = (
    ("metadata_first_pause_seconds", "metadata_longest_pause_seconds"),
    ("metadata_first_ask_last_seconds", "metadata_longest_ask_last_seconds"),
    ("ensemble_change_first_pause_seconds", "ensemble_change_longest_pause_seconds"),
)
"""Settings of which the first is not above the second."""


class TlsMode(Enum):
    """How a connection to a bookie comes to be encrypted."""

    OFF = "off"
    START_TLS = "start-tls"
    NATIVE = "native"


@dataclass(frozen=True, slots=True)
class BookieTls:
    """Settings of TLS to bookies. Files are PEM; `ca` None: the system's authorities. `timeout` in seconds."""

    mode: TlsMode = TlsMode.OFF
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    verify_host_name: bool = True
    timeout: float = 10.0


_RENAMED = {
    **with_unit(
        "_seconds",
        *("metadata_timeout", "connect_timeout", "add_timeout", "read_timeout", "speculative_read_timeout"),
        *("long_poll_timeout", "first_speculative_lac_timeout", "max_speculative_lac_timeout", "tail_poll_interval"),
        *("tail_failure_timeout", "ensemble_change_timeout", "failed_bookie_interval", "add_quorum_timeout"),
        *("explicit_lac_interval", "bookie_error_interval", "bookie_quarantine_time", "weight_interval"),
        *("backpressure_timeout", "bookie_tls_timeout"),
    ),
    **with_unit("_bytes", "max_frame_size", "send_buffer_size"),
    "recovery_read_batch_size": Renamed("recovery_read_batch_entries"),
}
"""Former keys, which had no unit."""


class ClientConfig(Settings):
    """Everything that can be set of a client.

    Raises:
        IncorrectParameterException: A value is out of range, or there is no such setting; the nearest one is named.
    """

    model_config = SettingsConfigDict(env_prefix="BOOKGATE_", frozen=True, extra="forbid")
    VARIABLES_OF_OTHERS: ClassVar[tuple[str, ...] | None] = ("BOOKIE_", "GATEWAY_", "AUTORECOVERY_", "HTTP_TOKEN")
    RENAMED: ClassVar[Mapping[str, Renamed]] = _RENAMED

    gateways: str = Field(
        default="", description="metadata gateways: grpc://host:port,host:port; or a store itself: zk+hierarchical://…"
    )
    tls_ca: Path | None = Field(
        default=None, description="grpcs://: PEM file with the gateways' authorities; default: the system's"
    )
    tls_cert: Path | None = Field(default=None, description="grpcs://: PEM file of the client's certificate")
    tls_key: Path | None = Field(default=None, description="grpcs://: PEM file of its key")
    token: Annotated[str | None, SECRET] = Field(
        default=None,
        repr=False,
        min_length=1,
        description="shows gateways, and bookies with auth_provider bookgate-token, who this is; over TLS only",
    )
    token_file: Path | None = Field(
        default=None, description="file with that token, read anew when it changes and when a gateway refuses it"
    )
    metadata_timeout_seconds: float = Field(
        default=10.0, gt=0, description="a metadata call, all its attempts together"
    )
    metadata_first_pause_seconds: float = Field(
        default=DEFAULT_RETRIES.metadata_first_pause_seconds,
        gt=0,
        description="pause when every gateway has failed a call, before all are asked again; doubled each time, and "
        "cut by a random share of up to half",
    )
    metadata_longest_pause_seconds: float = Field(
        default=DEFAULT_RETRIES.metadata_longest_pause_seconds, gt=0, description="the longest such pause"
    )
    metadata_connect_seconds: float = Field(
        default=DEFAULT_RETRIES.metadata_connect_seconds,
        gt=0,
        description="how long a call waits for a connection to the last gateway it has to ask",
    )
    metadata_connect_patience_seconds: float = Field(
        default=DEFAULT_RETRIES.metadata_connect_patience_seconds,
        gt=0,
        description="the same while there are other gateways to ask; the connection is made on in the background",
    )
    connect_fails_fast: bool = Field(
        default=True,
        description="connecting fails at once where every gateway refuses the connection, has no address or speaks "
        "something else; false: it is tried for metadata_timeout_seconds, for one that starts beside its gateways",
    )
    metadata_longest_retry_after_seconds: float = Field(
        default=DEFAULT_RETRIES.metadata_longest_retry_after_seconds,
        gt=0,
        description="a gateway where this client is over a limit is left alone for as long as it says, at most this",
    )
    metadata_hedge_seconds: float = Field(
        default=DEFAULT_RETRIES.metadata_hedge_seconds,
        gt=0,
        description="a call that reads and has no answer by then is sent to a second gateway too",
    )
    metadata_first_ask_last_seconds: float = Field(
        default=DEFAULT_RETRIES.metadata_first_ask_last_seconds,
        gt=0,
        description="how long a gateway that failed is asked last; doubled with each failure in a row",
    )
    metadata_longest_ask_last_seconds: float = Field(
        default=DEFAULT_RETRIES.metadata_longest_ask_last_seconds, gt=0, description="at most for so long"
    )
    metadata_change_attempts: int = Field(
        default=DEFAULT_RETRIES.metadata_change_attempts,
        ge=1,
        description="how often a change of metadata is sent while its answer is lost, each within "
        "metadata_timeout_seconds",
    )
    pinned_create_repeats: int = Field(
        default=DEFAULT_RETRIES.pinned_create_repeats,
        ge=0,
        description="how often a creation without an id is asked again of the gateway process that had it",
    )
    metadata_conflict_attempts: int = Field(
        default=DEFAULT_RETRIES.metadata_conflict_attempts,
        ge=1,
        description="how often a compare-and-set is tried while others change the same ledger",
    )
    metadata_unknown_outcomes: int = Field(
        default=DEFAULT_RETRIES.metadata_unknown_outcomes,
        ge=1,
        description="outcomes of such tries that stay unknown, until it gives up",
    )
    ensemble_change_first_pause_seconds: float = Field(
        default=DEFAULT_RETRIES.ensemble_change_first_pause_seconds,
        gt=0,
        description="pause of an ensemble change that the metadata did not take; doubled each time",
    )
    ensemble_change_longest_pause_seconds: float = Field(
        default=DEFAULT_RETRIES.ensemble_change_longest_pause_seconds, gt=0, description="the longest such pause"
    )
    connect_timeout_seconds: float = Field(default=10.0, gt=0, description="connecting to a bookie")
    add_timeout_seconds: float = Field(default=5.0, gt=0, description="one bookie's answer to an add")
    read_timeout_seconds: float = Field(default=5.0, gt=0, description="one bookie's answer to a read")
    max_in_flight_entries: int = Field(default=10_000, gt=0, description="appends of a ledger not yet acknowledged")
    max_in_flight_bytes: int = Field(default=32 * 1024 * 1024, gt=0, description="payload bytes of those")
    read_ahead_entries: int = Field(default=1024, gt=0, description="entries asked for ahead of a reader")
    read_ahead_bytes: int = Field(default=4 * 1024 * 1024, gt=0, description="payload bytes of those")
    batch_reads: bool = Field(default=True, description="read many entries with one request where bookies can")
    batch_read_entries: int = Field(default=2000, gt=0, description="entries of one such request")
    speculative_read_timeout_seconds: float = Field(
        default=2.0, ge=0, description="a read without answer goes to another bookie too; 0: never"
    )
    long_poll_timeout_seconds: float = Field(
        default=1.0, gt=0, description="how long a bookie holds back a tailing reader"
    )
    first_speculative_lac_timeout_seconds: float = Field(
        default=1.5, ge=0, description="a long poll without answer goes to another bookie too, again after twice that"
    )
    max_speculative_lac_timeout_seconds: float = Field(default=5.0, ge=0, description="the longest such wait; 0: never")
    tail_poll_interval_seconds: float = Field(
        default=0.1, gt=0, description="tailing without long polls: time between two"
    )
    tail_failure_timeout_seconds: float = Field(
        default=30.0, gt=0, description="tailing ends with an error when no bookie answers for so long"
    )
    max_frame_size_bytes: int = Field(
        default=DEFAULT_MAX_FRAME_SIZE, ge=1024, description="bookies' nettyMaxFrameSizeBytes"
    )
    delay_ensemble_change: bool = Field(
        default=False, description="delayEnsembleChange: replace bookies only when an entry's ack quorum is in danger"
    )
    require_replacement: bool = Field(
        default=False,
        description="end a ledger when none of its failed bookies can be replaced, as BookKeeper does, though an ack "
        "quorum is left",
    )
    max_ensemble_changes: int = Field(default=2**31 - 1, ge=0, description="maxAllowedEnsembleChanges of a ledger")
    recovery_read_batch_entries: int = Field(
        default=400, ge=1, description="recoveryReadBatchSize: entries that recovery reads ahead"
    )
    ensemble_change_timeout_seconds: float = Field(
        default=30.0, gt=0, description="how long appends wait for an ensemble change while metadata is out of reach"
    )
    failed_bookie_interval_seconds: float = Field(
        default=30.0, gt=0, description="how long a ledger leaves a bookie alone that failed it"
    )
    add_quorum_timeout_seconds: float = Field(
        default=0.0,
        ge=0,
        description="addEntryQuorumTimeoutSec: an entry not acknowledged by then ends its ledger",
    )
    explicit_lac_interval_seconds: float = Field(
        default=0.25, ge=0, description="explicitLacInterval: how soon an idle writer tells how far it is; 0: never"
    )
    opportunistic_striping: bool = Field(
        default=False, description="a new ledger takes a smaller ensemble, down to its write quorum, if bookies are few"
    )
    bookie_health_check: bool = Field(
        default=False, description="bookieHealthCheck: bookies that fail often are left out of new ensembles"
    )
    bookie_error_threshold: int = Field(default=100, ge=0, description="errors of a bookie within the interval")
    bookie_error_interval_seconds: float = Field(
        default=60.0, gt=0, description="the interval in which errors are counted"
    )
    bookie_quarantine_time_seconds: float = Field(
        default=1800.0, gt=0, description="how long such a bookie is left out"
    )
    placement_policy: str = Field(
        default="default", description="ensemblePlacementPolicy: default, rackaware, or a name"
    )
    rack_mapping: Path | None = Field(default=None, description="TOML file that says which bookie is in which rack")
    min_racks_per_write_quorum: int = Field(default=2, ge=1, description="minNumRacksPerWriteQuorum: rackaware only")
    enforce_min_racks: bool = Field(
        default=False,
        description="enforceMinNumRacksPerWriteQuorum: rather no ensemble than one of too few racks; not with "
        "placement_policy default",
    )
    weight_by_free_space: bool = Field(
        default=False, description="diskWeightBasedPlacementEnabled: emptier bookies are chosen more often"
    )
    weight_interval_seconds: float = Field(
        default=86_400.0, gt=0, description="getBookieInfoIntervalSeconds: how often bookies are asked for free space"
    )
    send_buffer_size_bytes: int = Field(default=1024 * 1024, gt=0, description="bytes that fill a connection's buffer")
    backpressure_timeout_seconds: float | None = Field(
        default=None,
        ge=0,
        description="waitTimeoutOnBackpressureMs: how long that buffer may stay full before requests are refused with "
        "TooManyRequests; 0 refuses at once, none lets them wait until their timeouts",
    )
    num_channels_per_bookie: int = Field(
        default=1, ge=1, description="numChannelsPerBookie: connections to a bookie; a ledger always uses the same one"
    )
    wire_protocol: Literal["v3", "v2"] = Field(
        default="v3", description="useV2WireProtocol: v2 is the older, binary entry protocol"
    )
    undeclared_digest_type: Literal["crc32", "hmac"] = Field(
        default="crc32",
        description="digest of ledgers whose metadata name none: those of BookKeeper's clients before 4.2, which had "
        "these two (hmac is BookKeeper's MAC)",
    )
    bookie_tls: TlsMode = Field(
        default=TlsMode.OFF, description="TLS to bookies: off, start-tls (BookKeeper's own way) or native"
    )
    bookie_tls_ca: Path | None = Field(
        default=None, description="PEM file with the bookies' authorities; default: tls_ca, else the system's"
    )
    bookie_tls_cert: Path | None = Field(default=None, description="PEM file of the client's certificate for bookies")
    bookie_tls_key: Path | None = Field(default=None, description="PEM file of its key")
    bookie_tls_verify_host_name: bool = Field(
        default=True,
        description="tlsHostnameVerificationEnabled: a bookie's certificate must be for its advertised host",
    )
    bookie_tls_timeout_seconds: float = Field(
        default=10.0, gt=0, description="startTLSTimeoutSecs: TLS and authentication of a fresh connection"
    )
    auth_provider: str | None = Field(
        default=None, description="clientAuthProviderFactoryClass: how to authenticate to bookies, e.g. bookgate-token"
    )
    auth_token_file: Path | None = Field(default=None, description="bookgate-token: file with the token")
    auth_token: Annotated[str | None, SECRET] = Field(
        default=None, repr=False, description="bookgate-token: the token itself"
    )

    passwords: Annotated[dict[int, bytes], SECRET] = Field(
        default={},
        repr=False,
        description="passwords of ledgers, by their ids, for calls that give none: a table of the file, or JSON",
    )

    def password_of(self, ledger_number: int, given: bytes) -> bytes:
        """The password that opens a ledger: the one given, else that of `passwords`, else none."""
        return given or self.passwords.get(ledger_number, b"")

    def contradictions(self) -> Iterator[str]:
        yield from super().contradictions()
        if (self.bookie_tls_cert is None) != (self.bookie_tls_key is None):
            yield "bookie_tls_cert and bookie_tls_key go together; set both or none"
        if self.token is not None and self.token_file is not None:
            yield "token and token_file are the same setting; give one of them"
        if self.auth_provider is None and (self.auth_token or self.auth_token_file):
            yield "a token has no effect without auth_provider; set it to bookgate-token"
        if self.enforce_min_racks and self.placement_policy == "default":
            yield "enforce_min_racks has no effect with placement_policy default; set that to rackaware"
        for first, longest in _RISING:
            if getattr(self, first) > getattr(self, longest):
                yield f"{first} is longer than {longest}; lower it, or raise {longest}"

    @property
    def retries(self) -> RetryPolicy:
        """What is repeated, how often and with which pauses."""
        return RetryPolicy(**{each.name: getattr(self, each.name) for each in fields(RetryPolicy)})

    @property
    def tokens(self) -> TokenSource | None:
        """The token for gateways, if there is one."""
        given = self.token is not None or self.token_file is not None
        return TokenSource(self.token, self.token_file) if given else None

    @property
    def token_for_bookies(self) -> tuple[Path | None, str | None]:
        """File and token for the authentication provider: its own, else those for gateways."""
        own = self.auth_token_file, self.auth_token
        return own if any(own) else (self.token_file, self.token)

    @property
    def tls(self) -> ClientTlsFiles:
        """The files of a TLS connection to the gateways."""
        return ClientTlsFiles(self.tls_ca, self.tls_cert, self.tls_key)

    @property
    def tls_to_bookies(self) -> BookieTls:
        """How connections to bookies are encrypted."""
        return BookieTls(
            self.bookie_tls,
            self.bookie_tls_ca or self.tls_ca,
            self.bookie_tls_cert,
            self.bookie_tls_key,
            self.bookie_tls_verify_host_name,
            self.bookie_tls_timeout_seconds,
        )

    @property
    def max_packet_size(self) -> int:
        """The largest entry packet: header, digest and payload."""
        return self.max_frame_size_bytes - FRAME_HEADROOM


def load_config(file: Path | None = None, **values: Any) -> ClientConfig:
    """The client's settings from all sources. Raises IncorrectParameterException that names what is wrong."""
    return ClientConfig.load(file, values)
