"""What a worker works with, made of the metadata and a client's settings."""

from __future__ import annotations

import asyncio
import random

from bookgate.bookie.replication.bookies import Bookies
from bookgate.bookie.replication.budget import ByteBudget
from bookgate.bookie.replication.copying import Copied
from bookgate.bookie.replication.repair import RepairTools
from bookgate.ledger.metadata_store import LedgerManagerFactory
from bookgate.thinclient.bookies.connection import tcp_connector
from bookgate.thinclient.bookies.pool import BookiePool
from bookgate.thinclient.client import BookKeeper
from bookgate.thinclient.config import ClientConfig
from bookgate.thinclient.placement.chooser import Placement, create_policy


class WorkerTools:
    """Owns the connections of a worker; `close` it before the metadata."""

    def __init__(
        self, factory: LedgerManagerFactory, config: ClientConfig, rng: random.Random, bytes_a_second: float
    ) -> None:
        """`bytes_a_second` bounds what is read and copied; 0 for no bound."""
        discovery = factory.service_discovery
        self._client = BookKeeper(factory.ledger_manager, discovery, config, rng)
        self._pool = BookiePool.of(config, discovery, tcp_connector, rng)
        self._placement = Placement(discovery, create_policy(config, rng), config)
        self.copied = Copied()
        self.budget = ByteBudget(bytes_a_second, asyncio.get_running_loop().time())
        self.repair = RepairTools(
            self._client,
            Bookies(self._pool, config),
            self._placement,
            factory.replication_metadata,
            factory.ledger_manager,
            self.budget,
            self.copied,
        )

    async def close(self) -> None:
        """Closes connections; the metadata stay open."""
        await self._placement.close()
        await self._client.close()
        await self._pool.close_and_wait()
