"""Auto-recovery in one process: a candidate for auditor, the auditor's check of replicas, and a worker, over one store.

A bookie runs it beside its own work (`auto_recovery`), and `bookgate autorecovery start` runs it alone. Neither part's
failure touches the other, or the bookie. Source: docs/protocol/auto-recovery.md#auto-recovery.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from bookgate.bookie.replication.auditor import Auditor, AuditorOptions
from bookgate.bookie.replication.replica_check import ReplicaCheck, ReplicaCheckOptions
from bookgate.bookie.replication.tools import WorkerTools
from bookgate.bookie.replication.worker import ReplicationWorker, WorkerOptions
from bookgate.ledger.metadata_store import LedgerManagerFactory, Membership
from bookgate.thinclient.config import ClientConfig


@dataclass(frozen=True, slots=True)
class AutoRecoveryOptions:
    """What may be set of auto-recovery."""

    auditor: AuditorOptions = field(default_factory=AuditorOptions)
    worker: WorkerOptions = field(default_factory=WorkerOptions)
    bytes_a_second: float = 0.0
    """Read and copied by the worker; 0 for no bound."""
    check: ReplicaCheckOptions = field(default_factory=ReplicaCheckOptions)


class AutoRecovery:
    """`start`, and `stop` before the metadata are closed."""

    def __init__(
        self,
        factory: LedgerManagerFactory,
        bookie_id: str,
        options: AutoRecoveryOptions,
        client: ClientConfig,
        rng: random.Random | None = None,
        membership: Membership | None = None,
    ) -> None:
        """`bookie_id` is this process's in its votes; `client` are the settings of its requests to bookies.

        Raises IllegalOpException where the metadata store has no place for auto-recovery.
        """
        rng = rng or random.SystemRandom()
        self._tools = WorkerTools(factory, client, rng, options.bytes_a_second)
        self.check = ReplicaCheck(factory, self._tools.repair.bookies, options.check, membership)
        self.auditor = Auditor(factory, bookie_id, options.auditor, membership, self.check.allow)
        self.worker = ReplicationWorker(factory, self._tools.repair, options.worker, rng)

    @property
    def copied_entries(self) -> int:
        """Copies that the worker has stored."""
        return self._tools.copied.entries

    @property
    def copied_bytes(self) -> int:
        """Bytes of these copies."""
        return self._tools.copied.bytes

    @property
    def bytes_a_second(self) -> float:
        """The rate that the worker's budget grants now."""
        return self._tools.budget.rate

    async def start(self) -> None:
        """Begins; the store need not be reachable yet."""
        await self.auditor.start()
        await self.worker.start()

    async def stop(self) -> None:
        """Takes the vote back, ends repairs after the entries under way, and gives locks back."""
        await self.auditor.stop()
        await self.check.stop()
        await self.worker.stop()
        await self._tools.close()
