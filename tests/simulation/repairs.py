"""Watches what auto-recovery does to a world with the simple store: R3, R5, R6, R11 and R13.

The store tells of every write under a lock, every mark and every ledger that a bookie's process takes from its writer.
What a new member of a fragment has to hold is looked up on its disk as a loss of power would leave it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from bookgate.ledger.metadata import LedgerMetadata, LedgerState
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.replication_store import RecordKind
from tests.faults.memory_disk import nothing_survives
from tests.history import events
from tests.history.recorder import Recorder
from tests.history.violations import (
    ActedWhileDisabled,
    FencedWithoutNeed,
    MarkedTooEarly,
    NotRepaired,
    RepairNotDurable,
)
from tests.simulation.loop import CURRENT
from tests.simulation.metadata import MemoryMetadata
from tests.simulation.simulated_bookie import SimulatedBookie, StoredLedgerState
from tests.simulation.world import World

_REPAIRED_WITHIN_SECONDS = 300.0
_SWITCH_IS_HEARD_WITHIN_SECONDS = 15.0
_LOOK_EVERY_SECONDS = 1.0

Stored = Callable[[SimulatedBookie, Callable[..., object]], dict[int, StoredLedgerState]]


class RepairWatch:
    """`damaged` are bookies of which nothing is demanded; `delay` and `grace` are auto-recovery's, in seconds."""

    def __init__(
        self,
        world: World,
        store: MemoryMetadata,
        recorder: Recorder,
        damaged: set[str],
        delay: float,
        grace: float,
        *,
        clocks_are_right: bool,
    ) -> None:
        self._world = world
        self._store = store
        self._recorder = recorder
        self._damaged = damaged
        self._delay = delay
        self._grace = grace
        self._clocks_are_right = clocks_are_right
        self.looked: Counter[str] = Counter()
        store.on_change.append(self._changed)
        store.replication.on_repair.append(self._repaired)
        store.replication.on_mark.append(self._marked)

    # What is seen

    def _repaired(self, before: LedgerRecord, metadata: LedgerMetadata) -> None:
        """Just before the store writes it."""
        ledger = str(before.ledger_id)
        self._recorder.add(events.LedgerRepaired(self._recorder.now, ledger, before.version + 1))
        for first, index, bookie_id in _new_members(before.metadata, metadata):
            bookie = self._bookie(bookie_id)
            if bookie is None or bookie_id in self._damaged:
                continue
            self.looked["R3"] += 1
            due = list(_due(metadata, first, index))
            held = bookie.stored(nothing_survives).get(before.ledger_id.ledger_id)
            missing = [entry_id for entry_id in due if held is None or entry_id not in held.entries]
            if missing:
                seen = f"{bookie_id} joins ledger {ledger} at entry {first} without entries {missing[:5]}"
                self._world.fail(RepairNotDurable(seen))

    def _marked(self, ledger_id: int, replicas: Sequence[str]) -> None:
        self._is_enabled(f"ledger {ledger_id} was marked")
        if not self._clocks_are_right:
            return
        for bookie_id in replicas:
            self.looked["R13"] += 1
            missing_for = self._store.missing_for(bookie_id)
            away = max(missing_for, self._noted_for(bookie_id))
            if away < self._delay and not self._is_worth_a_mark(bookie_id):
                seen = f"ledger {ledger_id} was marked for {bookie_id}, which had been away for {missing_for:.2f} s"
                self._world.fail(MarkedTooEarly(seen))

    def _noted_for(self, bookie_id: str) -> float:
        """For how many seconds the store has noted it as missed. It may have been back while there was no auditor."""
        note = self._store.replication.records.get((RecordKind.MISSED_BOOKIE, bookie_id))
        return 0.0 if note is None else time.time() - int(note.value) / 1000

    def _is_worth_a_mark(self, bookie_id: str) -> bool:
        """Without being lost: it has lost data, or it is drained."""
        draining = (RecordKind.DRAINING_BOOKIE, bookie_id) in self._store.replication.records
        return draining or bookie_id in self._damaged

    def _changed(self, before: LedgerRecord | None, after: LedgerRecord | None) -> None:
        if before is None or after is None or CURRENT.get().host not in self._world.bookies:
            return
        if before.metadata.state is not LedgerState.OPEN or after.metadata.state is LedgerState.OPEN:
            return
        self._is_enabled(f"ledger {after.ledger_id} was taken from its writer")
        self.looked["R6"] += 1
        missing = max(self._store.missing_for(bookie_id) for bookie_id in before.metadata.last_fragment.ensemble)
        if missing < self._grace and self._clocks_are_right:
            seen = f"ledger {after.ledger_id} was taken from its writer; a member was away for {missing:.2f} s at most"
            self._world.fail(FencedWithoutNeed(seen))

    def _is_enabled(self, what: str) -> None:
        self.looked["R11"] += 1
        disabled_for = self._store.replication.disabled_for
        if disabled_for > _SWITCH_IS_HEARD_WITHIN_SECONDS:
            self._world.fail(ActedWhileDisabled(f"{what}, disabled for {disabled_for:.1f} s"))

    def _bookie(self, bookie_id: str) -> SimulatedBookie | None:
        return next((bookie for bookie in self._world.bookies.values() if bookie.bookie_id == bookie_id), None)

    # What is demanded in the end

    async def prove_repaired(self) -> None:
        """R5. Waits until no ledger names a bookie that is gone or to be emptied, unless it is unrecoverable."""
        until = self._world.now + _REPAIRED_WITHIN_SECONDS
        while left := self._unrepaired():
            if self._world.now > until:
                raise NotRepaired("; ".join(left[:5]))
            await asyncio.sleep(_LOOK_EVERY_SECONDS)
        self.looked["R5"] += 1

    def _unrepaired(self) -> list[str]:
        left = []
        for ledger_id, record in sorted(self._store.ledgers.items()):
            if (RecordKind.UNRECOVERABLE_LEDGER, str(ledger_id.ledger_id)) in self._store.replication.records:
                continue
            members = {bookie_id for fragment in record.metadata.fragments for bookie_id in fragment.ensemble}
            lost = sorted(each for each in members if self._is_to_leave(each, record.metadata))
            if lost:
                left.append(f"ledger {ledger_id} ({record.metadata.state.name}) still names {', '.join(lost)}")
        return left

    def _is_to_leave(self, bookie_id: str, metadata: LedgerMetadata) -> bool:
        """It is gone, or to be emptied, which takes no ledger from its writer."""
        draining = (RecordKind.DRAINING_BOOKIE, bookie_id) in self._store.replication.records
        return bookie_id not in self._store.registrations or (draining and metadata.state is LedgerState.CLOSED)


def _new_members(before: LedgerMetadata, after: LedgerMetadata) -> Iterator[tuple[int, int, str]]:
    """First entry of the fragment, index in the ensemble, and id of each bookie that takes another's place."""
    for old, new in zip(before.fragments, after.fragments, strict=False):
        for index, (was, is_now) in enumerate(zip(old.ensemble, new.ensemble, strict=True)):
            if was != is_now:
                yield new.first_entry_id, index, is_now


def _due(metadata: LedgerMetadata, first: int, index: int) -> Iterator[int]:
    """Ids that the bookie at that index of the fragment has to hold, of a fragment that is complete."""
    later = [fragment.first_entry_id for fragment in metadata.fragments if fragment.first_entry_id > first]
    end = min(later) if later else metadata.last_entry_id + 1
    for entry_id in range(first, end):
        if (index - entry_id) % metadata.ensemble_size < metadata.write_quorum_size:
            yield entry_id
