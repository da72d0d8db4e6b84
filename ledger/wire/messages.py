"""The operations of the entry protocol as plain values, independent of the protocol version.

A request and its response share a transaction id, chosen by the client and unique among the outstanding requests of a
connection; it is 0 where the encoding has no field for it (`v2`). `ledger_id` is the ledger's number, which includes
its scope (`ledger.ledger_id`). A request with `priority` above 0 bypasses queues and, while the bookie allows it,
read-only mode. Source: docs/protocol/wire.md#v3-messages, docs/protocol/wire.md#v2-packets,
docs/protocol/wire.md#operations.

They are named tuples because tens of thousands are created per second.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Status(enum.IntEnum):
    """Status of a bookie's response, numbered as in protocol v3."""

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
    EINVALIDTERM = 600
    ENOTCONFIRMED = 601


class Operation(enum.IntEnum):
    """Operation of a request, numbered as in protocol v3."""

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


# Python 3.11 looks up an enum member several times slower than a module name; these are used for every entry.
EOK = Status.EOK
ADD_ENTRY = Operation.ADD_ENTRY
READ_ENTRY = Operation.READ_ENTRY

LAST_ENTRY = -1
"""Entry id of a read that requests the highest entry the bookie holds."""

AUTH_DISABLED = "AuthDisabledPlugin"
"""Plugin name in the response of a bookie that has authentication disabled."""

HIGH_PRIORITY = 100
DEFERRED_SYNC = 1
TOTAL_DISK_CAPACITY = 1
FREE_DISK_SPACE = 2


class AddRequest(NamedTuple):
    """Stores an entry packet. A recovery add is accepted on a fenced ledger.

    `term` is the writer's term in an unbounded ledger, None in any other. With a term, `lafr` is the writer's last add
    fully replicated, and `truncate` deletes every entry above this one.

    Four modules know its shape: `v3` and `v2` for every request, `fast_requests` and `fast_add` for common ones. A new
    field needs `v3`; the fast path leaves what it does not know to it (tests/unit/ledger/wire/test_fast_add.py).
    """

    txn_id: int
    ledger_id: int
    entry_id: int
    master_key: bytes
    body: bytes
    recovery: bool = False
    write_flags: int = 0
    priority: int = 0
    term: int | None = None
    lafr: int | None = None
    truncate: bool = False


MOST_FOLLOWING_BYTES = 1 << 20
"""The most bytes of entries in the response to a read with `following`, unless the entry itself is larger."""


class ReadRequest(NamedTuple):
    """Reads an entry (`LAST_ENTRY`: the highest one); with `fence`, fences the ledger first.

    `previous_lac` without `fence` makes it a long poll of at most `timeout_ms` milliseconds. With a `term` (unbounded
    ledgers only) it is a read of the client that takes the ledger over: it fences terms below this one, needs the
    master key, and also returns unconfirmed entries, and at most `following` entries behind the entry besides.
    `known_lac` tells the bookie that the reader knows entries up to this id to be confirmed.
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
    term: int | None = None
    known_lac: int | None = None
    following: int = 0


def fences(request: ReadRequest | BatchReadRequest) -> bool:
    """Whether a read fences the ledger, for good or below its term."""
    return request.fence or (isinstance(request, ReadRequest) and request.term is not None)


class BatchReadRequest(NamedTuple):
    """Reads consecutive entries from `entry_id` on; with `fence`, fences the ledger first.

    Returns at most `max_count` entries (0 or less: any number) of at most `max_size` bytes, but always the first one
    whatever its size. Only protocol v2 has this operation.
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
    """Requests the explicit LAC and the last entry."""

    txn_id: int
    ledger_id: int


class WriteLacRequest(NamedTuple):
    """Stores an explicit LAC packet."""

    txn_id: int
    ledger_id: int
    lac: int
    master_key: bytes
    body: bytes


class ForceLedgerRequest(NamedTuple):
    """Requests a response once every entry added before it is durable."""

    txn_id: int
    ledger_id: int


