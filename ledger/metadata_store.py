"""The interfaces of the metadata store.

They follow BookKeeper's own split, with asynchronous methods: a `LedgerManagerFactory` provides a `LedgerManager`
(ledger metadata with compare-and-set), a `ServiceDiscovery` (which bookies exist) and a `RegistrationManager`
(registration and cookies of a bookie). The gateway has one factory per kind of store; the thin client has one whose
parts call a gateway. Gateway, client and tests use these interfaces only, and import them from here.

Failures are exceptions of `bookgate.ledger.errors`. Any method raises MetaStoreException if the store is unreachable;
each method lists its other exceptions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from bookgate.ledger.bookie_registry import (
    BookieSet,
    BookiesListener,
    ClusterInfo,
    Membership,
    RegisteredBookie,
    RegistrationManager,
    ServiceDiscovery,
)
from bookgate.ledger.connection_state import ConnectionListener
from bookgate.ledger.errors import IllegalOpException
from bookgate.ledger.ledger_manager import (
    CreateRequest,
    LedgerManager,
    LedgerMetadataListener,
    LedgerRecord,
    RawLedgerRecord,
    made_anew,
    require_same,
)
from bookgate.ledger.versioned import Versioned

if TYPE_CHECKING:
    from bookgate.ledger.replication_store import ReplicationMetadata

__all__ = [
    "BookieSet",
    "BookiesListener",
    "ClusterInfo",
    "CreateRequest",
    "LedgerManager",
    "LedgerManagerFactory",
    "LedgerMetadataListener",
    "LedgerRecord",
    "Membership",
    "RawLedgerRecord",
    "RegisteredBookie",
    "RegistrationManager",
    "ServiceDiscovery",
    "Versioned",
    "made_anew",
    "require_same",
]


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

    def add_connection_listener(self, listener: ConnectionListener) -> Callable[[], None]:
        """Has a listener told whether the store is reached. Returns what removes it.

        Raises IllegalOpException where the driver does not tell.
        """
        raise IllegalOpException("this metadata store does not tell the state of its connection; gateways do")

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
