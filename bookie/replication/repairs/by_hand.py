"""Recovery by hand: the requesting process copies the entries of bookies again, ledger by ledger.

It needs no auditor and no worker, and works while auto-recovery is disabled, because an operator has requested it. Each
ledger is repaired as by a worker (`repair`), under its lock (AR11), so workers and collectors leave it alone. A named
bookie that is not registered counts as lost at once; a registered one is emptied, with its own copies as sources. A
ledger ends as *moved*, when no ensemble names these bookies any more; *deleted*; *skipped*; *still written*, on an
available bookie that its writer has to replace; *unrecoverable*, because entries have no copy left; or *failed*, after
some attempts. Until then it is tried again, pass by pass.

An open ledger with lost bookies in its last ensemble is fenced and recovered only if its metadata do not change, and no
such bookie returns, for the grace period, as observed by this process (R6).

Source: docs/protocol/auto-recovery.md#recovery-by-hand.

Not its job: the repair of one ledger (`repair`), the command and its output.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import socket
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from pyroaring import BitMap64

from bookgate.bookie.replication.attendance import Attendance
from bookgate.bookie.replication.copies.bookies import all_of
from bookgate.bookie.replication.copies.corrupt_copies import decode_corrupt
from bookgate.bookie.replication.copies.fragments import complete_fragments, due_at
from bookgate.bookie.replication.copies.verdicts import copies_left
from bookgate.bookie.replication.ledger_pages import all_pages
from bookgate.bookie.replication.repairs.circumstances import KnownCircumstances
from bookgate.bookie.replication.repairs.grace import Graces
from bookgate.bookie.replication.repairs.marks import unmark
from bookgate.bookie.replication.repairs.permission import Permission, Permissions
from bookgate.bookie.replication.repairs.repair import LedgerRepair, Outcome, RepairTools
from bookgate.bookie.replication.repairs.taking_over import take_over
from bookgate.bookie.replication.repairs.tasks import Place, Targets
from bookgate.ledger.errors import (
    BKException,
    MetadataFormatException,
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
from bookgate.ledger.replication_store import LedgerLock, LockLost, RecordKind, ReplicationEvent
from bookgate.runtime.clock import now_ms
from bookgate.runtime.logs import log_event
from bookgate.thinclient.placement.chooser import fit_for

_log = logging.getLogger(__name__)

_LEDGERS_AT_ONCE = 4
_PAUSE_SECONDS = 2.0
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Order:
    """The request of an operator."""

    bookies: frozenset[str]
    """Bookies that no ensemble shall name any more; if empty, missing copies are restored in place."""
    ledgers: tuple[int, ...] = ()
    """Only these ledgers; if empty, all that name the bookies."""
    target: str | None = None
    """The preferred replacement, unless it is already in the ensemble, does not support such ledgers, or refuses."""
    skip_open: bool = False
    """Whether ledgers that are not closed are left alone."""
    grace_seconds: float = 30.0
    """Seconds that a bookie of the last ensemble must be away before an open ledger is taken from its writer."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A ledger to be repaired, according to its metadata."""

    ledger_id: int
    is_open: bool
    fragments: int
    """Number of complete fragments that name the bookies."""
    entries: int
    """Number of copies that the bookies should hold of these."""
    bytes: int
    """Bytes of these copies in closed ledgers, by the mean size of an entry."""
    copies_left: int
    """Copies left of the most endangered entry without these bookies."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The ledgers, the most endangered first."""

    ledgers: tuple[Planned, ...]
    unreadable: tuple[int, ...]
    """Ledgers with damaged metadata, which may name the bookies."""


class End(enum.Enum):
    """The outcome for a ledger."""

    MOVED = "moved"
    DELETED = "deleted"
    SKIPPED = "skipped"
    STILL_WRITTEN = "still written"
    UNRECOVERABLE = "unrecoverable"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Ended:
    """The outcome for a ledger, and the reason if it is not a success."""

    end: End
    reason: str = ""


@dataclass(slots=True)
class _Tried:
    """A ledger without an outcome yet."""

    failures: int = 0
    targets: Targets = field(default_factory=Targets)


