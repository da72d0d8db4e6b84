"""The operations of the entry protocol as plain values, the same for every version of the wire.

A request and its answer share a transaction id, chosen by the client and unique among the outstanding requests of a
connection; where the wire has no room for one (`v2`) it is 0. `ledger_id` is the lower half of the id;
`priority` above 0 passes queues and, while the bookie allows it, read-only mode. Source:
docs/protocol/wire.md#v3-messages, docs/protocol/wire.md#v2-packets, docs/protocol/wire.md#operations.

Named tuples, since they are made by the ten thousand a second.
"""

from __future__ import annotations

import enum
from typing import NamedTuple


class Status(enum.IntEnum):
    """A bookie's answer, with the numbers of the v3 protocol."""

    EOK = 0
    ENOLEDGER = 402
    ENOENTRY = 403
    EBADREQ = 404
    EIO = 501
    EUA = 502
    EBADVERSION = 503
    EFENCED = 504
    EREADONLY = 505
    ETOOMANYREQUESTS = 506
    EUNKNOWNLEDGERSTATE = 507


class Operation(enum.IntEnum):
    """What a request asks for, with the numbers of the v3 protocol."""

    READ_ENTRY = 1
    ADD_ENTRY = 2
    RANGE_READ_ENTRY = 3
    RANGE_ADD_ENTRY = 4
    AUTH = 5
    WRITE_LAC = 6
    READ_LAC = 7
    GET_BOOKIE_INFO = 8
    START_TLS = 9
    FORCE_LEDGER = 10
    GET_LIST_OF_ENTRIES_OF_LEDGER = 11
    BATCH_READ_ENTRY = 12


# In Python 3.11 looking a member up in its class takes several times as long as a name; these serve every entry.
EOK = Status.EOK
ADD_ENTRY = Operation.ADD_ENTRY
READ_ENTRY = Operation.READ_ENTRY

LAST_ENTRY = -1
"""Entry id of a read that asks for the highest entry the bookie holds."""

AUTH_DISABLED = "AuthDisabledPlugin"
"""Plugin in whose name a bookie without authentication answers."""

HIGH_PRIORITY = 100
DEFERRED_SYNC = 1
TOTAL_DISK_CAPACITY = 1
FREE_DISK_SPACE = 2


class AddRequest(NamedTuple):
    """Store an entry packet. A recovery add passes the fence."""

    txn_id: int
    ledger_id: int
    entry_id: int
    master_key: bytes
    body: bytes
    recovery: bool = False
    write_flags: int = 0
    priority: int = 0


class ReadRequest(NamedTuple):
    """Read an entry (`LAST_ENTRY` for the highest); with `fence`, fence the ledger first.

    `previous_lac` without `fence` makes it a long poll of at most `timeout_ms`.
    """

    txn_id: int
    ledger_id: int
    entry_id: int
    fence: bool = False
    master_key: bytes | None = None
    previous_lac: int | None = None
    timeout_ms: int | None = None
    piggyback: bool = False
    priority: int = 0


class BatchReadRequest(NamedTuple):
    """Read consecutive entries from `entry_id` on, the first whatever its size; with `fence`, fence the ledger first.

    At most `max_count` entries (0 or less: any number) in at most `max_size` bytes. Only the binary protocol has it.
    """

    txn_id: int
    ledger_id: int
    entry_id: int
    max_count: int
    max_size: int
    fence: bool = False
    master_key: bytes | None = None
    priority: int = 0


class ReadLacRequest(NamedTuple):
    """Ask for the explicit LAC and the last entry."""

    txn_id: int
    ledger_id: int


class WriteLacRequest(NamedTuple):
    """Store an explicit LAC packet."""

    txn_id: int
    ledger_id: int
    lac: int
    master_key: bytes
    body: bytes


class ForceLedgerRequest(NamedTuple):
    """Answer once everything added before is durable."""

    txn_id: int
    ledger_id: int


class GetBookieInfoRequest(NamedTuple):
    """Disk space; `requested` is a mask of TOTAL_DISK_CAPACITY and FREE_DISK_SPACE."""

    txn_id: int
    requested: int = 0


class ListEntriesRequest(NamedTuple):
    """Which entries of a ledger the bookie holds."""

    txn_id: int
    ledger_id: int


class AuthRequest(NamedTuple):
    """One step of an authentication plugin."""

    txn_id: int
    plugin_name: str
    payload: bytes
    priority: int = 0


class StartTlsRequest(NamedTuple):
    """Switch the connection to TLS. `complete` is False where the message of its own was missing."""

    txn_id: int
    complete: bool = True


class InvalidRequest(NamedTuple):
    """A request whose header could be read and whose rest can't be served; answered with `status`."""

    txn_id: int
    operation: int
    status: Status
    ledger_id: int = 0
    entry_id: int = 0
    priority: int = 0


Request = (
    AddRequest
    | ReadRequest
    | BatchReadRequest
    | ReadLacRequest
    | WriteLacRequest
    | ForceLedgerRequest
    | GetBookieInfoRequest
    | ListEntriesRequest
    | AuthRequest
    | StartTlsRequest
    | InvalidRequest
)


class AddResponse(NamedTuple):
    txn_id: int
    status: int
    ledger_id: int
    entry_id: int


class ReadResponse(NamedTuple):
    """`max_lac` is the highest LAC known to the bookie; `body` the stored packet."""

    txn_id: int
    status: int
    ledger_id: int
    entry_id: int
    body: bytes | None = None
    max_lac: int | None = None
    lac_update_timestamp_ms: int | None = None


class BatchReadResponse(NamedTuple):
    """`bodies` are the stored packets of `entry_id`, `entry_id + 1`, ...; fewer than asked for is no failure.

    In an answer that was received they are parts of the receive buffer: good for as long as the sink runs.
    """

    txn_id: int
    status: int
    ledger_id: int
    entry_id: int
    bodies: tuple[bytes | memoryview, ...] = ()


class ReadLacResponse(NamedTuple):
    txn_id: int
    status: int
    ledger_id: int
    lac_body: bytes | None = None
    last_entry_body: bytes | None = None


class WriteLacResponse(NamedTuple):
    txn_id: int
    status: int
    ledger_id: int


class ForceLedgerResponse(NamedTuple):
    txn_id: int
    status: int
    ledger_id: int


class GetBookieInfoResponse(NamedTuple):
    """Bytes; None for what was not asked for."""

    txn_id: int
    status: int
    total_disk_capacity: int | None = None
    free_disk_space: int | None = None


class ListEntriesResponse(NamedTuple):
    """`availability` in the encoding of docs/protocol/wire.md#entry-lists."""

    txn_id: int
    status: int
    ledger_id: int
    availability: bytes | None = None


class AuthResponse(NamedTuple):
    txn_id: int
    status: int
    plugin_name: str | None = None
    payload: bytes = b""
    priority: int = 0


class StartTlsResponse(NamedTuple):
    txn_id: int
    status: int


class StatusResponse(NamedTuple):
    """An answer that carries nothing but its status: the request never reached an operation."""

    txn_id: int
    operation: int
    status: int
    priority: int = 0


Response = (
    AddResponse
    | ReadResponse
    | BatchReadResponse
    | ReadLacResponse
    | WriteLacResponse
    | ForceLedgerResponse
    | GetBookieInfoResponse
    | ListEntriesResponse
    | AuthResponse
    | StartTlsResponse
    | StatusResponse
)
