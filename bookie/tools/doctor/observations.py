"""The doctor's observations: plain values; None if something could not be observed."""

from __future__ import annotations

from dataclasses import dataclass, field

from bookgate.bookie.replication.audits.audit_rules import HeldBack
from bookgate.ledger.metadata_store import RegisteredBookie
from bookgate.ledger.replication_survey import Survey


@dataclass(frozen=True, slots=True)
class Validity:
    """How long a certificate is valid in all, and from now on. Seconds."""

    lifetime: float
    left: float


@dataclass(frozen=True, slots=True)
class GatewayView:
    """One gateway. `listed`: named by the user, not learnt from a bookie's registration."""

    address: str
    listed: bool
    error: str | None = None
    """Why it did not respond at all."""
    store_error: str | None = None
    """It responds but can't reach its metadata store."""
    refused: str | None = None
    """It responds, and denies this caller what the cluster is."""
    instance_id: str = ""
    features: tuple[str, ...] = ()
    bookies: tuple[RegisteredBookie, ...] | None = None
    """Every bookie that is registered or known by its cookie."""
    certificate: Validity | None = None


@dataclass(frozen=True, slots=True)
class HttpView:
    """The data of a bookie's HTTP admin."""

    clock_offset: float | None = None
    """Seconds that its clock is ahead of this machine's, accurate to a second or two."""
    version: str | None = None
    running: bool | None = None
    max_files: int | None = None
    open_files: int | None = None
    insecure: bool | None = None
    """Whether its settings let other machines in without authentication."""
    refused_files: tuple[str, ...] = ()
    """The files among policy, tokens and keys that changed and can't be used."""
    fullest_disk: float | None = None
    """The used fraction of the disk of a ledger directory that has the least room."""
    turned_down: bool = False
    """Whether it denies its state and metrics to this caller."""


@dataclass(frozen=True, slots=True)
class BookieView:
    """One registered bookie. Space in bytes."""

    bookie: RegisteredBookie
    entry_error: str | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    tls: str | None = None
    """The result of TLS: `ok`, `unverified`, or the failure; None if TLS is not announced."""
    certificates: tuple[Validity, ...] = ()
    """Those of its entry port and its HTTP admin, as far as they could be checked."""
    cookie: bytes | None = None
    cookie_error: str | None = None
    http: HttpView | None = None
    http_error: str | None = None


@dataclass(frozen=True, slots=True)
class RecoveryView:
    """Auto-recovery at `at_ms`, milliseconds since 1970, as the metadata store has it."""

    at_ms: int
    error: str | None = None
    """Why some of it could not be observed."""
    enabled: bool | None = None
    auditor: str | None = None
    """The bookie id of the current auditor."""
    survey: Survey | None = None
    held_back: HeldBack | None = None
    """Why the auditor marks almost nothing; None if it is not held back."""

    @property
    def works(self) -> bool:
        """Whether lost copies are being restored by auto-recovery."""
        return bool(self.enabled) and self.auditor is not None


@dataclass(frozen=True, slots=True)
class Deployment:
    """All observations. `file_problems`: the problems of each given configuration file."""

    gateways: tuple[GatewayView, ...] = ()
    bookies: tuple[BookieView, ...] = ()
    absent: tuple[str, ...] = ()
    """Ids of bookies that have a cookie and no registration."""
    file_problems: dict[str, tuple[str, ...]] = field(default_factory=dict)
    own_version: str | None = None
    recovery: RecoveryView | None = None
