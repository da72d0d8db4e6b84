"""The factory of a metadata store reached through gateways, and the driver of `grpc://` and `grpcs://` metadata URIs.

It puts together the channel to the gateways and what works over it: ledger metadata, discovery, registration and
replication metadata. The entry points of the driver name `create_factory` here.

Not its job: choosing between gateways and a store itself (`thinclient.metadata_source`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from bookgate.ledger.connection_state import ConnectionListener
from bookgate.ledger.metadata_store import (
    LedgerManagerFactory,
    Membership,
    RegistrationManager,
    ServiceDiscovery,
)
from bookgate.ledger.replication_store import ReplicationMetadata
from bookgate.thinclient.gateways.channel import GatewayChannel
from bookgate.thinclient.gateways.discovery import RpcServiceDiscovery
from bookgate.thinclient.gateways.grpc_channels import OpenChannel, open_channel
from bookgate.thinclient.gateways.ledger_manager import RpcLedgerManager
from bookgate.thinclient.gateways.membership import GatewayList
from bookgate.thinclient.gateways.parallel_listing import DEFAULT_SIZES, ListingSizes
from bookgate.thinclient.gateways.registration import RpcRegistrationManager
from bookgate.thinclient.gateways.replication import RpcReplicationMetadata
from bookgate.thinclient.gateways.retry_policy import DEFAULT_RETRIES, RetryPolicy
from bookgate.thinclient.gateways.tokens import TokenSource
from bookgate.thinclient.gateways.uri import ClientTlsFiles


class RpcLedgerManagerFactory(LedgerManagerFactory):
    """A metadata store reached through gateways: `grpc://host:port,host:port`."""

    def __init__(
        self,
        uri: str,
        timeout: float = 10.0,
        rng: random.Random | None = None,
        tls: ClientTlsFiles = ClientTlsFiles(),  # noqa: B008 (frozen)
        connector: OpenChannel = open_channel,
        retries: RetryPolicy = DEFAULT_RETRIES,
        tokens: TokenSource | None = None,
        sizes: ListingSizes = DEFAULT_SIZES,
        *,
        fails_fast: bool = False,
    ) -> None:
        """`fails_fast`: `initialize` does not wait for gateways that all reject connections. `sizes`: of listings."""
        chance = rng or random.SystemRandom()
        self.gateways = GatewayChannel(uri, timeout, chance, tls, connector, retries, tokens, fails_fast=fails_fast)
        self._discovery = RpcServiceDiscovery(self.gateways)
        self._manager = RpcLedgerManager(self.gateways, sizes)
        self._registration = RpcRegistrationManager(self.gateways, self._discovery)
        self._replication = RpcReplicationMetadata(self.gateways, self._manager)
        self._list = GatewayList(self.gateways, self._discovery)
        self._connected = False

    async def initialize(self) -> None:
        """Checks that a gateway responds, and discovers the others.

        Raises MetaStoreException naming every address and its error.
        """
        await self._discovery.cluster_info()
        await self._list.start()
        self._connected = True

    @property
    def ledger_manager(self) -> RpcLedgerManager:
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
        return self._connected

    def add_connection_listener(self, listener: ConnectionListener) -> Callable[[], None]:
        return self.gateways.connection.add(listener)

    @property
    def gauges(self) -> Mapping[str, Callable[[], float]]:
        return {"GATEWAYS_PASSED_OVER": lambda: self.gateways.passed_over}

    def join(self, membership: Membership) -> None:
        super().join(membership)
        self._manager.demand_complete_listings()
        self.gateways.cluster = membership.instance_id

    async def revision(self) -> int:
        """The highest revision that this client has seen."""
        return self.gateways.revision

    async def catch_up(self, revision: int | None) -> None:
        """Ensures that no later response is older. For None it reads the store's current revision through a gateway."""
        if revision is None:
            revision = await self._discovery.current_revision()
        self.gateways.revision = max(self.gateways.revision, revision)

    async def close(self) -> None:
        self._connected = False
        await self._list.close()
        await self._replication.close()
        await self._registration.close()
        await self._manager.close()
        await self._discovery.close()
        await self.gateways.close()


def create_factory(uri: str, settings: object = None) -> RpcLedgerManagerFactory:
    """The driver of `grpc://` and `grpcs://` metadata URIs, for a bookie without direct access to a metadata store.

    It ignores the settings of other stores. Raises IncorrectParameterException.
    """
    return RpcLedgerManagerFactory(uri)
