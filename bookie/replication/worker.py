"""The replication worker: takes marked ledgers, one after the other by urgency, and has each repaired under its lock.

It lists the marks when they have changed, or when a ledger's pause is over, and works on a few ledgers at once. For
each: take the lock, or leave the ledger to whoever has it; read the mark, whose version says later whether somebody has
marked it again (R8); read the metadata; repair (`repair`); remove the mark if a complete look found the ledger whole or
there is no such ledger (R5); give the lock back. A ledger that lost entries or its end for good is written to the list
of unrecoverable ones, and its mark stays. Every failure has the same pause, twice as long each time.

A bookie counts as lost when it is not registered and the auditor has missed it for the delay; or, where no auditor
notes that, as BookKeeper's don't, when the mark names it and this process has missed it for the delay itself. A ledger
that is still written is fenced and recovered only if a bookie of its last ensemble is lost, stays lost for the grace,
as this process has seen itself, and its metadata do not move meanwhile (R6): a writer that lives replaces the bookie.

While auto-recovery is disabled nothing new is begun and nothing fenced (R11). Errors of the store end nothing: they are
a pause. Source: docs/protocol/auto-recovery.md#worker.

Not its job: marking (`auditor`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from bookgate.bookie.replication.attendance import Attendance
from bookgate.bookie.replication.repair import LedgerRepair, Outcome, RepairStoppedException, RepairTools
from bookgate.bookie.replication.repair_queue import Candidate, RepairQueue
from bookgate.bookie.replication.verdicts import Findings, copies_left
from bookgate.ledger.errors import BKException, NoSuchLedgerExistsOnMetadataServerException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import (
    BookieSet,
    LedgerManagerFactory,
    LedgerRecord,
    RegisteredBookie,
)
from bookgate.ledger.replication_store import (
    ANY_VERSION,
    LedgerLock,
    LockLost,
    Mark,
    MarksChanged,
    RecordKind,
    ReplicationEvent,
    SwitchChanged,
)
from bookgate.ledger.replication_survey import missed_bookies
from bookgate.runtime.background import keep_running
from bookgate.runtime.logs import log_bug, log_event

_log = logging.getLogger(__name__)

_READ_AT_ONCE = 200
_LOOK_AGAIN_SECONDS, _LEAST_REST_SECONDS = 30.0, 0.5
_STORE_PAUSE_SECONDS = 2.0
_JITTER_SECONDS = 0.5
_HELD_ELSEWHERE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """What may be set of a worker."""

    tasks: int = 4
    """Ledgers repaired at once."""
    open_ledger_grace_seconds: float = 30.0
    """How long a bookie of the last ensemble has to be lost before a ledger that is still written is recovered."""
    deleted_seconds: float = 600.0
    """Between looks whether ledgers that were given up are deleted since."""
    password: bytes = b""
    """Of ledgers whose metadata hold none (the oldest formats)."""


@dataclass(slots=True)
class WorkerStatistics:
    """What a worker has done since its start."""

    ledgers_repaired: int = 0
    ledgers_failed: int = 0
    ledgers_recovered: int = 0
    """Ledgers that were still written, and were fenced and closed."""
    ledgers_unrecoverable: int = 0
    marks_seen: int = 0
    """In the last listing."""
    in_progress: int = 0


class _Permission:
    """Of one ledger under repair: gone once its lock is, or the worker is to stop."""

    def __init__(self, allowed: Callable[[], str]) -> None:
        """`allowed` returns why it is not allowed to go on, or an empty text."""
        self._allowed = allowed
        self.lock_lost = False

    def check(self) -> None:
        reason = "the lock is lost" if self.lock_lost else self._allowed()
        if reason:
            raise RepairStoppedException(reason)


class ReplicationWorker:
    """One process's worker. `start`, and `stop` before the metadata and the client are closed."""

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
        self._enabled = False
        self._stopping = False
        self._changed = False
        """Whether the marks have to be listed again."""
        self._wake = asyncio.Event()
        self._permissions: dict[LedgerLock, _Permission] = {}
        self._targets: dict[int, dict[tuple[int, int], str]] = {}
        """Bookies chosen for places, by ledger: kept while its repair is not done."""
        self._deleted_due = 0.0
        """When to look for deleted ledgers among those given up."""
        self._graces: dict[int, tuple[int, float]] = {}
        """Ledgers that may have to be fenced: their metadata's version, and since when it is so."""
        self._working: dict[int, asyncio.Task[None]] = {}
        self._main: asyncio.Task[None] | None = None
        self._unwatch: list[Callable[[], None]] = []

    async def start(self) -> None:
        """Begins to work; the store need not be reachable yet."""
        self._unwatch.append(self._metadata.watch(self._on_event))
        self._main = keep_running("replication worker", self._run)

    async def stop(self) -> None:
        """Ends after the entries under way; locks are given back."""
        self._stopping = True
        for unwatch in self._unwatch:
            unwatch()
        tasks = [*self._working.values(), *([self._main] if self._main else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # What it hears

    def _on_event(self, event: ReplicationEvent) -> None:
        match event:
            case MarksChanged():
                self._list_again()
            case SwitchChanged(enabled):
                self._enabled = enabled
                log_event(_log, "auto_recovery_switch", enabled=enabled)
                self._list_again()
            case LockLost(lock):
                permission = self._permissions.get(lock)
                if permission is not None:
                    log_event(_log, "replication_lock_lost", logging.WARNING, ledger=lock.ledger_id)
                    permission.lock_lost = True

    def _on_bookies(self, bookies: list[RegisteredBookie] | tuple[RegisteredBookie, ...]) -> None:
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
                self._unwatch.append(
                    await discovery.watch_bookies(BookieSet.ALL, lambda found: self._on_bookies(list(found)))
                )
                self._on_bookies(list(await discovery.bookies(BookieSet.ALL)))
            except BKException as error:
                self._store_failed(error)
                await asyncio.sleep(_STORE_PAUSE_SECONDS)
        while True:
            self._changed = False
            if self._enabled:
                try:
                    await self._take_marked()
                except BKException as error:
                    self._store_failed(error)
                    await asyncio.sleep(_STORE_PAUSE_SECONDS)
                    continue
            await self._rest()

    async def _rest(self) -> None:
        """Until there may be something to do: marks have changed, or a ledger's pause is over."""
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
        # Several workers hear of the same mark in one moment.
        await asyncio.sleep(self._rng.random() * _JITTER_SECONDS)

    async def _take_marked(self) -> None:
        """Works through all marks that are due, the most urgent first."""
        marked: set[int] = set()
        due: list[Mark] = []
        given_up: list[Mark] = []
        async for page in self._metadata.marks():
            for mark in page:
                ledger_id = mark.value.ledger_id
                marked.add(ledger_id)
                if ledger_id in self._working:
                    continue
                if self._queue.is_due(ledger_id, mark.version, self._now()):
                    due.append(mark)
                elif self._queue.is_given_up(ledger_id):
                    given_up.append(mark)
        due += await self._deleted(given_up)
        self.statistics.marks_seen = len(marked)
        self._queue.keep_only(marked)
        for kept in (self._targets, self._graces):
            for ledger_id in [each for each in kept if each not in marked]:
                del kept[ledger_id]
        for candidate in self._queue.order(await self._candidates(due), self._now()):
            while len(self._working) >= self._options.tasks:
                await asyncio.wait(self._working.values(), return_when=asyncio.FIRST_COMPLETED)
            if not self._enabled or self._stopping:
                return
            self._begin(candidate)

    async def _candidates(self, marks: list[Mark]) -> list[Candidate]:
        found: list[Candidate] = []
        async for mark, record in self._with_metadata(marks):
            left = 0
            if isinstance(record, LedgerRecord):
                gone = {*mark.value.replicas} - self._attendance.present.keys()
                left = copies_left(record.metadata, gone)
            found.append(Candidate(mark.value.ledger_id, mark.version, left))
        return found

    async def _deleted(self, given_up: list[Mark]) -> list[Mark]:
        """Now and then, those whose ledger is there no more: nothing else would ever take their marks away."""
        if not given_up or self._now() < self._deleted_due:
            return []
        self._deleted_due = self._now() + self._options.deleted_seconds
        looked_at = self._with_metadata(given_up)
        return [
            mark async for mark, record in looked_at if isinstance(record, NoSuchLedgerExistsOnMetadataServerException)
        ]

    async def _with_metadata(self, marks: list[Mark]) -> AsyncIterator[tuple[Mark, LedgerRecord | BKException]]:
        for start in range(0, len(marks), _READ_AT_ONCE):
            some = marks[start : start + _READ_AT_ONCE]
            ids = [LedgerId.unscoped(mark.value.ledger_id) for mark in some]
            records = await self._factory.ledger_manager.read_many(ids)
            for mark, record in zip(some, records, strict=True):
                yield mark, record

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
            self._failed(ledger_id, mark_version, str(error))
        except Exception as error:  # one ledger that nobody foresaw must not keep the others from their repair
            log_bug(_log, "ledger_repair_failed", error, ledger=ledger_id)
            self._failed(ledger_id, mark_version, str(error))

    def _failed(self, ledger_id: int, mark_version: int, reason: str) -> None:
        self.statistics.ledgers_failed += 1
        pause = self._queue.failed(ledger_id, mark_version, self._now())
        log_event(
            _log, "ledger_repair", logging.WARNING, state="postponed", ledger=ledger_id, seconds=pause, reason=reason
        )

    async def _lock_and_repair(self, ledger_id: int, mark_version: int) -> None:
        lock = await self._metadata.try_lock(ledger_id, self._holder)
        if lock is None:
            self._queue.postponed(ledger_id, mark_version, self._now() + _HELD_ELSEWHERE_SECONDS)
            return
        permission = self._permissions[lock] = _Permission(self._why_not)
        try:
            await self._repair(lock, permission)
        finally:
            del self._permissions[lock]
            await self._release(lock)

    def _why_not(self) -> str:
        if self._stopping:
            return "the worker stops"
        return "" if self._enabled else "auto-recovery is disabled"

    async def _release(self, lock: LedgerLock) -> None:
        try:
            await self._metadata.release(lock)
        except BKException as error:
            # The store's side gives it back as soon as it can.
            log_event(_log, "replication_lock_kept", logging.WARNING, ledger=lock.ledger_id, error=error)

    async def _repair(self, lock: LedgerLock, permission: _Permission) -> None:
        ledger_id = lock.ledger_id
        mark = await self._metadata.read_mark(ledger_id)
        if mark is None:
            self._queue.done(ledger_id)
            return
        try:
            record = await self._factory.ledger_manager.read(LedgerId.unscoped(ledger_id))
            outcome = await self._repair_record(lock, mark, record, permission)
        except NoSuchLedgerExistsOnMetadataServerException:
            await self._finish(mark, "deleted")
            return
        if outcome.findings.whole:
            self.statistics.ledgers_repaired += 1
            await self._finish(mark, "whole")
        elif self._is_unrecoverable(outcome):
            await self._give_up(mark, outcome)
        elif outcome.findings.lost_where_written and not outcome.findings.repairs and not outcome.findings.unknown:
            self._queue.postponed(ledger_id, mark.version, self._now() + self._grace_left(outcome.record))
        else:
            self._failed(ledger_id, mark.version, outcome.reason)

    def _is_unrecoverable(self, outcome: Outcome) -> bool:
        findings = outcome.findings
        if findings.unknown:
            return False
        return bool(findings.unrecoverable) or (findings.end_is_lost and self._is_to_be_fenced(outcome))

    async def _repair_record(
        self, lock: LedgerLock, mark: Mark, record: LedgerRecord, permission: _Permission
    ) -> Outcome:
        absent, draining = await self._absent(mark, record), await self._draining()
        targets = self._targets.setdefault(lock.ledger_id, {})
        outcome = await LedgerRepair(self._tools, lock, record, permission, targets).run(absent, draining)
        if outcome.findings.end_is_lost or not self._is_to_be_fenced(outcome):
            return outcome
        permission.check()
        if not await self._metadata.is_held(lock):
            raise RepairStoppedException("the lock is lost")
        record = await self._recover(outcome.record, outcome.findings)
        return await LedgerRepair(self._tools, lock, record, permission, targets).run(absent, draining)

    async def _absent(self, mark: Mark, record: LedgerRecord) -> Mapping[str, bool]:
        """Bookies of the ledger that are not registered; True for those that are lost."""
        absent = {
            each for each in record.metadata.bookies if self._attendance.away_seconds(each, self._now()) is not None
        }
        if not absent:
            return {}
        missed_since = await missed_bookies(self._metadata)
        delay_ms = 1000 * (await self._metadata.lost_bookie_delay() or 0)
        now_ms = int(time.time() * 1000)

        def is_lost(bookie_id: str) -> bool:
            if bookie_id in missed_since and now_ms - missed_since[bookie_id] >= delay_ms:
                return True
            away = self._attendance.away_seconds(bookie_id, self._now()) or 0.0
            return bookie_id in mark.value.replicas and 1000 * away >= delay_ms

        return {bookie_id: is_lost(bookie_id) for bookie_id in sorted(absent)}

    async def _draining(self) -> set[str]:
        return set(await self._metadata.records(RecordKind.DRAINING_BOOKIE))

    # Ledgers that are still written

    def _grace_left(self, record: LedgerRecord) -> float:
        """Seconds until a ledger with a lost bookie where it is written may be fenced; at least a moment."""
        grace, now = self._options.open_ledger_grace_seconds, self._now()
        version, since = self._graces.get(record.ledger_id.ledger_id, (record.version, now))
        if version != record.version:
            since = now
        self._graces[record.ledger_id.ledger_id] = record.version, since
        return max(0.1, since + grace - now)

    def _is_to_be_fenced(self, outcome: Outcome) -> bool:
        """Whether a bookie where the ledger is written is lost, and neither returned nor was replaced within the
        grace."""
        lost = outcome.findings.lost_where_written
        if not lost or outcome.findings.repairs:
            return False
        grace, now = self._options.open_ledger_grace_seconds, self._now()
        version, since = self._graces.get(outcome.record.ledger_id.ledger_id, (-1, now))
        if version != outcome.record.version or now - since < grace:
            return False
        away = [self._attendance.away_seconds(bookie_id, now) for bookie_id in lost]
        return any(seconds is not None and seconds >= grace for seconds in away)

    async def _recover(self, record: LedgerRecord, findings: Findings) -> LedgerRecord:
        log_event(
            _log,
            "ledger_taken_from_writer",
            logging.WARNING,
            ledger=record.ledger_id,
            state=record.metadata.state.name,
            lost=findings.lost_where_written,
        )
        password = self._options.password if record.metadata.password is None else record.metadata.password
        handle = await self._tools.client.open_ledger(record.ledger_id, password, recovery=True)
        async with handle:
            self.statistics.ledgers_recovered += 1
            self._graces.pop(record.ledger_id.ledger_id, None)
            return handle.record

    # Ends

    async def _finish(self, mark: Mark, state: str) -> None:
        """The mark goes, unless somebody has made it again since (R8)."""
        ledger_id = mark.value.ledger_id
        removed = await self._metadata.delete_mark(ledger_id, mark.version)
        await self._metadata.remove_record(RecordKind.UNRECOVERABLE_LEDGER, str(ledger_id))
        self._targets.pop(ledger_id, None)
        if removed:
            self._queue.done(ledger_id)
        log_event(_log, "ledger_repair", state=state, ledger=ledger_id, marked_again=not removed)

    async def _give_up(self, mark: Mark, outcome: Outcome) -> None:
        ledger_id = mark.value.ledger_id
        lost = outcome.findings.unrecoverable
        gone = sorted(outcome.record.metadata.bookies - self._attendance.present.keys())
        self.statistics.ledgers_unrecoverable += 1
        reason = {
            "entries": len(lost),
            "first_entries": list(lost[:20]),
            "end_is_lost": outcome.findings.end_is_lost,
            "lost_bookies": gone,
        }
        content = json.dumps({**reason, "time_ms": int(time.time() * 1000)}, sort_keys=True).encode()
        await self._metadata.write_record(RecordKind.UNRECOVERABLE_LEDGER, str(ledger_id), content, ANY_VERSION)
        self._queue.unrecoverable(ledger_id, mark.version, gone)
        log_event(_log, "ledger_repair", logging.ERROR, state="unrecoverable", ledger=ledger_id, **reason)
