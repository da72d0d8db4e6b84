"""The auditor's rolling scrub: reads every copy from the bookie that should hold it, and checks its digest.

States: *off*, out of office or while auto-recovery is disabled (`allow`); *waiting* until a pass is due; *reading*. A
pass goes through all ledgers in order, some entries at a time, at a configured rate of bytes. The store keeps its
progress (`scrub_progress`), so a new auditor continues where the former one stopped. If a registered bookie does not
respond, or the store fails, the ledger is skipped and examined again at the end: a pass is complete when no skipped
ledger is left.

A copy is corrupt if its digest is wrong, or the bookie says that it can't read it, in two reads two seconds apart. The
scrub first records it and then marks the ledger, so that a worker that sees the mark sees the record, and overwrites
the copy. The record stays until a worker has found the ledger complete. A ledger with a record but without a mark,
because a worker of BookKeeper has removed the mark, is marked again.

Not its job: missing entries (`replica_check`), unregistered bookies (`auditor`).

Invariants: R10, a missing response is never a corrupt copy; R11 and R12, nothing is read or marked when off. Source:
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
from bookgate.bookie.replication.copies.fragments import CompleteFragment, pieces_of, why_not_examined
from bookgate.bookie.replication.ledger_pages import all_numbers, see_all_ledgers
from bookgate.ledger.corrupt_copies import note_corrupt
from bookgate.ledger.errors import (
    BKException,
    IncorrectParameterException,
    MetadataFormatException,
    NoSuchLedgerExistsOnMetadataServerException,
    TooManyRequestsException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerState
from bookgate.ledger.metadata_store import LedgerManagerFactory, LedgerRecord, Membership, Versioned
from bookgate.ledger.replication_checks import ORDERED_MS, SCRUB_PROGRESS
from bookgate.ledger.replication_store import RecordKind
from bookgate.runtime.clock import now_ms
from bookgate.runtime.logs import log_bug, log_event
from bookgate.thinclient.client import BookKeeper
from bookgate.thinclient.handles.context import LedgerSecrets
from bookgate.thinclient.handles.read_handle import ReadHandle
from bookgate.thinclient.tools.single_replica import record_on

_log = logging.getLogger(__name__)

_PIECES_A_LOOK = 16
"""Pieces of about 1 MiB that are read between two readings of the metadata."""
_ONE_BY_ONE = 64
"""Entries that are read singly, starting with the first that a ranged read could not deliver."""
_SINGLY_AT_ONCE = 8
"""Entries of an unbounded ledger, which are read singly, whatever their size."""
_LEAST_COST = 1024
"""Minimum bytes for which a single read counts."""
_READ_AGAIN_SECONDS = 2.0
"""Seconds between the two reads that together prove a copy corrupt."""
_SAVED_EVERY_SECONDS = 10.0
_SEEN_EVERY_SECONDS = 10.0
"""Seconds after which the registered bookies are read again."""
_LONGEST_PAUSE_SECONDS = 3600.0
"""Longest seconds before skipped ledgers are examined again."""
_LEAST_PAUSE_SECONDS = 1.0
"""Minimum seconds between two passes."""


@dataclass(frozen=True, slots=True)
class ScrubOptions:
    """The settings of the scrub."""

    bytes_a_second: float = 4.0 * 1024 * 1024
    """Rate of entries read from all bookies together, in bytes per second; 0: never."""
    interval_seconds: float = 604_800.0
    """Seconds from the end of a pass to the next one."""
    first_pause_seconds: float = 60.0
    """Seconds before skipped ledgers are examined again; doubled each time."""


@dataclass(slots=True)
class ScrubStatistics:
    """Counts of scrubs since the start of the process."""

    in_progress: bool = False
    passes: int = 0
    """Number of complete passes."""
    entries: int = 0
    """Copies of entries that were checked."""
    bytes: int = 0
    """Payload bytes of the copies that were read by ranged reads."""
    corrupt: int = 0
    """Copies found corrupt."""
    ledgers_unverified: int = 0
    """Ledgers that can't be checked: their metadata are damaged, have no digest type, or claim too many
    entries."""
    ledgers_left_out: int | None = None
    """Skipped ledgers of the current pass; None out of office."""
    ended_ms: int | None = None
    """When the last complete pass ended, whoever made it, in milliseconds since 1970; None if unknown, or out of
    office."""
    since_ms: int | None = None
    """The same; before the first pass has ended, when it began."""


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
        """`client` reads entries; `membership` is the cluster to which the process belongs, if known."""
        longest = _LONGEST_PAUSE_SECONDS if options.bytes_a_second > 0 else 0.0
        super().__init__(factory, bookies, membership, options.first_pause_seconds, longest)
        self.statistics = ScrubStatistics()
        self._client = client
        self._options = options
        self._budget = ByteBudget(options.bytes_a_second, loop_time())
        self._progress = ScrubProgress()
        self._version: int | None = None
        """Version of the stored progress."""
        self._saved_at = 0.0
        self._seen: Collection[str] = ()
        self._seen_at = float("-inf")

    def _out_of_office(self) -> None:
        self.statistics.ended_ms = self.statistics.since_ms = self.statistics.ledgers_left_out = None

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
        """Continues the current pass; returns whether it is complete now."""
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
        """The remaining ledgers of the pass, all at once in little memory: a listing would not stay open for long."""
        numbers = await all_numbers(self._factory.ledger_manager)
        return [number for number in numbers if number >= self._progress.ledger_id]

    async def _load(self) -> None:
        stored = await self._metadata.read_record(RecordKind.PROGRESS, SCRUB_PROGRESS)
        self._version = None if stored is None else stored.version
        self._take(ScrubProgress() if stored is None else ScrubProgress.decode(stored.value))

    async def _save(self, progress: ScrubProgress) -> None:
        """Stores the progress. Raises MetadataVersionException if another auditor has written: its progress applies."""
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
        self.statistics.since_ms = progress.since_ms
        self.statistics.ledgers_left_out = len(progress.left_out)

    async def _mark_again(self) -> None:
        """Restores marks that a worker without knowledge of corrupt copies has removed. A record that can't be used
        now, since the metadata are damaged or its key is no ledger's, stays, and stops nothing else.
        """
        for key, stored in (await self._metadata.records(RecordKind.CORRUPT_LEDGER)).items():
            try:
                await self._mark_one_again(key, stored)
            except (MetadataFormatException, IncorrectParameterException, ValueError) as error:
                log_event(_log, "ledger_not_marked_again", logging.WARNING, ledger=key, error=error)

    async def _mark_one_again(self, key: str, stored: Versioned[bytes]) -> None:
        number = int(key)
        if await self._metadata.read_mark(number) is not None:
            return
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
        """Checks a ledger from an entry on, and records the outcome in the progress."""
        try:
            await self._read_ledger(LedgerId.of_number(number), entry_id)
        except (BKException, TimeoutError) as error:
            if isinstance(error, TooManyRequestsException):
                self._budget.overloaded(loop_time())
            log_event(_log, "ledger_not_scrubbed", logging.WARNING, ledger=number, state="postponed", error=error)
            self._take(self._progress.without(number))
            return
        except Exception as error:  # an unforeseen error of one ledger must not prevent the scrub of the others
            log_bug(_log, "ledger_scrub_failed", error, ledger=number)
            self._unverified(LedgerId.of_number(number), str(error))
        self._take(self._progress.done_with(number))
        await self._save_now_and_then()

    async def _read_ledger(self, ledger_id: LedgerId, entry_id: int) -> None:
        """Reads a ledger. Raises BKException or TimeoutError unless each copy was checked."""
        while True:
            try:
                record = await self._factory.ledger_manager.read(ledger_id)
            except NoSuchLedgerExistsOnMetadataServerException:
                return
            except MetadataFormatException as error:
                self._unverified(ledger_id, str(error))
                return
            if record.metadata.digest_type is None:
                # The oldest formats lack it; a wrong guess would find all copies corrupt.
                self._unverified(ledger_id, "its metadata name no digest")
                return
            if reason := why_not_examined(record.metadata):
                self._unverified(ledger_id, reason)
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
        """Checks some entries of one fragment, on every registered bookie that should hold them."""
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
        """Records corrupt copies, then marks the ledger, unless the metadata have changed meanwhile."""
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
        """The ids whose copy is damaged on the bookie. Raises BKException if one can't be determined."""
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
        """Like `suspects`, for unbounded ledgers, whose bookies must be told that each entry is confirmed."""
        found = BitMap64()
        for first, last in pieces_of(ids, _SINGLY_AT_ONCE):
            some = range(first, last + 1)
            sizes = await asyncio.gather(*(self._size_of(bookie_id, entry_id) for entry_id in some))
            good = [size for size in sizes if size is not None]
            self._statistics.entries += len(some)
            self._statistics.bytes += sum(good)
            await self._pay(sum(max(size, _LEAST_COST) for size in good))
            if len(good) < len(some):
                doubted = (entry_id for entry_id, size in zip(some, sizes, strict=True) if size is None)
                found |= await self.damaged(bookie_id, doubted)
        return found

    async def _size_of(self, bookie_id: str, entry_id: int) -> int | None:
        """The payload bytes of a good copy; None where another read has to tell what is wrong."""
        try:
            entry = await self._bookies.entry(bookie_id, self._record.ledger_id.number, entry_id, self._secrets)
        except BKException:
            return None
        return len(entry.payload)

    async def _good(self, handle: ReadHandle, first: int, last: int) -> int:
        """Number of entries, from the first on, that the bookie delivers before one that it can't."""
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
            # A read of that entry alone determines the error.
            return count
        return count

    async def damaged(self, bookie_id: str, ids: Iterable[int]) -> BitMap64:
        """The ids that a further read of each alone finds damaged. Raises BKException if one can't be determined."""
        metadata = self._record.metadata
        average = metadata.length // max(1, metadata.last_entry_id + 1) if metadata.is_closed else 0
        wanted = list(ids)
        await self._pay(len(wanted) * max(average, _LEAST_COST))
        number, unbounded = self._record.ledger_id.number, metadata.is_unbounded
        return await self._bookies.damaged(bookie_id, number, wanted, self._secrets, unbounded=unbounded)

    async def _pay(self, size: int) -> None:
        if seconds := self._budget.take(size, loop_time()):
            await asyncio.sleep(seconds)
