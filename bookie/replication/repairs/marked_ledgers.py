"""The ledgers that marks name: how many copies each has left, which were deleted since.

How many copies are left is read once for a mark as long as no bookie comes or goes, so that marks by the hundred
thousand can be listed again and again while they are worked through. Source: docs/protocol/auto-recovery.md#order.

Not its job: their order (`repair_queue`), what the bookies really hold (`repair`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence

from bookgate.bookie.replication.copies.verdicts import copies_left
from bookgate.bookie.replication.repairs.repair_queue import Candidate
from bookgate.ledger.errors import BKException, NoSuchLedgerExistsOnMetadataServerException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import LedgerManager, LedgerRecord
from bookgate.ledger.replication_store import Mark

_READ_AT_ONCE = 200
_NOTHING_TO_LOSE = 1_000
"""Copies left of a ledger that is deleted: more than any has."""


class MarkedLedgers:
    """Of one worker."""

    def __init__(self, ledgers: LedgerManager) -> None:
        self._ledgers = ledgers
        self._left: dict[int, tuple[int, int]] = {}
        """By ledger the version of its mark, and how many copies it has left."""

    def forget(self) -> None:
        """Bookies have come or gone."""
        self._left.clear()

    def keep_only(self, marked: Collection[int]) -> None:
        """Forgets every ledger that is not marked any more."""
        for ledger_id in self._left.keys() - marked:
            del self._left[ledger_id]

    async def candidates(self, marks: Sequence[Mark], present: Collection[str]) -> list[Candidate]:
        """In the order of the marks, each with the copies that it has left, by its mark and who is registered alone.

        Raises BKException.
        """
        unknown = [mark for mark in marks if self._left.get(mark.value.ledger_id, (None, 0))[0] != mark.version]
        async for mark, record in self._read(unknown):
            left = 0
            if isinstance(record, LedgerRecord):
                left = copies_left(record.metadata, {*mark.value.replicas}.difference(present))
            elif isinstance(record, NoSuchLedgerExistsOnMetadataServerException):
                left = _NOTHING_TO_LOSE
            self._left[mark.value.ledger_id] = mark.version, left
        return [
            Candidate(mark.value.ledger_id, mark.version, self._left[mark.value.ledger_id][1])
            for mark in marks
            if mark.value.ledger_id in self._left  # else it was forgotten meanwhile, and all are listed again
        ]

    async def deleted(self, marks: Sequence[Mark]) -> list[Mark]:
        """Those whose ledger is there no more. Raises BKException."""
        looked_at = self._read(marks)
        return [
            mark async for mark, record in looked_at if isinstance(record, NoSuchLedgerExistsOnMetadataServerException)
        ]

    async def _read(self, marks: Sequence[Mark]) -> AsyncIterator[tuple[Mark, LedgerRecord | BKException]]:
        for start in range(0, len(marks), _READ_AT_ONCE):
            some = marks[start : start + _READ_AT_ONCE]
            records = await self._ledgers.read_many([LedgerId.unscoped(mark.value.ledger_id) for mark in some])
            for mark, record in zip(some, records, strict=True):
                yield mark, record
