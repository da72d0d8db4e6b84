"""The auditor's periodic check of replicas: whether registered bookies hold the entries that the metadata assign to
them.

For each ledger it examines (`look`) the complete fragments, on the registered bookies. A ledger is marked for those
that lack entries that they should hold, and the worker repairs it. Unregistered bookies are left to the audit. A
ledger of which a registered bookie did not respond is examined again.

Invariants: R10, an entry is missing only if the bookie itself says so twice. Requests to bookies are paced. Source:
docs/protocol/auto-recovery.md#replica-check. Not its job: schedule and order (`ledger_check`), lost bookies
(`auditor`), repairs (`worker`), the bytes of entries (`scrub`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from pyroaring import BitMap64

from bookgate.bookie.replication.checks.ledger_check import LedgerCheck
from bookgate.bookie.replication.checks.office_task import loop_time
from bookgate.bookie.replication.copies.bookies import Bookies
from bookgate.bookie.replication.copies.budget import ByteBudget
from bookgate.bookie.replication.copies.fragments import why_not_examined
from bookgate.bookie.replication.copies.look import beside_loop, look
from bookgate.bookie.replication.copies.verdicts import Copies, Holding, Unknown, lacking
from bookgate.ledger.metadata_store import LedgerManagerFactory, LedgerRecord, Membership, RegisteredBookie
from bookgate.ledger.replication import PeriodicCheck


@dataclass(frozen=True, slots=True)
class ReplicaCheckOptions:
    """The settings of the check."""

    interval_seconds: float = 604_800.0
    """Seconds from the end of a check to the next one; 0: never."""
    requests_per_second: float = 100.0
    """Limit of requests to all bookies together; 0 for no limit."""
    first_pause_seconds: float = 60.0
    """Seconds before remaining ledgers are examined again, and before an incomplete check is repeated; doubled each
    time.
    """


class ReplicaCheck(LedgerCheck):
    """See the module."""

    name = "replica check"
    kind = PeriodicCheck.ALL_LEDGERS

    def __init__(
        self,
        factory: LedgerManagerFactory,
        bookies: Bookies,
        options: ReplicaCheckOptions,
        membership: Membership | None = None,
    ) -> None:
        """`membership` is the cluster to which the process belongs, if known."""
        super().__init__(factory, bookies, membership, options.interval_seconds, options.first_pause_seconds)
        self._pace = ByteBudget(options.requests_per_second, loop_time())

    async def _look_at(self, record: LedgerRecord, present: Mapping[str, RegisteredBookie]) -> bool:
        """Marks missing copies; returns whether the entries of every registered bookie are known."""
        if reason := why_not_examined(record.metadata):
            self._not_checked(record.ledger_id, reason)
            return True
        unbounded = record.metadata.is_unbounded

        async def ask(bookie_id: str, due: BitMap64) -> Copies:
            if not due:
                return Holding(due)
            if bookie_id not in present:
                return Unknown("it is not registered")
            if seconds := self._pace.take(1, loop_time()):
                await asyncio.sleep(seconds)
            return await self._bookies.copies(bookie_id, record.ledger_id.number, due, unbounded=unbounded)

        copies = await look(record.metadata, ask)
        lacks = await beside_loop(record.metadata, lacking, record.metadata, copies)
        if lacks and not await self._mark(record, lacks):
            return False
        return not any(isinstance(state, Unknown) and name in present for name, state in copies.items())
