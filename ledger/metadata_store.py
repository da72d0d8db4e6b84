"""The interfaces of the metadata store.

They follow BookKeeper's own split, with asynchronous methods: a `LedgerManagerFactory` provides a `LedgerManager`
(ledger metadata with compare-and-set), a `ServiceDiscovery` (which bookies exist) and a `RegistrationManager`
(registration and cookies of a bookie). The gateway has one factory per kind of store; the thin client has one whose
parts call a gateway. Gateway, client and tests use these interfaces only.

Failures are exceptions of `bookgate.ledger.errors`. Any method raises MetaStoreException if the store is unreachable;
each method lists its other exceptions.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from bookgate.ledger.bookie_info import BookieServiceInfo, Lease
from bookgate.ledger.errors import (
    BKException,
    IllegalOpException,
    MetadataFormatException,
    NoSuchLedgerExistsOnMetadataServerException,
    WrongClusterException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_codec import decode, encode

if TYPE_CHECKING:
    from bookgate.ledger.replication_store import ReplicationMetadata

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Versioned(Generic[T]):
    """A stored value and its version: 0 after creation, incremented by each update."""

    value: T
    version: int


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """A ledger as the store holds it.

    `created_ms` is the creation time that the store recorded, in milliseconds since 1970, if the read returned it. The
    metadata has a creation time of its own only if the client chose to write one.
    """

    ledger_id: LedgerId
    metadata: LedgerMetadata
    version: int
    created_ms: int | None = field(default=None, compare=False)
    incarnation: int | None = field(default=None, compare=False)
    """The store's number for this creation, set in records passed to listeners: a recreated ledger has another one."""

    @property
    def creation_ms(self) -> int | None:
        """Creation time in milliseconds since 1970: the one in the metadata if present, else the store's."""
        return self.created_ms if self.metadata.ctime_ms is None else self.metadata.ctime_ms


@dataclass(frozen=True, slots=True)
class StoredLedger:
    """A `LedgerRecord` whose metadata is still serialised (`metadata_codec`) and unchecked."""

    ledger_id: LedgerId
    data: bytes
    version: int
    created_ms: int | None = None

    def record(self) -> LedgerRecord:
        """Parses the metadata. Raises MetadataFormatException, which names the ledger."""
        try:
            metadata = decode(self.data)
        except MetadataFormatException as error:
            raise MetadataFormatException(f"metadata of ledger {self.ledger_id}: {error}") from error
        return LedgerRecord(self.ledger_id, metadata, self.version, self.created_ms)


@dataclass(frozen=True, slots=True)
class CreateRequest:
    """One ledger for `LedgerManager.create_many`; with `ledger_id` None an id of scope 0 is generated."""

    ledger_id: LedgerId | None
    metadata: LedgerMetadata


_LISTED_TOGETHER = 16
"""Ledgers read in one call while their size is unknown."""

LedgerMetadataListener = Callable[[LedgerId, LedgerRecord | None], None]
"""Called on the event loop with the latest record of a ledger, or with None when the ledger was removed (no call
follows).
"""


