"""The repair of one ledger under its lock: examine, copy, name the new bookies in the metadata, examine again.

Steps of a round: ask every bookie of the ledger which entries it holds (`look`); determine the work (`verdicts`); then,
fragment by fragment, choose a bookie for each position that needs one, fence it for the ledger if that is closed, read
what it already holds, copy the missing and the damaged entries, compare its list of entries with those that it should
hold, and only then write the metadata, in one transaction with the check of the lock. Rounds are repeated until an
examination finds the ledger whole, or nothing more can be done now.

Outcomes: *whole*, the mark may be removed; *waiting*, for a reason that may disappear; *unrecoverable*, entries have no
copy left. A repair changes only members of complete fragments (R7); metadata name a bookie only after it holds all
entries that it should hold (R3); nothing is written once the lock is lost (R4, R17) or auto-recovery disabled (R11).

Source: docs/protocol/auto-recovery.md#repairing-a-ledger.

Not its job: choosing ledgers, repetition, fencing an open ledger (`worker`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Protocol

from pyroaring import BitMap64

from bookgate.bookie.replication.copies.bookies import Bookies, TargetRefusesException
from bookgate.bookie.replication.copies.budget import LEAST_ENTRY_BYTES, WorkerBudget
from bookgate.bookie.replication.copies.confirmed_entries import ConfirmedEntries
from bookgate.bookie.replication.copies.copying import Copied, Copier, SourceFailedException, wait_for
from bookgate.bookie.replication.copies.fragments import (
    CompleteFragment,
    complete_fragments,
    mean_bytes,
    why_not_examined,
    with_members_replaced,
)
from bookgate.bookie.replication.copies.look import beside_loop, look
from bookgate.bookie.replication.copies.verdicts import (
    Copies,
    Findings,
    Holding,
    Lost,
    PlaceRepair,
    Unknown,
    by_danger,
    judge,
)
from bookgate.bookie.replication.repairs.budget_share import BudgetShare
from bookgate.bookie.replication.repairs.tasks import Place, Targets
from bookgate.ledger.errors import (
    BKException,
    LockLostException,
    MetadataVersionException,
    NotEnoughBookiesException,
    UnknownOutcomeException,
)
from bookgate.ledger.metadata_store import (
    BookieSet,
    LedgerManager,
    LedgerRecord,
    RegisteredBookie,
    ServiceDiscovery,
)
from bookgate.ledger.replication_store import LedgerLock, ReplicationMetadata
from bookgate.runtime.logs import log_event
from bookgate.thinclient.client import BookKeeper
from bookgate.thinclient.core.placement import EnsembleRequest
from bookgate.thinclient.handles.context import LedgerSecrets
from bookgate.thinclient.handles.read_handle import ReadHandle
from bookgate.thinclient.placement.chooser import Placement, fit_for

_log = logging.getLogger(__name__)

_ROUNDS = 5
_WRITE_ATTEMPTS = 5
_READ_AGAIN_AT_ONCE = 200
"""Copies that are read again between two looks at the permission and the budget."""
_FAILURES_A_ROUND = 3
"""Failed fragments after which a round ends: the store or the bookies fail then, not single fragments."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a repair."""

    record: LedgerRecord
    findings: Findings
    """The findings of the last examination; whole on success."""
    reason: str = ""
    """The reason to try again, unless the ledger is whole."""
    copies: Mapping[str, Copies] = field(default_factory=dict)
    """The copies on each bookie, as found by the last examination."""


class RepairStoppedException(BKException):
    """The repair must not continue: the lock is lost, auto-recovery is disabled, or another ledger has the id."""


class Permission(Protocol):
    """The permission to continue a repair."""

    def check(self) -> None:
        """Raises RepairStoppedException if the repair must not continue."""


