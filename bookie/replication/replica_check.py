"""The auditor's periodic check of replicas: whether the bookies that live hold what the metadata say.

States: *off*, out of office or while auto-recovery is disabled (`allow`); *waiting* until the check is due, by the time
that the store keeps; *checking*. A check lists all ledgers and looks at each in order (`look`): its complete fragments,
at the bookies that are registered. A ledger is marked for those that lack entries which they are due to hold, and the
worker does the rest. What is not registered is the audit's business.

A ledger at which it could not look is looked at again in the next pass: a registered bookie did not answer, its
metadata have changed meanwhile, the store failed. A check is complete when none is left, and only then the store is
told when it ended. One that is not complete after the last pass, or was interrupted, is begun again later, by whoever
is the auditor then. Ledgers with damaged metadata are said, and left out, as by an audit.

Invariants: R10, a lack is the word of a bookie, given twice; R11 and R12, nothing is asked or marked when off. Requests
to bookies are paced. Source: docs/protocol/auto-recovery.md#replica-check.

Not its job: lost bookies (`auditor`), repairs (`worker`), the bytes of entries.
"""

from __future__ import annotations

import asyncio
import logging
import time
from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pyroaring import BitMap64

from bookgate.bookie.replication.bookies import Bookies, all_of
from bookgate.bookie.replication.budget import ByteBudget
from bookgate.bookie.replication.ledger_pages import READ_AT_ONCE, read_page, see_all_ledgers
from bookgate.bookie.replication.look import look
from bookgate.bookie.replication.verdicts import Copies, Holding, Unknown, lacking
from bookgate.ledger.errors import (
    BKException,
    MetadataFormatException,
    NoSuchLedgerExistsOnMetadataServerException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import BookieSet, LedgerManagerFactory, LedgerRecord, Membership
from bookgate.ledger.replication import PeriodicCheck
from bookgate.runtime.background import keep_running
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)

_LOOKS_AT_ONCE = 32
_PASSES = 5


@dataclass(frozen=True, slots=True)
class ReplicaCheckOptions:
    """What may be set of the check."""

    interval_seconds: float = 604_800.0
    """From the end of a check to the next one; 0: never."""
    requests_per_second: float = 100.0
    """To all bookies together; 0 for no bound."""
    first_pause_seconds: float = 60.0
    """Before what was left is looked at again, and before a check that was not complete is begun again; then twice as
    long each time."""


@dataclass(slots=True)
class ReplicaCheckStatistics:
    """What checks have done since the start of the process."""

    in_progress: bool = False
    checks: int = 0
    """Complete ones."""
    checks_failed: int = 0
    ledgers_checked: int = 0
    ledgers_marked: int = 0
    ledgers_unreadable: int = 0
    """Left out, since their metadata are damaged."""
    ended_ms: int | None = None
    """When the last complete check ended, whoever made it, in milliseconds since 1970; None if unknown, or out of
    office."""


class ReplicaCheck:
    """One process's. `allow` it when the process is in office, `stop` it before the connections are closed."""

    def __init__(
        self,
        factory: LedgerManagerFactory,
        bookies: Bookies,
        options: ReplicaCheckOptions,
        membership: Membership | None = None,
    ) -> None:
        """`membership`, if given, names the cluster that the process belongs to."""
        self.statistics = ReplicaCheckStatistics()
        self._factory = factory
        self._metadata = factory.replication_metadata
        self._bookies = bookies
        self._options = options
        self._membership = membership
        self._task: asyncio.Task[None] | None = None

    def allow(self, allowed: bool) -> None:
        """Whether the process may act as the auditor from now on; what runs ends at once when it may not."""
        if not allowed:
            if self._task is not None:
                self._task.cancel()
            self._task = None
            self.statistics.ended_ms = None
        elif self._task is None and self._options.interval_seconds > 0:
            self._task = keep_running("check of replicas", self._run)

    async def stop(self) -> None:
        """Ends for good."""
        task = self._task
        self.allow(False)
        if task is not None:
            await asyncio.gather(task, return_exceptions=True)

    # When

    async def _run(self) -> None:
        pause = self._options.first_pause_seconds
        while True:
            try:
                seconds = await self._due_in_seconds()
                if seconds > 0:
                    await asyncio.sleep(seconds)
                    continue
                if await self._check():
                    pause = self._options.first_pause_seconds
                    continue
            except (BKException, TimeoutError) as error:
                log_event(_log, "replica_check", logging.WARNING, state="store_out_of_reach", error=error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, self._options.interval_seconds)

    async def _due_in_seconds(self) -> float:
        ended_ms = await self._metadata.check_time(PeriodicCheck.ALL_LEDGERS)
        self.statistics.ended_ms = ended_ms
        interval = self._options.interval_seconds
        return 0.0 if ended_ms is None else min(interval, interval - time.time() + ended_ms / 1000)

    async def _check(self) -> bool:
        """Whether it was complete. Raises BKException if it could not begin, or its end could not be told."""
        check = _Check(self._factory, self._bookies, self._options, self.statistics)
        log_event(_log, "replica_check", state="began")
        self.statistics.in_progress = True
        try:
            await see_all_ledgers(self._factory, self._membership)
            left = await check.look_at_all()
            if not left:
                await self._metadata.set_check_time(PeriodicCheck.ALL_LEDGERS, _now_ms())
        except asyncio.CancelledError:
            check.tell("stopped")
            raise
        except (BKException, TimeoutError):
            self.statistics.checks_failed += 1
            check.tell("failed")
            raise
        finally:
            self.statistics.in_progress = False
        if left:
            self.statistics.checks_failed += 1
            check.tell("incomplete", left)
            return False
        self.statistics.checks += 1
        check.tell("ended")
        return True