class LedgerManager(ABC):
    """Ledger metadata with compare-and-set."""

    @abstractmethod
    async def create(self, ledger_id: LedgerId | None, metadata: LedgerMetadata) -> LedgerRecord:
        """Creates a ledger at version 0.

        Args:
            ledger_id: The id to use; None generates one in scope 0.
            metadata: The initial metadata, with its first ensemble.

        Returns:
            The created ledger with its id and version 0.

        Raises:
            LedgerExistException: The given id is in use.
            LedgerIdOverflowException: The generator has no ids left.
            UnknownOutcomeException: The response was lost; the ledger may or may not exist.
        """

    @abstractmethod
    async def read(self, ledger_id: LedgerId) -> LedgerRecord:
        """Reads the metadata of a ledger.

        Raises:
            NoSuchLedgerExistsOnMetadataServerException: The store has no such ledger.
            MetadataFormatException: The stored bytes are not valid metadata.
        """

    @abstractmethod
    async def write(self, ledger_id: LedgerId, metadata: LedgerMetadata, expected_version: int) -> LedgerRecord:
        """Replaces the metadata if its stored version is `expected_version`.

        Args:
            ledger_id: The ledger.
            metadata: The new metadata.
            expected_version: The version that the caller has read.

        Returns:
            The ledger with the new metadata and the new version.

        Raises:
            MetadataVersionException: The stored version is another one.
            NoSuchLedgerExistsOnMetadataServerException: The store has no such ledger.
            UnknownOutcomeException: The response was lost; the metadata may or may not have been replaced.
        """

    @abstractmethod
    async def remove(self, ledger_id: LedgerId, expected_version: int | None = None) -> None:
        """Removes a ledger.

        Args:
            ledger_id: The ledger.
            expected_version: The version that the caller has read; None removes any version.

        Raises:
            MetadataVersionException: The stored version is another one.
            NoSuchLedgerExistsOnMetadataServerException: The store has no such ledger.
            UnknownOutcomeException: The response was lost; the ledger may or may not have been removed.
        """

    async def create_many(self, requests: Sequence[CreateRequest]) -> list[LedgerRecord | BKException]:
        """Creates several ledgers, each as `create` does.

        The creates are independent: some may succeed while others fail. Stores that can create many ledgers in one
        round trip override this sequential loop.

        Args:
            requests: The ledgers to create.

        Returns:
            One result per request, in the same order: the created ledger, or the exception of that create.
        """
        return [await _outcome(self.create(request.ledger_id, request.metadata)) for request in requests]

    async def read_many(self, ledger_ids: Sequence[LedgerId]) -> list[LedgerRecord | BKException]:
        """Reads several ledgers, each as `read` does.

        Args:
            ledger_ids: The ledgers.

        Returns:
            One result per id, in the same order: the ledger, or the exception of that read.
        """
        return [await _outcome(self.read(ledger_id)) for ledger_id in ledger_ids]

    async def read_listed(self, ledger_ids: Sequence[LedgerId], max_bytes: int) -> list[StoredLedger | BKException]:
        """Reads ledgers of a listing, metadata undecoded, for callers that only forward the bytes.

        Stores that can return the stored bytes override this; the default re-encodes the records of `read_many`.

        Args:
            ledger_ids: Ids that a listing returned, in ascending order.
            max_bytes: Size limit in bytes of metadata: reading stops with the ledger that reaches it.

        Returns:
            Results for a prefix of `ledger_ids`, at least one: the ledger, or the exception of that read.
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
        """Lists all ledger ids of a scope in strictly ascending `unsigned` order, as bounded, non-empty runs.

        A ledger that exists throughout the listing appears exactly once. A listing that can't be completed raises. It
        never ends early, because garbage collection deletes ledgers that a complete listing lacks.

        Args:
            scope_id: The scope, bits 64–127 of the ledger ids.
            start_after: Lists only ids above this one.
            end_before: Lists only ids below this one.

        Yields:
            Runs of ids, bits 0–63.

        Raises:
            BKException: The listing can't be completed.
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
        """Calls `listener` soon with the current state, then after each change; intermediate states may be skipped."""

    @abstractmethod
    async def unregister_listener(self, ledger_id: LedgerId, listener: LedgerMetadataListener) -> None:
        """Removes the listener; an unknown one is ignored. Removing the last listener of a ledger ends the store's
        watch.
        """


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
    """Selects which bookies service discovery returns."""

    WRITABLE = "writable"
    READ_ONLY = "read-only"
    ALL = "all"
    """Every bookie that has a cookie, registered or not."""


@dataclass(frozen=True, slots=True)
class RegisteredBookie:
    """A bookie as service discovery reports it. If neither writable nor read-only, it has a cookie but is not
    registered.
    """

    info: BookieServiceInfo
    writable: bool
    read_only: bool

    @property
    def bookie_id(self) -> str:
        return self.info.bookie_id

    @property
    def registered(self) -> bool:
        return self.writable or self.read_only


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """The store's description of the cluster. `ledger_manager` is the factory's class name as recorded in LAYOUT."""

    instance_id: str
    ledger_manager: str
    features: tuple[str, ...] = ()


BookiesListener = Callable[[Sequence[RegisteredBookie]], None]
"""Called on the event loop with a complete set of bookies, ordered by id."""


class ServiceDiscovery(ABC):
    """Which bookies exist."""

    @abstractmethod
    async def bookies(self, bookie_set: BookieSet) -> Sequence[RegisteredBookie]:
        """The current set of bookies, ordered by bookie id."""

    @abstractmethod
    async def bookie_service_info(self, bookie_id: str) -> RegisteredBookie:
        """The registration of one bookie.

        Raises:
            BookieHandleNotAvailableException: The bookie is not registered.
        """

    @abstractmethod
    async def watch_bookies(self, bookie_set: BookieSet, listener: BookiesListener) -> Callable[[], None]:
        """Watches a set of bookies.

        Args:
            bookie_set: Which bookies to watch.
            listener: Called soon with the complete set, then with the complete set after each change.

        Returns:
            A function that ends the watch.
        """

    @abstractmethod
    async def cluster_info(self) -> ClusterInfo:
        """The cluster's id and layout.

        Raises:
            MetaStoreException: The cluster was never initialised, or the store is unreachable.
        """


