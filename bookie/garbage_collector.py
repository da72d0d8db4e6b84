"""Garbage collection of one bookie: when it runs, and what it asks of the metadata and of storage.

A run, in this order: leftovers of compactions; ledgers (the local ids first, then the metadata's listing to its end,
then each candidate once more); entry logs without an existing ledger; one compaction if one is due. A run begins every
`wait_seconds`, or when somebody triggers it.

Nothing is deleted unless the listing came to its end in order, and the store caught up with what it knew when the
listing began. Then each candidate's metadata is read, and only "there is no such ledger" lets it go; whoever trusts the
listing alone turns `verify_metadata` off. Whatever else happens, be it an error, silence beyond the timeout, or a
candidate whose metadata is there, keeps ledgers (S2, F13).

Which logs are complete is taken down before which ledgers the index has: all that a complete log holds is in the index
(`entry_logs`), so a log is never taken for dead because a flush has not come to its index yet.

The listing runs on the event loop; everything that touches the disk runs on a thread of its own, which looks at
`_stopping` between records. Methods of `GarbageCollector` are for the event loop, those that say so for any thread.

Source: storage page, section 8. Not its job: the rules (`core.garbage_collection`), copying (`compactor`).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from bookie.core.disk_space import DiskEvent, DiskEventKind
from bookie.core.garbage_collection import (
    CompactionKind,
    CompactionPolicy,
    CompactionRule,
    CompactionSchedule,
    LedgerComparison,
    Trigger,
    is_over_replicated,
)
from bookie.entry_log_collector import EntryLogCollector
from bookie.files import REAL_FILE_SYSTEM, FileSystem, StorageStoppedException
from bookie.gc_statistics import GcPhase, GcStatistics
from bookie.storage import Storage
from bookie.threads import REAL_THREADS, Threads
from bookie.throttle import StoppedException
from ledger.errors import BKException, NoSuchLedgerExistsOnMetadataServerException
from ledger.ledger_id import LedgerId
from ledger.manager import LedgerManagerFactory, LedgerRecord
from reporting.logs import log_bug, log_event

_log = logging.getLogger(__name__)

_READ_AT_ONCE = 100
_DELETE_AT_ONCE = 100
_EVERYTHING = 0
"""The revision that stands for all that the store knows (`LedgerManagerFactory.catch_up`)."""
_BY_ADMIN = "admin"

T = TypeVar("T")


DEFAULT_POLICY = CompactionPolicy(minor=CompactionRule(0.2, 3600), major=CompactionRule(0.8, 86400))


@dataclass(frozen=True, slots=True)
class GarbageCollectionConfig:
    """Times in seconds; rates a second, 0 without limit."""

    wait_seconds: float = 600.0
    policy: CompactionPolicy = DEFAULT_POLICY
    rate_entries: float = 1000.0
    rate_bytes: float = 1_000_000.0
    throttle_by_bytes: bool = False
    verify_metadata: bool = True
    over_replicated_wait_seconds: float = 86400.0
    metadata_rate: float = 1000.0
    metadata_timeout_seconds: float = 20.0
    force_when_no_space: bool = False
    target_log_bytes: int = 0
    """Entry logs smaller than this are taken for logs of this size: compaction merges them."""
    location_compaction_seconds: float = 0.0
    """Between compactions of the index in RocksDB; 0 or less: none."""


class ReplicationLocks(Protocol):
    """Who replicates a ledger holds its lock; nobody else may then take copies of it away."""

    async def try_acquire(self, ledger_id: LedgerId) -> bool:
        """False when somebody else holds it."""

    async def release(self, ledger_id: LedgerId) -> None: ...


@dataclass(frozen=True, slots=True)
class Details:
    """What `gc_details` of the HTTP interface shows. Times in milliseconds since 1970."""

    force_compacting: bool
    major_compacting: bool
    minor_compacting: bool
    last_major_compaction_ms: int
    last_minor_compaction_ms: int
    major_compactions: int
    minor_compactions: int
    last_location_compaction_ms: int
    location_compactions: int


class GarbageCollector:
    """See the module. `start` begins the runs; `stop` ends them in the middle, and loses nothing."""

    def __init__(
        self,
        config: GarbageCollectionConfig,
        storage: Storage,
        metadata: LedgerManagerFactory,
        bookie_id: str,
        *,
        files: FileSystem = REAL_FILE_SYSTEM,
        locks: ReplicationLocks | None = None,
        clock: Callable[[], float] | None = None,
        threads: Threads = REAL_THREADS,
    ) -> None:
        """Without `locks` over-replicated ledgers stay: one of them may be on its way here at this moment.

        `clock` is that of the schedule and the rates, in seconds; by default that of `threads`.
        """
        self._config = config
        self._storage = storage
        self._metadata = metadata
        self._bookie_id = bookie_id
        self._locks = locks
        self._threads = threads
        self._clock = clock or threads.monotonic
        self._wall_clock = threads.wall_clock
        self.statistics = GcStatistics()
        now = self._clock()
        self._schedule = CompactionSchedule(config.policy, now)
        self._last_over_replicated = now
        started_ms = int(self._wall_clock() * 1000)
        self._last_ms = dict.fromkeys(CompactionKind, started_ms)
        self._compacting: CompactionKind | None = None
        self._last_location_compaction = now
        self._last_location_compaction_ms = 0
        self._location_compactions = 0
        self._asked = threading.Lock()
        self._trigger: Trigger | None = None
        self._running: Trigger | None = None
        self._wake = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = threads.event()
        self._thread: Executor | None = None
        self.logs = EntryLogCollector(
            files, storage, self._stopping, self.statistics, self._rate(), self._clock, config.target_log_bytes
        )

    def _rate(self) -> tuple[float, bool]:
        config = self._config
        return (config.rate_bytes, True) if config.throttle_by_bytes else (config.rate_entries, False)

    @property
    def store_count(self) -> int:
        """How many stores storage has: one, or one a ledger directory."""
        return len(self._storage.stores)

    # Life

    def start(self) -> None:
        """Begins to wait for the first run. Storage is open."""
        self._loop = asyncio.get_running_loop()
        self._thread = self._threads.executor("gc")
        self._task = self._loop.create_task(self._run())

    async def stop(self) -> None:
        """Ends a run at its next record; storage may be closed afterwards."""
        self._stopping.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._thread is not None:
            thread = self._thread
            await asyncio.get_running_loop().run_in_executor(None, thread.shutdown)

    async def _run(self) -> None:
        while True:
            await self._wait_for_run()
            try:
                await self.collect(self._take_trigger())
            except (StoppedException, StorageStoppedException):
                return
            except (BKException, OSError) as error:
                log_event(
                    _log, "garbage_collection_failed", logging.ERROR, error=error, note="the next run tries again"
                )
            except Exception as error:
                log_bug(_log, "garbage_collection_failed", error)

    async def _wait_for_run(self) -> None:
        try:
            async with asyncio.timeout(self._config.wait_seconds):
                await self._wake.wait()
        except TimeoutError:
            return

    # Asking

    def trigger(self, force: bool = True, major: bool | None = None, minor: bool | None = None) -> None:
        """Asks for a run now. `major` and `minor` say which compaction may run; None: unless suspended. Any thread."""
        asked = Trigger(force, major, minor)
        with self._asked:
            self._trigger = asked if self._trigger is None else self._trigger.merged(asked)
        self._wake_up()

    def cancel_trigger(self) -> None:
        """Takes back what was asked and has not begun. Any thread."""
        with self._asked:
            self._trigger = None

    def _wake_up(self) -> None:
        if self._loop is not None and not self._stopping.is_set():
            self._loop.call_soon_threadsafe(self._wake.set)

    def _take_trigger(self) -> Trigger:
        self._wake.clear()
        with self._asked:
            trigger, self._trigger = self._trigger, None
        return trigger or Trigger()

    @property
    def is_in_force_gc(self) -> bool:
        """Whether a run that was asked for is waiting or under way."""
        asked, running = self._trigger, self._running
        return (asked is not None and asked.force) or (running is not None and running.force)

    def suspend_compaction(self, *, major: bool = False, minor: bool = False) -> None:
        """Until resumed; a compaction that runs goes on. Any thread."""
        self._change(self._schedule.suspend, major, minor, _BY_ADMIN)

    def resume_compaction(self, *, major: bool = False, minor: bool = False) -> None:
        """Takes back `suspend_compaction`. Any thread."""
        self._change(self._schedule.resume, major, minor, _BY_ADMIN)

    def is_suspended(self, kind: CompactionKind) -> bool:
        return self._schedule.is_suspended(kind)

    @staticmethod
    def _change(change: Callable[[CompactionKind, str], None], major: bool, minor: bool, who: str) -> None:
        if major:
            change(CompactionKind.MAJOR, who)
        if minor:
            change(CompactionKind.MINOR, who)

    def details(self) -> Details:
        running = self._running
        return Details(
            running is not None and running.force,
            self._compacting is CompactionKind.MAJOR,
            self._compacting is CompactionKind.MINOR,
            self._last_ms[CompactionKind.MAJOR],
            self._last_ms[CompactionKind.MINOR],
            self.statistics.major_compactions,
            self.statistics.minor_compactions,
            self._last_location_compaction_ms,
            self._location_compactions,
        )

    # Disk space (any thread): a compaction needs room before it frees any

    def on_disk_event(self, event: DiskEvent[Path]) -> None:
        """A listener of the disk monitor. A compaction that one directory suspended, that directory resumes."""
        reactions = {
            DiskEventKind.DISK_FULL: self.on_disk_full,
            DiskEventKind.DISK_ALMOST_FULL: self.on_disk_almost_full,
            DiskEventKind.DISK_JUST_WRITABLE: self.on_disk_just_writable,
            DiskEventKind.DISK_WRITABLE: self.on_disk_writable,
        }
        reactions[event.kind](str(event.directory))

    def on_disk_full(self, directory: str) -> None:
        self._short_of_space(directory, minor=True)

    def on_disk_almost_full(self, directory: str) -> None:
        self._short_of_space(directory, minor=False)

    def on_disk_just_writable(self, directory: str) -> None:
        """Below full, above the warning."""
        if self._config.force_when_no_space:
            self.trigger()
        else:
            self._schedule.resume(CompactionKind.MINOR, directory)

    def on_disk_writable(self, directory: str) -> None:
        if self._config.force_when_no_space:
            self.cancel_trigger()
        self._change(self._schedule.resume, True, True, directory)

    def _short_of_space(self, directory: str, *, minor: bool) -> None:
        if self._config.force_when_no_space:
            self.trigger()
        else:
            self._change(self._schedule.suspend, True, minor, directory)

    # One run

    async def collect(self, trigger: Trigger) -> None:
        """One run, to its end. Raises StoppedException when stopped, OSError when storage fails."""
        self._running = trigger
        statistics = self.statistics
        started = self._clock()
        try:
            statistics.begin(GcPhase.LEDGERS)
            await self._in_thread(self.logs.settle_leftovers)
            await self._collect_ledgers()
            statistics.ledger_seconds += self._clock() - started
            await self._in_thread(self.logs.collect)
            kind = self._schedule.due(self._clock(), trigger)
            if kind is not None:
                await self._compact(kind)
            await self._compact_locations()
        finally:
            self._running = None
            statistics.begin(GcPhase.IDLE)
            statistics.last_run_ms = int(self._wall_clock() * 1000)
            statistics.runs += 1
            statistics.run_seconds += self._clock() - started

    async def _compact(self, kind: CompactionKind) -> None:
        self._compacting = kind
        try:
            rule = self._config.policy.rule(kind)
            await self._in_thread(lambda: self.logs.compact(rule))
        finally:
            self._compacting = None
            self._schedule.done(kind, self._clock())
            self._last_ms[kind] = int(self._wall_clock() * 1000)
        if kind is CompactionKind.MAJOR:
            self.statistics.major_compactions += 1
        else:
            self.statistics.minor_compactions += 1

    async def _compact_locations(self) -> None:
        every = self._config.location_compaction_seconds
        if every <= 0 or self._clock() - self._last_location_compaction < every:
            return
        await self._in_thread(self.logs.compact_locations)
        self._last_location_compaction = self._clock()
        self._last_location_compaction_ms = int(self._wall_clock() * 1000)
        self._location_compactions += 1

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    # Ledgers

    async def _collect_ledgers(self) -> None:
        local = await self._in_thread(self._storage.ledger_ids)
        self.statistics.active_ledgers = len(local)
        try:
            await self._collect_over_replicated(local)
            missing = await self._missing_in_metadata(local)
        except Exception as error:
            # Whatever it is, the metadata is not known.
            self.statistics.failed_listings += 1
            level = logging.WARNING if isinstance(error, (BKException, TimeoutError)) else logging.ERROR
            log_event(
                _log, "ledgers_not_listed", level, error=error or type(error).__name__, note="no ledger is collected"
            )
            return
        for start in range(0, len(missing), _DELETE_AT_ONCE):
            await self._delete(await self._confirmed(missing[start : start + _DELETE_AT_ONCE]))

    async def _missing_in_metadata(self, local: Sequence[int]) -> array[int]:
        """Local ids that a complete listing lacks. `local` was taken before."""
        await self._within_timeout(self._metadata.catch_up(_EVERYTHING))
        comparison = LedgerComparison(local)
        ranges = aiter(self._metadata.ledger_manager.ledger_ranges())
        while (ids := await self._next_range(ranges)) is not None:
            comparison.add_range(ids)
            await self._pace(1)
        return comparison.finish()

    async def _next_range(self, ranges: AsyncIterator[Sequence[int]]) -> Sequence[int] | None:
        try:
            async with asyncio.timeout(self._config.metadata_timeout_seconds):
                return await anext(ranges)
        except StopAsyncIteration:
            return None

    async def _confirmed(self, candidates: Sequence[int]) -> list[int]:
        """Those of whom the metadata itself says that there is no such ledger."""
        if not self._config.verify_metadata:
            return list(candidates)
        gone: list[int] = []
        for number, answer in zip(candidates, await self._read(candidates), strict=True):
            if isinstance(answer, NoSuchLedgerExistsOnMetadataServerException):
                gone.append(number)
                continue
            self.statistics.kept_candidates += 1
            reason = f"can't be read: {answer}" if isinstance(answer, BKException) else "is there"
            log_event(
                _log,
                "ledger_kept",
                logging.WARNING,
                ledger=number,
                reason=f"it was not listed, but its metadata {reason}",
            )
        return gone

    async def _read(self, numbers: Sequence[int]) -> Sequence[LedgerRecord | BKException]:
        """The metadata of ledgers, or why it can't be had; an answer each."""
        ids = [LedgerId.unscoped(number) for number in numbers]
        try:
            answers = await self._within_timeout(self._metadata.ledger_manager.read_many(ids))
        except (BKException, TimeoutError) as error:
            unknown = error if isinstance(error, BKException) else BKException("the metadata store does not answer")
            return [unknown] * len(ids)
        await self._pace(len(ids))
        return answers

    async def _delete(self, numbers: Sequence[int]) -> None:
        if not numbers:
            return
        await self._in_thread(lambda: self._storage.delete_ledgers(numbers))
        self.statistics.deleted_ledgers += len(numbers)
        self.statistics.active_ledgers -= len(numbers)
        log_event(_log, "ledgers_collected", count=len(numbers), first_ledger=numbers[0])

    async def _within_timeout(self, call: Awaitable[T]) -> T:
        async with asyncio.timeout(self._config.metadata_timeout_seconds):
            return await call

    async def _pace(self, operations: int) -> None:
        if self._config.metadata_rate > 0:
            await asyncio.sleep(operations / self._config.metadata_rate)

    # Ledgers that other bookies hold in our stead

    async def _collect_over_replicated(self, local: Sequence[int]) -> None:
        wait = self._config.over_replicated_wait_seconds
        if self._locks is None or wait <= 0 or self._clock() - self._last_over_replicated < wait:
            return
        for start in range(0, len(local), _READ_AT_ONCE):
            for answer in await self._read(local[start : start + _READ_AT_ONCE]):
                if isinstance(answer, LedgerRecord) and is_over_replicated(answer.metadata, self._bookie_id):
                    await self._delete_over_replicated(self._locks, answer.ledger_id)
        self._last_over_replicated = self._clock()

    async def _delete_over_replicated(self, locks: ReplicationLocks, ledger_id: LedgerId) -> None:
        if not await locks.try_acquire(ledger_id):
            return
        try:
            # Once more under the lock: a replication may have ended here meanwhile.
            record = await self._within_timeout(self._metadata.ledger_manager.read(ledger_id))
            if is_over_replicated(record.metadata, self._bookie_id):
                await self._delete([ledger_id.ledger_id])
        except NoSuchLedgerExistsOnMetadataServerException:
            return
        finally:
            await locks.release(ledger_id)
