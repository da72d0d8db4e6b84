"""The interfaces behind which the metadata store stands.

BookKeeper's own split, as asynchronous methods: a `LedgerManagerFactory` makes a `LedgerManager` (ledger metadata by
compare-and-set), a `ServiceDiscovery` (which bookies there are) and a `RegistrationManager` (what a bookie tells of
itself). The gateway has one factory a store; the thin client has one whose parts speak to a gateway. Both sides and
the tests use these interfaces only.

Failures are exceptions of `bookgate.ledger.errors`: a store out of reach is MetaStoreException, everything else the
class that the method names.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from bookgate.ledger.bookie_info import BookieServiceInfo, Lease
from bookgate.ledger.errors import (
    BKException,
    MetadataFormatException,
    NoSuchLedgerExistsOnMetadataServerException,
    WrongClusterException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_codec import decode, encode

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Versioned(Generic[T]):
    """A stored value and its version: 0 right after creation, one more after each change."""

    value: T
    version: int


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """A ledger as the store holds it. `created_ms` is the store's own time of its creation, where a read told it.

    Metadata has one of its own only if the client chose to write it.
    """

    ledger_id: LedgerId
    metadata: LedgerMetadata
    version: int
    created_ms: int | None = field(default=None, compare=False)
    incarnation: int | None = field(default=None, compare=False)
    """The store's own number of this creation, where a listener was told it: another ledger of the id has another."""

    @property
    def creation_ms(self) -> int | None:
        """When the ledger was created, as its metadata say, else the store; milliseconds since 1970."""
        return self.created_ms if self.metadata.ctime_ms is None else self.metadata.ctime_ms


@dataclass(frozen=True, slots=True)
class StoredLedger:
    """The same with its metadata as they are stored (`metadata_codec`), not looked at."""

    ledger_id: LedgerId
    data: bytes
    version: int
    created_ms: int | None = None

    def record(self) -> LedgerRecord:
        """Raises MetadataFormatException, which names the ledger."""
        try:
            metadata = decode(self.data)
        except MetadataFormatException as error:
            raise MetadataFormatException(f"metadata of ledger {self.ledger_id}: {error}") from error
        return LedgerRecord(self.ledger_id, metadata, self.version, self.created_ms)


@dataclass(frozen=True, slots=True)
class CreateRequest:
    """One ledger of `LedgerManager.create_many`; without an id one of scope 0 is generated."""

    ledger_id: LedgerId | None
    metadata: LedgerMetadata


_LISTED_TOGETHER = 16
"""Ledgers that are read at once where nothing is known of their size."""

LedgerMetadataListener = Callable[[LedgerId, LedgerRecord | None], None]
"""Called on the event loop with the newest record of a ledger, or None when the ledger is gone (then never again)."""


class LedgerManager(ABC):
    """Ledger metadata by compare-and-set."""

    @abstractmethod
    async def create(self, ledger_id: LedgerId | None, metadata: LedgerMetadata) -> LedgerRecord:
        """Creates a ledger at version 0; `None` generates an id of scope 0.

        Raises LedgerExistException when the given id is taken, LedgerIdOverflowException when ids ran out.
        """

    @abstractmethod
    async def read(self, ledger_id: LedgerId) -> LedgerRecord:
        """Raises NoSuchLedgerExistsOnMetadataServerException, MetadataFormatException."""

    @abstractmethod
    async def write(self, ledger_id: LedgerId, metadata: LedgerMetadata, expected_version: int) -> LedgerRecord:
        """Replaces the metadata if it is at `expected_version`.

        Raises MetadataVersionException, NoSuchLedgerExistsOnMetadataServerException.
        """

    @abstractmethod
    async def remove(self, ledger_id: LedgerId, expected_version: int | None = None) -> None:
        """Removes a ledger; `None` whatever its version.

        Raises MetadataVersionException, NoSuchLedgerExistsOnMetadataServerException.
        """

    async def create_many(self, requests: Sequence[CreateRequest]) -> list[LedgerRecord | BKException]:
        """Creates each ledger as `create` does; answers in the order of the requests, a failure as its exception.

        Each stands for itself: some may be created while others fail. Stores that can do many in one round trip
        override this plain loop.
        """
        return [await _outcome(self.create(request.ledger_id, request.metadata)) for request in requests]

    async def read_many(self, ledger_ids: Sequence[LedgerId]) -> list[LedgerRecord | BKException]:
        """Reads each ledger as `read` does; answers in the order of the ids, a failure as its exception."""
        return [await _outcome(self.read(ledger_id)) for ledger_id in ledger_ids]

    async def read_listed(self, ledger_ids: Sequence[LedgerId], max_bytes: int) -> list[StoredLedger | BKException]:
        """Reads the first ledgers of those that a listing told of, ids ascending; answers as `read_many` does.

        Up to the one with which their metadata come to `max_bytes`, and at least one. Stores that can give what they
        hold as it is override this; here it is made again from the records.
        """
        found: list[StoredLedger | BKException] = []
        size = 0
        while len(found) < len(ledger_ids) and size < max_bytes:
            for record in await self.read_many(ledger_ids[len(found) : len(found) + _LISTED_TOGETHER]):
                stored = record if isinstance(record, BKException) else _as_stored(record)
                size += 0 if isinstance(stored, BKException) else len(stored.data)
                found.append(stored)
        return found

    @abstractmethod
    def ledger_ranges(
        self, scope_id: int = 0, start_after: int | None = None, end_before: int | None = None
    ) -> AsyncIterator[Sequence[int]]:
        """All ledger ids of a scope in strictly ascending order, as bounded, non-empty runs.

        A ledger that exists throughout is listed exactly once. A listing that can't be finished raises: it never
        just ends, since garbage collection deletes what a complete listing lacks.
        """

    async def ledger_records(
        self, scope_id: int = 0, start_after: int | None = None, end_before: int | None = None, page_size: int = 0
    ) -> AsyncIterator[list[LedgerRecord]]:
        """Like `ledger_ranges`, with the metadata: pages of records in ascending order of id, none empty.

        Ledgers that are deleted meanwhile are left out; one that can't be read ends the listing with its error. No
        page has more than `page_size` records; 0: what suits the store, which here is a run. Stores that list ids and
        metadata together override this.
        """
        async for run in self.ledger_ranges(scope_id, start_after, end_before):
            size = page_size or len(run)
            for start in range(0, len(run), size):
                wanted = [LedgerId(scope_id, number) for number in run[start : start + size]]
                if page := _existing(await self.read_many(wanted)):
                    yield page

    @abstractmethod
    async def register_listener(self, ledger_id: LedgerId, listener: LedgerMetadataListener) -> None:
        """Calls `listener` soon with the present state, then after each change (newest state only)."""

    @abstractmethod
    async def unregister_listener(self, ledger_id: LedgerId, listener: LedgerMetadataListener) -> None:
        """Takes the listener away; unknown ones are ignored. The store's watch goes with the last listener."""