@dataclass(frozen=True, slots=True)
class RepairTools:
    """The objects that all repairs of a worker share."""

    client: BookKeeper
    bookies: Bookies
    placement: Placement
    metadata: ReplicationMetadata
    ledger_manager: LedgerManager
    discovery: ServiceDiscovery
    budget: WorkerBudget
    share: BudgetShare
    copied: Copied
    catch_up: Callable[[], Awaitable[None]]
    """Returns once `ledger_manager` reads no older state than that of the call."""

    async def read_again(self, record: LedgerRecord) -> LedgerRecord:
        """The metadata of the same ledger now. Call it before they are written: after a deletion another ledger may
        have the id, and with it the version.

        Raises:
            RepairStoppedException: The ledger was deleted, and another one created with its id.
        """
        await self.catch_up()
        current = await self.ledger_manager.read(record.ledger_id)
        if not current.is_of(record):
            raise RepairStoppedException(f"ledger {record.ledger_id} was deleted, and another created with its id")
        return current


class LedgerRepair:
    """The repair of one ledger. `targets` keeps the bookies chosen for its positions between attempts."""

    def __init__(
        self,
        tools: RepairTools,
        lock: LedgerLock,
        record: LedgerRecord,
        permission: Permission,
        targets: Targets,
        suspects: Mapping[str, BitMap64] | None = None,
    ) -> None:
        """`suspects` are the ids by bookie whose copies may be corrupt, as a scrub found: these are read again."""
        self._tools = tools
        self._lock = lock
        self._record = record
        self._permission = permission
        self._targets = targets
        self._suspects = dict(suspects or {})
        self._copied = Copied(of_all=tools.copied)
        self._due_entries = 0
        self._held_before: dict[Place, int] = {}
        """Number of copies that a position already had, for instance from an earlier, incomplete repair."""
        self._refused: set[str] = set()
        """Bookies that do not accept copies of this ledger."""
        self._sources: tuple[str, ...] = ()
        """Bookies that responded with their entries in the last examination."""
        password = record.metadata.known_password()
        self._password = b"" if password is None else password
        self._secrets = LedgerSecrets.of(record.metadata, self._password, tools.client.config)

    @property
    def done(self) -> tuple[int, int]:
        """Number and bytes of the wanted copies that exist now, including those of earlier attempts, also by processes
        that have died since.
        """
        held = sum(self._held_before.values())
        return self._copied.entries + held, self._copied.bytes + mean_bytes(self._record.metadata, held)

    @property
    def due(self) -> tuple[int, int]:
        """Maximum number of copies to store in total, and their mean bytes; 0 before the first examination."""
        return self._due_entries, mean_bytes(self._record.metadata, self._due_entries)

    async def run(self, absent: Mapping[str, bool], draining: Collection[str], *, misplaced: bool = False) -> Outcome:
        """Repairs what can be repaired.

        Args:
            absent: Bookies that are not registered; True for lost ones.
            draining: Bookies to be emptied.
            misplaced: Once the ledger is whole, move fragments for which the placement policy now has a better
            ensemble.

        Raises:
            RepairStoppedException: The permission has ended; raised between two steps.
            BKException: The metadata store, or nearly all bookies, can't be reached.
        """
        if reason := why_not_examined(self._record.metadata):
            return Outcome(self._record, Findings(unknown=(reason,)), reason)
        for _ in range(_ROUNDS):
            self._permission.check()
            copies = await self._look(absent, draining)
            findings = await beside_loop(self._record.metadata, judge, self._record.metadata, copies)
            if findings.whole and misplaced:
                misplaced = False
                if await self._move(avoid={*absent, *draining}):
                    continue
            if not findings.repairs:
                return Outcome(self._record, findings, "; ".join(findings.unknown), copies)
            self._permission.check()
            to_store = sum(len(each.due if each.replace else each.missing) for each in findings.repairs)
            self._due_entries = self.done[0] + to_store
            try:
                await self._repair(findings.repairs, avoid={*absent, *draining})
            except NotEnoughBookiesException as error:
                return Outcome(self._record, findings, str(error), copies)
        return Outcome(self._record, findings, "it changes while it is repaired", copies)

    async def _look(self, absent: Mapping[str, bool], draining: Collection[str]) -> dict[str, Copies]:
        async def ask(bookie_id: str, due: BitMap64) -> Copies:
            if absent.get(bookie_id):
                return Lost()
            state = await self._copies(bookie_id, due)
            return replace(state, draining=bookie_id in draining) if isinstance(state, Holding) else state

        found = await look(self._record.metadata, ask)
        self._sources = tuple(bookie_id for bookie_id, state in found.items() if isinstance(state, Holding))
        return found

    async def _copies(self, bookie_id: str, due: BitMap64) -> Copies:
        """The entries in the bookie's list, without those suspected by a scrub that a further read also finds
        damaged.
        """
        bookies, number = self._tools.bookies, self._record.ledger_id.number
        unbounded = self._record.metadata.is_unbounded
        state = await bookies.copies(bookie_id, number, due, unbounded=unbounded)
        suspects = self._suspects.get(bookie_id)
        if suspects is None or not isinstance(state, Holding):
            return state
        try:
            corrupt = await self._damaged(bookie_id, suspects & due & state.entries)
        except BKException as error:
            return Unknown(str(error))
        return replace(state, entries=state.entries - corrupt, corrupt=corrupt)

    async def _damaged(self, bookie_id: str, ids: BitMap64) -> BitMap64:
        number, unbounded = self._record.ledger_id.number, self._record.metadata.is_unbounded
        return await self._tools.bookies.damaged(bookie_id, number, ids, self._secrets, unbounded=unbounded)

    # Repairing

    async def _repair(self, repairs: Sequence[PlaceRepair], avoid: Collection[str]) -> None:
        """Repairs fragments, the most endangered first. A failed one does not stop the others; its error is raised
        last.
        """
        failures: list[BKException] = []
        for fragment, places in by_danger(repairs):
            try:
                await self._repair_fragment(fragment, places, avoid)
            except RepairStoppedException:
                raise
            except BKException as error:
                failures.append(error)
                if len(failures) == _FAILURES_A_ROUND:
                    break
        if failures:
            raise failures[0]

    async def _repair_fragment(
        self, fragment: CompleteFragment, repairs: Sequence[PlaceRepair], avoid: Collection[str]
    ) -> None:
        began = asyncio.get_running_loop().time()
        before = replace(self._copied)
        replacements: dict[int, tuple[str, str]] = {}
        ensemble = list(fragment.ensemble)
        for repair in repairs:
            if not repair.replace and await self._refill(repair):
                continue
            try:
                target = await self._fill_another(fragment, repair, ensemble, avoid)
            except NotEnoughBookiesException:
                if replacements:  # one additional copy is better than none
                    await self._write(fragment, replacements)
                raise
            replacements[repair.index] = (repair.bookie_id, target)
            ensemble[repair.index] = target
        if replacements:
            await self._write(fragment, replacements)
        log_event(
            _log,
            "fragment_repaired",
            ledger=self._record.ledger_id,
            first_entry=fragment.first_entry_id,
            last_entry=fragment.last_entry_id,
            refilled=[each.bookie_id for each in repairs if each.index not in replacements],
            replaced=[f"{old} by {new}" for old, new in replacements.values()],
            entries=self._copied.entries - before.entries,
            bytes=self._copied.bytes - before.bytes,
            seconds=round(asyncio.get_running_loop().time() - began, 3),
        )

    async def _refill(self, repair: PlaceRepair) -> bool:
        """Refills the present bookie. False if it does not accept copies of the ledger, or corrupts them: another
        bookie must replace it.
        """
        try:
            await self._fill(repair, repair.bookie_id)
        except TargetRefusesException as error:
            self._refused_by(repair.bookie_id, error)
            return False
        return True

    def _refused_by(self, bookie_id: str, error: TargetRefusesException) -> None:
        log_event(_log, "copies_refused", ledger=self._record.ledger_id, target=bookie_id, error=error)
        self._refused.add(bookie_id)

    async def _fill_another(
        self, fragment: CompleteFragment, repair: PlaceRepair, ensemble: list[str], avoid: Collection[str]
    ) -> str:
        """Copies the entries of a position to another bookie, and returns it. Raises NotEnoughBookiesException."""
        place = repair.place
        while True:
            target = self._targets.by_place.get(place)
            if target is None or target in ensemble or target in avoid or target in self._refused:
                target = await self._choose(repair.index, ensemble, avoid)
                if not await self._keep(repair, target):
                    continue
            try:
                await self._fill(repair, target)
            except TargetRefusesException as error:
                self._refused_by(target, error)
                continue
            except (RepairStoppedException, SourceFailedException):
                raise
            except BKException:
                # Another one is tried next time, even if the policy prefers this one.
                self._targets.by_place.pop(place, None)
                self._targets.failed_targets.add(target)
                raise
            return target

    async def _choose(self, index: int, ensemble: Sequence[str], avoid: Collection[str]) -> str:
        request, exclude = EnsembleRequest.of(self._record.metadata), {*avoid, *self._refused}
        needs, failed = self._record.needs, self._targets.failed_targets
        choose = partial(self._tools.placement.replace_bookie, request, list(ensemble), index, needs=needs)
        try:
            return await choose(exclude | failed)
        except NotEnoughBookiesException:
            if not failed:
                raise
            failed.clear()
        return await choose(exclude)

    async def _keep(self, repair: PlaceRepair, target: str) -> bool:
        """Keeps the choice of a bookie before it gets copies; False if another worker's choice applies."""
        state = await self._copies(target, repair.due)
        fresh = isinstance(state, Holding) and not state.limbo and state.entries.isdisjoint(repair.due)
        return await self._targets.keep(repair.place, target, self._record.incarnation, fresh=fresh)

    async def _fill(self, repair: PlaceRepair, target: str) -> None:
        """Copies until the bookie itself reports all entries of the position (R3)."""
        tools, record, due = self._tools, self._record, repair.due
        number = record.ledger_id.number
        if record.metadata.terms is not None:
            await tools.bookies.bring_to_term(target, number, record.metadata.terms.term, self._secrets)
        if record.metadata.is_closed:
            last = record.metadata.last_entry_id
            await tools.bookies.fence(target, number, self._secrets, behind=last)
        missing = due - await self._good_at(target, repair)
        counted = due if repair.replace else repair.missing
        self._held_before[repair.place] = len(counted - missing)
        if missing:
            copier = Copier(tools.bookies, tools.budget, self._copied)
            async with self._reader(repair.fragment) as handle:
                await copier.copy(
                    handle, self._secrets, missing, self._sources, target, self._proceed, last_copies=repair.last_copies
                )
            state = await self._holding(target, due)
            if state.corrupt:
                # It accepted them but returns the old data: a cache, or a failing disk. Repetition does not help.
                raise TargetRefusesException(f"bookie {target} answers with damaged copies after it took good ones")
            missing = due - state.entries
        if missing:
            raise BKException(
                f"bookie {target} lacks {len(missing)} of the entries of ledger {number} that it has taken, "
                f"such as {missing.min()}"
            )

    async def _good_at(self, target: str, repair: PlaceRepair) -> BitMap64:
        """The ids of the position whose copies at this bookie count (R2).

        A bookie that is to replace another one may hold some of an interrupted repair. Nobody has read those there, and
        the replay of a journal takes in an entry whose end never reached the disk: what is damaged is replaced, and
        read again afterwards. Where it held some before it was chosen they may be of a deleted ledger that had the id,
        whose digests are right, too: all are replaced.
        """
        if repair.replace and self._record.metadata.is_unbounded:
            return BitMap64()  # entries of an older term may have other values
        held = (await self._holding(target, repair.due)).entries & repair.due
        if not repair.replace or not held:
            return held
        if not self._targets.was_fresh(repair.place, target, self._record.incarnation):
            return BitMap64()
        damaged = await self._damaged_among(held, target)
        if damaged:
            self._suspects[target] = self._suspects.get(target, BitMap64()) | damaged
        return held - damaged

    async def _damaged_among(self, held: BitMap64, bookie_id: str) -> BitMap64:
        """As `_damaged`, of many copies within the budget."""
        damaged, rest = BitMap64(), iter(held)

        async def may_go_on() -> bool:
            await self._proceed()
            return True

        while some := BitMap64(islice(rest, _READ_AGAIN_AT_ONCE)):
            await self._proceed()
            cost = max(mean_bytes(self._record.metadata, len(some)), len(some) * LEAST_ENTRY_BYTES)
            await wait_for(self._tools.budget, {bookie_id: cost}, may_go_on)
            damaged |= await self._damaged(bookie_id, some)
        return damaged

    def _reader(self, fragment: CompleteFragment) -> AbstractAsyncContextManager[ReadHandle | ConfirmedEntries]:
        tools, record = self._tools, self._record
        if not record.metadata.is_unbounded:
            return tools.client.open_record(record, self._password)
        entries = ConfirmedEntries(tools.bookies, record, fragment, self._sources, self._secrets, tools.budget.heard)
        return nullcontext(entries)

    async def _holding(self, target: str, due: BitMap64) -> Holding:
        state = await self._copies(target, due)
        if not isinstance(state, Holding):
            raise BKException(f"bookie {target} does not tell what it holds of ledger {self._record.ledger_id}")
        return state

    async def _proceed(self) -> None:
        await self._tools.share.renew()
        self._permission.check()

    # Moving what is misplaced

    async def _move(self, avoid: Collection[str]) -> bool:
        """Moves fragments to ensembles that the placement policy prefers (R14); returns whether any was moved."""
        moved = False
        registered = [each for each in await self._tools.discovery.bookies(BookieSet.ALL) if each.registered]
        bookies = fit_for(registered, self._record.needs)
        for fragment in complete_fragments(self._record.metadata):
            moved = await self._move_fragment(fragment, bookies, avoid) or moved
        return moved

    async def _move_fragment(
        self, fragment: CompleteFragment, bookies: Sequence[RegisteredBookie], avoid: Collection[str]
    ) -> bool:
        request = EnsembleRequest.of(self._record.metadata)
        while True:
            exclude, prefer = {*avoid, *self._refused}, {*self._targets.by_place.values()}
            better = self._tools.placement.better_ensemble(request, fragment.ensemble, bookies, exclude, prefer)
            if better is None:
                return False
            places = [index for index, bookie_id in enumerate(fragment.ensemble) if better[index] != bookie_id]
            self._due_entries += sum(map(fragment.due_count, places))
            if await self._fill_all(fragment, better, places):
                break
        replacements = {index: (fragment.ensemble[index], better[index]) for index in places}
        await self._write(fragment, replacements)
        log_event(
            _log,
            "fragment_moved",
            ledger=self._record.ledger_id,
            first_entry=fragment.first_entry_id,
            last_entry=fragment.last_entry_id,
            replaced=[f"{before} by {after}" for before, after in replacements.values()],
        )
        return True

    async def _fill_all(self, fragment: CompleteFragment, ensemble: Sequence[str], places: Sequence[int]) -> bool:
        """Copies the entries of these positions to their bookies; False if one does not accept copies of this
        ledger.
        """
        for index in places:
            due, target = fragment.due(index), ensemble[index]
            move = PlaceRepair(fragment, index, due, due, replace=True)
            if not await self._keep(move, target):
                await self._keep(move, target)
            try:
                await self._fill(move, target)
            except TargetRefusesException as error:
                self._refused_by(target, error)
                return False
        return True

    # The metadata

    async def _write(self, repaired: CompleteFragment, replacements: Mapping[int, tuple[str, str]]) -> None:
        """Writes the metadata, unless the repair no longer applies to them: the next examination uses the new ones.

        Copying takes long, and a ledger that was created since with the same id may have the same version.
        """
        tools, was_closed = self._tools, self._record.metadata.is_closed
        for _ in range(_WRITE_ATTEMPTS):
            self._record = await tools.read_again(self._record)
            self._permission.check()
            if self._record.metadata.is_closed and not was_closed:
                return  # the new members are not fenced yet (R9)
            changed = with_members_replaced(self._record.metadata, repaired, replacements)
            if changed is None:
                return
            try:
                written = await tools.metadata.write_ledger(self._lock, changed, self._record.version)
            except LockLostException as error:
                raise RepairStoppedException(str(error)) from error
            except (MetadataVersionException, UnknownOutcomeException):
                continue
            self._record = replace(written, incarnation=self._record.incarnation)
            return
        raise BKException(f"the metadata of ledger {self._record.ledger_id} change too fast to write them")