@dataclass(frozen=True, slots=True)
class Membership:
    """The bookie that this process is and the cluster it belongs to, as recorded by the cookie in its directories."""

    bookie_id: str
    instance_id: str

    def check(self, instance_id: str, cookie: object | None) -> None:
        """Compares with the store: its instance id, and the cookie that it holds for this bookie, if any.

        Raises WrongClusterException unless the instance id is equal and the store has a cookie.
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
    """Registration and cookies of bookies, and the id of the cluster."""

    membership: Membership | None = None
    """The bookie of this process, checked at each of its registrations, including renewals
    (`LedgerManagerFactory.join`).
    """

    async def check_membership(self, bookie_id: str) -> None:
        """Runs before each registration: raises WrongClusterException if the bookie of `membership` registers with a
        wrong store.
        """
        if self.membership is not None and self.membership.bookie_id == bookie_id:
            await self.verify(self.membership)

    async def verify(self, membership: Membership) -> None:
        """Raises WrongClusterException unless the store belongs to the bookie's cluster and has its cookie."""
        membership.check(await self.cluster_instance_id(), await self.read_cookie(membership.bookie_id))

    @abstractmethod
    async def cluster_instance_id(self) -> str:
        """The cluster's instance id."""

    @abstractmethod
    async def register_bookie(self, info: BookieServiceInfo, *, read_only: bool) -> None:
        """Registers a bookie, or moves it between the writable and the read-only list.

        The registration lasts until `unregister_bookie` or `close`, and is renewed when a new store session begins. The
        store drops it when this process dies.

        Args:
            info: Id, endpoints and properties; its lease, if any, is the owner of the registration. Without a lease the
                owner is this process.
            read_only: Which of the two lists to register in.

        Raises:
            LedgerExistException: Another live process, or another owner in this process, holds the bookie id.
            WrongClusterException: The store is not that of the bookie's cluster.
        """

    @abstractmethod
    async def unregister_bookie(self, bookie_id: str, lease: Lease | None = None) -> None:
        """Removes the bookie from both lists if `lease` (None: this process itself) registered it here."""

    @abstractmethod
    async def is_registered(self, info: BookieServiceInfo, *, read_only: bool) -> bool:
        """Whether the store still holds this registration as `register_bookie` made it here. Raises
        MetaStoreException.
        """

    def reserve(self, bookie_id: str) -> None:
        """Reserves a bookie id for this process: no lease can register it here, even before the bookie itself
        registers.

        Only managers that also serve a gateway implement this; in the others the process is the only owner.
        """
        return

    @abstractmethod
    async def read_cookie(self, bookie_id: str) -> Versioned[bytes] | None:
        """The stored cookie with its version, or None."""

    @abstractmethod
    async def write_cookie(self, bookie_id: str, cookie: bytes, expected_version: int | None) -> None:
        """Creates or replaces the cookie of a bookie.

        Args:
            bookie_id: The bookie.
            cookie: The content.
            expected_version: The version that the caller has read; None creates the cookie.

        Raises:
            MetadataVersionException: The stored version is another one, or the cookie already exists.
        """

    @abstractmethod
    async def remove_cookie(self, bookie_id: str, expected_version: int) -> None:
        """Removes the cookie of a bookie.

        Args:
            bookie_id: The bookie.
            expected_version: The version that the caller has read.

        Raises:
            MetadataVersionException: The stored version is another one, or there is no cookie.
        """


class LedgerManagerFactory(ABC):
    """A connection to one metadata store (or gateway), and the managers that use it. Close it after its users."""

    @abstractmethod
    async def initialize(self) -> None:
        """Connects to an existing cluster and checks that the stored layout is the configured one.

        Raises:
            MetaStoreException: The store is unreachable or holds no cluster.
            IncorrectParameterException: LAYOUT names another layout.
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
    def replication_metadata(self) -> ReplicationMetadata:
        """Auto-recovery's metadata. Raises IllegalOpException for a store that has none."""
        raise IllegalOpException("this metadata store has no place for auto-recovery's marks and locks")

    @property
    @abstractmethod
    def connected(self) -> bool:
        """Whether the store is reachable."""

    @property
    def writable(self) -> bool:
        """False while the store is reachable but accepts no changes, for example because its disk is full."""
        return True

    @property
    def connection_epoch(self) -> int:
        """A number that grows each time the connection to the store is lost, however briefly.

        What a listener received in an earlier epoch may be stale until the store is read again. For stores without a
        connection it never grows.
        """
        return 0

    @property
    def client_restarts(self) -> int:
        """How often the client library of the store stopped by itself and was restarted."""
        return 0

    @property
    def gauges(self) -> Mapping[str, Callable[[], float]]:
        """What a client that uses this store adds to its metrics, by their names."""
        return {}

    def join(self, membership: Membership) -> None:
        """Binds this process to a bookie and its cluster: from now on, registering with another cluster and listing
        another cluster's ledgers fail.
        """
        self.registration_manager.membership = membership

    @abstractmethod
    async def revision(self) -> int:
        """The store's global revision (ZooKeeper's zxid): it grows with every change and never decreases."""

    async def catch_up(self, revision: int | None) -> None:
        """Waits until reads and listeners of this process reflect `revision` or later; None: the state at the time of
        the call.

        Only stores that may read from a lagging replica need it; for others it returns at once. Raises BKException.
        """
        return

    @abstractmethod
    async def close(self) -> None:
        """Closes the connection and removes the registrations made through it."""
