"""The auditor: the one process of a cluster that marks the ledgers of lost bookies.

States: *candidate*, while another process's vote is older; *auditor*, until the vote is lost; then candidate again with
a new vote. An auditor calls the roll (`audit_rules`) when bookies come or go, when the delay is written, when the
switch is turned on, when the next bookie would be lost, and periodically. It records in the store which bookies are
missed since when, and audits those that are lost or to be emptied: a mark for each ledger that names one of them. Its
index provides these ledgers (`index_keeper`), or, without an index, a listing of all ledgers in order. An audit is over
when all ledgers were examined and every mark is stored; until then it is repeated. A ledger with damaged metadata can't
be examined, and is reported. While a bookie is lost it is audited again after a minute, then after twice as long each
time: a client that has not noticed may put it into new ensembles. A bookie to be emptied is audited again and again,
since a ledger that is being written there can't be moved at first.

An auditor whose vote is lost marks nothing more (R12), nor does one while auto-recovery is disabled (R11); what was due
continues when it is enabled. Errors of the store cause a pause (AR29). Source: docs/protocol/auto-recovery.md#auditor.

The auditor also counts the marks, for monitoring: the next time a minute after a count, or ten times as long as that
took, so that it spends no more than about a tenth of its time on it.

Not its job: repairs (`worker`), whether registered bookies hold their entries (`replica_check`), the rules of the
election (the store's).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from bookgate.bookie.replication.attendance import Attendance
from bookgate.bookie.replication.audits.audit_rules import HELD_BACK, HeldBack, Roll, Verdict, call_the_roll
from bookgate.bookie.replication.audits.index_keeper import IndexKeeper, IndexOptions, IndexStatistics, Named
from bookgate.bookie.replication.copies.bookies import all_of
from bookgate.bookie.replication.ledger_pages import READ_AT_ONCE, all_pages, see_all_ledgers
from bookgate.ledger.errors import BKException, MetadataFormatException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import BookieSet, LedgerManagerFactory, LedgerRecord, Membership
from bookgate.ledger.replication_control import note_candidate
from bookgate.ledger.replication_store import (
    ANY_VERSION,
    AuditorVote,
    DelayChanged,
    DrainsChanged,
    RecordKind,
    ReplicationEvent,
    SwitchChanged,
    VoteState,
)
from bookgate.ledger.replication_survey import Survey, missed_bookies, survey
from bookgate.runtime.background import keep_running
from bookgate.runtime.clock import now_ms
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)

_STORE_PAUSE_SECONDS = 2.0
_MARKS_AT_ONCE = 32
_DRAIN_PAUSE_SHARE = 50
"""Audits for bookies to be emptied are so many times as far apart as one takes, a roll call at least."""
_COUNTS_PAUSE = 10
"""A count is followed by a pause of at least so many times what it took."""
_LEAST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS = 0.1, 60.0
"""Before the next call of the roll, and before the second audit of a bookie."""


@dataclass(frozen=True, slots=True)
class AuditorOptions:
    """What may be set of an auditor."""

    lost_bookie_delay_seconds: int = 30
    """How long a bookie may be missed before its ledgers are marked, unless the store says so already."""
    roll_call_seconds: float = 60.0
    """Between two calls of the roll without any occasion."""
    audit_interval_seconds: float = 86_400.0
    """After so long lost bookies are audited again."""
    count_seconds: float = 60.0
    """From the end of a count of the marks to the next one, at least."""
    names_seconds: float = 600.0
    """After so long in office without an index all ledgers are listed for the bookies that they name."""
    index: IndexOptions = field(default_factory=IndexOptions)


@dataclass(frozen=True, slots=True)
class RollCalled:
    """What the last call of the roll has found."""

    missed: int
    lost: int
    storm: bool


@dataclass(slots=True)
class AuditorStatistics:
    """What an auditor has done since its start, and what it knows while it is in office."""

    is_auditor: bool = False
    enabled: bool = False
    """Whether auto-recovery is, as this process has heard."""
    audits: int = 0
    audits_by_index: int = 0
    """Those of them that have read no ledger but what had changed just before."""
    audits_failed: int = 0
    ledgers_audited: int = 0
    """Ledgers that audits have looked at: by the index, only those that name a bookie in question."""
    ledgers_unreadable: int = 0
    """Ledgers left out of audits, since their metadata can't be read."""
    ledgers_marked: int = 0
    roll: RollCalled | None = None
    """None before the first one in office; nobody calls the roll while auto-recovery is disabled."""
    survey: Survey | None = None
    """The last count of the marks; None before the first one in office."""
    index: IndexStatistics = field(default_factory=IndexStatistics)


