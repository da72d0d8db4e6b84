"""The replication worker: takes marked ledgers in order of urgency, and repairs each under its lock.

It lists the marks when they have changed, or when a ledger's pause is over, and works on a few ledgers concurrently.
For each: take the lock, or leave the ledger to its holder; read the mark, whose version later shows whether it was made
again (R8); read the metadata; repair (`repair`); remove the mark if a complete examination found the ledger whole, or
the ledger does not exist (R5); release the lock. A ledger that has lost entries or its end for good is added to the
list of unrecoverable ones, and its mark stays; it is tried again when something has changed, also its metadata: its
writer may live, and close it. Every failure has the same pause, which doubles each time.

A bookie counts as lost if it is not registered and the auditor has missed it for the delay; or, if no auditor records
this (BookKeeper's do not), if the mark names it and this process itself has missed it for the delay. An open ledger is
fenced and recovered only if a bookie of its last ensemble is lost, stays lost for the grace period as observed by this
process, and its metadata do not change meanwhile (R6): a live writer replaces the bookie. An unbounded ledger is never
recovered: it waits for the client that has, or takes, the term.

While auto-recovery is disabled no repair is begun and no ledger fenced (R11). Errors of the store only cause a pause.
Source: docs/protocol/auto-recovery.md#worker.

Not its job: marking (`auditor`).
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from bookgate.bookie.replication.attendance import Attendance
from bookgate.bookie.replication.copies.corrupt_copies import decode_corrupt
from bookgate.bookie.replication.copies.verdicts import Findings, Lost
from bookgate.bookie.replication.repairs.circumstances import KnownCircumstances
from bookgate.bookie.replication.repairs.grace import Graces
from bookgate.bookie.replication.repairs.marked_ledgers import MarkedLedgers
from bookgate.bookie.replication.repairs.marks import forget_unmarked, give_up, unmark
from bookgate.bookie.replication.repairs.permission import Permission, Permissions
from bookgate.bookie.replication.repairs.progress import RepairProgress
from bookgate.bookie.replication.repairs.repair import LedgerRepair, Outcome, RepairStoppedException, RepairTools
from bookgate.bookie.replication.repairs.repair_queue import Candidate, RepairQueue
from bookgate.bookie.replication.repairs.taking_over import take_over
from bookgate.bookie.replication.repairs.tasks import Tasks
from bookgate.bookie.replication.repairs.worker_statistics import WorkerStatistics
from bookgate.ledger.errors import (
    BKException,
    NoSuchLedgerExistsOnMetadataServerException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import (
    BookieSet,
    LedgerManagerFactory,
    LedgerRecord,
    RegisteredBookie,
    Versioned,
)
from bookgate.ledger.replication_store import (
    LedgerLock,
    LockLost,
    Mark,
    MarksChanged,
    RecordKind,
    ReplicationEvent,
    SwitchChanged,
)
from bookgate.runtime.background import keep_running
from bookgate.runtime.clock import now_ms
from bookgate.runtime.logs import log_bug, log_event

_log = logging.getLogger(__name__)

_LOOK_AGAIN_SECONDS, _LEAST_REST_SECONDS = 30.0, 0.5
_STORE_PAUSE_SECONDS = 2.0
_JITTER_SECONDS = 0.5
_HELD_ELSEWHERE_SECONDS = 5.0
_LEAST_GRACE_LEFT_SECONDS = 0.1
_WRITER_SECONDS = 60.0
"""Seconds between examinations of an unbounded ledger with a lost bookie that only the holder of the term may
replace.
"""
_STOP_SECONDS = 5.0
"""Seconds for which repairs in progress may end by themselves."""
_LISTED_AGAIN_SECONDS, _LISTED_AGAIN_SHARE = 5.0, 10
"""Minimum seconds, and multiple of the duration of a listing, after which the marks are listed again while marked
ledgers are processed."""


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The settings of a worker."""

    tasks: int = 4
    """Number of ledgers repaired concurrently."""
    open_ledger_grace_seconds: float = 30.0
    """Seconds that a bookie of the last ensemble must be lost before an open ledger is recovered."""
    given_up_seconds: float = 600.0
    """Seconds between checks whether unrecoverable ledgers were deleted, or have other metadata."""
    password: bytes = b""
    """The password of ledgers whose metadata have none (the oldest formats)."""


