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
        return self in _OF_LEDGERS

    @property
    def is_of_bookies(self) -> bool:
        """Whether bookie ids limit it."""
        return self in _OF_BOOKIES

    @property
    def is_reading(self) -> bool:
        """Whether it changes nothing: the audit trail has these on request only."""
        return self in _READING


_OF_LEDGERS = frozenset(action for action in Action if action.startswith(("ledger.", "entry.")))
_OF_BOOKIES = frozenset(action for action in Action if action.startswith(("bookie.", "cookie.")))
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
    f"{_METADATA}ListScopes": Action.LEDGER_LIST,
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

_API = "/api/v1"
_BOOKIE = f"{_API}/bookie"
_AUTO_RECOVERY = f"{_API}/autorecovery"
_CONSOLE = f"{_API}/console"
_STREAM = f"{_API}/stream"

HTTP_ACTIONS: Mapping[tuple[str, str], Action | None] = {
    # They show this software, and nothing of the cluster.
    ("GET", "/"): OPEN,
    ("GET", "/console/{name}"): OPEN,
    ("GET", "/openapi.json"): OPEN,
    ("GET", "/heartbeat"): OPEN,
    ("GET", "/ready"): OPEN,
    ("GET", f"{_BOOKIE}/is_ready"): OPEN,
    ("GET", "/metrics"): Action.HTTP_READ,
    ("GET", f"{_API}/config/server_config"): Action.HTTP_READ,
    ("GET", f"{_API}/instances"): Action.HTTP_READ,
    ("GET", f"{_API}/instances/targets"): Action.HTTP_READ,
    # Logging in, asking who one is, logging out.
    ("POST", f"{_CONSOLE}/session"): OPEN,
    ("GET", f"{_CONSOLE}/session"): OPEN,
    ("DELETE", f"{_CONSOLE}/session"): OPEN,
    ("GET", f"{_API}/ledger/list"): Action.LEDGER_LIST,
    ("GET", f"{_API}/ledger/metadata"): Action.LEDGER_READ,
    ("DELETE", f"{_API}/ledger/delete"): Action.LEDGER_DELETE,
    ("GET", f"{_API}/ledger/read"): Action.ENTRY_READ,
    # Where a change needs more than its action (a new cursor is a ledger), the route asks for that too.
    ("POST", f"{_STREAM}/create"): Action.LEDGER_CREATE,
    ("DELETE", f"{_STREAM}/delete"): Action.LEDGER_DELETE,
    ("PUT", f"{_STREAM}/trim"): Action.LEDGER_WRITE,
    ("PUT", f"{_STREAM}/retention"): Action.LEDGER_WRITE,
    ("GET", f"{_STREAM}/cursor"): Action.LEDGER_READ,
    ("PUT", f"{_STREAM}/cursor"): Action.LEDGER_WRITE,
    ("DELETE", f"{_STREAM}/cursor"): Action.LEDGER_DELETE,
    ("GET", f"{_CONSOLE}/ledgers"): Action.LEDGER_LIST,
    ("GET", f"{_CONSOLE}/ledgers_export"): Action.LEDGER_LIST,
    ("GET", f"{_CONSOLE}/ledger"): Action.LEDGER_READ,
    ("GET", f"{_CONSOLE}/streams"): Action.LEDGER_LIST,
    ("GET", f"{_CONSOLE}/stream"): Action.LEDGER_READ,
    ("GET", f"{_CONSOLE}/ledger_counts"): Action.CLUSTER_ADMIN,
    ("GET", f"{_CONSOLE}/entries"): Action.ENTRY_READ,
    ("GET", f"{_CONSOLE}/entry"): Action.ENTRY_READ,
    ("GET", f"{_CONSOLE}/entry_search"): Action.ENTRY_READ,
    ("GET", f"{_CONSOLE}/entry_payload"): Action.ENTRY_READ,
    # Works with what it is sent and reads nothing.
    ("POST", f"{_CONSOLE}/decode"): Action.HTTP_READ,
    ("PUT", f"{_CONSOLE}/ledger/recover"): Action.LEDGER_RECOVER,
    ("GET", f"{_CONSOLE}/bookie"): Action.HTTP_READ,
    # It tells of everything that happens to ledgers and callers.
    ("GET", f"{_CONSOLE}/log"): Action.CLUSTER_ADMIN,
    ("GET", f"{_CONSOLE}/bookie/log"): Action.CLUSTER_ADMIN,
    ("PUT", f"{_CONSOLE}/bookie/readonly"): Action.HTTP_CHANGE,
    ("GET", f"{_CONSOLE}/cluster_rates"): Action.HTTP_READ,
    ("GET", f"{_CONSOLE}/cluster"): Action.HTTP_READ,
    ("GET", f"{_CONSOLE}/rates"): Action.HTTP_READ,
    ("GET", f"{_CONSOLE}/collection"): Action.HTTP_READ,
    ("GET", f"{_CONSOLE}/autorecovery"): Action.REPLICATION_READ,
    ("GET", f"{_BOOKIE}/list_bookies"): Action.DISCOVERY_READ,
    ("GET", f"{_BOOKIE}/list_bookie_info"): Action.DISCOVERY_READ,
    ("GET", f"{_BOOKIE}/cluster_info"): Action.DISCOVERY_READ,
    ("GET", f"{_BOOKIE}/info"): Action.HTTP_READ,
    ("GET", f"{_BOOKIE}/state"): Action.HTTP_READ,
    ("GET", f"{_BOOKIE}/state/readonly"): Action.HTTP_READ,
    ("PUT", f"{_BOOKIE}/state/readonly"): Action.HTTP_CHANGE,
    # It writes a ledger and deletes it.
    ("GET", f"{_BOOKIE}/sanity"): Action.HTTP_CHANGE,
    ("GET", f"{_BOOKIE}/last_log_mark"): Action.HTTP_READ,
    ("GET", f"{_BOOKIE}/list_disk_file"): Action.HTTP_READ,
    ("GET", f"{_BOOKIE}/scopes"): Action.HTTP_READ,
    ("GET", f"{_BOOKIE}/ledgers"): Action.HTTP_READ,
    ("PUT", f"{_BOOKIE}/expand_storage"): Action.HTTP_CHANGE,
    ("GET", f"{_BOOKIE}/gc"): Action.HTTP_READ,
    ("PUT", f"{_BOOKIE}/gc"): Action.HTTP_CHANGE,
    ("GET", f"{_BOOKIE}/gc_details"): Action.HTTP_READ,
    ("GET", f"{_BOOKIE}/gc/suspend_compaction"): Action.HTTP_READ,
    ("PUT", f"{_BOOKIE}/gc/suspend_compaction"): Action.HTTP_CHANGE,
    ("PUT", f"{_BOOKIE}/gc/resume_compaction"): Action.HTTP_CHANGE,
    ("GET", f"{_BOOKIE}/gc/suspend_ledgers"): Action.HTTP_READ,
    ("PUT", f"{_BOOKIE}/gc/suspend_ledgers"): Action.HTTP_CHANGE,
    ("PUT", f"{_BOOKIE}/gc/resume_ledgers"): Action.HTTP_CHANGE,
    ("GET", f"{_BOOKIE}/entry_location_compact"): Action.HTTP_READ,
    ("PUT", f"{_BOOKIE}/entry_location_compact"): Action.HTTP_CHANGE,
    ("GET", f"{_AUTO_RECOVERY}/status"): Action.REPLICATION_READ,
    ("PUT", f"{_AUTO_RECOVERY}/status"): Action.REPLICATION_ADMIN,
    ("GET", f"{_AUTO_RECOVERY}/list_under_replicated_ledger"): Action.REPLICATION_READ,
    ("GET", f"{_AUTO_RECOVERY}/progress"): Action.REPLICATION_READ,
    ("GET", f"{_AUTO_RECOVERY}/who_is_auditor"): Action.REPLICATION_READ,
    ("PUT", f"{_AUTO_RECOVERY}/trigger_audit"): Action.REPLICATION_ADMIN,
    ("GET", f"{_AUTO_RECOVERY}/lost_bookie_recovery_delay"): Action.REPLICATION_READ,
    ("PUT", f"{_AUTO_RECOVERY}/lost_bookie_recovery_delay"): Action.REPLICATION_ADMIN,
    ("PUT", f"{_AUTO_RECOVERY}/bookie"): Action.REPLICATION_ADMIN,
    ("PUT", f"{_AUTO_RECOVERY}/decommission"): Action.REPLICATION_ADMIN,
}
"""By method and path as the route is defined."""

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
