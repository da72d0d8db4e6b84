"""The ledgers that marks name: how many copies each has left, which were deleted since.

How many copies are left is read once for what a mark says as long as no bookie comes or goes, so that marks by the
hundred thousand can be listed again and again while they are worked through, and audits that say the same again cost no
read: what has changed of a ledger since is read under its lock. A bookie that a mark names counts as one without
its copies, whether it is there or not: a check of replicas and a scrub name bookies that are. Only one that is to be
emptied has them still. Source: docs/protocol/auto-recovery.md#order.

Not its job: their order (`repair_queue`), what the bookies really hold (`repair`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import replace

from bookgate.bookie.replication.copies.fragments import due_at
from bookgate.bookie.replication.copies.verdicts import copies_left
from bookgate.bookie.replication.repairs.repair_queue import Candidate
from bookgate.ledger.errors import BKException, NoSuchLedgerExistsOnMetadataServerException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerManager, LedgerRecord
from bookgate.ledger.replication_progress import Amount, Danger
from bookgate.ledger.replication_store import Mark

_READ_AT_ONCE = 200
_NOTHING_TO_LOSE = 1_000
"""Copies left of a ledger that is deleted: more than any has."""


class MarkedLedgers:
    """Of one worker."""

    def __init__(self, ledgers: LedgerManager) -> None:
        self._ledgers = ledgers
        self._known: dict[int, Candidate] = {}
        """By ledger, as its mark and its metadata were when they were read."""
        self._named: dict[int, tuple[str, ...]] = {}
        """By ledger what its mark said then; not of one that is damaged."""
        self._names: dict[tuple[str, ...], tuple[str, ...]] = {}
        """Most marks name the same bookies: each value is kept once."""

    def forget(self) -> None:
        """Bookies have come or gone."""
        self._known.clear()
        self._named.clear()
        self._names.clear()

    def keep_only(self, marked: Collection[int]) -> None:
        """Forgets every ledger that is not marked any more."""
        for ledger_id in self._known.keys() - marked:
            del self._known[ledger_id]
            self._named.pop(ledger_id, None)

    async def candidates(self, marks: Sequence[Mark], emptied: Collection[str]) -> list[Candidate]:
        """In the order of the marks, each with the copies that it has left, by its mark alone.

        Args:
            marks: Of ledgers that are due.
            emptied: Bookies that are registered and to be emptied.

        Raises:
            BKException: The store did not answer.
        """
        unknown = [mark for mark in marks if not self._knows(mark)]
        async for mark, record in self._read(unknown):
            self._known[mark.value.ledger_id] = _candidate(mark, record, emptied)
            self._remember(mark)
        # One that was forgotten meanwhile is left out: all are listed again then.
        return [self._known[mark.value.ledger_id] for mark in marks if mark.value.ledger_id in self._known]

    def _remember(self, mark: Mark) -> None:
        replicas = mark.value.replicas
        if mark.value.damaged is None:
            self._named[mark.value.ledger_id] = self._names.setdefault(replicas, replicas)
        else:
            self._named.pop(mark.value.ledger_id, None)

    def _knows(self, mark: Mark) -> bool:
        ledger_id = mark.value.ledger_id
        known = self._known.get(ledger_id)
        if known is None or known.mark_version == mark.version:
            return known is not None
        if mark.value.damaged is not None or self._named.get(ledger_id) != mark.value.replicas:
            return False
        self._known[ledger_id] = replace(known, mark_version=mark.version)
        return True

    def known(self, ledger_id: int) -> Candidate | None:
        """What was read of a ledger, for whichever version of its mark."""
        return self._known.get(ledger_id)

    async def deleted(self, marks: Sequence[Mark]) -> list[Mark]:
        """Those whose ledger is there no more. Raises BKException."""
        looked_at = self._read(marks)
        return [
            mark async for mark, record in looked_at if isinstance(record, NoSuchLedgerExistsOnMetadataServerException)
        ]

    async def _read(self, marks: Sequence[Mark]) -> AsyncIterator[tuple[Mark, LedgerRecord | BKException]]:
        for start in range(0, len(marks), _READ_AT_ONCE):
            some = marks[start : start + _READ_AT_ONCE]
            records = await self._ledgers.read_many([LedgerId.of_number(mark.value.ledger_id) for mark in some])
            for mark, record in zip(some, records, strict=True):
                yield mark, record


def _candidate(mark: Mark, record: LedgerRecord | BKException, emptied: Collection[str]) -> Candidate:
    """What can't be read comes first: nobody knows what it has left."""
    ledger_id = mark.value.ledger_id
    if isinstance(record, NoSuchLedgerExistsOnMetadataServerException):
        return Candidate(ledger_id, mark.version, _NOTHING_TO_LOSE)
    if isinstance(record, BKException):
        return Candidate(ledger_id, mark.version, 0)
    metadata, named = record.metadata, {*mark.value.replicas}
    left = copies_left(metadata, named.difference(emptied))
    due = Amount(1, *due_at(metadata, named))
    return Candidate(ledger_id, mark.version, left, left < metadata.ack_quorum_size, _danger(mark, metadata, left), due)


def _danger(mark: Mark, metadata: LedgerMetadata, left: int) -> Danger:
    if not mark.value.replicas:
        return Danger.MISPLACED if mark.value.damaged is None else Danger.UNKNOWN
    if left >= metadata.write_quorum_size:
        return Danger.MOVING
    if left <= 1:
        return Danger.LAST_COPY
    return Danger.BELOW_ACK_QUORUM if left < metadata.ack_quorum_size else Danger.BELOW_WRITE_QUORUM
