"""What may be done, and the one table that says which action each RPC, HTTP route and entry operation is. Pure.

A test takes the services' descriptors, the HTTP applications and the entry protocol's operations and fails for one
that is missing here (docs/protocol/security.md#actions). Health checks have no action: probes have no credentials, and
learn nothing but that the server lives.

Not its job: resources, which the doors know; who may what (`policy`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from bookgate.ledger.wire.messages import Operation


class Action(StrEnum):
    """What a policy allows. The word in front of the point is the kind of resource."""

    LEDGER_CREATE = "ledger.create"
    LEDGER_READ = "ledger.read"
    LEDGER_SECRET = "ledger.secret"
    LEDGER_WRITE = "ledger.write"
    LEDGER_RECOVER = "ledger.recover"
    LEDGER_DELETE = "ledger.delete"
    LEDGER_LIST = "ledger.list"
    LEDGER_WATCH = "ledger.watch"
    DISCOVERY_READ = "discovery.read"
    BOOKIE_REGISTER = "bookie.register"
    COOKIE_READ = "cookie.read"
    COOKIE_WRITE = "cookie.write"
    COOKIE_DELETE = "cookie.delete"
    CLUSTER_ADMIN = "cluster.admin"
    REPLICATION_READ = "replication.read"
    REPLICATION_WORK = "replication.work"
    REPLICATION_ADMIN = "replication.admin"
    HTTP_READ = "http.read"
    HTTP_CHANGE = "http.change"
    ENTRY_ADD = "entry.add"
    ENTRY_READ = "entry.read"
    ENTRY_FENCE = "entry.fence"

    @property
    def is_of_ledgers(self) -> bool:
        """Whether scopes and ownership limit it."""
        return self.value.startswith(("ledger.", "entry."))

    @property
    def is_of_bookies(self) -> bool:
        """Whether bookie ids limit it."""
        return self.value.startswith(("bookie.", "cookie."))

    @property
    def is_reading(self) -> bool:
        """Whether it changes nothing: the audit trail has these on request only."""
        return self in _READING


_READING = frozenset(
    (
        Action.LEDGER_READ,
        Action.LEDGER_SECRET,
        Action.LEDGER_LIST,
        Action.LEDGER_WATCH,
        Action.DISCOVERY_READ,
        Action.COOKIE_READ,
        Action.REPLICATION_READ,
        Action.HTTP_READ,
        Action.ENTRY_READ,
    )
)

OPEN = None
"""Of an RPC or a route that asks for nothing."""

_GATEWAY = "/bookkeeper.gateway.v1."
_METADATA = f"{_GATEWAY}LedgerMetadataService/"
_DISCOVERY = f"{_GATEWAY}ServiceDiscovery/"
_REGISTRATION = f"{_GATEWAY}RegistrationService/"
_REPLICATION = f"{_GATEWAY}ReplicationService/"

RPC_ACTIONS: Mapping[str, Action | None] = {
    f"{_METADATA}Create": Action.LEDGER_CREATE,
    f"{_METADATA}BatchCreate": Action.LEDGER_CREATE,
    f"{_METADATA}Read": Action.LEDGER_READ,
    f"{_METADATA}BatchRead": Action.LEDGER_READ,
    # What moves a ledger into recovery, or out of it, is ledger.recover instead.
    f"{_METADATA}Write": Action.LEDGER_WRITE,
    f"{_METADATA}Remove": Action.LEDGER_DELETE,
    f"{_METADATA}Watch": Action.LEDGER_WATCH,
    f"{_METADATA}Iterate": Action.LEDGER_LIST,
    f"{_DISCOVERY}ListBookies": Action.DISCOVERY_READ,
    f"{_DISCOVERY}WatchBookies": Action.DISCOVERY_READ,
    f"{_DISCOVERY}GetBookieServiceInfo": Action.DISCOVERY_READ,
    f"{_DISCOVERY}GetClusterInfo": Action.DISCOVERY_READ,
    f"{_REGISTRATION}Register": Action.BOOKIE_REGISTER,
    f"{_REGISTRATION}ReadCookie": Action.COOKIE_READ,
    f"{_REGISTRATION}WriteCookie": Action.COOKIE_WRITE,
    f"{_REGISTRATION}RemoveCookie": Action.COOKIE_DELETE,
    f"{_REPLICATION}Attend": Action.REPLICATION_WORK,
    f"{_REPLICATION}Mark": Action.REPLICATION_WORK,
    f"{_REPLICATION}ListMarks": Action.REPLICATION_READ,
    f"{_REPLICATION}DeleteMark": Action.REPLICATION_WORK,
    f"{_REPLICATION}Claim": Action.REPLICATION_WORK,
    f"{_REPLICATION}ListClaims": Action.REPLICATION_READ,
    f"{_REPLICATION}WriteLedger": Action.REPLICATION_WORK,
    f"{_REPLICATION}GetSettings": Action.REPLICATION_READ,
    # The end of a check is written by the auditor: replication.work.
    f"{_REPLICATION}ChangeSettings": Action.REPLICATION_ADMIN,
    f"{_REPLICATION}ListRecords": Action.REPLICATION_READ,
    f"{_REPLICATION}WriteRecord": Action.REPLICATION_WORK,
    f"{_REPLICATION}RemoveRecord": Action.REPLICATION_WORK,
    f"{_REPLICATION}WatchLedgers": Action.REPLICATION_READ,
    "/grpc.health.v1.Health/Check": OPEN,
    "/grpc.health.v1.Health/List": OPEN,
    "/grpc.health.v1.Health/Watch": OPEN,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": Action.DISCOVERY_READ,
}
"""By the full name of the method."""

HTTP_ACTIONS: Mapping[tuple[str, str], Action | None] = {}
"""By method and path as the route is defined; see the HTTP applications."""

ENTRY_ACTIONS: Mapping[Operation, Action | None] = {
    Operation.ADD_ENTRY: Action.ENTRY_ADD,
    Operation.READ_ENTRY: Action.ENTRY_READ,
    Operation.BATCH_READ_ENTRY: Action.ENTRY_READ,
    Operation.RANGE_READ_ENTRY: Action.ENTRY_READ,
    Operation.RANGE_ADD_ENTRY: Action.ENTRY_ADD,
    Operation.READ_LAC: Action.ENTRY_READ,
    Operation.WRITE_LAC: Action.ENTRY_ADD,
    Operation.FORCE_LEDGER: Action.ENTRY_ADD,
    Operation.GET_LIST_OF_ENTRIES_OF_LEDGER: Action.ENTRY_READ,
    Operation.GET_BOOKIE_INFO: Action.DISCOVERY_READ,
    Operation.AUTH: OPEN,
    Operation.START_TLS: OPEN,
}
"""By the entry protocol's operation. A read that fences is entry.fence, an add with RECOVERY_ADD ledger.recover."""
