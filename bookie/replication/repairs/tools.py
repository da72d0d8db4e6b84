"""The tools of a worker, created from the metadata store and the settings of a client."""

from __future__ import annotations

import asyncio
import random
from functools import partial

from bookgate.bookie.replication.copies.bookies import Bookies
from bookgate.bookie.replication.copies.budget import CopyLimits, WorkerBudget
from bookgate.bookie.replication.copies.copying import Copied
from bookgate.bookie.replication.repairs.budget_share import BudgetShare
from bookgate.bookie.replication.repairs.repair import RepairTools
from bookgate.ledger.errors import BKException
from bookgate.ledger.metadata_store import LedgerManagerFactory
from bookgate.thinclient.bookies.connection import tcp_connector
from bookgate.thinclient.bookies.pool import BookiePool
from bookgate.thinclient.client import BookKeeper
from bookgate.thinclient.config import ClientConfig
from bookgate.thinclient.placement.chooser import Placement, create_policy


class WorkerTools:
    """Owns the connections of a worker. Call `close` before the metadata store is closed."""

    def __init__(
        self, factory: LedgerManagerFactory, config: ClientConfig, rng: random.Random, limits: CopyLimits
    ) -> None:
        discovery = factory.service_discovery
        self._client = BookKeeper(factory.ledger_manager, discovery, config, rng)
        self._client.metrics.on_read_answer = self._read
        self._pool = BookiePool.of(config, discovery, tcp_connector, rng)
        self.compromises = 0
        """Number of bookies chosen although the placement policy prefers others."""
        self._placement = Placement(discovery, create_policy(config, rng), config, on_counted=self._not_adhering)
        self.copied = Copied()
        self.budget = WorkerBudget(limits, asyncio.get_running_loop().time())
        self.repair = RepairTools(
            self._client,
            Bookies(self._pool, config),
            self._placement,
            factory.replication_metadata,
            factory.ledger_manager,
            discovery,
            self.budget,
            BudgetShare(factory.replication_metadata, self.budget),
            self.copied,
            partial(factory.catch_up, None),
        )

    def _read(self, bookie_id: str, size: int, seconds: float, error: BKException | None) -> None:
        """Called for each response to a read of a copy or a scrub."""
        self.budget.heard(bookie_id, size, seconds, error, asyncio.get_running_loop().time())

    def _not_adhering(self, _metric: str) -> None:
        self.compromises += 1

    async def close(self) -> None:
        """Closes connections; the metadata store stays open."""
        await self._placement.close()
        await self._client.close()
        await self._pool.close_and_wait()
