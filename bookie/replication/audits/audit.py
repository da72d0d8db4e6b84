"""Audits: find the ledgers that name lost bookies, or bookies to be emptied, and mark each.

The index provides these ledgers (`index_keeper`), or, without an index, a listing of all ledgers in order. An audit is
complete when all ledgers were examined and every mark is stored. A ledger with damaged metadata can't be examined, and
is reported. Source: docs/protocol/auto-recovery.md#auditor.

Not its job: which bookies, and when (`auditor`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from bookgate.bookie.replication.audits.index_keeper import IndexKeeper, Named
from bookgate.bookie.replication.copies.bookies import all_of
from bookgate.bookie.replication.copies.verdicts import has_last_copies
from bookgate.bookie.replication.ledger_pages import READ_AT_ONCE, all_pages, read_page, see_all_ledgers
from bookgate.ledger.errors import BKException, MetadataFormatException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import BookieSet, LedgerManagerFactory, LedgerRecord, Membership
from bookgate.runtime.clock import now_ms
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)

_MARKS_AT_ONCE = 32


@dataclass(slots=True)
class AuditStatistics:
    """Counts of audits since the start of the process."""

    audits: int = 0
    audits_by_index: int = 0
    """Audits that used the index, and read only ledgers that had just changed or may have one copy left."""
    audits_failed: int = 0
    ledgers_audited: int = 0
    """Ledgers that audits have examined; with the index, only those that name one of the bookies."""
    ledgers_unreadable: int = 0
    """Ledgers left out of audits because their metadata can't be read."""
    ledgers_marked: int = 0


class OfficeLostError(Exception):
    """The vote was lost, or auto-recovery disabled, during an audit."""


class _Part(NamedTuple):
    """A part of an audit: the number of ledgers examined, and those that name audited bookies, with these."""

    looked: int
    due: Mapping[int, Sequence[str]]


class Audits:
    """The audits of one auditor."""

    def __init__(
        self,
        factory: LedgerManagerFactory,
        membership: Membership | None,
        index: IndexKeeper,
        statistics: AuditStatistics,
        check_office: Callable[[], None],
    ) -> None:
        """`check_office` raises OfficeLostError once the process may not mark any more."""
        self._factory = factory
        self._metadata = factory.replication_metadata
        self._membership = membership
        self._index = index
        self._statistics = statistics
        self._check_office = check_office

    async def of(
        self, bookie_ids: Sequence[str], emptied: Collection[str] = (), gone: frozenset[str] = frozenset()
    ) -> None:
        """Marks every ledger that names one of the bookies.

        Args:
            bookie_ids: The bookies. Nothing is marked for one that has returned since, unless it is to be emptied.
            emptied: The bookies that are to be emptied, registered or not.
            gone: If not empty, only ledgers with an entry that has one copy left without these bookies are marked.

        Raises:
            BKException: Not all ledgers were examined.
            OfficeLostError: The process may not continue.
        """
        began, wanted = _now(), frozenset(bookie_ids)
        log_event(_log, "audit", state="began", bookies=sorted(wanted), last_copies_only=bool(gone))
        looked = marked = 0
        by_index = False
        try:
            await see_all_ledgers(self._factory, self._membership)
            named = await self._index.naming(wanted)
            by_index = named is not None
            async for count, due in self._listed(wanted, gone) if named is None else self._in_parts(named, gone):
                self._check_office()
                looked += count
                due = await self._without_returned(due, emptied)
                await self._mark_all(due)
                marked += len(due)
        except OfficeLostError:
            log_event(_log, "audit", state="stopped", ledgers=looked, marked=marked)
            raise
        except BKException:
            self._statistics.audits_failed += 1
            log_event(_log, "audit", logging.WARNING, state="incomplete", ledgers=looked, marked=marked)
            raise
        self._statistics.audits += 1
        self._statistics.audits_by_index += by_index
        self._statistics.ledgers_audited += looked
        seconds = round(_now() - began, 3)
        log_event(_log, "audit", state="ended", by_index=by_index, ledgers=looked, marked=marked, seconds=seconds)

    async def _listed(self, wanted: frozenset[str], gone: frozenset[str]) -> AsyncIterator[_Part]:
        """Examines all ledgers. Those whose metadata can't be read are reported and left out."""
        async for page in all_pages(self._factory.ledger_manager, self._not_audited):
            yield _Part(len(page), _naming(_endangered(page, gone), wanted))

    async def _in_parts(self, named: Named, gone: frozenset[str]) -> AsyncIterator[_Part]:
        """Like `_listed`, for the ledgers that the index has named."""
        for number, why in named.unreadable.items():
            self._not_audited(LedgerId.of_number(number), why)
        ledgers = iter(named.ledgers.items())
        while part := dict(islice(ledgers, READ_AT_ONCE)):
            if gone:
                # The index does not have the ensembles.
                page = await read_page(self._factory.ledger_manager, part, self._not_audited)
                endangered = {record.ledger_id.number for record in _endangered(page, gone)}
                yield _Part(len(part), {number: names for number, names in part.items() if number in endangered})
            else:
                yield _Part(len(part), part)

    def _not_audited(self, ledger_id: LedgerId, error: MetadataFormatException | str) -> None:
        self._statistics.ledgers_unreadable += 1
        log_event(_log, "ledger_not_audited", logging.ERROR, ledger=ledger_id, error=error)

    async def _without_returned(
        self, due: Mapping[int, Sequence[str]], emptied: Collection[str]
    ) -> Mapping[int, Sequence[str]]:
        """Removes bookies that were registered again during the scan, since they still have their entries."""
        if not due:
            return due
        found = await self._factory.service_discovery.bookies(BookieSet.ALL)
        back = {each.bookie_id for each in found if each.registered}.difference(emptied)
        left = {number: [name for name in names if name not in back] for number, names in due.items()}
        return {number: names for number, names in left.items() if names}

    async def _mark_all(self, due: Mapping[int, Sequence[str]]) -> None:
        """Marks each ledger for the given bookies."""
        room, at_ms = asyncio.Semaphore(_MARKS_AT_ONCE), now_ms()

        async def mark(ledger_id: int, replicas: Sequence[str]) -> None:
            async with room:
                self._check_office()
                await self._metadata.mark(ledger_id, replicas, at_ms)
            self._statistics.ledgers_marked += 1

        await all_of(mark(ledger_id, replicas) for ledger_id, replicas in due.items())


def _now() -> float:
    return asyncio.get_running_loop().time()


def _naming(page: Sequence[LedgerRecord], wanted: frozenset[str]) -> dict[int, list[str]]:
    """The wanted bookies in any ensemble of each ledger, by ledger id; ledgers that name none are left out."""
    found = {}
    for record in page:
        if named := sorted(record.metadata.bookies & wanted):
            found[record.ledger_id.number] = named
    return found


def _endangered(page: Sequence[LedgerRecord], gone: frozenset[str]) -> Sequence[LedgerRecord]:
    """The ledgers with entries that have one copy left without these bookies; all ledgers if `gone` is empty."""
    return [record for record in page if has_last_copies(record.metadata, gone)] if gone else page
