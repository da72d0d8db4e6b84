"""The common part of the auditor's periodic checks of all ledgers: the schedule, and the guarantee that none is missed.

States: *waiting* until the check is due, by the time kept in the store, or requested there; *checking*. A check
lists all ledgers and examines each in order. A ledger that could not be examined is examined again in the next pass. A
check is complete when none is left, and only then the store records its end. One that is not complete after the last
pass, or was interrupted, is repeated later, by the auditor of that time. Ledgers with damaged metadata are reported and
left out, as by an audit.

Invariants: R11 and R12, nothing is read or marked when off. Source: docs/protocol/auto-recovery.md#replica-check. Not
its job: what is checked (`replica_check`, `placement_check`).
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bookgate.bookie.replication.checks.office_task import OfficeTask, due_in_seconds, first_few, loop_time
from bookgate.bookie.replication.copies.bookies import Bookies, all_of
from bookgate.bookie.replication.ledger_pages import READ_AT_ONCE, all_numbers, read_page, see_all_ledgers
from bookgate.ledger.errors import (
    BKException,
    MetadataFormatException,
    NoSuchLedgerExistsOnMetadataServerException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.ledger_numbers import LedgerNumbers
from bookgate.ledger.metadata_store import LedgerManagerFactory, LedgerRecord, Membership, RegisteredBookie
from bookgate.ledger.number_array import NumberArray
from bookgate.ledger.replication import PeriodicCheck
from bookgate.ledger.replication_checks import ORDERED_MS
from bookgate.runtime.clock import now_ms
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)

_LOOKS_AT_ONCE = 32
_PASSES = 5
_LONGEST_PAUSE_SECONDS = 3600.0
"""Longest seconds before an incomplete check is repeated, if checks are made on request only."""


@dataclass(slots=True)
class CheckStatistics:
    """Counts of one kind of check since the start of the process."""

    in_progress: bool = False
    checks: int = 0
    """Number of complete checks."""
    checks_failed: int = 0
    ledgers_checked: int = 0
    ledgers_marked: int = 0
    ledgers_unreadable: int = 0
    """Ledgers left out because their metadata are damaged, or claim too many entries."""
    ended_ms: int | None = None
    """When the last complete check ended, whoever made it, in milliseconds since 1970.

    None if unknown, out of office, or if checks are made on request only."""
    since_ms: int | None = None
    """The same; before a first check has ended, when this auditor began with it."""


@dataclass(slots=True)
class _Round:
    """One check, from its listing to its end."""

    began: float = field(default_factory=loop_time)
    looked: int = 0
    marked: LedgerNumbers = field(default_factory=LedgerNumbers)
    named: set[str] = field(default_factory=set)
    """Bookies for which ledgers were marked."""


class LedgerCheck(OfficeTask):
    """See the module. A subclass defines where the store keeps its time, and how it examines a ledger."""

    kind: PeriodicCheck

    def __init__(
        self,
        factory: LedgerManagerFactory,
        bookies: Bookies,
        membership: Membership | None,
        interval_seconds: float,
        first_pause_seconds: float,
    ) -> None:
        """`interval_seconds` is from the end of a check to the next one; 0: checks are made on request only."""
        super().__init__(factory, bookies, membership, first_pause_seconds, interval_seconds or _LONGEST_PAUSE_SECONDS)
        self.statistics = CheckStatistics()
        self._interval = interval_seconds
        self._ended_ms: int | None = None
        """The end of the last complete check, as the last turn has read it."""
        self._round = _Round(began=0.0)

    # Examining a ledger, by subclass

    @abstractmethod
    async def _look_at(self, record: LedgerRecord, present: Mapping[str, RegisteredBookie]) -> bool:
        """Examines a ledger and marks it if necessary; returns whether the examination was complete."""

    # Schedule

    def _out_of_office(self) -> None:
        self.statistics.ended_ms = self.statistics.since_ms = None

    async def _turn(self) -> float | None:
        ended_ms = self._ended_ms = await self._metadata.check_time(self.kind)
        self._tell_end(ended_ms)
        if ended_ms != ORDERED_MS:
            if not self._interval:
                return _LONGEST_PAUSE_SECONDS
            seconds = await due_in_seconds(ended_ms, self._interval, self._write_end)
            if seconds > 0:
                return seconds
        return 0.0 if await self._check() else None

    async def _is_ordered(self) -> bool:
        return self._ended_ms != ORDERED_MS and await self._metadata.check_time(self.kind) == ORDERED_MS

    async def _write_end(self, ended_ms: int) -> None:
        await self._metadata.set_check_time(self.kind, ended_ms)
        self._tell_end(ended_ms)

    def _tell_end(self, ended_ms: int | None) -> None:
        """Publishes the end of the last check, unless checks are made on request only."""
        done = self.statistics
        if not self._interval:
            done.ended_ms = done.since_ms = None
            return
        done.ended_ms = ended_ms if ended_ms != ORDERED_MS else None
        # The store keeps ends only. A check that never ends is overdue all the same.
        done.since_ms = done.ended_ms or done.since_ms or now_ms()

    async def _check(self) -> bool:
        """Runs one check; returns whether it was complete.

        Raises BKException if it could not begin, or its end could not be recorded.
        """
        self._round = _Round()
        log_event(_log, "ledger_check", check=self.name, state="began")
        self.statistics.in_progress = True
        try:
            await see_all_ledgers(self._factory, self._membership)
            left = await self._look_at_all()
            if not left:
                await self._write_end(now_ms())
        except asyncio.CancelledError:
            self._tell("stopped")
            raise
        except (BKException, TimeoutError):
            self.statistics.checks_failed += 1
            self._tell("failed")
            raise
        finally:
            self.statistics.in_progress = False
        if left:
            self.statistics.checks_failed += 1
            self._tell("incomplete", left)
            return False
        self.statistics.checks += 1
        self._tell("ended")
        return True

    # All ledgers

    async def _look_at_all(self) -> Sequence[int]:
        """Examines all ledgers; returns those that no pass could examine. Raises BKException if the listing fails."""
        # All at once, in little memory: a listing would not stay open as long as the examinations take.
        left: Sequence[int] = await all_numbers(self._factory.ledger_manager)
        pause = self._first_pause
        for number in range(_PASSES):
            if number:
                await asyncio.sleep(pause)
                pause *= 2
            left = await self._pass(left)
            if not left:
                break
        return left

    async def _pass(self, numbers: Sequence[int]) -> Sequence[int]:
        left = NumberArray()
        for start in range(0, len(numbers), READ_AT_ONCE):
            page = numbers[start : start + READ_AT_ONCE]
            try:
                records = await read_page(self._factory.ledger_manager, page, self._not_checked)
                present = await self._present()
            except (BKException, TimeoutError) as error:
                self._postponed(len(page), error)
                left.extend(page)
                continue
            left.extend(await self._look_at_page(records, present))
        return left

    def _postponed(self, ledgers: int, error: Exception) -> None:
        log_event(
            _log, "ledger_check", logging.WARNING, check=self.name, state="postponed", ledgers=ledgers, error=error
        )

    def _not_checked(self, ledger_id: LedgerId, error: MetadataFormatException | str) -> None:
        self.statistics.ledgers_unreadable += 1
        log_event(_log, "ledger_not_checked", logging.ERROR, check=self.name, ledger=ledger_id, error=error)

    async def _look_at_page(
        self, records: Sequence[LedgerRecord], present: Mapping[str, RegisteredBookie]
    ) -> list[int]:
        """Examines some ledgers; returns those that must be examined again."""
        room, left = asyncio.Semaphore(_LOOKS_AT_ONCE), list[int]()

        async def work(record: LedgerRecord) -> None:
            async with room:
                try:
                    done = await self._look_at(record, present)
                except (BKException, TimeoutError) as error:
                    done = False
                    self._postponed(1, error)
            if not done:
                left.append(record.ledger_id.number)
                return
            self._round.looked += 1
            self.statistics.ledgers_checked += 1

        await all_of(work(record) for record in records)
        return sorted(left)

    async def _mark(self, record: LedgerRecord, bookie_ids: Sequence[str]) -> bool:
        """Marks a ledger; returns False if the metadata have changed, because the findings may then be out of date."""
        try:
            current = await self._factory.ledger_manager.read(record.ledger_id)
        except NoSuchLedgerExistsOnMetadataServerException:
            return True
        if current.version != record.version:
            return False
        number = record.ledger_id.number
        await self._metadata.mark(number, bookie_ids, now_ms())
        self.statistics.ledgers_marked += number not in self._round.marked
        self._round.marked.update((number,))
        self._round.named.update(bookie_ids)
        return True

    def _tell(self, state: str, left: Sequence[int] = ()) -> None:
        """Logs the outcome of the check."""
        done = self._round
        level = logging.WARNING if left or done.marked or state == "failed" else logging.INFO
        log_event(
            _log,
            "ledger_check",
            level,
            check=self.name,
            state=state,
            ledgers=done.looked,
            marked=len(done.marked),
            lacking=sorted(done.named),
            left=len(left),
            first_left=first_few(left),
            seconds=round(loop_time() - done.began, 3),
        )
