"""ZooKeeper as a `LedgerManagerFactory`, for `zk+hierarchical://host:2181/ledgers` and its variants.

`initialize` connects and checks LAYOUT. It never creates a cluster: a store without one is more likely the wrong store
than a new one, and a gateway on an empty cluster would cause all bookies to delete their ledgers. If the cluster exists
and only LAYOUT is missing, it is written, as Apache BookKeeper's clients do. Source:
docs/protocol/metadata.md#zookeeper-tree, docs/protocol/metadata.md#layout,
docs/protocol/metadata.md#client-and-bookie-start.
"""

from __future__ import annotations

import asyncio
import contextlib
import random

from kazoo.exceptions import NodeExistsError, NoNodeError

from bookgate.gateway.stores.settings import DEFAULTS as NO_SETTINGS
from bookgate.gateway.stores.settings import StoreSettings
from bookgate.gateway.stores.zookeeper.cluster_admin import ZooKeeperClusterAdmin
from bookgate.gateway.stores.zookeeper.discovery import ZooKeeperServiceDiscovery, no_cluster
from bookgate.gateway.stores.zookeeper.id_generator import id_generator_of
from bookgate.gateway.stores.zookeeper.kazoo_thread import MakeHandler, ThreadHandler
from bookgate.gateway.stores.zookeeper.layout import DEFAULT_MANAGER, ClusterPaths, encode_layout, manager_of_layout
from bookgate.gateway.stores.zookeeper.ledger_manager import ZooKeeperLedgerManager
from bookgate.gateway.stores.zookeeper.ledger_paths import paths_of
from bookgate.gateway.stores.zookeeper.nodes import parent_of
from bookgate.gateway.stores.zookeeper.registration import ZooKeeperRegistrationManager
from bookgate.gateway.stores.zookeeper.replication import ZooKeeperReplicationMetadata
from bookgate.gateway.stores.zookeeper.session import ZooKeeperSession
from bookgate.gateway.stores.zookeeper.settings import DEFAULTS, ZooKeeperSettings
from bookgate.gateway.stores.zookeeper.uri import ZooKeeperUri, parse_zookeeper
from bookgate.ledger.errors import MetaStoreException
from bookgate.ledger.metadata_store import LedgerManager, LedgerManagerFactory, RegistrationManager, ServiceDiscovery
from bookgate.ledger.replication_store import ReplicationMetadata

_REARM_SPREAD_SECONDS = 0.2