class GetBookieInfoRequest(NamedTuple):
    """Requests disk space figures; `requested` is a mask of TOTAL_DISK_CAPACITY and FREE_DISK_SPACE."""

    txn_id: int
    requested: int = 0


class ListEntriesRequest(NamedTuple):
    """Requests the list of entries that the bookie holds of a ledger."""

    txn_id: int
    ledger_id: int


class AuthRequest(NamedTuple):
    """One step of an authentication plugin's exchange."""

    txn_id: int
    plugin_name: str
    payload: bytes
    priority: int = 0


class StartTlsRequest(NamedTuple):
    """Requests a switch of the connection to TLS. `complete` is False if the operation's own sub-message was
    missing.
    """

    txn_id: int
    complete: bool = True


class InvalidRequest(NamedTuple):
    """A request with a readable header whose remainder can't be served; the bookie responds with `status`."""

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

OPERATIONS: Mapping[type, Operation] = {
    AddRequest: Operation.ADD_ENTRY,
    ReadRequest: Operation.READ_ENTRY,
    BatchReadRequest: Operation.BATCH_READ_ENTRY,
    ReadLacRequest: Operation.READ_LAC,
    WriteLacRequest: Operation.WRITE_LAC,
    ForceLedgerRequest: Operation.FORCE_LEDGER,
    GetBookieInfoRequest: Operation.GET_BOOKIE_INFO,
    ListEntriesRequest: Operation.GET_LIST_OF_ENTRIES_OF_LEDGER,
    AuthRequest: Operation.AUTH,
    StartTlsRequest: Operation.START_TLS,
}
"""The operation of each request class, except InvalidRequest, which carries its own."""


class AddResponse(NamedTuple):
    """The response to an add; `term` is that of the request."""

    txn_id: int
    status: int
    ledger_id: int
    entry_id: int
    term: int | None = None


class ReadResponse(NamedTuple):
    """`max_lac` is the highest LAC that the bookie knows; `body` is the stored packet.

    `term` is that of the request; with an entry for a reader, the term at which the bookie knows the ledger. The
    response to a request with a term has `max_lac` and, in `lafr`, the highest last add fully replicated that the
    bookie knows, whether or not there is an entry. `following` are the records of the entries behind it: each its
    length, four bytes, and its packet.
    """

    txn_id: int
    status: int
    ledger_id: int
    entry_id: int
    body: bytes | None = None
    max_lac: int | None = None
    lac_update_timestamp_ms: int | None = None
    term: int | None = None
    lafr: int | None = None
    following: bytes = b""


class BatchReadResponse(NamedTuple):
    """`bodies` are the stored packets of `entry_id`, `entry_id + 1`, ...; fewer than requested is not an error.

    In a received response they are views of the receive buffer, valid only while the response is being handled.
    """

    txn_id: int
    status: int
    ledger_id: int
    entry_id: int
    bodies: Sequence[bytes | memoryview] = ()


class BatchReadRecords(NamedTuple):
    """A BatchReadResponse to be sent whose entries are already encoded: `records` are consecutive parts of its body.

    Each part is a sequence of four-byte lengths, each followed by its packet, as in an entry log; together they contain
    `entries` entries.
    """

    txn_id: int
    status: int
    ledger_id: int
    entry_id: int
    records: tuple[bytes | memoryview, ...]
    entries: int


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
    """Disk space in bytes; None for a figure that was not requested."""

    txn_id: int
    status: int
    total_disk_capacity: int | None = None
    free_disk_space: int | None = None


class ListEntriesResponse(NamedTuple):
    """`availability` is encoded as docs/protocol/wire.md#entry-lists describes."""

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
    """A response that carries only a status: the request never reached an operation."""

    txn_id: int
    operation: int
    status: int
    priority: int = 0


Response = (
    AddResponse
    | ReadResponse
    | BatchReadResponse
    | BatchReadRecords
    | ReadLacResponse
    | WriteLacResponse
    | ForceLedgerResponse
    | GetBookieInfoResponse
    | ListEntriesResponse
    | AuthResponse
    | StartTlsResponse
    | StatusResponse
)
