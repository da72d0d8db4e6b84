"""The repair of one ledger under its lock: look, copy, name the new bookies in the metadata, look again.

Steps of a round: ask every bookie of the ledger what it holds (`look`); judge (`verdicts`); then fragment by fragment
choose a bookie for each place that needs one, fence it for the ledger if that is closed, copy what it lacks of what is
due there, compare its list of entries with what is due, and only then write the metadata, in one transaction with the
check of the lock. Rounds follow until a look finds the ledger whole, or nothing more can be done now.

Outcomes: *whole*, the mark may go; *waiting*, for a reason that time may remove; *unrecoverable*, entries have no copy
left. A repair changes members of complete fragments, nothing else (R7); metadata name a bookie after it holds all that
is due there (R3); nothing is written once the lock is lost (R4, R17) or auto-recovery disabled (R11).

Source: docs/protocol/auto-recovery.md#repairing-a-ledger.

Not its job: which ledger, when again, fencing a ledger that is still written (`worker`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pyroaring import BitMap64

from bookgate.bookie.replication.bookies import Bookies, TargetRefusesException
from bookgate.bookie.replication.budget import ByteBudget
from bookgate.bookie.replication.copying import Copied, Copier
from bookgate.bookie.replication.fragments import CompleteFragment, with_members_replaced
from bookgate.bookie.replication.look import look
from bookgate.bookie.replication.verdicts import Copies, Findings, Holding, Lost, PlaceRepair, judge
from bookgate.ledger.errors import (
    BKException,
    LockLostException,
    MetadataVersionException,
    NotEnoughBookiesException,
    UnknownOutcomeException,
)
from bookgate.ledger.metadata_store import LedgerManager, LedgerRecord
from bookgate.ledger.replication_store import LedgerLock, ReplicationMetadata
from bookgate.runtime.logs import log_event
from bookgate.thinclient.client import BookKeeper
from bookgate.thinclient.core.placement import EnsembleRequest
from bookgate.thinclient.handles.context import LedgerSecrets
from bookgate.thinclient.placement.chooser import Placement

_log = logging.getLogger(__name__)

_ROUNDS = 5
_WRITE_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a repair has ended."""

    record: LedgerRecord
    findings: Findings
    """Of the last look; whole if all is well."""
    reason: str = ""
    """Why it is to be tried again, unless the ledger is whole."""


class RepairStoppedException(BKException):
    """The repair must not go on: the lock is lost, or auto-recovery is disabled."""


class Permission(Protocol):
    """Whether the worker still may act on the ledger."""

    def check(self) -> None:
        """Raises RepairStoppedException."""


@dataclass(frozen=True, slots=True)
class RepairTools:
    """What all repairs of a worker share."""

    client: BookKeeper
    bookies: Bookies
    placement: Placement
    metadata: ReplicationMetadata
    ledger_manager: LedgerManager
    budget: ByteBudget
    copied: Copied


