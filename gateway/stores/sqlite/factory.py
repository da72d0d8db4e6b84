"""The embedded store as a `LedgerManagerFactory`: `sqlite:///absolute/path`."""

from __future__ import annotations

import contextlib

from bookgate.gateway.stores.settings import DEFAULTS, StoreSettings
from bookgate.gateway.stores.sqlite.change_feed import ChangeFeed, Changes
from bookgate.gateway.stores.sqlite.cluster_admin import SqliteClusterAdmin
from bookgate.gateway.stores.sqlite.discovery import SqliteServiceDiscovery
from bookgate.gateway.stores.sqlite.ledger_manager import SqliteLedgerManager
from bookgate.gateway.stores.sqlite.registration import DEFAULT_LEASE_SECONDS, SqliteRegistrationManager
from bookgate.gateway.stores.sqlite.replication import SqliteReplicationMetadata
from bookgate.gateway.stores.sqlite.store import ReplicationChange, SqliteStore, revision_of
from bookgate.gateway.stores.sqlite.uri import parse_sqlite
from bookgate.ledger.errors import BKException
from bookgate.ledger.metadata_store import LedgerManager, LedgerManagerFactory, RegistrationManager, ServiceDiscovery
from bookgate.ledger.replication_store import ReplicationMetadata


class SqliteLedgerManagerFactory(LedgerManagerFactory):
    """One SQLite file and the managers that use it."""

    def __init__(self, path: str, lease_seconds: float = DEFAULT_LEASE_SECONDS) -> None:
        self.store = SqliteStore(path)
        self._manager = SqliteLedgerManager(self.store, self._interest_changed)
        self._discovery = SqliteServiceDiscovery(self.store, self._interest_changed)
        self._registration = SqliteRegistrationManager(self.store, lease_seconds)
        self._feed = ChangeFeed(self.store, self._changed)
        self._revision_at: int | None = None
        """The version of the data (`SqliteStore.data_version`) at which `_revision` was read, or an earlier one."""
        self._revision = 0
        self._replication = SqliteReplicationMetadata(
            self.store, self._interest_changed, self._feed.catch_up, lease_seconds
        )

    async def initialize(self) -> None:
        await self.store.open()
        await self._feed.begin()

    @property
    def ledger_manager(self) -> LedgerManager:
        return self._manager

    @property
    def service_discovery(self) -> ServiceDiscovery:
        return self._discovery

    @property
    def registration_manager(self) -> RegistrationManager:
        return self._registration

    @property
    def replication_metadata(self) -> ReplicationMetadata:
        return self._replication

    @property
    def connected(self) -> bool:
        return self.store.healthy

    @property
    def writable(self) -> bool:
        return self.store.writable

    async def revision(self) -> int:
        # Listings ask for it with every page, and most find that nothing has changed since.
        version = self.store.data_version()
        if version is None or version != self._revision_at:
            revision = await self.store.read(revision_of)
            self._revision_at, self._revision = version, revision
            return revision
        return self._revision

    async def catch_up(self, revision: int | None) -> None:
        await self._feed.catch_up()
        await self._manager.listeners.settled()

    async def close(self) -> None:
        await self._feed.close()
        await self._manager.listeners.close()
        await self._discovery.close()
        # If the file can't be accessed, the leases expire by themselves.
        with contextlib.suppress(BKException):
            await self._replication.close()
        with contextlib.suppress(BKException):
            await self._registration.close()
        await self.store.close()

    def _interest_changed(self) -> None:
        listeners = (self._manager.listeners, self._discovery.listeners)
        self._feed.want(any(len(each) for each in listeners) or self._replication.wants_changes)

    def _changed(self, changes: Changes) -> None:
        if changes.anything:
            self._manager.listeners.all_changed()
        for ledger_id in changes.ledgers:
            self._manager.listeners.changed(ledger_id)
        numbers = [ledger_id.number for ledger_id in changes.ledgers]
        if numbers or changes.anything:
            self._replication.ledgers_changed(None if changes.anything else numbers)
        if changes.bookies or changes.anything:
            self._discovery.listeners.changed()
        self._replication.changed(frozenset(ReplicationChange) if changes.anything else changes.replication)


def create_factory(uri: str, settings: StoreSettings = DEFAULTS) -> SqliteLedgerManagerFactory:
    """The driver's entry point. Raises IncorrectParameterException for a URI without an absolute path."""
    return SqliteLedgerManagerFactory(parse_sqlite(uri))


def create_admin(uri: str, settings: StoreSettings = DEFAULTS) -> SqliteClusterAdmin:
    """The driver's other entry point. Raises like `create_factory`."""
    return SqliteClusterAdmin(parse_sqlite(uri))