async def make_plan(factory: LedgerManagerFactory, order: Order) -> Plan:
    """Finds the ledgers, in the metadata alone.

    Raises:
        NoSuchLedgerExistsOnMetadataServerException: A named ledger does not exist.
        UnauthorizedAccessException: The policy leaves ledgers out of this client's listings.
        BKException: The listing can't be completed.
    """
    await factory.catch_up(None)
    unreadable: list[int] = []
    bookies = await factory.service_discovery.bookies(BookieSet.ALL)
    present = frozenset(each.bookie_id for each in bookies if each.registered)
    planned = []
    async for page in _pages(factory, order, unreadable):
        for record in page:
            sources = order.bookies or frozenset(record.metadata.bookies - present)
            if not order.bookies or record.metadata.bookies & sources:
                planned.append(_planned(record, sources))
    planned.sort(key=lambda each: (each.copies_left, -each.ledger_id))
    return Plan(tuple(planned), tuple(unreadable))


async def _pages(
    factory: LedgerManagerFactory, order: Order, unreadable: list[int]
) -> AsyncIterator[list[LedgerRecord]]:
    manager = factory.ledger_manager

    def damaged(ledger_id: LedgerId, error: MetadataFormatException) -> None:
        unreadable.append(ledger_id.number)
        log_event(_log, "ledger_not_recovered", logging.ERROR, ledger=ledger_id, error=error)

    if order.ledgers:
        yield [await manager.read(LedgerId.of_number(number)) for number in order.ledgers]
        return
    # No ledger names a bookie any more only if none that a policy hides does.
    manager.demand_complete_listings()
    async for page in all_pages(manager, damaged):
        yield page


def _planned(record: LedgerRecord, sources: frozenset[str]) -> Planned:
    metadata = record.metadata
    fragments = [each for each in complete_fragments(metadata) if not sources.isdisjoint(each.ensemble)]
    entries, size = due_at(metadata, sources)
    left = copies_left(metadata, sources)
    number = record.ledger_id.number
    return Planned(number, not metadata.is_closed, len(fragments), entries, size, left)


