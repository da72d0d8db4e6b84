"""The marked ledgers: how many copies each has left, and which have changed since they were given up.

The number of copies left is computed once for the content of a mark, as long as registrations do not change. Hundreds
of thousands of marks can thus be listed repeatedly while they are processed, and audits that repeat marks cost no read;
later changes of a ledger are read under its lock. A bookie that a mark names counts as having no copies, whether it is
registered or not, because checks of replicas and scrubs mark for registered bookies. Only a bookie to be emptied still
has its copies. Source: docs/protocol/auto-recovery.md#order.

Not its job: their order (`repair_queue`), the entries that bookies really hold (`repair`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import replace

from bookgate.bookie.replication.copies.fragments import due_at
from bookgate.bookie.replication.copies.verdicts import copies_left
from bookgate.bookie.replication.repairs.repair_queue import Candidate, GivenUp
from bookgate.ledger.errors import BKException, NoSuchLedgerExistsOnMetadataServerException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerManager, LedgerRecord
from bookgate.ledger.replication_progress import Amount, Danger
from bookgate.ledger.replication_store import Mark

_READ_AT_ONCE = 200
_NOTHING_TO_LOSE = 1_000
"""Copies left of a deleted ledger: more than any ledger has."""


class MarkedLedgers:
    """The marked ledgers as one worker knows them."""

    def __init__(self, ledgers: LedgerManager) -> None:
        self._ledgers = ledgers
        self._known: dict[int, Candidate] = {}
        """By ledger, computed from its mark and metadata when they were read."""
        self._named: dict[int, tuple[str, ...]] = {}
        """By ledger, the bookies that its mark named then; not for damaged marks."""
        self._names: dict[tuple[str, ...], tuple[str, ...]] = {}
        """One shared value for each set of bookies: most marks name the same ones."""

    def forget(self) -> None:
        """Discards everything, because registrations have changed."""
        self._known.clear()
        self._named.clear()
        self._names.clear()

    def keep_only(self, marked: Collection[int]) -> None:
        """Discards every ledger that is not marked any more."""
        for ledger_id in self._known.keys() - marked:
            del self._known[ledger_id]
            self._named.pop(ledger_id, None)

    async def candidates(self, marks: Sequence[Mark], emptied: Collection[str]) -> list[Candidate]:
        """The ledgers of the marks, in their order, each with the number of copies left according to its mark.

        Args:
            marks: The marks of ledgers that are due.
            emptied: Registered bookies to be emptied.

        Raises:
            BKException: The store did not respond.
        """
        unknown = [mark for mark in marks if not self._knows(mark)]
        async for mark, record in self._read(unknown):
            self._known[mark.value.ledger_id] = _candidate(mark, record, emptied)
            self._remember(mark)
        # A ledger discarded meanwhile is left out: all marks are then listed again.
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
        """The known state of a ledger, for any version of its mark."""
        return self._known.get(ledger_id)

    async def changed(self, marks: Sequence[Mark], given_up_at: Callable[[int], GivenUp | None]) -> list[Mark]:
        """The marks whose ledger is not any more as it was given up: deleted, created anew, or with other metadata.

        Raises:
            BKException: The store did not respond.
        """
        looked_at = self._read(marks)
        return [mark async for mark, record in looked_at if _has_changed(record, given_up_at(mark.value.ledger_id))]

    async def _read(self, marks: Sequence[Mark]) -> AsyncIterator[tuple[Mark, LedgerRecord | BKException]]:
        for start in range(0, len(marks), _READ_AT_ONCE):
            some = marks[start : start + _READ_AT_ONCE]
            records = await self._ledgers.read_many([LedgerId.of_number(mark.value.ledger_id) for mark in some])
            for mark, record in zip(some, records, strict=True):
                yield mark, record


def _has_changed(record: LedgerRecord | BKException, given_up: GivenUp | None) -> bool:
    """A ledger that can't be read now is looked at again later."""
    if isinstance(record, BKException):
        return isinstance(record, NoSuchLedgerExistsOnMetadataServerException)
    return given_up is None or not given_up.is_still(record)


def _candidate(mark: Mark, record: LedgerRecord | BKException, emptied: Collection[str]) -> Candidate:
    """A ledger that can't be read comes first, because its number of copies is unknown."""
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