@dataclass(frozen=True, slots=True)
class _Audited:
    """Of a bookie: when, on the loop's clock, it is to be audited again, and after how many seconds that is."""

    again_at: float
    pause: float


class _Part(NamedTuple):
    """Of an audit: how many ledgers were looked at, and which of them name which of the bookies in question."""

    looked: int
    due: Mapping[int, Sequence[str]]


class _OfficeLostError(Exception):
    """The vote is lost, or auto-recovery was disabled, in the middle of an audit."""


class Auditor:
    """One process's candidacy and, once elected, its work. `start`, and `stop` before the metadata are closed."""

    def __init__(
        self,
        factory: LedgerManagerFactory,
        voter: str,
        options: AuditorOptions,
        membership: Membership | None = None,
        on_office: Callable[[bool], None] = lambda _held: None,
    ) -> None:
        """Makes a candidate that does not stand yet.

        Args:
            factory: The metadata.
            voter: The bookie id of this process.
            options: What may be set.
            membership: Names the cluster that the process belongs to, if given.
            on_office: Told whether this process may act as the auditor now: it is elected, and auto-recovery enabled.
                It may be told the same again.
        """
        self.statistics = AuditorStatistics()
        self._factory = factory
        self._metadata = factory.replication_metadata
        self._voter = voter
        self._options = options
        self._membership = membership
        self._on_office = on_office
        self._enabled = False
        self._vote: AuditorVote | None = None
        self._state = VoteState.LOST
        self._standing_back = False
        self._audited: dict[str, _Audited] = {}
        """Lost bookies, and such as are to be emptied, whose ledgers are all marked."""
        self._attendance = Attendance()
        """In this term of office."""
        self._listed_names: Collection[str] = ()
        """Bookies that ledgers named when all were listed for that, where there is no index."""
        self._list_names_at = 0.0
        self._ordered = False
        """Somebody has ordered an audit."""
        self._delay: int | None = None
        self._delay_told = False
        self._news = asyncio.Event()
        self._main: asyncio.Task[None] | None = None
        self._counting: asyncio.Task[None] | None = None
        self._index = IndexKeeper(factory, membership, options.index, self.statistics.index)
        self._unwatch: list[Callable[[], None]] = []

    async def start(self) -> None:
        """Stands for auditor; the store need not be reachable yet."""
        self._unwatch.append(self._metadata.watch(self._on_event))
        self._main = keep_running("auditor", self._run)

    def stand_back(self, back: bool) -> None:
        """Whether it is no candidate for the time being; who is in office stays there."""
        self._standing_back = back
        self._news.set()

    async def stop(self) -> None:
        """Ends the work and takes the vote back."""
        for unwatch in self._unwatch:
            unwatch()
        self._on_office(False)
        for task in (self._main, self._counting):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await self._index.ended()
        if self._vote is not None and self._state is not VoteState.LOST:
            with suppress(BKException):  # it ends with the session, at the latest
                await self._vote.withdraw()
        self.statistics.is_auditor = False

    # What it hears

    def _on_event(self, event: ReplicationEvent) -> None:
        match event:
            case SwitchChanged(enabled):
                self._enabled = self.statistics.enabled = enabled
                self._on_office(self._may_act)
            case DelayChanged(seconds):
                # The same value again is BookKeeper's way to order an audit; the first word is none.
                if self._delay_told and seconds == self._delay:
                    self._ordered = True
                self._delay, self._delay_told = seconds, True
            case DrainsChanged():
                pass
            case _:
                return
        self._news.set()

    def _on_vote(self, state: VoteState) -> None:
        self._state = state
        self.statistics.is_auditor = state is VoteState.ELECTED
        self._on_office(self._may_act)
        log_event(_log, "auditor", state=state.value, voter=self._voter)
        self._news.set()

    def _on_bookies(self, _bookies: object) -> None:
        self._news.set()

    # The office

    async def _run(self) -> None:
        while True:
            try:
                await self._stand()
                await self._hold_office()
            except (BKException, TimeoutError) as error:
                log_event(_log, "auditor", logging.WARNING, state="store_out_of_reach", error=error)
                await asyncio.sleep(_STORE_PAUSE_SECONDS)

    async def _stand(self) -> None:
        """Returns once this process is the auditor, or a vote was lost or taken back."""
        while self._standing_back:
            self._news.clear()
            await self._news.wait()
        if self._state is VoteState.LOST:
            self._state = VoteState.WAITING
            try:
                await note_candidate(self._metadata, self._voter)
                self._vote = await self._metadata.stand_for_auditor(self._voter, self._on_vote)
            except BaseException:
                self._state = VoteState.LOST
                raise
        while self._state is VoteState.WAITING:
            if self._standing_back and self._vote is not None:
                await self._vote.withdraw()
                self._state = VoteState.LOST
                return
            self._news.clear()
            await self._news.wait()

    async def _hold_office(self) -> None:
        if self._state is not VoteState.ELECTED:
            return
        self._audited.clear()
        self._attendance = Attendance()
        self._listed_names, self._list_names_at = (), self._now() + self._options.names_seconds
        await self._metadata.set_lost_bookie_delay(self._options.lost_bookie_delay_seconds, only_if_absent=True)
        unwatch = await self._factory.service_discovery.watch_bookies(BookieSet.ALL, self._on_bookies)
        self._counting = keep_running("count of marks", self._count_marks)
        self._index.start()
        try:
            while self._state is VoteState.ELECTED:
                self._news.clear()
                seconds = await self._audit_if_due() if self._enabled else self._options.roll_call_seconds
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await self._news.wait()
        finally:
            unwatch()
            self._counting.cancel()
            self._index.stop()
            self.statistics.roll = self.statistics.survey = None

    async def _count_marks(self) -> None:
        while True:
            began = self._now()
            try:
                self.statistics.survey = await survey(self._metadata)
            except (BKException, TimeoutError) as error:
                log_event(_log, "marks_not_counted", logging.WARNING, error=error)
            await asyncio.sleep(max(self._options.count_seconds, _COUNTS_PAUSE * (self._now() - began)))

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    async def _audit_if_due(self) -> float:
        """Returns after how many seconds to call the roll again."""
        ordered, self._ordered = self._ordered, False
        try:
            if self._index.named is None and self._now() >= self._list_names_at:
                await self._list_names()
            verdict = await self._call_the_roll(ordered=ordered)
            wanted = (*verdict.lost, *verdict.draining)
            for bookie_id in [each for each in self._audited if each not in wanted]:
                del self._audited[bookie_id]
            due = [each for each in wanted if ordered or self._is_due(each)]
            if due:
                began = self._now()
                await self._audit(due)
                self._plan_next(due, verdict.draining, self._now() - began)
        except _OfficeLostError:
            return 0.0
        except BaseException:
            self._ordered = self._ordered or ordered
            raise
        pauses = [audited.again_at - self._now() for audited in self._audited.values()]
        if self._index.named is None:
            pauses.append(self._list_names_at - self._now())
        if verdict.next_in_ms is not None:
            pauses.append(verdict.next_in_ms / 1000)
        return max(_LEAST_PAUSE_SECONDS, min([self._options.roll_call_seconds, *pauses]))

    def _is_due(self, bookie_id: str) -> bool:
        return bookie_id not in self._audited or self._now() >= self._audited[bookie_id].again_at

    def _plan_next(self, bookie_ids: Sequence[str], draining: Collection[str], took: float) -> None:
        for bookie_id in bookie_ids:
            before = self._audited.get(bookie_id)
            pause = _FIRST_PAUSE_SECONDS if before is None else 2 * before.pause
            if bookie_id in draining:
                pause = max(self._options.roll_call_seconds, _DRAIN_PAUSE_SHARE * took)
            pause = min(pause, self._options.audit_interval_seconds)
            self._audited[bookie_id] = _Audited(self._now() + pause, pause)

    async def _list_names(self) -> None:
        """A bookie whose cookie is gone is known by ledgers alone. Raises BKException unless all were looked at."""
        await see_all_ledgers(self._factory, self._membership)
        names = set[str]()
        async for page in all_pages(self._factory.ledger_manager, lambda _ledger_id, _error: None):
            self._check_office()
            names.update(*(record.metadata.bookies for record in page))
        self._listed_names, self._list_names_at = names, self._now() + self._options.audit_interval_seconds

    async def _call_the_roll(self, *, ordered: bool) -> Verdict:
        metadata = self._metadata
        bookies = await self._factory.service_discovery.bookies(BookieSet.ALL)
        missed_since = await missed_bookies(metadata)
        draining = await metadata.records(RecordKind.DRAINING_BOOKIE)
        delay = await metadata.lost_bookie_delay()
        now = self._now()
        self._attendance.hear(bookies, now)
        listed = self._listed_names if self._index.named is None else ()
        known = {*(each.bookie_id for each in bookies), *self._index.bookies, *listed}
        away = {bookie_id: self._attendance.away_seconds(bookie_id, now) for bookie_id in known}
        roll = Roll(
            known=known,
            present=self._attendance.present.keys(),
            missed_since=missed_since,
            draining=draining.keys(),
            away_ms={bookie_id: int(1000 * seconds) for bookie_id, seconds in away.items() if seconds is not None},
            settled=self._settled(known),
        )
        at_ms = now_ms()
        delay_ms = 1000 * (self._options.lost_bookie_delay_seconds if delay is None else delay)
        verdict = call_the_roll(roll, delay_ms, at_ms, ordered=ordered)
        for bookie_id in verdict.to_note:
            since = await metadata.missed_since(bookie_id, at_ms)
            log_event(_log, "bookie_missed", logging.WARNING, missed=bookie_id, since_ms=since, delay_ms=delay_ms)
        for bookie_id in verdict.to_forget:
            await metadata.bookie_returned(bookie_id)
            log_event(_log, "bookie_returned", returned=bookie_id)
        if ordered:
            # Workers go by the notes.
            for bookie_id in verdict.lost:
                since_ms = min(roll.missed_since.get(bookie_id, at_ms), at_ms - delay_ms)
                await metadata.write_record(RecordKind.MISSED_BOOKIE, bookie_id, b"%d" % since_ms, ANY_VERSION)
        self._tell(verdict, len(roll.known) - len(roll.present))
        await self._keep_held_back(verdict.held_back)
        return verdict

    def _settled(self, known: Collection[str]) -> set[str]:
        """Such as no ledger names, and such as were audited and, a minute later or more, once again."""
        named = self._index.named
        empty = set() if named is None else {each for each in known if each not in named}
        return empty | {each for each, audited in self._audited.items() if audited.pause > _FIRST_PAUSE_SECONDS}

    def _tell(self, verdict: Verdict, missed: int) -> None:
        before = self.statistics.roll
        if verdict.storm and not (before is not None and before.storm):
            log_event(_log, "audit_held_back", logging.ERROR, missed=missed, reason="most are missed at once")
        self.statistics.roll = RollCalled(missed, len(verdict.lost), verdict.storm)

    async def _keep_held_back(self, held_back: HeldBack | None) -> None:
        """In the store, for those who can't know what is settled. Another auditor's word is mended by the next call."""
        stored = await self._metadata.read_record(RecordKind.PROGRESS, HELD_BACK)
        if held_back is None:
            if stored is not None:
                await self._metadata.remove_record(RecordKind.PROGRESS, HELD_BACK, stored.version)
        elif stored is None or HeldBack.decode(stored.value) != held_back:
            version = None if stored is None else stored.version
            await self._metadata.write_record(RecordKind.PROGRESS, HELD_BACK, held_back.encode(), version)

    # An audit

    async def _audit(self, bookie_ids: Sequence[str]) -> None:
        """Marks every ledger that names one of the bookies. Raises BKException unless all were looked at."""
        began, wanted = self._now(), frozenset(bookie_ids)
        log_event(_log, "audit", state="began", bookies=sorted(wanted))
        looked = marked = 0
        by_index = False
        try:
            await see_all_ledgers(self._factory, self._membership)
            named = await self._index.naming(wanted)
            by_index = named is not None
            async for count, due in self._listed(wanted) if named is None else self._in_parts(named):
                self._check_office()
                looked += count
                await self._mark_all(due)
                marked += len(due)
        except _OfficeLostError:
            log_event(_log, "audit", state="stopped", ledgers=looked, marked=marked)
            raise
        except BKException:
            self.statistics.audits_failed += 1
            log_event(_log, "audit", logging.WARNING, state="incomplete", ledgers=looked, marked=marked)
            raise
        self.statistics.audits += 1
        self.statistics.audits_by_index += by_index
        self.statistics.ledgers_audited += looked
        seconds = round(self._now() - began, 3)
        log_event(_log, "audit", state="ended", by_index=by_index, ledgers=looked, marked=marked, seconds=seconds)

    async def _listed(self, wanted: frozenset[str]) -> AsyncIterator[_Part]:
        """By all ledgers that marks can name. Those whose metadata can't be read are said, and left out."""
        async for page in all_pages(self._factory.ledger_manager, self._not_audited):
            yield _Part(len(page), _naming(page, wanted))

    async def _in_parts(self, named: Named) -> AsyncIterator[_Part]:
        """The same by the index."""
        for number, why in named.unreadable.items():
            self._not_audited(LedgerId.unscoped(number), why)
        ledgers = iter(named.ledgers.items())
        while part := dict(islice(ledgers, READ_AT_ONCE)):
            yield _Part(len(part), part)

    def _not_audited(self, ledger_id: LedgerId, error: MetadataFormatException | str) -> None:
        self.statistics.ledgers_unreadable += 1
        log_event(_log, "ledger_not_audited", logging.ERROR, ledger=ledger_id, error=error)

    async def _mark_all(self, due: Mapping[int, Sequence[str]]) -> None:
        """Marks each ledger with these of its bookies."""
        room, at_ms = asyncio.Semaphore(_MARKS_AT_ONCE), now_ms()

        async def mark(ledger_id: int, replicas: Sequence[str]) -> None:
            async with room:
                self._check_office()
                await self._metadata.mark(ledger_id, replicas, at_ms)
            self.statistics.ledgers_marked += 1

        await all_of(mark(ledger_id, replicas) for ledger_id, replicas in due.items())

    @property
    def _may_act(self) -> bool:
        return self._state is VoteState.ELECTED and self._enabled

    def _check_office(self) -> None:
        if not self._may_act:
            raise _OfficeLostError


def _naming(page: Sequence[LedgerRecord], wanted: frozenset[str]) -> dict[int, list[str]]:
    """By ledger id those of the bookies that any of its ensembles names; without the ledgers that name none."""
    found = {}
    for record in page:
        if named := sorted(record.metadata.bookies & wanted):
            found[record.ledger_id.ledger_id] = named
    return found