def _as_stored(record: LedgerRecord) -> StoredLedger:
    return StoredLedger(record.ledger_id, encode(record.metadata), record.version, record.created_ms)


def _existing(outcomes: Sequence[LedgerRecord | BKException]) -> list[LedgerRecord]:
    """The records; ledgers that were deleted since they were listed are none. Raises other errors."""
    records = []
    for outcome in outcomes:
        if isinstance(outcome, LedgerRecord):
            records.append(outcome)
        elif not isinstance(outcome, NoSuchLedgerExistsOnMetadataServerException):
            raise outcome
    return records


async def _outcome(call: Awaitable[LedgerRecord]) -> LedgerRecord | BKException:
    try:
        return await call
    except BKException as error:
        return error


class BookieSet(enum.Enum):
    """Which bookies are asked for."""

    WRITABLE = "writable"
    READ_ONLY = "read-only"
    ALL = "all"
    """Every bookie with a cookie, registered or not."""


@dataclass(frozen=True, slots=True)
class RegisteredBookie:
    """A bookie as discovery knows it. Neither writable nor read-only: not registered now, known by its cookie."""

    info: BookieServiceInfo
    writable: bool
    read_only: bool

    @property
    def bookie_id(self) -> str:
        return self.info.bookie_id


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """What the store says of the cluster. `ledger_manager` is the factory's class name as LAYOUT has it."""

    instance_id: str
    ledger_manager: str
    features: tuple[str, ...] = ()


BookiesListener = Callable[[Sequence[RegisteredBookie]], None]
"""Called on the event loop with a whole set of bookies, ordered by id."""


class ServiceDiscovery(ABC):
    """Which bookies there are."""

    @abstractmethod
    async def bookies(self, bookie_set: BookieSet) -> Sequence[RegisteredBookie]:
        """The set as it stands, ordered by bookie id."""

    @abstractmethod
    async def bookie_service_info(self, bookie_id: str) -> RegisteredBookie:
        """Raises BookieHandleNotAvailableException for a bookie that is not registered."""

    @abstractmethod
    async def watch_bookies(self, bookie_set: BookieSet, listener: BookiesListener) -> Callable[[], None]:
        """Calls `listener` soon with the whole set, then at each change; returns what ends the watch."""

    @abstractmethod
    async def cluster_info(self) -> ClusterInfo:
        """Raises MetaStoreException when the cluster was never initialised."""


@dataclass(frozen=True, slots=True)
class Membership:
    """Which bookie a process is, and of which cluster, as the cookie in its directories says."""

    bookie_id: str
    instance_id: str

    def check(self, instance_id: str, cookie: object | None) -> None:
        """What a store says its cluster is, and what it has as the bookie's cookie, if anything.

        Raises WrongClusterException unless it is the bookie's own cluster and knows it.
        """
        if instance_id != self.instance_id:
            raise WrongClusterException(
                f"the metadata store is that of cluster {instance_id}, bookie {self.bookie_id} belongs to cluster "
                f"{self.instance_id}; is its file or ledgers root the right one?"
            )
        if cookie is None:
            raise WrongClusterException(
                f"the metadata store of cluster {instance_id} has no cookie of bookie {self.bookie_id}: the store was "
                "put back to an older state, or the bookie was decommissioned"
            )


