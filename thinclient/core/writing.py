"""The writer's side of a ledger: which entry gets which id, when it is acknowledged, when the ledger is lost.

An add moves through: *pending* (sent to its write set) → *confirmed* (ack quorum reached, and every lower entry is
confirmed) or *failed*. The ledger is *accepting* until its first fatal event; then `error` says why and nothing is
accepted any more.

Events in: `begin_add`, `on_ack`, `on_failure`. Effects out: the adds that were confirmed or failed by the event, always
in entry order. The caller sends packets, keeps the clock and answers the application.

Invariants. P9: the last add confirmed (LAC) moves only over a contiguous prefix whose entries all have an ack quorum,
and adds are confirmed in entry order. The LAC is at most the highest id handed out. After a fatal event the LAC never
moves again, so that what the application was told and what `close` stores agree.

Failures. A bookie that failed once is out for this ledger: it counts as a failure of its index for every pending and
every later add whose write set holds it (an acknowledgement that still comes in from it counts: the entry is durable
there). As long as no add has more than write quorum − ack quorum failures the ledger goes on. One answer that says
fenced, unauthorised or not allowed ends it at once (another client has it, or the key is wrong), and so does the end of
the client itself.

Not its job: replacing a failed bookie, time, packets, and what happens to the ledger's metadata.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ledger.errors import (
    BKException,
    ClientClosedException,
    IllegalOpException,
    LedgerFencedException,
    NotEnoughBookiesException,
    UnauthorizedAccessException,
)
from ledger.ledger_id import NO_ENTRY, LedgerId
from ledger.quorum import write_set

FATAL_ERRORS = (LedgerFencedException, UnauthorizedAccessException, IllegalOpException, ClientClosedException)
"""One such answer from one bookie ends the ledger for this writer (client-protocol page, 4.2)."""


class PendingAdd:
    """An add that is under way. `token` is the caller's own, untouched here."""

    __slots__ = ("acked", "acks", "entry_id", "indexes", "last_add_confirmed", "length", "size", "token", "unsettled")

    def __init__(self, entry_id: int, size: int, length: int, last_add_confirmed: int, indexes: Sequence[int]) -> None:
        self.entry_id = entry_id
        self.size = size
        """Payload bytes."""
        self.length = length
        """The ledger's payload bytes including this entry."""
        self.last_add_confirmed = last_add_confirmed
        """What the packet says; fixed when the add begins."""
        self.indexes = indexes
        """Where to send it: the write set without the indexes that failed before."""
        self.unsettled = len(indexes)
        """Bookies that have neither answered nor failed; counted by the caller."""
        self.acked = 0
        self.acks = 0
        self.token: object = None


_NONE: tuple[PendingAdd, ...] = ()


class LedgerWriter:
    """The adds of one ledger on one ensemble. Also carries recovery's adds, which start after `last_add_confirmed`."""

    def __init__(
        self,
        ledger_id: LedgerId,
        ensemble: Sequence[str],
        write_quorum_size: int,
        ack_quorum_size: int,
        last_add_confirmed: int = NO_ENTRY,
        length: int = 0,
    ) -> None:
        self._ledger_id = ledger_id
        self._ensemble = tuple(ensemble)
        self._write_quorum_size = write_quorum_size
        self._ack_quorum_size = ack_quorum_size
        self._tolerated = write_quorum_size - ack_quorum_size
        self._pending: deque[PendingAdd] = deque()
        self._failed: dict[int, BKException] = {}
        # The write set of entry e depends on e mod E only; kept without the failed indexes.
        self._write_sets = self._make_write_sets()
        self.last_add_confirmed = last_add_confirmed
        self.last_add_pushed = last_add_confirmed
        self.length = length
        """Payload bytes of all entries handed out so far."""
        self.confirmed_length = length
        """Payload bytes of the entries up to the LAC."""
        self.error: BKException | None = None

    @property
    def pending_count(self) -> int:
        return len(self._pending)

    @property
    def failed_bookies(self) -> dict[str, BKException]:
        """Bookies that are out for this ledger, and why."""
        return {self._ensemble[index]: error for index, error in self._failed.items()}

    def begin_add(self, size: int) -> PendingAdd:
        """Hands out the next entry id for a payload of `size` bytes. Raises the error that ended the ledger."""
        if self.error is not None:
            raise self.error.with_traceback(None)
        entry_id = self.last_add_pushed + 1
        indexes = self._write_sets[entry_id % len(self._ensemble)]
        if len(indexes) < self._ack_quorum_size:
            self.error = self._too_many_failures(entry_id)
            raise self.error
        self.last_add_pushed = entry_id
        self.length += size
        add = PendingAdd(entry_id, size, self.length, self.last_add_confirmed, indexes)
        self._pending.append(add)
        return add

    def on_ack(self, add: PendingAdd, index: int) -> Sequence[PendingAdd]:
        """A bookie has stored the entry. Returns the adds that are confirmed by it, in entry order."""
        bit = 1 << index
        if add.acked & bit:
            return _NONE
        add.acked |= bit
        add.acks += 1
        if add.acks != self._ack_quorum_size:
            return _NONE
        pending = self._pending
        if not pending or pending[0] is not add:
            return _NONE
        return self._confirm()

    def _confirm(self) -> list[PendingAdd]:
        pending = self._pending
        confirmed = []
        while pending and pending[0].acks >= self._ack_quorum_size:
            confirmed.append(pending.popleft())
        last = confirmed[-1]
        self.last_add_confirmed = last.entry_id
        self.confirmed_length = last.length
        return confirmed

    def on_failure(self, index: int, error: BKException) -> Sequence[PendingAdd]:
        """A bookie failed. Returns the adds that fail by it: none, or all that are pending (then `error` is set)."""
        if self.error is not None and not self._pending:
            return _NONE
        if isinstance(error, FATAL_ERRORS):
            return self.abort(error)
        if index in self._failed:
            return _NONE
        self._failed[index] = error
        self._write_sets = self._make_write_sets()
        lost = next((add for add in self._pending if self._failures(add) > self._tolerated), None)
        return self.abort(self._too_many_failures(lost.entry_id)) if lost else _NONE

    def abort(self, error: BKException) -> Sequence[PendingAdd]:
        """Ends the ledger for this writer (the first reason stays). Returns what was pending, failed now."""
        self.error = self.error or error
        failed = list(self._pending)
        self._pending.clear()
        return failed

    def _failures(self, add: PendingAdd) -> int:
        full = write_set(add.entry_id, len(self._ensemble), self._write_quorum_size)
        return sum(1 for index in full if index in self._failed and not add.acked & (1 << index))

    def _make_write_sets(self) -> list[tuple[int, ...]]:
        size = len(self._ensemble)
        sets = [write_set(position, size, self._write_quorum_size) for position in range(size)]
        return [tuple(index for index in indexes if index not in self._failed) for indexes in sets]

    def _too_many_failures(self, entry_id: int) -> BKException:
        reasons = "; ".join(f"{bookie}: {error}" for bookie, error in self.failed_bookies.items())
        return NotEnoughBookiesException(
            f"ledger {self._ledger_id} takes no more entries: entry {entry_id} can't reach {self._ack_quorum_size} of "
            f"{self._write_quorum_size} bookies ({reasons}). Everything acknowledged (up to entry "
            f"{self.last_add_confirmed}) is kept: open the ledger with recovery, and write on in a new one"
        )
