"""The auditor's rolling scrub: every copy is read at the bookie that is due to hold it, and its digest checked.

States: *off*, out of office or while auto-recovery is disabled (`allow`); *waiting* until a pass is due; *reading*. A
pass goes through all ledgers in order, some entries at a time, at a set rate of bytes; the store keeps how far it has
come (`scrub_progress`), so a new auditor goes on where the former one stopped. A ledger at which it could not look, for
a registered bookie did not answer or the store failed, is left out and looked at again in the end: a pass is complete
when none is left out.

A copy whose digest is wrong, or of which the bookie says that it can't read it, in two reads two seconds apart, is
corrupt. The scrub records it first and then marks the ledger, so that a worker that sees the mark sees the record, and
copies the entry over it. The record stays until a worker has found the ledger whole; a ledger that has one and is not
marked, because a worker of BookKeeper took the mark away, is marked again.

What a bookie lacks is no matter of the scrub (`replica_check`), nor are bookies that are not registered (`auditor`).

Invariants: R10, no answer is never a corrupt copy; R11 and R12, nothing is read or marked when off. Source:
docs/protocol/auto-recovery.md#scrub.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable
from contextlib import aclosing
from dataclasses import dataclass, replace

from pyroaring import BitMap64

from bookgate.bookie.replication.checks.office_task import OfficeTask, due_in_seconds, first_few, loop_time
from bookgate.bookie.replication.checks.scrub_progress import MOST_LEFT_OUT, ScrubProgress, next_entries
from bookgate.bookie.replication.copies.bookies import Bookies, all_of
from bookgate.bookie.replication.copies.budget import ByteBudget
from bookgate.bookie.replication.copies.copying import entries_a_piece
from bookgate.bookie.replication.copies.corrupt_copies import decode_corrupt, ranges_of
from bookgate.bookie.replication.copies.fragments import CompleteFragment, pieces_of
from bookgate.bookie.replication.ledger_pages import all_numbers, see_all_ledgers
from bookgate.ledger.corrupt_copies import note_corrupt
from bookgate.ledger.errors import (
    BKException,
    MetadataFormatException,
    NoSuchLedgerExistsOnMetadataServerException,
    TooManyRequestsException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerState
from bookgate.ledger.metadata_store import LedgerManagerFactory, LedgerRecord, Membership
from bookgate.ledger.replication_checks import ORDERED_MS, SCRUB_PROGRESS
from bookgate.ledger.replication_store import RecordKind
from bookgate.runtime.clock import now_ms
from bookgate.runtime.logs import log_event
from bookgate.thinclient.client import BookKeeper
from bookgate.thinclient.handles.context import LedgerSecrets
from bookgate.thinclient.handles.read_handle import ReadHandle
from bookgate.thinclient.tools.single_replica import record_on

_log = logging.getLogger(__name__)

_PIECES_A_LOOK = 16
"""Pieces of about a mebibyte that are read between two looks at the metadata."""
_ONE_BY_ONE = 64
"""Entries that are read singly from the first one on that a run of reads could not deliver."""
_LEAST_COST = 1024
"""Bytes that a single read counts for at least."""
_READ_AGAIN_SECONDS = 2.0
"""Between two reads that together say that a copy is corrupt."""
_SAVED_EVERY_SECONDS = 10.0
_SEEN_EVERY_SECONDS = 10.0
"""After so long it is asked again which bookies are registered."""
_LONGEST_PAUSE_SECONDS = 3600.0
"""Before what was left out is looked at again."""
_LEAST_PAUSE_SECONDS = 1.0
"""Between two passes, however little there is to read."""


@dataclass(frozen=True, slots=True)
class ScrubOptions:
    """What may be set of the scrub."""

    bytes_a_second: float = 4.0 * 1024 * 1024
    """Of entries read, from all bookies together; 0: never."""
    interval_seconds: float = 604_800.0
    """From the end of a pass to the next one."""
    first_pause_seconds: float = 60.0
    """Before what was left out is looked at again; then twice as long each time."""


@dataclass(slots=True)
class ScrubStatistics:
    """What scrubs have done since the start of the process."""

    in_progress: bool = False
    passes: int = 0
    """Complete ones."""
    entries: int = 0
    """Copies of entries that were looked at."""
    bytes: int = 0
    """Of the payloads of those that came in runs."""
    corrupt: int = 0
    """Copies found damaged."""
    ledgers_unverified: int = 0
    """Left out for good: their metadata are damaged, or name no digest."""
    ledgers_left_out: int | None = None
    """To be looked at again, in the pass under way; None out of office."""
    ended_ms: int | None = None
    """When the last complete pass ended, whoever made it, in milliseconds since 1970; None if unknown, or out of
    office."""


class _ChangedException(BKException):
    """The metadata of a ledger changed while its copies were read."""


class Scrub(OfficeTask):
    """See the module."""

    name = "scrub"

    def __init__(
        self,
        factory: LedgerManagerFactory,
        client: BookKeeper,
        bookies: Bookies,
        options: ScrubOptions,
        membership: Membership | None = None,
    ) -> None:
        """`client` reads; `membership`, if given, names the cluster that the process belongs to."""
        longest = _LONGEST_PAUSE_SECONDS if options.bytes_a_second > 0 else 0.0
        super().__init__(factory, bookies, membership, options.first_pause_seconds, longest)
        self.statistics = ScrubStatistics()
        self._client = client
        self._options = options
        self._budget = ByteBudget(options.bytes_a_second, loop_time())
        self._progress = ScrubProgress()
        self._version: int | None = None
        """Of the progress as it is stored."""
        self._saved_at = 0.0
        self._seen: Collection[str] = ()
        self._seen_at = float("-inf")

    def _out_of_office(self) -> None:
        self.statistics.ended_ms = self.statistics.ledgers_left_out = None

    # A pass

    async def _turn(self) -> float | None:
        await self._load()
        await self._mark_again()
        if self._progress.began_ms is None:
            seconds = await due_in_seconds(self._progress.ended_ms, self._options.interval_seconds, self._save_end)
            if seconds > 0:
                return seconds
            await self._save(self._progress.begun(now_ms()))
            log_event(_log, "scrub", state="began")
        self.statistics.in_progress = True
        try:
            await see_all_ledgers(self._factory, self._membership)
            complete = await self._pass()
        finally:
            self.statistics.in_progress = False
        return _LEAST_PAUSE_SECONDS if complete else None

    async def _is_ordered(self) -> bool:
        if self._progress.ended_ms == ORDERED_MS:
            return False
        stored = await self._metadata.read_record(RecordKind.PROGRESS, SCRUB_PROGRESS)
        return stored is not None and ScrubProgress.decode(stored.value).ended_ms == ORDERED_MS

    async def _pass(self) -> bool:
        """Goes on with the pass under way; whether it is complete now."""
        again, ahead = self._progress.left_out, await self._ahead()
        for number in again:
            await self._ledger(number, 0)
        for number in ahead:
            if len(self._progress.left_out) >= MOST_LEFT_OUT:
                break
            await self._ledger(number, self._progress.entry_id if number == self._progress.ledger_id else 0)
        if left_out := self._progress.left_out:
            await self._save(self._progress)
            first = first_few(left_out)
            log_event(_log, "scrub", logging.WARNING, state="incomplete", left=len(left_out), first_left=first)
            return False
        began_ms, ended_ms = self._progress.began_ms or 0, now_ms()
        await self._save(self._progress.ended(ended_ms))
        self.statistics.passes += 1
        log_event(_log, "scrub", state="ended", seconds=(ended_ms - began_ms) // 1000, corrupt=self.statistics.corrupt)
        return True

    async def _ahead(self) -> list[int]:
        """The ledgers from the progress on. All at once, and small: a listing would not stay open for long."""
        numbers = await all_numbers(self._factory.ledger_manager)
        return [number for number in numbers if number >= self._progress.ledger_id]

    async def _load(self) -> None:
        stored = await self._metadata.read_record(RecordKind.PROGRESS, SCRUB_PROGRESS)
        self._version = None if stored is None else stored.version
        self._take(ScrubProgress() if stored is None else ScrubProgress.decode(stored.value))

    async def _save(self, progress: ScrubProgress) -> None:
        """Raises MetadataVersionException where another auditor has written since: then its progress counts."""
        self._version = await self._metadata.write_record(
            RecordKind.PROGRESS, SCRUB_PROGRESS, progress.encode(), self._version
        )
        self._saved_at = loop_time()
        self._take(progress)

    async def _save_end(self, ended_ms: int) -> None:
        await self._save(replace(self._progress, ended_ms=ended_ms))

    async def _save_now_and_then(self) -> None:
        if loop_time() - self._saved_at >= _SAVED_EVERY_SECONDS:
            await self._save(self._progress)

    def _take(self, progress: ScrubProgress) -> None:
        self._progress = progress
        self.statistics.ended_ms = progress.ended_ms if progress.ended_ms != ORDERED_MS else None
        self.statistics.ledgers_left_out = len(progress.left_out)

    async def _mark_again(self) -> None:
        """A worker that does not know of corrupt copies takes such marks away."""
        for key, stored in (await self._metadata.records(RecordKind.CORRUPT_LEDGER)).items():
            number = int(key)
            if await self._metadata.read_mark(number) is not None:
                continue
            named = sorted(decode_corrupt(stored.value).keys() & await self._members(LedgerId.of_number(number)))
            if named:
                await self._metadata.mark(number, named, now_ms())
            else:
                await self._metadata.remove_record(RecordKind.CORRUPT_LEDGER, key, stored.version)

    async def _members(self, ledger_id: LedgerId) -> Collection[str]:
        """The bookies of a ledger, none if it is gone."""
        try:
            return (await self._factory.ledger_manager.read(ledger_id)).metadata.bookies
        except NoSuchLedgerExistsOnMetadataServerException:
            return ()

    # A ledger

    async def _ledger(self, number: int, entry_id: int) -> None:
        """Looks at a ledger from an entry on, and says in the progress what came of it."""
        try:
            await self._read_ledger(LedgerId.of_number(number), entry_id)
        except (BKException, TimeoutError) as error:
            if isinstance(error, TooManyRequestsException):
                self._budget.overloaded(loop_time())
            log_event(_log, "ledger_not_scrubbed", logging.WARNING, ledger=number, state="postponed", error=error)
            self._take(self._progress.without(number))
            return
        self._take(self._progress.done_with(number))
        await self._save_now_and_then()

    async def _read_ledger(self, ledger_id: LedgerId, entry_id: int) -> None:
        """Raises BKException or TimeoutError unless each copy was looked at."""
        while True:
            try:
                record = await self._factory.ledger_manager.read(ledger_id)
            except NoSuchLedgerExistsOnMetadataServerException:
                return
            except MetadataFormatException as error:
                self._unverified(ledger_id, str(error))
                return
            if record.metadata.digest_type is None:
                # Of the oldest formats; a wrong guess would find all copies damaged.
                self._unverified(ledger_id, "its metadata name no digest")
                return
            fragment = next_entries(record.metadata, entry_id, _PIECES_A_LOOK * entries_a_piece(record.metadata))
            if fragment is None:
                return
            await self._look(record, fragment)
            entry_id = fragment.last_entry_id + 1
            self._take(self._progress.looked_at(ledger_id.number, entry_id))
            await self._save_now_and_then()

    def _unverified(self, ledger_id: LedgerId, reason: str) -> None:
        self.statistics.ledgers_unverified += 1
        log_event(_log, "ledger_not_scrubbed", logging.ERROR, ledger=ledger_id, state="left_out", error=reason)

    async def _look(self, record: LedgerRecord, fragment: CompleteFragment) -> None:
        """Some entries of one fragment, at every registered bookie that is due to hold them."""
        if loop_time() - self._seen_at >= _SEEN_EVERY_SECONDS:
            self._seen, self._seen_at = await self._present(), loop_time()
        copies = _Copies(self._client, self._bookies, record, self._budget, self.statistics)
        suspects: dict[str, BitMap64] = {}

        async def read(bookie_id: str, ids: BitMap64) -> None:
            if found := await copies.suspects(bookie_id, ids):
                suspects[bookie_id] = found

        places = enumerate(fragment.ensemble)
        await all_of(read(name, fragment.due(index)) for index, name in places if name in self._seen)
        if not suspects:
            return
        await asyncio.sleep(_READ_AGAIN_SECONDS)
        corrupt = {name: await copies.damaged(name, ids) for name, ids in suspects.items()}
        await self._tell(record, {name: ids for name, ids in corrupt.items() if ids})

    async def _tell(self, record: LedgerRecord, corrupt: dict[str, BitMap64]) -> None:
        """Records what is corrupt, then marks it; unless the metadata have changed meanwhile."""
        if not corrupt:
            return
        try:
            current = await self._factory.ledger_manager.read(record.ledger_id)
        except NoSuchLedgerExistsOnMetadataServerException:
            return
        if current.version != record.version:
            raise _ChangedException(f"the metadata of ledger {record.ledger_id} changed while it was read")
        number = record.ledger_id.number
        await note_corrupt(self._metadata, number, ranges_of(corrupt), now_ms())
        await self._metadata.mark(number, sorted(corrupt), now_ms())
        for bookie_id, ids in corrupt.items():
            self.statistics.corrupt += len(ids)
            log_event(
                _log, "copies_corrupt", logging.ERROR, ledger=number, held_by=bookie_id, entries=len(ids),
                first_entries=list(ids[:5]),
            )  # fmt: skip


class _Copies:
    """The copies of one ledger, bookie by bookie, within the budget."""

    def __init__(
        self,
        client: BookKeeper,
        bookies: Bookies,
        record: LedgerRecord,
        budget: ByteBudget,
        statistics: ScrubStatistics,
    ) -> None:
        self._client = client
        self._bookies = bookies
        self._record = record
        self._budget = budget
        self._statistics = statistics
        self._password = record.metadata.known_password() or b""
        self._secrets = LedgerSecrets.of(record.metadata, self._password, client.config)

    async def suspects(self, bookie_id: str, ids: BitMap64) -> BitMap64:
        """Those that the bookie stores damaged. Raises BKException where it can't be said of one."""
        found = BitMap64()
        if not ids:
            return found
        if self._record.metadata.is_unbounded:
            return await self._suspects_one_by_one(bookie_id, ids)
        alone = record_on(self._record, bookie_id)
        closed = replace(alone.metadata, state=LedgerState.CLOSED, last_entry_id=ids.max(), length=0)
        async with self._client.open_record(replace(alone, metadata=closed), self._password) as handle:
            for first, last in pieces_of(ids, entries_a_piece(self._record.metadata)):
                while first <= last:
                    first += await self._good(handle, first, last)
                    if first <= last:
                        some = range(first, min(last + 1, first + _ONE_BY_ONE))
                        found |= await self.damaged(bookie_id, some)
                        self._statistics.entries += len(some)
                        first = some.stop
        return found

    async def _suspects_one_by_one(self, bookie_id: str, ids: BitMap64) -> BitMap64:
        """The same where a bookie has to be told of each entry that it is confirmed."""
        found = BitMap64()
        for first, last in pieces_of(ids, _ONE_BY_ONE):
            found |= await self.damaged(bookie_id, range(first, last + 1))
            self._statistics.entries += last + 1 - first
        return found

    async def _good(self, handle: ReadHandle, first: int, last: int) -> int:
        """How many entries from the first on it has delivered, before one that it could not."""
        count = 0
        try:
            async with aclosing(handle.read_columns(first, last)) as pages:
                async for columns in pages:
                    size = sum(columns.sizes)
                    count += len(columns)
                    self._statistics.entries += len(columns)
                    self._statistics.bytes += size
                    await self._pay(size)
        except BKException:
            # What is wrong with it says a read of that entry alone.
            return count
        return count

    async def damaged(self, bookie_id: str, ids: Iterable[int]) -> BitMap64:
        """Those of the ids that another read, of each alone, finds damaged. Raises BKException where it can't tell."""
        metadata = self._record.metadata
        average = metadata.length // max(1, metadata.last_entry_id + 1) if metadata.is_closed else 0
        wanted = list(ids)
        await self._pay(len(wanted) * max(average, _LEAST_COST))
        number, unbounded = self._record.ledger_id.number, metadata.is_unbounded
        return await self._bookies.damaged(bookie_id, number, wanted, self._secrets, unbounded=unbounded)

    async def _pay(self, size: int) -> None:
        if seconds := self._budget.take(size, loop_time()):
            await asyncio.sleep(seconds)
