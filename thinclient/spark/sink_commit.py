"""Carries out `sink_protocol` on the driver: looks ledgers up, deletes what is left over, commits, aborts.

Looking up the ledgers of a query means listing the scope. That is done once for each start of a query (or batch write);
afterwards only ids from the previous commit on are listed, whoever made it: a cluster gives ids in ascending order, and
nobody begins a batch before the one before it is committed, so what anybody wrote since has a higher id.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger.errors import (
    BKException,
    MetadataVersionException,
    NoSuchLedgerExistsOnMetadataServerException,
    UnknownOutcomeException,
    WriteException,
)
from ledger.ledger_id import LedgerId
from ledger.manager import LedgerRecord
from thinclient.spark.sink_protocol import QUERY_KEY, Verdict, Write, judge, sink_state, summary, with_mark

if TYPE_CHECKING:
    from thinclient.blocking import BookKeeper

_log = logging.getLogger(__name__)

_MARKED_AT_ONCE = 16
_TRIES = 5
_NOT_SEEN = -1
_REMEMBERED_STARTS = 100


class LostCommitException(WriteException):
    """Another driver took this write over while it was being committed; nothing of it was committed here."""


@dataclass(frozen=True, slots=True)
class Written:
    """A ledger that a task wrote and closed."""

    ledger_id: LedgerId
    entries: int


class Lookups:
    """From which id on the ledgers of a start of a query are still to be looked up, in this process."""

    def __init__(self) -> None:
        self._floors: dict[str, int] = {}

    def floor(self, start: str) -> int:
        """Ids above this one were not looked up yet."""
        return self._floors.get(start, _NOT_SEEN)

    def note(self, start: str, floor: int) -> None:
        """Remembers a commit."""
        self._floors.pop(start, None)
        self._floors[start] = floor
        while len(self._floors) > _REMEMBERED_STARTS:
            del self._floors[next(iter(self._floors))]


class Committer:
    """Commits and aborts writes. `start` names a start of a query, or a batch write."""

    def __init__(self, client: BookKeeper, start: str, lookups: Lookups) -> None:
        self._client = client
        self._ledgers = client.ledger_manager
        self._start = start
        self._lookups = lookups

    def commit(self, write: Write, written: Sequence[Written]) -> None:
        """Steps 1 to 4 of the protocol. May be called again.

        Raises WriteException when a ledger is not what its task wrote, LostCommitException, or the client's errors,
        which leave open whether the write was committed.
        """
        if not written:
            return
        own = {each.ledger_id.ledger_id: each.entries for each in written}
        records = self._checked(written)
        state = sink_state(records[0])
        if state is not None and state.is_committed_lead:
            self._mark(judge(records, write).unmarked)
            return
        verdict = self._clean(write, own)
        self._mark(verdict.unmarked)
        lowest = min(own)
        if verdict.committed_by is not None:
            _log.warning("%s is committed already, as ledger %s says", write, verdict.committed_by.ledger_id)
            self._deleted(records)
            # The other driver may be ahead, with ledgers between its commit and what is in hand here.
            earlier = sink_state(verdict.committed_by)
            lowest = min(lowest, earlier.lead) if earlier is not None else lowest
        else:
            lead = self._pass_commit_point(write, records[0], own)
            self._mark([(record, lead.ledger_id.ledger_id) for record in records[1:]])
            _log.info("event=sink_committed write=%r wrote=%r", str(write), summary(own))
        self._lookups.note(self._start, lowest - 1)

    def abort(self, write: Write) -> None:
        """Deletes what there is of a write, unless it is committed."""
        verdict = self._clean(write, ())
        self._mark(verdict.unmarked)
        if verdict.committed_by is not None:
            _log.warning("%s is committed; it is not deleted", write)

    def _checked(self, written: Sequence[Written]) -> list[LedgerRecord]:
        """The records in ascending order, each as its task left it (step 1)."""
        expected = {each.ledger_id: each.entries for each in written}
        records = []
        for ledger_id, outcome in zip(sorted(expected), self._ledgers.read_many(sorted(expected)), strict=True):
            if isinstance(outcome, NoSuchLedgerExistsOnMetadataServerException):
                raise LostCommitException(f"ledger {ledger_id} of a task was deleted: by another driver of this query?")
            if isinstance(outcome, BKException):
                raise outcome
            metadata, entries = outcome.metadata, expected[ledger_id]
            if not metadata.is_closed or metadata.last_entry_id + 1 != entries:
                raise WriteException(
                    f"ledger {ledger_id} is {metadata.state.name} with {metadata.last_entry_id + 1} entries; its task "
                    f"closed it with {entries}"
                )
            records.append(outcome)
        return records

    def _clean(self, write: Write, own: Iterable[int]) -> Verdict:
        """Deletes what is left over (step 2). Looks again when a ledger has changed meanwhile."""
        for _ in range(_TRIES):
            verdict = judge(self._of_query(write.query), write, own)
            if self._deleted(verdict.left_over):
                return verdict
        raise WriteException(f"{write}: what is left over of it keeps changing; does another driver write it?")

    def _of_query(self, query: str) -> Iterator[LedgerRecord]:
        floor = self._lookups.floor(self._start)
        for page in self._client.list_ledgers(start_after=None if floor < 0 else floor):
            yield from (each for each in page if each.metadata.custom_metadata.get(QUERY_KEY) == query.encode())

    def _deleted(self, records: Iterable[LedgerRecord]) -> bool:
        """Deletes in this order; stops at one that has changed since it was looked up."""
        for record in records:
            try:
                self._ledgers.remove(record.ledger_id, record.version)
            except NoSuchLedgerExistsOnMetadataServerException:
                continue
            except MetadataVersionException:
                return False
            _log.info("event=sink_ledger_deleted ledger=%s", record.ledger_id)
        return True

    def _pass_commit_point(self, write: Write, lead: LedgerRecord, own: Iterable[int]) -> LedgerRecord:
        """Step 3."""
        try:
            return self._written(lead, own)
        except NoSuchLedgerExistsOnMetadataServerException as error:
            raise LostCommitException(f"{write} was taken over by another driver of this query") from error

    def _mark(self, unmarked: Sequence[tuple[LedgerRecord, int]]) -> None:
        """Step 4."""

        def mark(pair: tuple[LedgerRecord, int]) -> None:
            record, lead = pair
            # Committed ledgers may be deleted by anybody, at any time.
            with suppress(NoSuchLedgerExistsOnMetadataServerException):
                self._written(record, [lead])

        if unmarked:
            with ThreadPoolExecutor(min(_MARKED_AT_ONCE, len(unmarked))) as pool:
                list(pool.map(mark, unmarked))

    def _written(self, record: LedgerRecord, ids: Iterable[int]) -> LedgerRecord:
        """The ledger with its mark, whoever set it."""
        for _ in range(_TRIES):
            try:
                return self._ledgers.write(record.ledger_id, with_mark(record.metadata, ids), record.version)
            except (MetadataVersionException, UnknownOutcomeException):
                record = self._client.read_record(record.ledger_id)
                state = sink_state(record)
                if state is not None and state.marked:
                    return record
        raise WriteException(f"the metadata of ledger {record.ledger_id} keep changing; it can't be marked")
