"""Reading a ledger's last add confirmed (LAC) from its bookies, without fencing.

Every bookie of the last ensemble is asked for its explicit LAC and its last entry. The result is the highest LAC in any
valid response, once the ensemble is covered (see `recovery`); it is then at least the LAC that any acknowledged entry
carried. "No such entry" and "no such ledger" are valid responses; a bad digest is not. All entries before the first one
of the last ensemble are confirmed as well. Source: docs/protocol/client-protocol.md#reading-the-lac.

`TryLastConfirmedRead` is cheaper and weaker: every bookie is asked for its last entry, and the first response with a
LAC above the known one suffices.
"""

from __future__ import annotations

from bookgate.ledger.errors import BKException, LedgerRecoveryException, ReadException, TimeoutException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.quorum import CoverageSet
from bookgate.thinclient.core.entry_read import ENDS_AT_ONCE


class LastConfirmedRead:
    """Takes responses; `done` once it has a result or an error."""

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
        """The LAC; valid when `done` without `error`."""
        return self._best

    @property
    def done(self) -> bool:
        return self.error is not None or (self._valid and self._coverage.covered)

    def on_answer(self, index: int, lac: int, has_entries: bool) -> None:
        """A valid response: the highest LAC in it (-1 for none), and whether the bookie holds an entry."""
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
        """No response, an error, or a damaged packet."""
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
    """Takes responses; `done` once one has a newer LAC or all bookies have responded. Later responses still raise
    `result`.
    """

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
        """A valid response: a LAC, or -1 from a bookie that holds nothing of the ledger."""
        self._waiting.discard(index)
        self._valid = True
        self.result = max(self.result, lac)

    def on_error(self, index: int, error: BKException) -> None:
        """No response, an error, or a damaged packet."""
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