class _Check:
    """One check, from its listing to its end."""

    def __init__(
        self,
        factory: LedgerManagerFactory,
        bookies: Bookies,
        options: ReplicaCheckOptions,
        statistics: ReplicaCheckStatistics,
    ) -> None:
        self._factory = factory
        self._bookies = bookies
        self._statistics = statistics
        self._first_pause = options.first_pause_seconds
        self._began = _now()
        self._pace = ByteBudget(options.requests_per_second, self._began)
        self._looked = 0
        self._marked = BitMap64()
        self._lacking: set[str] = set()
        """Bookies that ledgers were marked for."""

    async def look_at_all(self) -> array[int]:
        """Returns the ledgers at which it could not look in any pass. Raises BKException unless they can be listed."""
        # All at once, and small: a listing would not stay open for as long as the looks take.
        left = array("q")
        async for run in self._factory.ledger_manager.ledger_ranges(0):
            left.extend(run)
        pause = self._first_pause
        for number in range(_PASSES):
            if number:
                await asyncio.sleep(pause)
                pause *= 2
            left = await self._pass(left)
            if not left:
                break
        return left

    async def _pass(self, numbers: array[int]) -> array[int]:
        left = array("q")
        for start in range(0, len(numbers), READ_AT_ONCE):
            page = numbers[start : start + READ_AT_ONCE]
            try:
                records = await read_page(self._factory.ledger_manager, page, self._not_checked)
                present = await self._present()
            except (BKException, TimeoutError) as error:
                log_event(_log, "replica_check", logging.WARNING, state="postponed", ledgers=len(page), error=error)
                left.extend(page)
                continue
            left.extend(await self._look_at_page(records, present))
        return left

    async def _present(self) -> set[str]:
        bookies = await self._factory.service_discovery.bookies(BookieSet.ALL)
        return {each.bookie_id for each in bookies if each.registered}

    def _not_checked(self, ledger_id: LedgerId, error: MetadataFormatException) -> None:
        self._statistics.ledgers_unreadable += 1
        log_event(_log, "ledger_not_checked", logging.ERROR, ledger=ledger_id, error=error)

    async def _look_at_page(self, records: Sequence[LedgerRecord], present: Collection[str]) -> list[int]:
        """Returns those that are to be looked at again."""
        room, left = asyncio.Semaphore(_LOOKS_AT_ONCE), list[int]()

        async def work(record: LedgerRecord) -> None:
            async with room:
                try:
                    done = await self._look_at(record, present)
                except (BKException, TimeoutError) as error:
                    done = False
                    log_event(_log, "replica_check", logging.WARNING, state="postponed", ledgers=1, error=error)
            if not done:
                left.append(record.ledger_id.ledger_id)
                return
            self._looked += 1
            self._statistics.ledgers_checked += 1

        await all_of(work(record) for record in records)
        return sorted(left)

    async def _look_at(self, record: LedgerRecord, present: Collection[str]) -> bool:
        """Whether it is known of each registered bookie what it holds; a lack is marked whether or not."""

        async def ask(bookie_id: str, due: BitMap64) -> Copies:
            if not due:
                return Holding(due)
            if bookie_id not in present:
                return Unknown("it is not registered")
            if seconds := self._pace.take(1, _now()):
                await asyncio.sleep(seconds)
            return await self._bookies.copies(bookie_id, record.ledger_id.ledger_id, due)

        copies = await look(record.metadata, ask)
        lacks = lacking(record.metadata, copies)
        if lacks and not await self._mark(record, lacks):
            return False
        return not any(isinstance(state, Unknown) and name in present for name, state in copies.items())

    async def _mark(self, record: LedgerRecord, lacks: Sequence[str]) -> bool:
        """False if the metadata have changed: then what the bookies lack may not be due there any more."""
        try:
            current = await self._factory.ledger_manager.read(record.ledger_id)
        except NoSuchLedgerExistsOnMetadataServerException:
            return True
        if current.version != record.version:
            return False
        number = record.ledger_id.ledger_id
        await self._factory.replication_metadata.mark(number, lacks, _now_ms())
        self._statistics.ledgers_marked += number not in self._marked
        self._marked.add(number)
        self._lacking.update(lacks)
        return True

    def tell(self, state: str, left: Sequence[int] = ()) -> None:
        """Logs how the check has ended."""
        level = logging.WARNING if left or self._marked or state == "failed" else logging.INFO
        log_event(
            _log,
            "replica_check",
            level,
            state=state,
            ledgers=self._looked,
            marked=len(self._marked),
            lacking=sorted(self._lacking),
            left=len(left),
            first_left=list(left[:5]),
            seconds=round(_now() - self._began, 3),
        )


def _now() -> float:
    return asyncio.get_running_loop().time()


def _now_ms() -> int:
    return int(time.time() * 1000)
