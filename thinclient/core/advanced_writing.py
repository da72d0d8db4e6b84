"""The writer of a ledger whose entry ids the application chooses (BookKeeper's LedgerHandleAdv).

It follows the rules of `writing`, with two differences. `begin_add_at` takes the id: ids arrive in any order, each
once, and an add is confirmed when its entry and all entries from 0 up to it are complete, so early ones wait. The
length in a packet is the running total in the order of the calls; the ledger's length, which `close` stores, is that of
the confirmed entries. Source: docs/protocol/client-protocol.md#entry-ids-of-the-application.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bookgate.ledger.errors import DuplicateEntryIdException, IllegalOpException, IncorrectParameterException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.thinclient.core.writing import LedgerWriter, PendingAdd, WriterRules

_LAST_ENTRY_ID = 2**63 - 1


class AdvancedLedgerWriter(LedgerWriter):
    """The adds of a ledger whose ids the caller chooses."""

    def __init__(
        self,
        ledger_id: LedgerId,
        ensemble: Sequence[str],
        write_quorum_size: int,
        ack_quorum_size: int,
        rules: WriterRules | None = None,
    ) -> None:
        super().__init__(ledger_id, ensemble, write_quorum_size, ack_quorum_size, rules=rules)
        self._by_id: dict[int, PendingAdd] = {}
        self._gap = 0

    @property
    def pending_count(self) -> int:
        return len(self._by_id)

    @property
    def lowest_missing(self) -> int:
        """The lowest id that was not appended yet; all higher ones wait for it."""
        self._gap = max(self._gap, self.sequence_head + 1)
        while self._gap in self._by_id:
            self._gap += 1
        return self._gap

    def begin_add(self, size: int) -> PendingAdd:
        """Not supported by this writer: raises IllegalOpException."""
        raise IllegalOpException(
            f"ledger {self._ledger_id} takes entries with ids of the caller's choice only", ledger_id=self._ledger_id
        )

    def check_id(self, entry_id: int) -> None:
        """Raises DuplicateEntryIdException, IncorrectParameterException, or the error that ended the ledger."""
        if self.error is not None:
            raise self.error.with_traceback(None)
        if not 0 <= entry_id <= _LAST_ENTRY_ID:
            raise IncorrectParameterException(f"entry id {entry_id} is not in 0 … 2**63 - 1", ledger_id=self._ledger_id)
        if entry_id <= self.sequence_head or entry_id in self._by_id:
            raise DuplicateEntryIdException(
                f"entry {entry_id} of ledger {self._ledger_id} was appended before", ledger_id=self._ledger_id
            )

    def begin_add_at(self, entry_id: int, size: int) -> PendingAdd:
        """Begins the add of an entry of `size` payload bytes. Raises as `check_id`."""
        self.check_id(entry_id)
        indexes = self._write_sets[entry_id % self._ensemble_size]
        if len(indexes) < self._write_quorum_size:
            self._check_write_set(entry_id, indexes)
        self.length += size
        self.last_add_pushed = max(self.last_add_pushed, entry_id)
        add = PendingAdd(entry_id, size, self.length, self.last_add_confirmed, indexes)
        self._by_id[entry_id] = add
        return add

    def _confirm(self) -> Sequence[PendingAdd]:
        confirmed = []
        entry_id = self.sequence_head + 1
        while (add := self._by_id.get(entry_id)) is not None and add.acks >= self._ack_quorum_size:
            confirmed.append(self._by_id.pop(entry_id))
            entry_id += 1
        if confirmed:
            assert confirmed[0].entry_id == self.sequence_head + 1, "entries are acknowledged in order (P9)"
            self._acknowledge(entry_id - 1, self.acknowledged_length + sum(add.size for add in confirmed))
        return confirmed

    def unreachable(self) -> Sequence[PendingAdd]:
        """Removes and returns the adds above the lowest missing id."""
        lost = [add for add in self._waiting() if add.entry_id > self.lowest_missing]
        for add in lost:
            del self._by_id[add.entry_id]
        return lost

    def _waiting(self) -> Iterable[PendingAdd]:
        return [self._by_id[entry_id] for entry_id in sorted(self._by_id)]

    def _clear_pending(self) -> None:
        self._by_id.clear()