class ZooKeeperLedgerManagerFactory(LedgerManagerFactory):
    """One ZooKeeper session and the managers that use it."""

    def __init__(
        self,
        uri: ZooKeeperUri,
        session_timeout_seconds: float = 10.0,
        connect_timeout_seconds: float = 6.0,
        call_timeout_seconds: float = 8.0,
        settings: ZooKeeperSettings = DEFAULTS,
        make_handler: MakeHandler = ThreadHandler,
    ) -> None:
        self._uri = uri
        self._paths = ClusterPaths(uri.ledgers_root)
        self.session = ZooKeeperSession(
            uri.servers, session_timeout_seconds, connect_timeout_seconds, call_timeout_seconds, settings, make_handler
        )
        self.session.on_reconnected = self._reconnected
        self._rearm_timer: asyncio.TimerHandle | None = None
        self._revision = 0
        self._manager_name: str | None = None
        self._manager: ZooKeeperLedgerManager | None = None
        self._replication: ZooKeeperReplicationMetadata | None = None
        self._discovery = ZooKeeperServiceDiscovery(self.session, self._paths, self._require_manager_name)
        self._registration = ZooKeeperRegistrationManager(self.session, self._paths)

    async def initialize(self) -> None:
        if self._uri.manager is not None:
            # An unsupported manager must not leave a mark in ZooKeeper first.
            paths_of(self._uri.manager, self._paths.root)
        await self.session.start()
        try:
            self._manager_name = await self._establish_cluster()
        except BaseException:
            await self.session.close()
            raise
        ledger_paths = paths_of(self._manager_name, self._paths.root)
        self._manager = ZooKeeperLedgerManager(
            self.session, ledger_paths, id_generator_of(self._manager_name, self.session, self._paths.root)
        )
        self._replication = ZooKeeperReplicationMetadata(self.session, self._paths.root, ledger_paths)

    @property
    def ledger_manager(self) -> LedgerManager:
        if self._manager is None:
            raise MetaStoreException("the metadata store was not initialised")
        return self._manager

    @property
    def service_discovery(self) -> ServiceDiscovery:
        return self._discovery

    @property
    def registration_manager(self) -> RegistrationManager:
        return self._registration

    @property
    def replication_metadata(self) -> ReplicationMetadata:
        if self._replication is None:
            raise MetaStoreException("the metadata store was not initialised")
        return self._replication

    @property
    def connected(self) -> bool:
        return self.session.connected

    @property
    def connection_epoch(self) -> int:
        return self.session.connection_epoch

    @property
    def client_restarts(self) -> int:
        return self.session.client_restarts

    async def revision(self) -> int:
        """The newest zxid that any session of this process has seen; `catch_up` advances it to the store's."""
        # A new session's zxid begins at 0.
        self._revision = max(self._revision, self.session.last_zxid)
        return self._revision

    async def catch_up(self, revision: int | None) -> None:
        if revision is not None and revision <= self.session.last_zxid:
            return
        await self.session.sync(self._paths.root)
        if self._rearm_timer is not None:
            self._rearm()
        if self._manager is not None:
            await self._manager.listeners.settled()

    async def close(self) -> None:
        if self._rearm_timer is not None:
            self._rearm_timer.cancel()
        if self._manager is not None:
            await self._manager.close()
        if self._replication is not None:
            await self._replication.close()
        await self._discovery.listeners.close()
        await self._registration.close()
        await self.session.close()

    def _require_manager_name(self) -> str:
        if self._manager_name is None:
            raise MetaStoreException("the metadata store was not initialised")
        return self._manager_name

    def _reconnected(self, new_session: bool) -> None:
        """kazoo has forgotten every watch: everything that is watched is read again, slightly spread over time."""
        loop = asyncio.get_running_loop()
        if new_session:
            self._registration.session_renewed()
        if self._replication is not None:
            self._replication.reconnected(new_session)
        if self._rearm_timer is None:
            self._rearm_timer = loop.call_later(random.uniform(0, _REARM_SPREAD_SECONDS), self._rearm)

    def _rearm(self) -> None:
        if self._rearm_timer is not None:
            self._rearm_timer.cancel()
            self._rearm_timer = None
        if self._manager is not None:
            self._manager.listeners.all_changed()
        self._discovery.listeners.changed()

    # --- the cluster's nodes ------------------------------------------------------------------------------------

    async def _establish_cluster(self) -> str:
        """Returns the ledger manager's name; creates LAYOUT and the list of read-only bookies if they are missing.

        Raises MetaStoreException if there is no cluster.
        """
        configured = self._uri.manager
        await self.session.sync(parent_of(self._paths.root))
        layout = await self._read_layout()
        if layout is None:
            if await self.session.exists(self._paths.instance_id) is None:
                raise no_cluster(self.session, self._paths)
            with contextlib.suppress(NodeExistsError):
                await self.session.create(self._paths.layout, encode_layout(configured or DEFAULT_MANAGER))
            layout = await self._read_layout()
        if layout is None:
            raise no_cluster(self.session, self._paths)
        name = manager_of_layout(layout, configured, self._paths.layout)
        with contextlib.suppress(NodeExistsError, NoNodeError):
            await self.session.create(self._paths.read_only)
        return name

    async def _read_layout(self) -> bytes | None:
        try:
            return (await self.session.get(self._paths.layout))[0]
        except NoNodeError:
            return None


def create_factory(uri: str, settings: StoreSettings = NO_SETTINGS) -> ZooKeeperLedgerManagerFactory:
    """The driver's entry point. Raises IncorrectParameterException."""
    return ZooKeeperLedgerManagerFactory(parse_zookeeper(uri), settings=settings.of(ZooKeeperSettings))


def create_admin(uri: str, settings: StoreSettings = NO_SETTINGS) -> ZooKeeperClusterAdmin:
    """The driver's other entry point. Raises IncorrectParameterException."""
    return ZooKeeperClusterAdmin(parse_zookeeper(uri), settings.of(ZooKeeperSettings))
