"""Ensemble changes of a ledger that is being written: their effect on the metadata.

A writer replaces failed bookies in the last ensemble. `Failures` maps positions to the bookies that failed there. The
steps are pure; between them the caller consults placement and the metadata store.

1. `still_failed`: the failed pairs that the current metadata still has in its last ensemble. Another client has already
replaced the others, which is equally good.
2. `Replacements`, found by placement for as many of them as bookies are available: a change may be partial.
3. `change_ensemble`, the compare-and-set: the new ensemble applies from entry `first_entry_id` = LAC + 1 on. If the
last fragment begins there its members are replaced, otherwise a fragment is added. Since nothing is acknowledged during
a change, every acknowledged entry stays with the ensemble that holds it (P1), and fragments begin at rising ids (P5). A
ledger that is no longer OPEN is left unchanged (P6).
4. `refusal`: the error for the writer if the ledger is CLOSED or IN_RECOVERY, because another client has taken it over.

Not its job: which adds are sent again (`writing`), choosing bookies (`placement`). Source:
docs/protocol/client-protocol.md#ensemble-changes, docs/protocol/metadata.md#ledger-states. In recovery the same
replacements are kept in memory (`RecoveredFragments`) and stored by the closing write
(docs/protocol/client-protocol.md#recovery-adds).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set

from bookgate.ledger.errors import (
    BKException,
    LedgerClosedException,
    LedgerFencedException,
    UnexpectedConditionException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import Fragment, LedgerMetadata, LedgerState

Failures = Mapping[int, str]
"""Ensemble index → the bookie that failed there."""

Replacements = Mapping[int, str]
"""Ensemble index → the bookie that takes its place."""


def still_failed(ensemble: Sequence[str], failed: Failures) -> dict[int, str]:
    """The failed bookies that are still at their index."""
    return {index: bookie_id for index, bookie_id in sorted(failed.items()) if ensemble[index] == bookie_id}


def pinned(
    failed: Iterable[int], acked: Iterable[int], ack_quorum_size: int, leaving: Set[int] = frozenset()
) -> set[int]:
    """The failed members that may not be replaced now, since a confirmed entry would keep less than its ack quorum
    (G3).

    Args:
        failed: The indexes of the failed members.
        acked: For each confirmed entry that is not behind the change, a bit mask of the members that have it.
        ack_quorum_size: The members that each of them must be left with.
        leaving: Failed members that a change under way may have replaced already.

    Returns:
        Their indexes. All others of `failed` may be replaced together.
    """
    entries, gone, stay = set(acked), sum(1 << index for index in leaving), set[int]()
    for index in sorted(set(failed) - leaving):
        left = ~(gone | 1 << index)
        if all((each & left).bit_count() >= ack_quorum_size for each in entries if each >> index & 1):
            gone = ~left
        else:
            stay.add(index)
    return stay


def replaced(ensemble: Sequence[str], failed: Failures, replacements: Replacements) -> tuple[str, ...]:
    """The ensemble with every failed bookie replaced for which a replacement exists: no bookie appears twice (P5)."""
    members = list(ensemble)
    for index in still_failed(ensemble, failed):
        bookie_id = replacements.get(index)
        if bookie_id is not None and bookie_id not in members:
            members[index] = bookie_id
    return tuple(members)


def change_ensemble(
    ledger_id: LedgerId, failed: Failures, replacements: Replacements, first_entry_id: int
) -> Callable[[LedgerMetadata], LedgerMetadata | None]:
    """The metadata transform of an ensemble change. It raises UnexpectedConditionException for a fragment beyond the
    LAC.
    """

    def transform(metadata: LedgerMetadata) -> LedgerMetadata | None:
        last = metadata.last_fragment
        if metadata.state is not LedgerState.OPEN:
            return None
        ensemble = replaced(last.ensemble, failed, replacements)
        if ensemble == last.ensemble:
            return None
        if last.first_entry_id > first_entry_id:
            raise UnexpectedConditionException(
                f"ledger {ledger_id}: the last fragment begins at entry {last.first_entry_id}, after the writer's next "
                f"entry to confirm, {first_entry_id}: another client has written to it"
            )
        return metadata.with_ensemble(first_entry_id, ensemble)

    return transform


def refusal(ledger_id: LedgerId, metadata: LedgerMetadata) -> BKException | None:
    """Why the writer must stop, if the metadata shows that another client has taken over the ledger."""
    if metadata.is_closed:
        return LedgerClosedException(
            f"ledger {ledger_id} was closed by another client at entry {metadata.last_entry_id}", ledger_id=ledger_id
        )
    if metadata.state is LedgerState.IN_RECOVERY:
        return LedgerFencedException(
            f"ledger {ledger_id} is being recovered by another client: this writer has lost it", ledger_id=ledger_id
        )
    return None


class RecoveredFragments:
    """The ensembles of a recovery's changes, kept in memory until the ledger is closed."""

    def __init__(self, metadata: LedgerMetadata) -> None:
        self.ensemble: tuple[str, ...] = metadata.last_fragment.ensemble
        self._ensembles: dict[int, tuple[str, ...]] = {}

    def change(self, first_entry_id: int, ensemble: Sequence[str]) -> None:
        """Uses this ensemble from `first_entry_id` (LAC + 1) on; a later change at the same entry replaces it."""
        self.ensemble = self._ensembles[first_entry_id] = tuple(ensemble)

    @property
    def fragments(self) -> tuple[Fragment, ...]:
        return tuple(Fragment(first, ensemble) for first, ensemble in sorted(self._ensembles.items()))


def with_fragments(metadata: LedgerMetadata, fragments: Sequence[Fragment]) -> LedgerMetadata:
    """The metadata with a recovery's fragments: one at the last key replaces its members, higher ones are added."""
    for fragment in fragments:
        metadata = metadata.with_ensemble(fragment.first_entry_id, fragment.ensemble)
    return metadata
