"""Reading a ledger's last add confirmed (LAC) from its bookies, without fencing.

Every bookie of the last ensemble is asked for its explicit LAC and its last entry. The result is the greatest LAC in
any valid answer, once the ensemble is covered (see `recovery`): then it is at least the LAC that any acknowledged entry
carried. "No such entry" and "no such ledger" are valid; a bad digest is not. All entries before the last ensemble's
first are confirmed as well. Source: docs/protocol/client-protocol.md#reading-the-lac.

The cheaper and weaker way (`TryLastConfirmedRead`, 8.2): every bookie is asked for its last entry, and the first answer
with a LAC above the one known will do.
"""

from __future__ import annotations

from bookgate.ledger.errors import BKException, LedgerRecoveryException, ReadException, TimeoutException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.quorum import CoverageSet
from bookgate.thinclient.core.entry_read import ENDS_AT_ONCE


class LastConfirmedRead:
    """Answers in, a result or an error out; `done` when either stands."""

    def __init__(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> None:
        self._ledger_id = ledger_id
        self.bookies = metadata.last_fragment.ensemble
        self._coverage = CoverageSet(metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size)
        self._waiting = set(range(len(self.bookies)))
        self._valid = False
        self._errors: dict[str, BKException] = {}
        self._best = metadata.last_fragment.first_entry_id - 1
        self.bookies_with_entries: set[str] = set()
        self.error: BKException | None = None

    @property
    def result(self) -> int:
        """The LAC; meaningful when `done` without `error`."""
        return self._best

    @property
    def done(self) -> bool:
        return self.error is not None or (self._valid and self._coverage.covered)

    def on_answer(self, index: int, lac: int, has_entries: bool) -> None:
        """A valid answer: the greatest LAC in it (-1 for none), and whether the bookie holds an entry."""
        if index not in self._waiting or self.done:
            return
        self._waiting.discard(index)
        self._valid = True
        self._best = max(self._best, lac)
        self._coverage.mark_known(index)
        if has_entries:
            self.bookies_with_entries.add(self.bookies[index])
        self._fail_if_exhausted()

    def on_error(self, index: int, error: BKException) -> None:
        """No answer, an error, or a damaged packet."""
        if index not in self._waiting or self.done:
            return
        self._waiting.discard(index)
        self._errors[self.bookies[index]] = error
        if isinstance(error, ENDS_AT_ONCE):
            self.error = error
        self._fail_if_exhausted()

    def _fail_if_exhausted(self) -> None:
        if self._waiting or self.done:
            return
        reasons = "; ".join(map(str, self._errors.values()))
        timed_out = bool(self._errors) and isinstance([*self._errors.values()][-1], TimeoutException)
        self.error = (TimeoutException if timed_out else ReadException)(
            f"the last entry of ledger {self._ledger_id} can't be told: too few bookies of "
            f"{', '.join(self.bookies)} answered ({reasons})",
            ledger_id=self._ledger_id,
            bookies=self._errors,
        )


class TryLastConfirmedRead:
    """Answers in; `done` once one told something new or all have answered. Later answers still raise `result`."""

    def __init__(self, ledger_id: LedgerId, metadata: LedgerMetadata, known: int) -> None:
        self._ledger_id = ledger_id
        self.bookies = metadata.last_fragment.ensemble
        self._waiting = set(range(len(self.bookies)))
        self._valid = False
        self._known = known
        self._errors: dict[str, BKException] = {}
        self.result = known
        self.error: BKException | None = None

    @property
    def done(self) -> bool:
        return self.error is not None or self.result > self._known or not self._waiting

    def on_answer(self, index: int, lac: int) -> None:
        """A valid answer: a LAC, -1 of a bookie that has nothing of the ledger."""
        self._waiting.discard(index)
        self._valid = True
        self.result = max(self.result, lac)

    def on_error(self, index: int, error: BKException) -> None:
        """No answer, an error, or a damaged packet."""
        self._waiting.discard(index)
        self._errors[self.bookies[index]] = error
        if self.done and self._valid:
            return
        if isinstance(error, ENDS_AT_ONCE):
            self.error = error
        elif not self._waiting and not self._valid:
            reasons = "; ".join(map(str, self._errors.values()))
            self.error = LedgerRecoveryException(
                f"the last entry of ledger {self._ledger_id} can't be told: no bookie answered ({reasons})",
                ledger_id=self._ledger_id,
                bookies=self._errors,
            )
