"""Auto-recovery in one process: a candidate for auditor, the auditor's checks and scrub, and a worker, over one store.

A bookie runs it besides its own work (`auto_recovery`), and `bookgate autorecovery start` runs it alone. A failure of
one part does not affect the other, or the bookie. Source: docs/protocol/auto-recovery.md#auto-recovery.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from bookgate.bookie.replication.audits.auditor import Auditor, AuditorOptions
from bookgate.bookie.replication.checks.emptied import EmptiedBookies
from bookgate.bookie.replication.checks.office_task import OfficeTask
from bookgate.bookie.replication.checks.placement_check import PlacementCheck, PlacementCheckOptions
from bookgate.bookie.replication.checks.replica_check import ReplicaCheck, ReplicaCheckOptions
from bookgate.bookie.replication.checks.scrub import Scrub, ScrubOptions
from bookgate.bookie.replication.copies.budget import CopyLimits
from bookgate.bookie.replication.giving_way import GivingWay
from bookgate.bookie.replication.repairs.progress_record import ProgressRecord
from bookgate.bookie.replication.repairs.tools import WorkerTools
from bookgate.bookie.replication.repairs.worker import ReplicationWorker, WorkerOptions
from bookgate.ledger.metadata_store import LedgerManagerFactory, Membership
from bookgate.ledger.replication_progress import WorkerProgress
from bookgate.runtime.clock import now_ms
from bookgate.thinclient.config import ClientConfig


@dataclass(frozen=True, slots=True)
class AutoRecoveryOptions:
    """The settings of auto-recovery."""

    auditor: AuditorOptions = field(default_factory=AuditorOptions)
    worker: WorkerOptions = field(default_factory=WorkerOptions)
    limits: CopyLimits = field(default_factory=CopyLimits)
    check: ReplicaCheckOptions = field(default_factory=ReplicaCheckOptions)
    scrub: ScrubOptions = field(default_factory=ScrubOptions)
    placement: PlacementCheckOptions = field(default_factory=PlacementCheckOptions)


class AutoRecovery:
    """Auto-recovery of one process. Call `start`, and `stop` before the metadata store is closed."""

    def __init__(
        self,
        factory: LedgerManagerFactory,
        bookie_id: str,
        options: AutoRecoveryOptions,
        client: ClientConfig,
        rng: random.Random | None = None,
        membership: Membership | None = None,
        *,
        gives_way: bool = False,
    ) -> None:
        """`bookie_id` identifies this process in its votes; `client` has the settings of its requests to bookies.

        With `gives_way` it does nothing while the auditor is not a process of Bookgate.

        Raises IllegalOpException if the metadata store does not support auto-recovery.
        """
        rng = rng or random.SystemRandom()
        self._tools = WorkerTools(factory, client, rng, options.limits)
        repair = self._tools.repair
        self.check = ReplicaCheck(factory, repair.bookies, options.check, membership)
        self.scrub = Scrub(factory, repair.client, repair.bookies, options.scrub, membership)
        self.placement_check = PlacementCheck(factory, repair.bookies, repair.placement, options.placement, membership)
        self._office_tasks: tuple[OfficeTask, ...] = (
            self.check,
            self.scrub,
            self.placement_check,
            EmptiedBookies(factory, repair.bookies, membership),
        )
        self.auditor = Auditor(factory, bookie_id, options.auditor, membership, self._allow, repair.placement.racks_of)
        self.worker = ReplicationWorker(factory, self._tools.repair, options.worker, rng)
        self._record = ProgressRecord(factory.replication_metadata, f"{rng.getrandbits(64):016x}", self._told)
        self._giving_way = GivingWay(factory.replication_metadata, self._give_way) if gives_way else None

    @property
    def gives_way_to(self) -> str | None:
        """The auditor to which it gives way, if any."""
        return None if self._giving_way is None else self._giving_way.auditor

    def _give_way(self, back: bool) -> None:
        self.auditor.stand_back(back)
        self.worker.rest(back)

    @property
    def copied_entries(self) -> int:
        """Number of copies that the worker has stored."""
        return self._tools.copied.entries

    @property
    def copied_bytes(self) -> int:
        """Bytes of these copies."""
        return self._tools.copied.bytes

    @property
    def placement_compromises(self) -> int:
        """Number of bookies that the worker has chosen although the placement policy prefers others."""
        return self._tools.compromises

    @property
    def bytes_a_second(self) -> float:
        """The current rate of the worker's budget, in bytes per second."""
        return self._tools.budget.rate

    def _told(self) -> WorkerProgress | None:
        progress = self.worker.progress
        return None if progress is None else progress.told(asyncio.get_running_loop().time(), now_ms())

    def _allow(self, allowed: bool) -> None:
        for task in self._office_tasks:
            task.allow(allowed)

    async def start(self) -> None:
        """Starts; the store need not be reachable yet."""
        if self._giving_way is not None:
            # Until the auditor is known.
            self._give_way(True)
            self._giving_way.start()
        await self.auditor.start()
        await self.worker.start()
        self._record.start()

    async def stop(self) -> None:
        """Withdraws the vote, ends repairs after the current groups of copies, and releases locks."""
        if self._giving_way is not None:
            await self._giving_way.stop()
        await self.auditor.stop()
        for task in self._office_tasks:
            await task.stop()
        await self.worker.stop()
        await self._record.stop()
        await self._tools.close()