class ReplicationWorker:
    """The worker of one process. Call `start`, and `stop` before the metadata store and the client are closed."""

    def __init__(
        self,
        factory: LedgerManagerFactory,
        tools: RepairTools,
        options: WorkerOptions,
        rng: random.Random,
        holder: str | None = None,
    ) -> None:
        """`holder` names this process in its locks, by default its host."""
        self.statistics = WorkerStatistics()
        self._factory = factory
        self._metadata = factory.replication_metadata
        self._tools = tools
        self._options = options
        self._rng = rng
        self._holder = holder or socket.gethostname()
        self._queue = RepairQueue()
        self._attendance = Attendance()
        self._circumstances = KnownCircumstances(self._metadata)
        self._enabled = False
        self._watching = False
        """Whether registrations are watched."""
        self._resting = False
        self._stopping = False
        self._changed = False
        """Whether the marks must be listed again."""
        self._wake = asyncio.Event()
        self._permissions = Permissions(self._why_not)
        self._tasks = Tasks(self._metadata)
        self._given_up_due = 0.0
        """When to check next for changes of the unrecoverable ledgers."""
        self._ledgers = MarkedLedgers(factory.ledger_manager)
        self._graces = Graces(options.open_ledger_grace_seconds, self._attendance)
        self._progress = RepairProgress(self._holder, tools.copied)
        self._working: dict[int, asyncio.Task[None]] = {}
        self._main: asyncio.Task[None] | None = None
        self._unwatch: list[Callable[[], None]] = []

    async def start(self) -> None:
        """Starts working; the store need not be reachable yet."""
        self._unwatch.append(self._metadata.watch(self._on_event))
        self._main = keep_running("replication worker", self._run)

    def rest(self, resting: bool) -> None:
        """Sets whether the worker begins no repairs for now."""
        self._resting = resting
        self._list_again()

    async def stop(self) -> None:
        """Stops after the current groups of copies, within a few seconds in any case; releases locks."""
        self._stopping = True
        await self._cancel([] if self._main is None else [self._main])
        if self._working:
            await asyncio.wait(self._working.values(), timeout=_STOP_SECONDS)
        await self._cancel(list(self._working.values()))
        for unwatch in self._unwatch:
            unwatch()

    @staticmethod
    async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def progress(self) -> RepairProgress | None:
        """The progress of repairs; None while no repair may begin and none is in progress."""
        return None if self._why_not() and not self._working else self._progress

    # Events

    def _on_event(self, event: ReplicationEvent) -> None:
        match event:
            case MarksChanged():
                self._list_again()
            case SwitchChanged(enabled):
                self._enabled = enabled
                log_event(_log, "auto_recovery_switch", enabled=enabled)
                self._list_again()
            case LockLost():
                self._permissions.lost(event)

    def _on_bookies(self, bookies: list[RegisteredBookie] | tuple[RegisteredBookie, ...]) -> None:
        self._circumstances.forget()
        self._ledgers.forget()
        self._tools.placement.see(bookies)
        came = self._attendance.hear(bookies, self._now())
        self._queue.returned(came)
        self._list_again()

    def _list_again(self) -> None:
        self._changed = True
        self._wake.set()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    # The queue

    async def _run(self) -> None:
        discovery = self._factory.service_discovery
        while not self._attendance.told:
            try:
                if not self._watching:
                    self._unwatch.append(
                        await discovery.watch_bookies(BookieSet.ALL, lambda found: self._on_bookies(list(found)))
                    )
                    self._watching = True
                found = list(await discovery.bookies(BookieSet.ALL))
                # Reports of the watch are newer: this response may have been delayed.
                if not self._attendance.told:
                    self._on_bookies(found)
            except BKException as error:
                self._store_failed(error)
                await asyncio.sleep(_STORE_PAUSE_SECONDS)
        while True:
            self._changed = False
            if self._enabled and not self._resting:
                try:
                    await self._take_marked()
                except BKException as error:
                    self._store_failed(error)
                    await asyncio.sleep(_STORE_PAUSE_SECONDS)
                    continue
            await self._rest()

    async def _rest(self) -> None:
        """Waits until there may be work: marks have changed, or a ledger's pause is over."""
        began = self._now()
        while not self._changed:
            due = self._queue.next_due()
            until = began + _LOOK_AGAIN_SECONDS
            seconds = (until if due is None else min(until, max(due, began + _LEAST_REST_SECONDS))) - self._now()
            if seconds <= 0:
                return
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
        # Several workers learn of the same mark at the same time.
        await asyncio.sleep(self._rng.random() * _JITTER_SECONDS)

    async def _take_marked(self) -> None:
        """Processes the due marks, most urgent first; new marks may be more urgent."""
        began = self._now()
        marks: list[Mark] = []
        due: list[Mark] = []
        given_up: list[Mark] = []
        async for page in self._metadata.marks():
            for mark in page:
                ledger_id = mark.value.ledger_id
                marks.append(mark)
                if ledger_id in self._working:
                    continue
                if self._queue.is_due(ledger_id, mark.version, self._now()):
                    due.append(mark)
                elif self._queue.is_given_up(ledger_id):
                    given_up.append(mark)
        marked = {mark.value.ledger_id for mark in marks}
        self._circumstances.forget()  # for these marks; a mark that is made again later is noticed under its lock
        due += await self._changed_since(given_up)
        self.statistics.marks_seen = len(marked)
        self._queue.keep_only(marked)
        self._ledgers.keep_only(marked)
        self._graces.keep_only(marked)
        if await self._tasks.listed(marked):
            await forget_unmarked(self._metadata, marked)
        emptied = (await self._circumstances.now()).draining.intersection(self._attendance.present)
        candidates = self._queue.order(await self._ledgers.candidates(due, emptied), self._now())
        self._progress.listed(marks, self._ledgers.known, self._queue.is_given_up, now_ms())
        again_at = self._now() + max(_LISTED_AGAIN_SECONDS, _LISTED_AGAIN_SHARE * (self._now() - began))
        for candidate in candidates:
            while len(self._working) >= self._options.tasks:
                await asyncio.wait(self._working.values(), return_when=asyncio.FIRST_COMPLETED)
            if self._why_not() or (self._changed and self._now() >= again_at):
                return
            self._begin(candidate)

    async def _changed_since(self, given_up: list[Mark]) -> list[Mark]:
        """Periodically returns the marks of ledgers that were deleted or changed since they were given up: no event
        tells of it, and nothing else would remove these marks.
        """
        if not given_up or self._now() < self._given_up_due:
            return []
        self._given_up_due = self._now() + self._options.given_up_seconds
        return await self._ledgers.changed(given_up, self._queue.given_up_at)

    def _begin(self, candidate: Candidate) -> None:
        task = asyncio.get_running_loop().create_task(self._work_on(candidate.ledger_id, candidate.mark_version))
        self._working[candidate.ledger_id] = task
        self.statistics.in_progress = len(self._working)

        def ended(_task: asyncio.Task[None]) -> None:
            self._working.pop(candidate.ledger_id, None)
            self.statistics.in_progress = len(self._working)
            self._wake.set()

        task.add_done_callback(ended)

    def _store_failed(self, error: BKException) -> None:
        log_event(_log, "replication_worker", logging.WARNING, state="store_out_of_reach", error=error)

    # One ledger

    async def _work_on(self, ledger_id: int, mark_version: int) -> None:
        try:
            await self._lock_and_repair(ledger_id, mark_version)
        except RepairStoppedException as error:
            self._queue.failed(ledger_id, mark_version, self._now())
            log_event(_log, "ledger_repair", state="stopped", ledger=ledger_id, reason=error)
        except (BKException, TimeoutError) as error:
            await self._failed(ledger_id, mark_version, str(error))
        except Exception as error:  # an unforeseen error of one ledger must not prevent the repair of others
            log_bug(_log, "ledger_repair_failed", error, ledger=ledger_id)
            await self._failed(ledger_id, mark_version, str(error))

    async def _failed(self, ledger_id: int, mark_version: int, reason: str) -> None:
        self.statistics.ledgers_failed += 1
        task = self._tasks.of(ledger_id)
        pause = self._queue.failed(ledger_id, mark_version, self._now(), task.failures)
        await task.failed()
        times = self._queue.failures(ledger_id)
        log_event(
            _log,
            "ledger_repair",
            logging.WARNING,
            state="postponed",
            ledger=ledger_id,
            times=times,
            seconds=pause,
            reason=reason,
        )

    async def _lock_and_repair(self, ledger_id: int, mark_version: int) -> None:
        lock = await self._metadata.try_lock(ledger_id, self._holder)
        if lock is None:
            self._queue.postponed(ledger_id, mark_version, self._now() + _HELD_ELSEWHERE_SECONDS)
            return
        try:
            with self._permissions.under(lock) as permission, self._tools.share.locked():
                await self._repair(lock, permission, mark_version)
        finally:
            self._progress.ended(ledger_id)
            await self._release(lock)

    def _why_not(self) -> str:
        if self._stopping:
            return "the worker stops"
        if self._resting:
            return "it gives way to another auditor's workers"
        return "" if self._enabled else "auto-recovery is disabled"

    async def _release(self, lock: LedgerLock) -> None:
        try:
            await self._metadata.release(lock)
        except BKException as error:
            # The store's driver releases it as soon as it can.
            log_event(_log, "replication_lock_kept", logging.WARNING, ledger=lock.ledger_id, error=error)

    async def _repair(self, lock: LedgerLock, permission: Permission, mark_version: int) -> None:
        ledger_id = lock.ledger_id
        mark = await self._metadata.read_mark(ledger_id)
        if mark is None:
            await self._metadata.remove_record(RecordKind.UNRECOVERABLE_LEDGER, str(ledger_id))
            self._ended(ledger_id)
            return
        if mark.version != mark_version:
            self._circumstances.forget()
        corrupt = await self._found_corrupt(mark)
        try:
            record = await self._factory.ledger_manager.read(LedgerId.of_number(ledger_id))
            outcome = await self._repair_record(lock, mark, record, permission, corrupt)
        except NoSuchLedgerExistsOnMetadataServerException:
            await self._finish(mark, "deleted", corrupt)
            return
        if outcome.findings.whole:
            self.statistics.ledgers_repaired += 1
            await self._finish(mark, "whole", corrupt)
        elif self._is_unrecoverable(outcome):
            await self._give_up(mark, outcome)
        elif outcome.findings.lost_where_written and not outcome.findings.repairs and not outcome.findings.unknown:
            self._queue.postponed(ledger_id, mark.version, self._now() + self._grace_left(outcome))
        else:
            await self._failed(ledger_id, mark.version, outcome.reason)

    def _is_unrecoverable(self, outcome: Outcome) -> bool:
        findings = outcome.findings
        if findings.unknown:
            return False
        return bool(findings.unrecoverable) or (findings.end_is_lost and self._is_to_be_fenced(outcome))

    async def _found_corrupt(self, mark: Mark) -> Versioned[bytes] | None:
        """The scrub's record; a scrub records before it marks, and marks for registered bookies."""
        if not self._attendance.present.keys() & {*mark.value.replicas}:
            return None
        return await self._metadata.read_record(RecordKind.CORRUPT_LEDGER, str(mark.value.ledger_id))

    async def _repair_record(
        self,
        lock: LedgerLock,
        mark: Mark,
        record: LedgerRecord,
        permission: Permission,
        corrupt: Versioned[bytes] | None,
    ) -> Outcome:
        circumstances = await self._circumstances.now()
        away = {each: self._attendance.away_seconds(each, self._now()) for each in sorted(record.metadata.bookies)}
        absent, draining = circumstances.absent(away, mark.value.replicas, now_ms()), circumstances.draining
        targets = self._tasks.of(lock.ledger_id)
        suspects = {} if corrupt is None else decode_corrupt(corrupt.value)
        # A mark without bookies; a ledger with other losses is found again by the next placement check.
        misplaced = not mark.value.replicas and mark.value.damaged is None
        repair = self._begun(LedgerRepair(self._tools, lock, record, permission, targets, suspects), lock)
        outcome = await repair.run(absent, draining, misplaced=misplaced)
        if outcome.findings.end_is_lost or record.metadata.is_unbounded or not self._is_to_be_fenced(outcome):
            return outcome
        permission.check()
        record = await self._recover(lock, outcome.record, outcome.findings)
        repair = self._begun(LedgerRepair(self._tools, lock, record, permission, targets, suspects), lock)
        return await repair.run(absent, draining)

    def _begun(self, repair: LedgerRepair, lock: LedgerLock) -> LedgerRepair:
        self._progress.began(lock.ledger_id, repair, now_ms())
        return repair

    # Open ledgers

    def _grace_left(self, outcome: Outcome) -> float:
        """Seconds of the grace period left, at least a little; an unbounded ledger waits for a client instead."""
        if self._is_to_be_fenced(outcome):
            return _WRITER_SECONDS
        return max(_LEAST_GRACE_LEFT_SECONDS, self._graces.left(outcome.record, self._now()))

    def _is_to_be_fenced(self, outcome: Outcome) -> bool:
        return self._graces.is_over(outcome, self._now())

    async def _recover(self, lock: LedgerLock, record: LedgerRecord, findings: Findings) -> LedgerRecord:
        record = await take_over(self._tools, lock, record, findings.lost_where_written, self._options.password)
        self.statistics.ledgers_recovered += 1
        self._graces.forget(record.ledger_id.number)
        return record

    # Outcomes

    async def _finish(self, mark: Mark, state: str, corrupt: Versioned[bytes] | None) -> None:
        ledger_id = mark.value.ledger_id
        removed = await unmark(self._metadata, mark, corrupt)
        await self._tasks.done(ledger_id)
        if removed:
            self._ended(ledger_id)
        log_event(_log, "ledger_repair", state=state, ledger=ledger_id, marked_again=not removed)

    def _ended(self, ledger_id: int) -> None:
        self._queue.done(ledger_id)
        self._progress.unmarked(ledger_id)

    async def _give_up(self, mark: Mark, outcome: Outcome) -> None:
        ledger_id = mark.value.ledger_id
        lost = {bookie_id for bookie_id, state in outcome.copies.items() if isinstance(state, Lost)}
        if back := sorted(lost & self._attendance.present.keys()):
            await self._failed(ledger_id, mark.version, f"{', '.join(back)} returned during the repair")
            return
        self.statistics.ledgers_unrecoverable += 1
        bookies = outcome.record.metadata.bookies
        gone = sorted(bookies - self._attendance.present.keys())
        # Waits before the record is written: a bookie that returns meanwhile ends the waiting. So does one that was
        # present and lacked copies, or had corrupt ones: its disk may have been repaired.
        self._queue.unrecoverable(outcome.record, mark.version, bookies)
        await give_up(self._metadata, mark, outcome, gone)
        self._progress.given_up(ledger_id)
