"""Ledgers that were fenced when they were deleted here: for some time, a late writer still gets "fenced".

Kept in memory only, as in Apache BookKeeper, and bounded in time and number; the oldest are dropped first.

A fence makes any ledger id known here, even of a ledger that does not exist yet; a client that creates it later must
not be treated as a late writer. Therefore only ledgers that had an entry here, or that the metadata once had, are
remembered. Source: docs/protocol/storage.md#deleted-and-fenced.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from threading import Lock

from bookgate.ledger.ledger_id import scope_of
from bookgate.ledger.ledger_numbers import LedgerNumbers

REMEMBERED_SECONDS = 7 * 24 * 3600
REMEMBERED_LEDGERS = 100_000


class FencedAndDeleted:
    """See the module. Any thread. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = Lock()
        self._forgotten_at: OrderedDict[int, float] = OrderedDict()
        self._in_metadata: dict[int, LedgerNumbers] = {}
        """Local ledgers that the metadata have had, by scope."""

    def compared(self, scope_id: int, local: Iterable[int], missing: Iterable[int]) -> None:
        """Records a complete listing of a scope: of its `local` ledgers the metadata lack those in `missing`."""
        held, lacking = LedgerNumbers(local), LedgerNumbers(missing)
        with self._lock:
            known = self._in_metadata.pop(scope_id, LedgerNumbers())
            if now := (known & held) | (held - lacking):
                self._in_metadata[scope_id] = now

    def deleted(self, number: int, fenced: bool, held_entries: bool) -> None:
        """Records the deletion of a ledger. It is remembered if it was fenced, and there was more of it than that."""
        with self._lock:
            was_in_metadata = self._forget_listed(number)
            if not fenced or not (held_entries or was_in_metadata):
                return
            self._forgotten_at[number] = self._clock() + REMEMBERED_SECONDS
            self._forgotten_at.move_to_end(number)
            if len(self._forgotten_at) > REMEMBERED_LEDGERS:
                self._forgotten_at.popitem(last=False)

    def _forget_listed(self, number: int) -> bool:
        """Whether the metadata have had the ledger. Another one that gets its id is not that ledger."""
        scope_id = scope_of(number)
        listed = self._in_metadata.get(scope_id)
        if listed is None or number not in listed:
            return False
        listed.discard(number)
        if not listed:
            # A scope may have held this ledger only, and nobody asks for scopes without ledgers any more.
            del self._in_metadata[scope_id]
        return True

    def __contains__(self, number: int) -> bool:
        if number not in self._forgotten_at:
            return False
        with self._lock:
            forgotten_at = self._forgotten_at.get(number)
            if forgotten_at is None or forgotten_at > self._clock():
                return forgotten_at is not None
            del self._forgotten_at[number]
            return False
