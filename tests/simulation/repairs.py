"""Watches what auto-recovery does to a world with the simple store: R1 to R6, R8 to R11 and R13, and with `bounds` R14
and R15.

The store tells of every write under a lock, every mark and every ledger that a bookie's process takes from its writer.
What a new member of a fragment has to hold is looked up on its disk as a loss of power would leave it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata, LedgerState
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.replication_store import RecordKind
from bookgate.ledger.wire.messages import Status
from tests.faults.memory_disk import everything_survives, nothing_survives
from tests.history import events
from tests.history.events import BookieAnswered, Event
from tests.history.recorder import Recorder
from tests.history.violations import (
    ActedWhileDisabled,
    CopiesLost,
    CopyDiffers,
    FencedWithoutNeed,
    MarkedTooEarly,
    MarkMadeAgainLost,
    NotRepaired,
    RepairNotDurable,
    TargetNotFenced,
    TwiceInAnEnsemble,
    UnknownTakenForMissing,
)
from tests.simulation.loop import CURRENT, Process
from tests.simulation.metadata import MemoryMetadata
from tests.simulation.repair_bounds import RepairBounds
from tests.simulation.repair_places import Place, due_at, is_good, new_members, write_sets
from tests.simulation.simulated_bookie import SimulatedBookie, StoredLedgerState
from tests.simulation.world import World

_UNRECOVERABLE = RecordKind.UNRECOVERABLE_LEDGER
_REPAIRED_WITHIN_SECONDS = 300.0
_LOOKED_AT_AGAIN_WITHIN_SECONDS = 900.0
"""A worker looks every ten minutes whether a ledger that it gave up has changed."""
_SWITCH_IS_HEARD_WITHIN_SECONDS = 15.0
_LOOK_EVERY_SECONDS = 1.0
_IS_HEARD_WITHIN_SECONDS = 1.0
"""Who has been registered for so long is known to be."""
_STAYS_DISABLED_SECONDS = 30.0
_A_SCRUB_TELLS_WITHIN_SECONDS = 10.0
"""An entry that a bookie could not read twice, two seconds apart, is marked as corrupt there."""
_AN_AUDIT_TAKES_SECONDS = 2.0
"""Who comes back meanwhile was lost when it began."""

Stored = Callable[[SimulatedBookie, Callable[..., object]], dict[int, StoredLedgerState]]


class RepairWatch:
    """`damaged` are bookies of which nothing is demanded; `delay` and `grace` are auto-recovery's, in seconds."""

    def __init__(
        self,
        world: World,
        store: MemoryMetadata,
        recorder: Recorder,
        damaged: set[str],
        bounds: RepairBounds,
        delay: float,
        grace: float,
        *,
        clocks_are_right: bool,
        scrubs: bool = False,
    ) -> None:
        """`scrubs`: auditors read all copies every few seconds."""
        self._world = world
        self._store = store
        self._recorder = recorder
        self._damaged = damaged
        self._delay = delay
        self._grace = grace
        self._clocks_are_right = clocks_are_right
        self._scrubs = scrubs
        self._noted: dict[str, float] = {}
        """When bookies were noted as missed, the last time."""
        self._marked_at: dict[int, float] = {}
        """When ledgers were marked, the last time."""
        self._looked_at: dict[tuple[Process, int], float] = {}
        """When processes read ledgers, the last time."""
        self._left: dict[tuple[int, int], set[bytes]] = {}
        """By ledger and entry, the copies of bookies that lost their places: others may have got theirs from them."""
        self._copied: set[tuple[str, str, int]] = set()
        """By bookie, ledger and entry: what a repair stored last, and no writer or recovery."""
        self.looked: Counter[str] = Counter()
        self.bounds = bounds
        recorder.listeners.append(self._heard)
        store.on_change.append(self._changed)
        store.on_read.append(self._read)
        store.replication.on_unmark.append(self._unmarked)
        store.replication.on_repair.append(self._repaired)
        store.replication.on_mark.append(self._marked)
        store.replication.on_record.append(self._recorded)

    # What is seen

    def _heard(self, event: Event) -> None:
        """What a bookie that joins holds from its writer or from a recovery may differ from others in its LAC."""
        if not isinstance(event, BookieAnswered) or not event.promises_an_entry:
            return
        key = (event.bookie, event.ledger, event.entry_id)
        record = self._store.ledgers.get(LedgerId.of_number(int(event.ledger)))
        recovers = record is not None and record.metadata.state is LedgerState.IN_RECOVERY
        if event.operation == "recovery-add" and not recovers:
            self._copied.add(key)
        else:
            self._copied.discard(key)

    def _repaired(self, before: LedgerRecord, metadata: LedgerMetadata) -> None:
        """Just before the store writes it. The first step of a recovery is judged as such (R6)."""
        was_open = before.metadata.state is LedgerState.OPEN
        if was_open and metadata == replace(before.metadata, state=LedgerState.IN_RECOVERY):
            return
        ledger = str(before.ledger_id.number)
        self._recorder.add(events.LedgerRepaired(self._recorder.now, ledger, before.version + 1))
        self._keeps_copies(before, metadata)
        self.bounds.repaired(before.metadata, metadata, before.ledger_id.number)
        for place in new_members(before.metadata, metadata):
            if not self.bounds.mends(before.metadata, metadata, place.first_entry_id):
                self._is_worth_a_repair(before, place)
            bookie = self._bookie(place.bookie_id)
            if bookie is not None and place.bookie_id not in self._damaged:
                self._look_at_copies(before, metadata, place, bookie)
            self._remember_copies(before, place)

    def _keeps_copies(self, before: LedgerRecord, metadata: LedgerMetadata) -> None:
        """R4: no bookie stands twice in an ensemble. R2: each entry has as many good copies as it had.

        Of a bookie with damaged data it is not known what it has: places that one gets are passed over.
        """
        number = before.ledger_id.number
        for fragment in metadata.fragments:
            self.looked["R4"] += 1
            if len({*fragment.ensemble}) < len(fragment.ensemble):
                seen = f"ledger {number} names {', '.join(fragment.ensemble)} from entry {fragment.first_entry_id} on"
                self._world.fail(TwiceInAnEnsemble(seen))
        held: dict[str, Mapping[int, bytes]] = {}
        changed = {place.first_entry_id for place in new_members(before.metadata, metadata)}
        after = {entry_id: members for _, entry_id, members in write_sets(metadata)}
        for first_entry_id, entry_id, members in write_sets(before.metadata):
            replacing = {*after.get(entry_id, ())} - {*members}
            if first_entry_id not in changed or replacing & self._damaged:
                continue
            good = []
            for names in (members, after[entry_id]):
                for name in names:
                    if name not in held:
                        held[name] = self._held(name, number)
                copies = [held[name][entry_id] for name in names if entry_id in held[name]]
                good.append(sum(is_good(metadata, packet, number, entry_id) for packet in copies))
            self.looked["R2"] += 1
            if good[1] < good[0]:
                seen = f"entry {entry_id} of ledger {number} has {good[1]} good copies at {after[entry_id]}"
                self._world.fail(CopiesLost(f"{seen}; it had {good[0]} at {members}"))

    def _look_at_copies(
        self, before: LedgerRecord, metadata: LedgerMetadata, place: Place, bookie: SimulatedBookie
    ) -> None:
        number = before.ledger_id.number
        where = f"{place.bookie_id} joins ledger {number} at entry {place.first_entry_id}"
        held, due = (
            bookie.stored(nothing_survives).get(number),
            list(due_at(metadata, place.first_entry_id, place.place)),
        )
        self.looked["R3"] += 1
        missing = [entry_id for entry_id in due if held is None or entry_id not in held.entries]
        if missing:
            self._world.fail(RepairNotDurable(f"{where} without entries {missing[:5]}"))
        if held is None:
            return
        if metadata.state is LedgerState.CLOSED:
            self.looked["R9"] += 1
            if not held.fenced:
                self._world.fail(TargetNotFenced(where))
        sources = [self._held(name, number) for name in sorted(before.metadata.bookies - {place.bookie_id})]
        for entry_id in due:
            known = {packets[entry_id] for packets in sources if entry_id in packets}
            known |= self._left.get((number, entry_id), set())
            if known and (place.bookie_id, str(number), entry_id) in self._copied:
                self.looked["R1"] += 1
                if held.entries.get(entry_id) not in known:
                    self._world.fail(CopyDiffers(f"{where} with another entry {entry_id} than the others have"))

    def _remember_copies(self, before: LedgerRecord, place: Place) -> None:
        number = before.ledger_id.number
        held = self._held(place.was, number)
        for entry_id in due_at(before.metadata, place.first_entry_id, place.place):
            if entry_id in held:
                self._left.setdefault((number, entry_id), set()).add(held[entry_id])

    def _held(self, bookie_id: str, number: int) -> dict[int, bytes]:
        """What any start of a bookie would find of a ledger; nothing where data are damaged."""
        bookie = None if bookie_id in self._damaged else self._bookie(bookie_id)
        state = None if bookie is None else bookie.stored(everything_survives).get(number)
        return {} if state is None else state.entries

    def _is_worth_a_repair(self, before: LedgerRecord, place: Place) -> None:
        """Who is replaced was lost; or it lacks entries, and may have refused them."""
        if not self._clocks_are_right:
            return
        self.looked["R13"] += 1
        number, bookie_id = before.ledger_id.number, place.was
        away = max(self._away(bookie_id), self._was_away(bookie_id, self._store.replication.locked_for(number)))
        if away >= self._delay or self._is_worth_a_mark(bookie_id):
            return
        held = self._held(bookie_id, number)
        if all(entry_id in held for entry_id in due_at(before.metadata, place.first_entry_id, place.place)):
            self._world.fail(MarkedTooEarly(f"ledger {number} lost {bookie_id}, which is there with all that is due"))

    def _was_away(self, bookie_id: str, within: float) -> float:
        """For how many seconds it had been missed, or was noted to be, when that ended within the last seconds."""
        since = self._world.now - within
        went, came = self._store.last_absences.get(bookie_id, (0.0, 0.0))
        missed = 0.0 if came < since else came - min(went, self._noted.get(bookie_id, went))
        ended, note = self._store.replication.removed_records.get((RecordKind.MISSED_BOOKIE, bookie_id), (0.0, b""))
        noted = 0.0 if ended < since or not note else time.time() - (self._world.now - ended) - int(note) / 1000
        return max(missed, noted)

    def _away(self, bookie_id: str) -> float:
        """For how many seconds it has been missed, or was noted to be: it may have been back without an auditor."""
        note = self._store.replication.records.get((RecordKind.MISSED_BOOKIE, bookie_id))
        noted = 0.0 if note is None else time.time() - int(note.value) / 1000
        return max(self._store.missing_for(bookie_id), noted)

    def _read(self, ledger_id: LedgerId) -> None:
        self._looked_at[CURRENT.get(), ledger_id.number] = self._world.now

    def _unmarked(self, ledger_id: int) -> None:
        """R8: whoever removes a mark has read the ledger since it was made the last time."""
        self.looked["R8"] += 1
        looked = self._looked_at.get((CURRENT.get(), ledger_id), 0.0)
        if looked < (marked := self._marked_at.get(ledger_id, 0.0)):
            seen = f"the mark of ledger {ledger_id} was made again at {marked:.2f} s, and removed after a look at"
            self._world.fail(MarkMadeAgainLost(f"{seen} {looked:.2f} s"))

    def _marked(self, ledger_id: int, replicas: Sequence[str]) -> None:
        self._marked_at[ledger_id] = self._world.now
        self._is_enabled(f"ledger {ledger_id} was marked")
        if not self._clocks_are_right:
            return
        for bookie_id in replicas:
            self.looked["R13"] += 1
            away = max(self._away(bookie_id), self._was_away(bookie_id, _AN_AUDIT_TAKES_SECONDS))
            if away < self._delay and not (self._is_worth_a_mark(bookie_id) or self._lacks(bookie_id, ledger_id)):
                seen = f"ledger {ledger_id} was marked for {bookie_id}, which had been away for {away:.2f} s"
                self._world.fail(MarkedTooEarly(seen))

    def _recorded(self, kind: RecordKind, key: str, value: bytes) -> None:
        """What is listed as lost: nobody may have it who was there when the ledger was locked, and is due to hold it.

        A bookie may hold an entry of a later fragment too, where readers do not look for it: of an advanced writer it
        stores what comes before its turn, and the next change of the ensemble may begin below that.
        """
        if kind is RecordKind.MISSED_BOOKIE:
            self._noted[key] = self._world.now
        record = self._store.ledgers.get(LedgerId.of_number(int(key))) if kind is _UNRECOVERABLE else None
        if record is None:
            return
        number, entries = int(key), json.loads(value)["first_entries"]
        locked_for = self._store.replication.locked_for(number)
        for bookie_id in sorted(record.metadata.bookies):
            if self._store.registered_for(bookie_id) <= locked_for + _IS_HEARD_WITHIN_SECONDS:
                continue
            self.looked["R10"] += 1
            held = self._held(bookie_id, number)
            due = {entry_id for _, entry_id, members in write_sets(record.metadata) if bookie_id in members}
            if found := [entry_id for entry_id in entries if entry_id in held and entry_id in due]:
                seen = f"ledger {number} is listed without a copy of entries {found[:5]}, which {bookie_id} holds"
                self._world.fail(UnknownTakenForMissing(seen))

    def _is_worth_a_mark(self, bookie_id: str) -> bool:
        """Without being lost: it has lost data, or it is drained, or it could not read its disk a moment ago."""
        draining = (RecordKind.DRAINING_BOOKIE, bookie_id) in self._store.replication.records
        bookie = self._bookie(bookie_id)
        fails = bookie is not None and self._world.now - bookie.disk.read_failed_at < _A_SCRUB_TELLS_WITHIN_SECONDS
        return draining or fails or bookie_id in self._damaged

    def _lacks(self, bookie_id: str, ledger_id: int) -> bool:
        """Whether it is due to hold an entry that it does not have for certain, or of which its copy is damaged.

        The replay of a journal may take in an entry whose end never reached the disk; its digest tells readers.
        """
        bookie, record = self._bookie(bookie_id), self._store.ledgers.get(LedgerId.of_number(ledger_id))
        if bookie is None or record is None:
            return False
        state = bookie.stored(nothing_survives).get(ledger_id)
        held = {} if state is None else state.entries
        return any(
            entry_id not in held or not is_good(record.metadata, held[entry_id], ledger_id, entry_id)
            for fragment in record.metadata.fragments
            for place, member in enumerate(fragment.ensemble)
            if member == bookie_id
            for entry_id in due_at(record.metadata, fragment.first_entry_id, place)
        )

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
        """R5 and R10: no ledger names a bookie that is gone or to be emptied at last, unless it is unrecoverable.

        Where auto-recovery is disabled it stays so for a while, although all is well (R11).
        """
        if not self._store.replication.enabled:
            await asyncio.sleep(_STAYS_DISABLED_SECONDS)
            self._store.replication.switch(True)
        until = self._world.now + _REPAIRED_WITHIN_SECONDS
        while left := self._unrepaired():
            if self._world.now > until:
                if wrong := [told for record, told in left if not self._may_wait(record)]:
                    raise NotRepaired("; ".join(wrong[:5]))
                break
            await asyncio.sleep(_LOOK_EVERY_SECONDS)
        self.looked["R5"] += 1
        while self._scrubs and (rotten := self._rotten()):
            if self._world.now > until:
                raise NotRepaired("; ".join(rotten[:5]))
            await asyncio.sleep(_LOOK_EVERY_SECONDS)
        until += _LOOKED_AT_AGAIN_WITHIN_SECONDS
        while false := self._falsely_unrecoverable():
            if self._world.now > until:
                raise UnknownTakenForMissing("; ".join(false[:5]))
            await asyncio.sleep(_LOOK_EVERY_SECONDS)
        self.looked["R10"] += 1

    def _falsely_unrecoverable(self) -> list[str]:
        found = []
        for kind, key in sorted(self._store.replication.records, key=str):
            record = self._store.ledgers.get(LedgerId.of_number(int(key))) if kind is _UNRECOVERABLE else None
            if record is not None and record.metadata.state is LedgerState.CLOSED and self._has_all(record):
                found.append(f"ledger {key}, of which every entry is held")
        return found

    def _has_all(self, record: LedgerRecord) -> bool:
        """Whether each entry is at a bookie that is registered and due to hold it."""
        metadata, number = record.metadata, record.ledger_id.number
        living = [name for name in sorted(metadata.bookies) if name in self._store.registrations]
        held = {name: self._held(name, number) for name in living}
        return all(
            any(entry_id in held.get(member, ()) for member in members) for _, entry_id, members in write_sets(metadata)
        )

    def _unrepaired(self) -> list[tuple[LedgerRecord, str]]:
        """The ledgers with a bookie that is to leave them, each with what is wrong."""
        left = []
        for ledger_id, record in sorted(self._store.ledgers.items()):
            if (_UNRECOVERABLE, str(ledger_id.number)) in self._store.replication.records:
                continue
            lost = sorted(each for each in record.metadata.bookies if self._is_to_leave(each, record.metadata))
            if lost:
                told = f"ledger {ledger_id} ({record.metadata.state.name}) still names {', '.join(lost)}"
                left.append((record, told))
        return left

    def _may_wait(self, record: LedgerRecord) -> bool:
        return self._waits_for_limbo(record) or (not self._scrubs and self._waits_for_a_scrub(record))

    def _waits_for_a_scrub(self, record: LedgerRecord) -> bool:
        """Whether nobody has a good copy of some entry that a damaged bookie should hold. Only a scrub tells a damaged
        copy from one that can't be read now.
        """
        return any(not good and not self._damaged.isdisjoint(members) for _, members, _, good in self._copies(record))

    def _waits_for_limbo(self, record: LedgerRecord) -> bool:
        """Whether nobody has some entry that a bookie in limbo may have had: it is not known to be lost (R10)."""
        number, sets = record.ledger_id.number, list(write_sets(record.metadata))
        told: dict[int, set[Status]] = {entry_id: set() for _, entry_id, _ in sets}
        for name in sorted(record.metadata.bookies & {*self._store.registrations}):
            bookie, due = self._bookie(name), [entry_id for _, entry_id, members in sets if name in members]
            with suppress(OSError):  # a damaged one does not start
                answers = [] if bookie is None else bookie.answers((number, entry_id) for entry_id in due)
                for entry_id, status in zip(due, answers, strict=False):
                    told[entry_id].add(status)
        return any(Status.EOK not in each and Status.EUNKNOWNLEDGERSTATE in each for each in told.values())

    def _rotten(self) -> list[str]:
        """Copies with a wrong digest at a bookie that is registered, while another one has a good one."""
        found = []
        for ledger_id, record in sorted(self._store.ledgers.items()):
            metadata, number = record.metadata, ledger_id.number
            if (
                metadata.state is not LedgerState.CLOSED
                or (_UNRECOVERABLE, str(number)) in self._store.replication.records
            ):
                continue
            for entry_id, _, copies, good in self._copies(record):
                self.looked["R5"] += 1
                if good and (bad := sorted(copies - good)):
                    found.append(f"entry {entry_id} of ledger {number} is damaged at {', '.join(bad)}")
        return found

    def _copies(self, record: LedgerRecord) -> Iterator[tuple[int, Sequence[str], set[str], set[str]]]:
        """Of each entry who should hold it, and who has a copy of these, and a good one, and is registered."""
        metadata, number = record.metadata, record.ledger_id.number
        living = [name for name in sorted(metadata.bookies) if name in self._store.registrations]
        stored = {name: self._stored(name, number) for name in living}
        for _, entry_id, members in write_sets(metadata):
            copies = {name: stored[name][entry_id] for name in members if entry_id in stored.get(name, ())}
            good = {name for name, packet in copies.items() if is_good(metadata, packet, number, entry_id)}
            yield entry_id, members, set(copies), good

    def _stored(self, bookie_id: str, number: int) -> dict[int, bytes]:
        """What a start of a bookie would find of a ledger, damaged or not; nothing where it would not start."""
        bookie = self._bookie(bookie_id)
        try:
            state = None if bookie is None else bookie.stored(everything_survives).get(number)
        except OSError:
            return {}
        return {} if state is None else state.entries

    def _is_to_leave(self, bookie_id: str, metadata: LedgerMetadata) -> bool:
        """It is gone, or to be emptied, which takes no ledger from its writer, and can't copy what is damaged there."""
        draining = (RecordKind.DRAINING_BOOKIE, bookie_id) in self._store.replication.records
        can_move = metadata.state is LedgerState.CLOSED and bookie_id not in self._damaged
        return bookie_id not in self._store.registrations or (draining and can_move)