class Recovery:
    """The execution of one order. Call `run` once; if cancelled, it releases its locks."""

    def __init__(
        self,
        factory: LedgerManagerFactory,
        tools: RepairTools,
        order: Order,
        tell: Callable[[int], None] = lambda _left: None,
    ) -> None:
        """`tell` is called with the number of remaining ledgers each time that one has ended."""
        self._factory = factory
        self._metadata = factory.replication_metadata
        self._tools = tools
        self._order = order
        self._tell = tell
        self._holder = socket.gethostname()
        self._attendance = Attendance()
        self._bookies: Sequence[RegisteredBookie] = ()
        self._circumstances = KnownCircumstances(self._metadata)
        self._permissions = Permissions()
        self._graces = Graces(order.grace_seconds, self._attendance)
        self._ended: dict[int, Ended] = {}
        self._tried: dict[int, _Tried] = {}

    async def run(self, ledgers: Iterable[int]) -> Mapping[int, Ended]:
        """Repairs the ledgers in this order; returns the outcome of each.

        Raises:
            BKException: The registered bookies can't be determined.
        """
        left = list(ledgers)
        unwatch = self._metadata.watch(self._on_event)
        try:
            while left:
                self._bookies = await self._factory.service_discovery.bookies(BookieSet.ALL)
                self._attendance.hear(self._bookies, self._now())
                await self._pass(left)
                left = [each for each in left if each not in self._ended]
                if left:
                    await asyncio.sleep(_PAUSE_SECONDS)
        finally:
            unwatch()
        return self._ended

    def _on_event(self, event: ReplicationEvent) -> None:
        if isinstance(event, LockLost):
            self._permissions.lost(event)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    async def _pass(self, ledgers: Collection[int]) -> None:
        remaining, left = iter(ledgers), len(ledgers)

        async def work() -> None:
            nonlocal left
            for ledger_id in remaining:
                ended = await self._try(ledger_id)
                if ended is not None:
                    self._ended[ledger_id] = ended
                    self._tried.pop(ledger_id, None)
                    left -= 1
                    self._tell(left)

        await all_of(work() for _ in range(_LEDGERS_AT_ONCE))

    async def _try(self, ledger_id: int) -> Ended | None:
        """Tries to repair a ledger; None if the next pass must try again."""
        tried = self._tried.setdefault(ledger_id, _Tried())
        try:
            lock = await self._metadata.try_lock(ledger_id, self._holder)
            return None if lock is None else await self._with_lock(lock, tried)
        except NoSuchLedgerExistsOnMetadataServerException:
            return Ended(End.DELETED)
        except (BKException, TimeoutError) as error:
            return self._failed(tried, str(error))

    def _failed(self, tried: _Tried, reason: str) -> Ended | None:
        tried.failures += 1
        return Ended(End.FAILED, reason) if tried.failures >= _ATTEMPTS else None

    async def _with_lock(self, lock: LedgerLock, tried: _Tried) -> Ended | None:
        try:
            with self._permissions.under(lock) as permission, self._tools.share.locked():
                return await self._recover(lock, permission, tried)
        finally:
            with suppress(BKException):  # the store's driver releases it as soon as it can
                await self._metadata.release(lock)

    async def _recover(self, lock: LedgerLock, permission: Permission, tried: _Tried) -> Ended | None:
        mark = await self._metadata.read_mark(lock.ledger_id)
        record = await self._factory.ledger_manager.read(LedgerId.of_number(lock.ledger_id))
        if self._order.bookies and not record.metadata.bookies & self._order.bookies:
            return Ended(End.MOVED)
        corrupt = await self._metadata.read_record(RecordKind.CORRUPT_LEDGER, str(lock.ledger_id))
        if self._order.skip_open and not record.metadata.is_closed:
            return Ended(End.SKIPPED)
        outcome = await self._repair(lock, permission, record, tried, corrupt)
        if self._graces.is_over(outcome, self._now()):
            if outcome.findings.end_is_lost:
                return Ended(End.UNRECOVERABLE, "nobody can tell where it ends: too many of its bookies are lost")
            lost = outcome.findings.lost_where_written
            if outcome.record.metadata.is_unbounded:
                return Ended(End.STILL_WRITTEN, f"it is unbounded: who takes it over replaces {', '.join(lost)}")
            permission.check()
            record = await take_over(self._tools, lock, outcome.record, lost, b"")
            outcome = await self._repair(lock, permission, record, tried, corrupt)
        if outcome.findings.whole and mark is not None and mark.value.replicas:
            # A mark without bookies is for the placement check.
            await unmark(self._metadata, mark, corrupt)
        return self._judged(outcome, tried)

    async def _repair(
        self,
        lock: LedgerLock,
        permission: Permission,
        record: LedgerRecord,
        tried: _Tried,
        corrupt: Versioned[bytes] | None,
    ) -> Outcome:
        circumstances = await self._circumstances.now()
        present = self._attendance.present
        absent = {}
        for bookie_id in record.metadata.bookies - present.keys():
            noted = circumstances.is_lost(bookie_id, now_ms())
            absent[bookie_id] = noted or not self._order.bookies or bookie_id in self._order.bookies
        emptied = {*circumstances.draining, *(self._order.bookies & present.keys())}
        self._prefer(record, tried.targets.by_place)
        suspects = {} if corrupt is None else decode_corrupt(corrupt.value)
        repair = LedgerRepair(self._tools, lock, record, permission, tried.targets, suspects)
        return await repair.run(absent, emptied)

    def _prefer(self, record: LedgerRecord, targets: dict[Place, str]) -> None:
        fit = {each.bookie_id for each in fit_for(self._bookies, record.needs)}
        if self._order.target is None or self._order.target not in fit:
            return
        for fragment in complete_fragments(record.metadata):
            for index, bookie_id in enumerate(fragment.ensemble):
                if bookie_id in self._order.bookies:
                    targets.setdefault((fragment.first_entry_id, index), self._order.target)

    def _judged(self, outcome: Outcome, tried: _Tried) -> Ended | None:
        metadata, findings = outcome.record.metadata, outcome.findings
        left = metadata.bookies & self._order.bookies
        if findings.whole and not left:
            return Ended(End.MOVED)
        if findings.unrecoverable and not findings.unknown:
            return Ended(End.UNRECOVERABLE, _without(findings.unrecoverable))
        if findings.lost_where_written and not findings.repairs:
            return None  # until the grace period is over
        if self._order.bookies and not left:
            return Ended(End.MOVED)
        if findings.whole:
            return Ended(End.STILL_WRITTEN, f"its writer still writes to {', '.join(sorted(left))}")
        return self._failed(tried, outcome.reason)


def _without(entries: BitMap64) -> str:
    some = ", ".join(str(each) for each in list(entries[:5]))
    return f"{len(entries)} entries have no copy left: {some}{', …' if len(entries) > 5 else ''}"
