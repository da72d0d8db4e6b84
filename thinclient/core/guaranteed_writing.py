"""The writer of an ordinary ledger with a guaranteed write quorum: what is closed is fully replicated.

It follows the rules of `writing`, and keeps each add until its whole write set has stored it:

*pending* → *confirmed* (ack quorum reached, every lower entry confirmed; the application is informed) → *fully
replicated* (its whole write set has it, and every lower entry is fully replicated).

The LAC that entries, bookies and readers are told is the last *fully replicated* entry. So every reader, every
ensemble change and every recovery, also BookKeeper's, begins after the entries that are on all their bookies, by the
rules that they have anyway. `sequence_head` is the last confirmed entry.

Invariants. G1, G2: a new fragment begins right after the LAC, so all entries before it are on their whole write sets;
so is the whole ledger if it is closed with `fully_replicated`. G3: a failed bookie that has acknowledged an entry which
is confirmed, but not fully replicated, is pinned as long as fewer than Qa others have that entry. G4: nothing is
closed that is not fully replicated; the caller looks at `fully_replicated`. P1, P9: as in `writing`.

Failures. Every failure of an add that is not fully replicated starts a change (`delay_ensemble_change` has nothing to
tolerate). If a bookie can't be replaced, adds go on with the others, and the LAC waits for it or its replacement.

Not its job: recovery, which needs no such writer: it confirms nothing to an application, so it takes the write quorum
for its ack quorum. Source: docs/protocol/client-protocol.md#guaranteed-write-quorum.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from itertools import chain

from bookgate.ledger.ledger_id import LedgerId
from bookgate.thinclient.core.ensemble_change import pinned
from bookgate.thinclient.core.writing import Changed, LedgerWriter, Member, PendingAdd, WriterRules

_NONE: tuple[PendingAdd, ...] = ()


class GuaranteedLedgerWriter(LedgerWriter):
    """The adds of a ledger whose entries all reach their whole write set."""

    def __init__(
        self,
        ledger_id: LedgerId,
        ensemble: Sequence[str],
        write_quorum_size: int,
        ack_quorum_size: int,
        rules: WriterRules | None = None,
    ) -> None:
        rules = replace(rules or WriterRules(), delay_ensemble_change=False)
        super().__init__(ledger_id, ensemble, write_quorum_size, ack_quorum_size, rules=rules)
        self._lac_waits = True
        self._replicating: deque[PendingAdd] = deque()
        """Confirmed adds that are not fully replicated, from LAC + 1 on."""
        self._leaving: Set[int] = frozenset()
        """Indexes of members that the change under way may have replaced already."""
        self._spared: Set[int] = frozenset()
        """Indexes of failed members that the last change did not replace because they were pinned."""

    @property
    def fully_replicated(self) -> bool:
        """Whether everything that the application was told is on its whole write set (G4)."""
        return self.last_add_confirmed == self.sequence_head

    @property
    def pinned(self) -> Set[int]:
        """The indexes of failed members that may not be replaced now (G3)."""
        acked = (add.acked for add in self._replicating)
        return pinned(self._failed, acked, self._ack_quorum_size, self._leaving)

    @property
    def replaceable(self) -> Set[int]:
        return self._failed.keys() - self.pinned

    def on_acks(self, adds: Sequence[PendingAdd], member: Member) -> Sequence[PendingAdd]:
        """A bookie has stored these entries. Returns the adds that this confirms, in entry order.

        The caller must check `change_wanted` afterwards: full replication may have released a pinned member.
        """
        reached = self._note_acks(adds, member)
        if self.changing:
            return _NONE
        if reached:
            return self._confirm()
        self._replicate()
        return _NONE

    def _confirm(self) -> Sequence[PendingAdd]:
        confirmed = super()._confirm()
        self._replicating.extend(confirmed)
        self._replicate()
        return confirmed

    def _replicate(self) -> None:
        """Moves the LAC over the adds that are fully replicated."""
        replicating, last = self._replicating, None
        while replicating and replicating[0].acks == self._write_quorum_size:
            last = replicating.popleft()
        if last is None:
            return
        assert last.entry_id <= self.sequence_head, "nothing is fully replicated before it is confirmed"
        self.previous_last_add_confirmed = self.last_add_confirmed
        self.last_add_confirmed, self.confirmed_length = last.entry_id, last.length
        if self._spared and self.error is None and not self.changing and self._spared - self.pinned:
            self.want_change()

    def on_forced(self, entry_id: int, length: int) -> None:
        """Entries up to `entry_id` are durable where they are: this moves nothing, since durable is not replicated."""

    def begin_change(self) -> dict[int, str]:
        """The failed bookies by index that a change is to replace: not the pinned ones."""
        self._spared = self.pinned
        self._leaving = self._failed.keys() - self._spared
        return super().begin_change()

    def finish_change(self, ensemble: Sequence[str]) -> Changed:
        self._leaving = frozenset()
        return super().finish_change(ensemble)

    def readmit(self, index: int) -> Sequence[tuple[PendingAdd, int]]:
        """Tries a failed bookie that was not replaced again. Returns the adds that it has yet to store."""
        self._spared = self._spared - {index}
        return super().readmit(index)

    def _unfinished(self) -> Iterable[PendingAdd]:
        return chain(self._replicating, self._pending)

    def _is_complete(self, add: PendingAdd) -> bool:
        return add.acks == self._write_quorum_size

    def _replaceable(self) -> Iterable[int]:
        return self._failed.keys() - self._spared

    def _clear_pending(self) -> None:
        super()._clear_pending()
        self._replicating.clear()