class LedgerRepair:
    """One ledger's. `targets` keeps the bookies that were chosen for its places from one attempt to the next."""

    def __init__(
        self,
        tools: RepairTools,
        lock: LedgerLock,
        record: LedgerRecord,
        permission: Permission,
        targets: dict[tuple[int, int], str],
    ) -> None:
        self._tools = tools
        self._lock = lock
        self._record = record
        self._permission = permission
        self._targets = targets
        self._refused: set[str] = set()
        """Bookies that take no copies of this ledger."""
        password = record.metadata.password
        self._password = b"" if password is None else password
        self._secrets = LedgerSecrets.of(record.metadata, self._password, tools.client.config)

    async def run(self, absent: Mapping[str, bool], draining: Collection[str]) -> Outcome:
        """Repairs what can be repaired.

        Args:
            absent: Bookies that are not registered; True where that counts as lost.
            draining: Bookies that are to be emptied.

        Raises:
            RepairStoppedException: Between two steps.
            BKException: The metadata store, or nearly all bookies, can't be reached.
        """
        for _ in range(_ROUNDS):
            self._permission.check()
            findings = judge(self._record.metadata, await self._look(absent, draining))
            if not findings.repairs:
                return Outcome(self._record, findings, "; ".join(findings.unknown))
            try:
                await self._repair(findings.repairs, avoid={*absent, *draining})
            except NotEnoughBookiesException as error:
                return Outcome(self._record, findings, str(error))
        return Outcome(self._record, findings, "it changes while it is repaired")

    async def _look(self, absent: Mapping[str, bool], draining: Collection[str]) -> dict[str, Copies]:
        number = self._record.ledger_id.ledger_id

        async def ask(bookie_id: str, due: BitMap64) -> Copies:
            if absent.get(bookie_id):
                return Lost()
            state = await self._tools.bookies.copies(bookie_id, number, due)
            if isinstance(state, Holding) and bookie_id in draining:
                return Holding(state.entries, draining=True, limbo=state.limbo)
            return state

        return await look(self._record.metadata, ask)

    # Repairing

    async def _repair(self, repairs: Sequence[PlaceRepair], avoid: Collection[str]) -> None:
        fragments = dict.fromkeys(repair.fragment for repair in repairs)
        for fragment in fragments:
            await self._repair_fragment(fragment, [each for each in repairs if each.fragment == fragment], avoid)

    async def _repair_fragment(
        self, fragment: CompleteFragment, repairs: Sequence[PlaceRepair], avoid: Collection[str]
    ) -> None:
        began = asyncio.get_running_loop().time()
        entries = self._tools.copied.entries
        replacements: dict[int, tuple[str, str]] = {}
        ensemble = list(fragment.ensemble)
        for repair in repairs:
            if not repair.replace and await self._refill(repair):
                continue
            target = await self._fill_another(fragment, repair, ensemble, avoid)
            replacements[repair.index] = (repair.bookie_id, target)
            ensemble[repair.index] = target
        if replacements:
            await self._write(fragment.first_entry_id, replacements)
        log_event(
            _log,
            "fragment_repaired",
            ledger=self._record.ledger_id,
            first_entry=fragment.first_entry_id,
            last_entry=fragment.last_entry_id,
            refilled=[each.bookie_id for each in repairs if each.index not in replacements],
            replaced=[f"{before} by {after}" for before, after in replacements.values()],
            entries=self._tools.copied.entries - entries,
            seconds=round(asyncio.get_running_loop().time() - began, 3),
        )

    async def _refill(self, repair: PlaceRepair) -> bool:
        """False if the bookie takes no copies of the ledger: another one has to take its place."""
        try:
            await self._fill(repair.bookie_id, repair.due, in_place=True)
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
        """Returns the bookie that holds all that is due at the place. Raises NotEnoughBookiesException."""
        place = (fragment.first_entry_id, repair.index)
        while True:
            target = self._targets.get(place)
            if target is None or target in ensemble or target in avoid or target in self._refused:
                target = self._targets[place] = await self._choose(repair.index, ensemble, avoid)
            try:
                await self._fill(target, repair.due)
            except TargetRefusesException as error:
                self._refused_by(target, error)
                continue
            except BKException:
                # Another one is tried the next time.
                self._targets.pop(place, None)
                raise
            return target

    async def _choose(self, index: int, ensemble: Sequence[str], avoid: Collection[str]) -> str:
        metadata = self._record.metadata
        request = EnsembleRequest(
            metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size, metadata.custom_metadata
        )
        exclude = {*avoid, *self._refused}
        return await self._tools.placement.replace_bookie(request, list(ensemble), index, exclude)

    async def _fill(self, target: str, due: BitMap64, *, in_place: bool = False) -> None:
        """Until the bookie says itself that it holds all that is due (R3)."""
        tools, record = self._tools, self._record
        number = record.ledger_id.ledger_id
        if record.metadata.is_closed:
            await tools.bookies.fence(target, number, self._secrets, in_limbo=in_place)
        missing = due - await self._held(target, due)
        if missing:
            copier = Copier(tools.bookies, tools.budget, tools.copied)
            async with tools.client.open_record(record, self._password) as handle:
                await copier.copy(handle, self._secrets, missing, target, self._proceed)
            missing = due - await self._held(target, due)
        if missing:
            raise BKException(
                f"bookie {target} lacks {len(missing)} of the entries of ledger {number} that it has taken, "
                f"such as {missing.min()}"
            )

    async def _held(self, target: str, due: BitMap64) -> BitMap64:
        state = await self._tools.bookies.copies(target, self._record.ledger_id.ledger_id, due)
        if not isinstance(state, Holding):
            raise BKException(f"bookie {target} does not tell what it holds of ledger {self._record.ledger_id}")
        return state.entries

    async def _proceed(self) -> None:
        self._permission.check()

    # The metadata

    async def _write(self, first_entry_id: int, replacements: Mapping[int, tuple[str, str]]) -> None:
        """Writes, unless the metadata have changed so that the repair fits no more: the next look sees them then."""
        tools, was_closed = self._tools, self._record.metadata.is_closed
        for _ in range(_WRITE_ATTEMPTS):
            self._permission.check()
            if self._record.metadata.is_closed and not was_closed:
                return  # the new members are not fenced yet (R9)
            changed = with_members_replaced(self._record.metadata, first_entry_id, replacements)
            if changed is None:
                return
            try:
                self._record = await tools.metadata.write_ledger(self._lock, changed, self._record.version)
                return
            except LockLostException as error:
                raise RepairStoppedException(str(error)) from error
            except (MetadataVersionException, UnknownOutcomeException):
                self._record = await tools.ledger_manager.read(self._record.ledger_id)
        raise BKException(f"the metadata of ledger {self._record.ledger_id} change too fast to write them")
