"""The auditor: the one process of a cluster that marks the ledgers of lost bookies.

States: *candidate*, while another process's vote is older; *auditor*, until the vote is lost; then candidate again with
a new vote. An auditor calls the roll (`audit_rules`) when registrations change, when the delay is written, when
auto-recovery is enabled, when the next bookie would be lost, and periodically. It records in the store which bookies
are missed since when, and audits those that are lost or to be emptied (`audit`), repeatedly while they are
(`audit_plan`). A failed audit is repeated. In a storm, an audit of the held bookies marks only ledgers with entries
that have one copy left.

An auditor whose vote is lost marks nothing more (R12), nor does one while auto-recovery is disabled (R11); pending work
continues when it is enabled, and who is missed is recorded meanwhile. Errors of the store cause a pause (AR29). Source:
docs/protocol/auto-recovery.md#auditor.

The auditor also counts the marks, for monitoring: the next time a minute after a count, or ten times as long as that
took, so that it spends no more than about a tenth of its time on it.

Not its job: repairs (`worker`), whether registered bookies hold their entries (`replica_check`), the rules of the
election (the store's).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from bookgate.bookie.replication.attendance import Attendance
from bookgate.bookie.replication.audits.audit import Audits, AuditStatistics, OfficeLostError
from bookgate.bookie.replication.audits.audit_plan import AuditPlan
from bookgate.bookie.replication.audits.audit_rules import (
    HELD_BACK,
    HeldBack,
    MassLoss,
    Roll,
    RollCallResult,
    call_the_roll,
)
from bookgate.bookie.replication.audits.index_keeper import IndexKeeper, IndexOptions, IndexStatistics
from bookgate.bookie.replication.ledger_pages import all_pages, see_all_ledgers
from bookgate.ledger.errors import BKException
from bookgate.ledger.metadata_store import BookieSet, LedgerManagerFactory, Membership, RegisteredBookie
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
_COUNTS_PAUSE = 10
"""Minimum pause after a count, as a multiple of its duration."""
_LEAST_PAUSE_SECONDS = 0.1
"""Minimum seconds before the next roll call."""


@dataclass(frozen=True, slots=True)
class AuditorOptions:
    """The settings of an auditor."""

    lost_bookie_delay_seconds: int = 30
    """Seconds that a bookie may be missed before its ledgers are marked; used if the store has no value."""
    roll_call_seconds: float = 60.0
    """Seconds between two periodic roll calls."""
    audit_interval_seconds: float = 86_400.0
    """Longest seconds between two audits of a lost bookie."""
    count_seconds: float = 60.0
    """Minimum seconds from the end of a count of the marks to the next one."""
    names_seconds: float = 600.0
    """Seconds in office without an index after which all ledgers are listed to find the bookies that they name."""
    mass_loss: MassLoss = field(default_factory=MassLoss)
    index: IndexOptions = field(default_factory=IndexOptions)


@dataclass(frozen=True, slots=True)
class RollCalled:
    """The result of the last roll call."""

    missed: int
    lost: int
    storm: bool


@dataclass(slots=True)
class AuditorStatistics(AuditStatistics):
    """Counts of an auditor since its start, and its knowledge while in office."""

    is_auditor: bool = False
    enabled: bool = False
    """Whether auto-recovery is enabled, as far as this process knows."""
    roll: RollCalled | None = None
    """None before the first roll call in office; not renewed while auto-recovery is disabled."""
    survey: Survey | None = None
    """The last count of the marks; None before the first one in office."""
    index: IndexStatistics = field(default_factory=IndexStatistics)


class Auditor:
    """One process's candidacy and, once elected, its work.

    Call `start`, and `stop` before the metadata store is closed.
    """

    def __init__(
        self,
        factory: LedgerManagerFactory,
        voter: str,
        options: AuditorOptions,
        membership: Membership | None = None,
        on_office: Callable[[bool], None] = lambda _held: None,
        racks: Callable[[Iterable[RegisteredBookie]], Mapping[str, str]] = lambda _bookies: {},
    ) -> None:
        """Creates a candidate that has not voted yet.

        Args:
            factory: The metadata store.
            voter: The bookie id of this process.
            options: The settings.
            membership: The cluster to which the process belongs, if known.
            on_office: Called with whether this process may act as the auditor now: it is elected, and auto-recovery is
                enabled. It may be called with the same value again.
            racks: Returns the known racks of the given bookies.
        """
        self.statistics = AuditorStatistics()
        self._factory = factory
        self._metadata = factory.replication_metadata
        self._voter = voter
        self._options = options
        self._membership = membership
        self._on_office = on_office
        self._racks = racks
        self._enabled = False
        self._vote: AuditorVote | None = None
        self._state = VoteState.LOST
        self._standing_back = False
        self._plan = AuditPlan(options.roll_call_seconds, options.audit_interval_seconds)
        """The schedule for lost bookies, and for bookies to be emptied."""
        self._plan_in_storm = AuditPlan(options.roll_call_seconds, options.audit_interval_seconds)
        """The schedule for held bookies."""
        self._missed_in_storm: Collection[str] = ()
        self._attendance = Attendance()
        """Registrations as observed in this term of office."""
        self._listed_names: Collection[str] = ()
        """Bookies that ledgers named in the last listing for this purpose, without an index."""
        self._list_names_at = 0.0
        self._ordered_at: float | None = None
        """When an operator has requested an audit that is not made yet; candidates hear of it too."""
        self._delay: int | None = None
        self._delay_told = False
        self._news = asyncio.Event()
        self._main: asyncio.Task[None] | None = None
        self._counting: asyncio.Task[None] | None = None
        self._index = IndexKeeper(factory, membership, options.index, self.statistics.index)
        self._audits = Audits(factory, membership, self._index, self.statistics, self._check_office)
        self._unwatch: list[Callable[[], None]] = []

    async def start(self) -> None:
        """Starts the candidacy; the store need not be reachable yet."""
        self._unwatch.append(self._metadata.watch(self._on_event))
        self._main = keep_running("auditor", self._run)

    def stand_back(self, back: bool) -> None:
        """Sets whether it refrains from standing for now; an auditor in office stays in office."""
        self._standing_back = back
        self._news.set()

    async def stop(self) -> None:
        """Ends the work and withdraws the vote."""
        for unwatch in self._unwatch:
            unwatch()
        self._on_office(False)
        for task in (self._main, self._counting):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await self._index.ended()
        if self._vote is not None and self._state is not VoteState.LOST:
            with suppress(BKException):  # the vote ends with the session at the latest
                await self._vote.withdraw()
        self.statistics.is_auditor = False

    # Events

    def _on_event(self, event: ReplicationEvent) -> None:
        match event:
            case SwitchChanged(enabled):
                self._enabled = self.statistics.enabled = enabled
                self._on_office(self._may_act)
            case DelayChanged(seconds):
                # Writing the same value again is BookKeeper's way to request an audit; the first report is not.
                if self._delay_told and seconds == self._delay:
                    self._ordered_at = self._now()
                self._delay, self._delay_told = seconds, True
            case DrainsChanged():
                pass
            case _:
                return
        self._news.set()

    def _on_vote(self, state: VoteState) -> None:
        if VoteState.ELECTED in (state, self._state) and state is not self._state:
            self._date_order(elected=state is VoteState.ELECTED)
        self._state = state
        self.statistics.is_auditor = state is VoteState.ELECTED
        self._on_office(self._may_act)
        log_event(_log, "auditor", state=state.value, voter=self._voter)
        self._news.set()

    def _date_order(self, *, elected: bool) -> None:
        """Keeps an order as long as this process is the auditor, however long the store fails or auto-recovery is
        disabled (R11). Nobody else can have carried it out before the vote was lost, so its age counts from then. An
        old one that a new auditor has heard was for the auditor of that time.
        """
        if self._ordered_at is None:
            return
        if not elected:
            self._ordered_at = self._now()
        elif self._now() - self._ordered_at > self._options.roll_call_seconds:
            self._ordered_at = None

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
        """Returns once this process is the auditor, or a vote was lost or withdrawn."""
        while self._standing_back:
            self._news.clear()
            await self._news.wait()
        if self._state is VoteState.LOST:
            await note_candidate(self._metadata, self._voter)
            self._state = VoteState.WAITING
            try:
                self._vote = await self._metadata.stand_for_auditor(self._voter, self._on_vote)
            except BaseException:
                # It may have been elected before the error, and the listener is not told of this end.
                self._on_vote(VoteState.LOST)
                raise
        while self._state is VoteState.WAITING:
            if self._standing_back and self._vote is not None:
                try:
                    await self._vote.withdraw()
                finally:  # the vote is over in any case, and its listener hears nothing more
                    self._on_vote(VoteState.LOST)
                return
            self._news.clear()
            await self._news.wait()

    async def _hold_office(self) -> None:
        if self._state is not VoteState.ELECTED:
            return
        self._plan.clear()
        self._plan_in_storm.clear()
        self._attendance = Attendance()
        self._listed_names, self._list_names_at = (), self._now() + self._options.names_seconds
        await self._metadata.set_lost_bookie_delay(self._options.lost_bookie_delay_seconds, only_if_absent=True)
        unwatch = await self._factory.service_discovery.watch_bookies(BookieSet.ALL, self._on_bookies)
        self._counting = keep_running("count of marks", self._count_marks)
        self._index.start()
        try:
            while self._state is VoteState.ELECTED:
                self._news.clear()
                seconds = await (self._audit_if_due() if self._enabled else self._note_who_is_missed())
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
        """Audits due bookies; returns the seconds until the next roll call.

        An order stays until its audit is complete: the vote may be lost meanwhile, which dates it, or the store fail.
        """
        ordered_at = self._ordered_at
        ordered = ordered_at is not None
        try:
            if self._index.named is None and self._now() >= self._list_names_at:
                await self._list_names()
            verdict = await self._call_the_roll(ordered=ordered)
            await self._audit_lost(verdict, ordered=ordered)
            await self._audit_held(verdict)
        except OfficeLostError:
            return 0.0
        if self._ordered_at == ordered_at:  # not ordered again meanwhile
            self._ordered_at = None
        pauses = [*self._plan.pauses(self._now()), *self._plan_in_storm.pauses(self._now())]
        if self._index.named is None:
            pauses.append(self._list_names_at - self._now())
        if verdict.next_in_ms is not None:
            pauses.append(verdict.next_in_ms / 1000)
        return max(_LEAST_PAUSE_SECONDS, min([self._options.roll_call_seconds, *pauses]))

    async def _audit_lost(self, verdict: RollCallResult, *, ordered: bool) -> None:
        wanted = (*verdict.lost, *verdict.draining)
        due = self._plan.due(wanted, self._now())
        if ordered:
            due = list(wanted)
        if due:
            began = self._now()
            await self._audits.of(due, verdict.draining)
            self._plan.audited(due, self._now(), self._now() - began, verdict.draining)

    async def _audit_held(self, verdict: RollCallResult) -> None:
        """Audits the held bookies; each further missed bookie may leave more entries with one copy."""
        if verdict.missed != self._missed_in_storm:
            self._plan_in_storm.clear()
        self._missed_in_storm = verdict.missed
        due = self._plan_in_storm.due(verdict.held, self._now())
        if due:
            began = self._now()
            await self._audits.of(due, gone=frozenset(verdict.missed))
            self._plan_in_storm.audited(due, self._now(), self._now() - began)

    async def _list_names(self) -> None:
        """Lists all ledgers for the bookies that they name, to find bookies without a cookie.

        Raises BKException unless all ledgers were examined.
        """
        await see_all_ledgers(self._factory, self._membership)
        names = set[str]()
        async for page in all_pages(self._factory.ledger_manager, lambda _ledger_id, _error: None):
            self._check_office()
            names.update(*(record.metadata.bookies for record in page))
        self._listed_names, self._list_names_at = names, self._now() + self._options.audit_interval_seconds

    async def _note_who_is_missed(self) -> float:
        """Calls the roll while auto-recovery is disabled, so that the records are right afterwards (R13); nothing is
        marked. Returns the seconds until the next roll call.
        """
        await self._noted(ordered=False)
        return self._options.roll_call_seconds

    async def _call_the_roll(self, *, ordered: bool) -> RollCallResult:
        verdict = await self._noted(ordered=ordered)
        self._tell(verdict)
        await self._keep_held_back(verdict.held_back)
        return verdict

    async def _noted(self, *, ordered: bool) -> RollCallResult:
        """Decides which bookies are missed and which are lost, and records since when."""
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
            only_named=known - self._attendance.members,
            racks=self._racks(bookies),
        )
        at_ms = now_ms()
        delay_ms = 1000 * (self._options.lost_bookie_delay_seconds if delay is None else delay)
        verdict = call_the_roll(roll, delay_ms, at_ms, ordered=ordered, mass_loss=self._options.mass_loss)
        for bookie_id in verdict.to_note:
            since = await metadata.missed_since(bookie_id, at_ms)
            log_event(_log, "bookie_missed", logging.WARNING, missed=bookie_id, since_ms=since, delay_ms=delay_ms)
        for bookie_id in verdict.to_forget:
            await metadata.bookie_returned(bookie_id)
            log_event(_log, "bookie_returned", returned=bookie_id)
        if ordered:
            # Workers use these records.
            for bookie_id in verdict.lost:
                since_ms = min(roll.missed_since.get(bookie_id, at_ms), at_ms - delay_ms)
                await metadata.write_record(RecordKind.MISSED_BOOKIE, bookie_id, b"%d" % since_ms, ANY_VERSION)
        return verdict

    def _settled(self, known: Collection[str]) -> set[str]:
        """Bookies that no ledger names, and those that were audited at least twice, a minute or more apart."""
        named = self._index.named
        empty = set() if named is None else {each for each in known if each not in named}
        return empty | self._plan.settled

    def _tell(self, verdict: RollCallResult) -> None:
        before, missed = self.statistics.roll, len(verdict.missed)
        if verdict.held_back is not None and not (before is not None and before.storm):
            log_event(_log, "audit_held_back", logging.ERROR, missed=missed, reason=verdict.held_back.in_words)
        self.statistics.roll = RollCalled(missed, len(verdict.lost), verdict.storm)

    async def _keep_held_back(self, held_back: HeldBack | None) -> None:
        """Records the reason in the store, for processes that do not know what is settled.

        The next roll call corrects a record of another auditor.
        """
        stored = await self._metadata.read_record(RecordKind.PROGRESS, HELD_BACK)
        if held_back is None:
            if stored is not None:
                await self._metadata.remove_record(RecordKind.PROGRESS, HELD_BACK, stored.version)
        elif stored is None or HeldBack.decode(stored.value) != held_back:
            version = None if stored is None else stored.version
            await self._metadata.write_record(RecordKind.PROGRESS, HELD_BACK, held_back.encode(), version)

    @property
    def _may_act(self) -> bool:
        return self._state is VoteState.ELECTED and self._enabled

    def _check_office(self) -> None:
        if not self._may_act:
            raise OfficeLostError