class RegistrationManager(ABC):
    """What a bookie tells of itself: its registration, its cookie, and the cluster it belongs to."""

    membership: Membership | None = None
    """Checked whenever this bookie registers, also when that is done anew (`LedgerManagerFactory.join`)."""

    async def check_membership(self, bookie_id: str) -> None:
        """Before it registers: raises WrongClusterException for the bookie of `membership` elsewhere."""
        if self.membership is not None and self.membership.bookie_id == bookie_id:
            await self.verify(self.membership)

    async def verify(self, membership: Membership) -> None:
        """Raises WrongClusterException unless the store is that of the bookie's cluster, and knows the bookie."""
        membership.check(await self.cluster_instance_id(), await self.read_cookie(membership.bookie_id))

    @abstractmethod
    async def cluster_instance_id(self) -> str:
        """The cluster's instance id."""

    @abstractmethod
    async def register_bookie(self, info: BookieServiceInfo, *, read_only: bool) -> None:
        """Registers (or moves between the writable and the read-only list) until `unregister_bookie` or `close`.

        The store forgets the registration when this process is gone. It is renewed over store sessions.
        Raises LedgerExistException when another live process holds this bookie id, or another owner in this process:
        each lease is one, and so is the process itself, which registers without. Raises WrongClusterException.
        """

    @abstractmethod
    async def unregister_bookie(self, bookie_id: str, lease: Lease | None = None) -> None:
        """Takes the bookie out of both lists, where `lease` has registered it here; None: this process itself."""

    @abstractmethod
    async def is_registered(self, info: BookieServiceInfo, *, read_only: bool) -> bool:
        """Whether the store holds this registration, as `register_bookie` made it here. Raises MetaStoreException."""

    def reserve(self, bookie_id: str) -> None:
        """Keeps a bookie id for this process itself: no lease registers it here, be it before the bookie does.

        For managers that also serve a gateway; others know no owner but the process.
        """
        return

    @abstractmethod
    async def read_cookie(self, bookie_id: str) -> Versioned[bytes] | None:
        """The stored cookie, or None."""

    @abstractmethod
    async def write_cookie(self, bookie_id: str, cookie: bytes, expected_version: int | None) -> None:
        """Creates (`None`) or replaces the cookie. Raises MetadataVersionException."""

    @abstractmethod
    async def remove_cookie(self, bookie_id: str, expected_version: int) -> None:
        """Raises MetadataVersionException."""


class LedgerManagerFactory(ABC):
    """One metadata store (or gateway), and what is made from it. Close it last."""

    @abstractmethod
    async def initialize(self) -> None:
        """Connects to the cluster that is there, and checks that the stored layout is the configured one.

        Raises MetaStoreException when the store is out of reach or has no cluster, IncorrectParameterException when
        LAYOUT disagrees.
        """

    @property
    @abstractmethod
    def ledger_manager(self) -> LedgerManager: ...

    @property
    @abstractmethod
    def service_discovery(self) -> ServiceDiscovery: ...

    @property
    @abstractmethod
    def registration_manager(self) -> RegistrationManager: ...

    @property
    @abstractmethod
    def connected(self) -> bool:
        """False while the store is out of reach."""

    @property
    def writable(self) -> bool:
        """False while the store is reached and takes no change, as for want of room."""
        return True

    @property
    def connection_epoch(self) -> int:
        """Grows whenever the connection to the store was lost, however shortly.

        What a listener heard in an earlier epoch may be out of date until the store was asked again. For stores
        without a connection it never grows.
        """
        return 0

    @property
    def client_restarts(self) -> int:
        """How often the library that speaks to the store had ended by itself, and was started anew."""
        return 0

    @property
    def gauges(self) -> Mapping[str, Callable[[], float]]:
        """What a client that uses this store adds to its metrics, by their names."""
        return {}

    def join(self, membership: Membership) -> None:
        """This process is that bookie, of that cluster: from now on it registers nowhere else, and a listing of
        another cluster's ledgers is an error."""
        self.registration_manager.membership = membership

    @abstractmethod
    async def revision(self) -> int:
        """The store's global revision (ZooKeeper's zxid): grows with every change, never goes back."""

    async def catch_up(self, revision: int | None) -> None:
        """Returns once reads and listeners here are not older than `revision`; None: than this call.

        For stores that may answer from a copy that lags; others have nothing to do. Raises BKException.
        """
        return

    @abstractmethod
    async def close(self) -> None:
        """Gives up the connection; registrations made here are taken back."""
