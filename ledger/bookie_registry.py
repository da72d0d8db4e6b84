"""Interfaces of the metadata store: which bookies exist (`ServiceDiscovery`), and a bookie's own entry there.

That entry is its registration, which says where it serves and lasts as long as its process, and its cookie, which says
which bookie and cluster its disks belong to (`RegistrationManager`).
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bookgate.ledger.bookie_info import BookieServiceInfo, Lease
from bookgate.ledger.errors import WrongClusterException
from bookgate.ledger.versioned import Versioned


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


_STORES = {
    "SqliteLedgerManagerFactory": "embedded (SQLite)",
    "FlatLedgerManagerFactory": "ZooKeeper (flat)",
    "HierarchicalLedgerManagerFactory": "ZooKeeper (hierarchical)",
    "LongHierarchicalLedgerManagerFactory": "ZooKeeper (long hierarchical)",
    "LongLongHierarchicalLedgerManagerFactory": "ZooKeeper (long-long hierarchical)",
}


def store_in_words(ledger_manager: str) -> str:
    """The metadata store for people, by its factory's class name; that name where it is not known."""
    name = ledger_manager.rpartition(".")[2]
    return _STORES.get(name, name)


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
