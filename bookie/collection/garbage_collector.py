"""Garbage collection of one bookie: when it runs, its steps and their order, and requests for runs.

A run, in this order: leftovers of compactions; ledgers that the metadata no longer has (`ledger_collector`); if enabled
and due, ledgers that were moved elsewhere (`over_replicated`); entries of unbounded ledgers that a trim has deleted
(`trimmed_ledgers`); entry logs without an existing ledger; one compaction if
one is due. A run begins every `wait_seconds`, or when requested.

Which logs are complete is recorded before which ledgers the index has: everything in a complete log is in the index
(`entry_logs`), so no log is taken for dead only because a flush has not reached its index yet.

The listing runs on the event loop; everything that accesses the disk runs on a thread of its own, which checks
`_stopping` between records. Methods of `GarbageCollector` belong to the event loop unless they say "any thread".

Source: docs/protocol/storage.md#garbage-collection. Not its job: the rules (`rules`), which ledgers are deleted
(`ledger_collector`), which entry logs are removed (`entry_log_collector`), copying (`compactor`).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from bookgate.bookie.collection.entry_log_collector import EntryLogCollector
from bookgate.bookie.collection.ledger_collector import LedgerCollector
from bookgate.bookie.collection.options import GarbageCollectionConfig
from bookgate.bookie.collection.over_replicated import OverReplicatedCollector
from bookgate.bookie.collection.rules import CompactionKind, CompactionSchedule, Trigger
from bookgate.bookie.collection.statistics import GcPhase, GcStatistics
from bookgate.bookie.collection.suspension import DeletionSuspendedException, LedgerSuspension
from bookgate.bookie.collection.throttle import StoppedException
from bookgate.bookie.collection.trimmed_ledgers import TrimmedLedgerCollector
from bookgate.bookie.disks.rules import DiskEvent, DiskEventKind
from bookgate.bookie.storage.storage import LedgerStorage
from bookgate.bookie.system.files import REAL_FILE_SYSTEM, FileSystem, StorageStoppedException, is_no_space
from bookgate.bookie.system.threads import REAL_THREADS, Threads
from bookgate.ledger.errors import BKException, IllegalOpException
from bookgate.ledger.metadata_store import LedgerManagerFactory, Membership
from bookgate.runtime.background import keep_running
from bookgate.runtime.logs import log_bug, log_event

_log = logging.getLogger(__name__)

_BY_ADMIN = "admin"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Details:
    """What `gc_details` of the HTTP interface returns. Times in milliseconds since 1970."""

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
    """`start` begins the runs; `stop` ends them at any point without loss."""

    def __init__(
        self,
        config: GarbageCollectionConfig,
        storage: LedgerStorage,
        metadata: LedgerManagerFactory,
        membership: Membership,
        *,
        files: FileSystem = REAL_FILE_SYSTEM,
        clock: Callable[[], float] | None = None,
        threads: Threads = REAL_THREADS,
    ) -> None:
        """`membership` is from the bookie's cookie: metadata of other clusters do not count.

        `clock` returns seconds, for schedule and rates; by default it is the clock of `threads`.
        """
        self._config = config
        self._storage = storage
        self._threads = threads
        self._clock = clock or threads.monotonic
        self._wall_clock = threads.wall_clock
        self.statistics = GcStatistics()
        now = self._clock()
        self._schedule = CompactionSchedule(config.policy, now)
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
        self._suspension = LedgerSuspension(files, storage.config.ledger_directories, threads)
        self._ledgers = LedgerCollector(
            config, storage, metadata, membership, self.statistics, self._clock, self._in_thread, self._deleting
        )
        self._over_replicated = OverReplicatedCollector(
            config, storage, metadata, membership, self.statistics, self._clock, self._in_thread, self._deleting
        )
        self._trimmed = TrimmedLedgerCollector(
            config, storage, metadata, membership, self.statistics, self._clock, self._in_thread, self._deleting
        )
        self.logs = EntryLogCollector(
            files, storage, self._stopping, self.statistics, self._rate(), self._clock, config.target_log_bytes
        )

    def _rate(self) -> tuple[float, bool]:
        config = self._config
        return (config.rate_bytes, True) if config.throttle_by_bytes else (config.rate_entries, False)

    @property
    def store_count(self) -> int:
        """The number of stores: one, or one per ledger directory."""
        return len(self._storage.stores)

    # Lifecycle

    def start(self) -> None:
        """Begins to wait for the first run. Storage must be open."""
        self._loop = asyncio.get_running_loop()
        self._thread = self._threads.executor("gc")
        self._task = keep_running("garbage collection", self._run)

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

    # Requests

    def trigger(
        self, force: bool = True, major: bool | None = None, minor: bool | None = None, *, ledgers: bool = False
    ) -> None:
        """Requests a run now. Any thread."""
        asked = Trigger(force, major, minor, ledgers)
        with self._asked:
            self._trigger = asked if self._trigger is None else self._trigger.merged(asked)
        self._wake_up()

    def cancel_trigger(self) -> None:
        """Withdraws requests for runs that have not begun. Any thread."""
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
        """Whether a requested run is waiting or running."""
        asked, running = self._trigger, self._running
        return (asked is not None and asked.force) or (running is not None and running.force)

    def suspend_compaction(self, *, major: bool = False, minor: bool = False) -> None:
        """No compaction begins until resumed; a running one continues. Any thread."""
        self._change(self._schedule.suspend, major, minor, _BY_ADMIN)

    def resume_compaction(self, *, major: bool = False, minor: bool = False) -> None:
        """Takes back `suspend_compaction`. Any thread."""
        self._change(self._schedule.resume, major, minor, _BY_ADMIN)

    def ledgers_suspended(self) -> bool:
        """Whether the deletion of ledgers is suspended. Blocking; any thread. Raises OSError."""
        return not self._config.collect_ledgers or self._suspension.is_suspended()

    def suspend_ledgers(self) -> None:
        """Suspends the deletion of ledgers, also after restarts: once this has returned, a run under way deletes
        nothing more. Blocking; any thread. Raises OSError.
        """
        self._suspension.suspend()

    def resume_ledgers(self) -> None:
        """Takes back `suspend_ledgers`. Blocking; any thread.

        Raises IllegalOpException if a setting suspends deletion, and OSError.
        """
        if not self._config.collect_ledgers:
            raise IllegalOpException("the setting gc_collect_ledgers is off; take it out and restart the bookie")
        self._suspension.resume()

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

    # Disk space (any thread): compaction needs space before it frees any

    def on_disk_event(self, event: DiskEvent[Path]) -> None:
        """A listener of the disk monitor. If a directory suspended compaction, the same directory resumes it."""
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
        """The directory's usage is below the threshold, but above the warn threshold."""
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
        """One complete run. Raises StoppedException when stopped, OSError when storage fails."""
        self._running = trigger
        statistics = self.statistics
        started = self._clock()
        no_room: OSError | None = None
        try:
            statistics.begin(GcPhase.LEDGERS)
            await self._in_thread(self.logs.settle_leftovers)
            try:
                await self._collect_ledgers(trigger)
            except DeletionSuspendedException:
                log_event(_log, "ledgers_not_collected", reason="an operator has suspended it")
            except OSError as error:
                if not is_no_space(error):
                    raise
                # Logs that are empty already make the room that deletions need.
                no_room = error
            statistics.ledger_seconds += self._clock() - started
            await self._in_thread(self.logs.collect)
            if no_room is not None:
                raise no_room
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

    async def _collect_ledgers(self, trigger: Trigger) -> None:
        """Raises DeletionSuspendedException."""
        if await self._in_thread(self.ledgers_suspended):
            raise DeletionSuspendedException
        await self._ledgers.collect(forced=trigger.ledgers)
        await self._over_replicated.collect_if_due()
        await self._trimmed.collect(forced=trigger.ledgers)
        self.logs.trimmed = self._trimmed.trimmed

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

    async def _deleting(self, work: Callable[[], T]) -> T:
        return await self._in_thread(lambda: self._suspension.unless_suspended(work))
