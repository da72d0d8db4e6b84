"""The auditor's periodic check of placement: whether ledgers are placed as well as the placement policy now allows.

A complete fragment is *misplaced* if its ensemble does not conform to the policy, all its bookies are registered, and
the bookies that are writable now allow an ensemble that the policy strictly prefers. A ledger with such a fragment is
marked without any bookie, as BookKeeper's auditors do, and a worker moves it (`repair`). A ledger with missed
bookies is left to the audit first; one without a better ensemble stays as it is.

Source: docs/protocol/auto-recovery.md#placement-check. Not its job: schedule and order (`ledger_check`), which
ensemble is better (the placement policy).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bookgate.bookie.replication.checks.ledger_check import LedgerCheck
from bookgate.bookie.replication.copies.bookies import Bookies
from bookgate.bookie.replication.copies.fragments import complete_fragments
from bookgate.ledger.metadata_store import LedgerManagerFactory, LedgerRecord, Membership, RegisteredBookie
from bookgate.ledger.replication import PeriodicCheck
from bookgate.ledger.replication_store import RecordKind
from bookgate.thinclient.core.placement import EnsembleRequest
from bookgate.thinclient.placement.chooser import Placement, fit_for


@dataclass(frozen=True, slots=True)
class PlacementCheckOptions:
    """The settings of the check."""

    interval_seconds: float = 0.0
    """Seconds from the end of a check to the next one; 0: never."""
    first_pause_seconds: float = 60.0
    """Seconds before remaining ledgers are examined again, and before an incomplete check is repeated; doubled each
    time.
    """


class PlacementCheck(LedgerCheck):
    """See the module."""

    name = "placement check"
    kind = PeriodicCheck.PLACEMENT_POLICY

    def __init__(
        self,
        factory: LedgerManagerFactory,
        bookies: Bookies,
        placement: Placement,
        options: PlacementCheckOptions,
        membership: Membership | None = None,
    ) -> None:
        """`membership` is the cluster to which the process belongs, if known."""
        super().__init__(factory, bookies, membership, options.interval_seconds, options.first_pause_seconds)
        self._placement = placement

    async def _look_at(self, record: LedgerRecord, present: Mapping[str, RegisteredBookie]) -> bool:
        if not self._is_misplaced(record, [*present.values()]):
            return True
        leaving = await self._metadata.records(RecordKind.DRAINING_BOOKIE)
        if not self._is_misplaced(record, [each for name, each in present.items() if name not in leaving]):
            return True
        return await self._mark(record, ())

    def _is_misplaced(self, record: LedgerRecord, bookies: Sequence[RegisteredBookie]) -> bool:
        request, placement = EnsembleRequest.of(record.metadata), self._placement
        fragments, fit = complete_fragments(record.metadata), fit_for(bookies, record.needs)
        return any(placement.better_ensemble(request, each.ensemble, fit) is not None for each in fragments)
