"""A ledger's whole life in memory: bookies, the metadata store, one writer and any number of recovering clients.

The protocol logic is the client's own (`bookgate.thinclient.core`); everything around it is a model in which each
message, each answer and each write of metadata is a step of its own, taken in any order and with any outcome by whoever
drives it. `check` looks at P1, P2, P3, P5, P6, P9 and P11 as bookies and metadata show them; with a guaranteed write
quorum also at G1 and G2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache

from bookgate.ledger.entry import Entry
from bookgate.ledger.errors import (
    BKException,
    BookieHandleNotAvailableException,
    LedgerFencedException,
    MetadataVersionException,
    TimeoutException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import GUARANTEED_KEY, LedgerMetadata, LedgerState
from bookgate.ledger.quorum import write_set
from bookgate.thinclient.core.ensemble_change import change_ensemble, refusal, still_failed
from bookgate.thinclient.core.guaranteed_writing import GuaranteedLedgerWriter
from bookgate.thinclient.core.recovery import Effect, Failed, FenceRead, Finished, LedgerRecovery, RecoveryAdd, Replace
from bookgate.thinclient.core.recovery_reads import Answer, Missing, RecoveryRead, Unreadable
from bookgate.thinclient.core.writing import LedgerWriter, Member, PendingAdd, WriterRules
from bookgate.thinclient.handles.metadata_cas import Transform, begin_recovery, close_by_writer, end_recovery

LEDGER = LedgerId.unscoped(5)


def payload_of(entry_id: int) -> bytes:
    return b"." * (entry_id % 4)


@cache
def length_at(entry_id: int) -> int:
    return sum(len(payload_of(each)) for each in range(entry_id + 1))


@dataclass
class Bookie:
    """What one bookie holds; it survives a crash."""

    entries: dict[int, Entry] = field(default_factory=dict)
    fenced: bool = False
    up: bool = True

    def add(self, entry: Entry, recovery: bool) -> BKException | None:
        if not self.up:
            return BookieHandleNotAvailableException("down")
        if self.fenced and not recovery:
            return LedgerFencedException("fenced")
        self.entries[entry.entry_id] = entry
        return None

    def fencing_read(self, entry_id: int) -> Answer:
        if not self.up:
            return Unreadable(BookieHandleNotAvailableException("down"))
        self.fenced = True
        wanted = max(self.entries, default=-1) if entry_id == -1 else entry_id
        return self.entries.get(wanted, Missing.MISSING)


class Store:
    """One ledger's metadata under compare-and-set; P5 and P6 are checked at every write."""

    def __init__(self, metadata: LedgerMetadata) -> None:
        self.metadata = metadata
        self.version = 0

    def write(self, metadata: LedgerMetadata, version: int) -> None:
        if version != self.version:
            raise MetadataVersionException("conflict")
        before, after = self.metadata.state, metadata.state
        moves = {
            LedgerState.OPEN: set(LedgerState),
            LedgerState.IN_RECOVERY: {LedgerState.CLOSED},
            LedgerState.CLOSED: set(),
        }
        assert after in moves[before], (before, after)
        for fragment in metadata.fragments:
            assert len(set(fragment.ensemble)) == len(fragment.ensemble)
        firsts = [fragment.first_entry_id for fragment in metadata.fragments]
        assert firsts == sorted(set(firsts))
        assert firsts[0] == 0
        self.metadata, self.version = metadata, version + 1


class Update:
    """A compare-and-set under way, one attempt a step."""

    def __init__(self, store: Store, record: tuple[LedgerMetadata, int], transform: Transform) -> None:
        self.store, self.record, self.transform = store, record, transform

    def attempt(self, lose_answer: bool = False) -> bool:
        """True once it is done; `record` is what is stored then. Raises what the transform raises."""
        metadata, version = self.record
        changed = self.transform(metadata)
        if changed is None:
            return True
        try:
            self.store.write(changed, version)
        except MetadataVersionException:
            lose_answer = True
        self.record = (self.store.metadata, self.store.version)
        return not lose_answer


@dataclass
class Message:
    """A request on its way, and what its answer does."""

    bookie: str
    carry_out: Callable[[Bookie], object]
    answer: Callable[[object], None]
    lost: Callable[[BKException], None]


class World:
    """Everything there is."""

    def __init__(
        self, sizes: tuple[int, int, int], spare: int, rules: WriterRules, *, guaranteed: bool = False
    ) -> None:
        self.sizes = sizes
        self.guaranteed = guaranteed
        names = [f"b{i}" for i in range(sizes[0] + spare)]
        self.bookies = {name: Bookie() for name in names}
        custom = {GUARANTEED_KEY: b"true"} if guaranteed else {}
        self.store = Store(LedgerMetadata.new(names[: sizes[0]], sizes[1], sizes[2], custom_metadata=custom))
        self.messages: list[Message] = []
        self.none_free = False
        """No bookie is registered but the members: those that fail are tried again later."""
        self.turn = 0
        self.writer = Writer(self, rules)
        self.recoveries: list[Recovery] = []

    def send(self, message: Message) -> None:
        self.messages.append(message)

    def deliver(self, position: int) -> None:
        message = self.messages.pop(position % len(self.messages))
        message.answer(message.carry_out(self.bookies[message.bookie]))

    def lose(self, position: int, carried_out: bool) -> None:
        """The request or its answer is lost; whoever sent it hears of a timeout."""
        message = self.messages.pop(position % len(self.messages))
        if carried_out and self.bookies[message.bookie].up:
            message.carry_out(self.bookies[message.bookie])
        message.lost(TimeoutException("late"))

    def choose(self, ensemble: tuple[str, ...], failed: Iterable[int], avoid: set[str], some: bool) -> dict[int, str]:
        """Replacements: none of the ensemble, and not always one though there is one."""
        if self.none_free:
            return {}
        free = [name for name in self.bookies if name not in ensemble and name not in avoid]
        # Another one each time: two dead bookies must not replace each other for ever.
        self.turn += 1
        free = free[self.turn % len(free) :] + free[: self.turn % len(free)] if free else []
        return dict(zip(sorted(failed), free if some else free[:1], strict=False))

    def copies(self, entry_id: int) -> int:
        fragment = self.store.metadata.fragment_at(entry_id)
        indexes = write_set(entry_id, self.sizes[0], self.sizes[1])
        return sum(entry_id in self.bookies[fragment.ensemble[index]].entries for index in indexes)

    def check(self) -> None:
        writer, metadata = self.writer, self.store.metadata
        assert writer.acknowledged == list(range(len(writer.acknowledged)))
        assert writer.machine.sequence_head == len(writer.acknowledged) - 1
        assert self.guaranteed or writer.machine.last_add_confirmed == writer.machine.sequence_head
        for entry_id in writer.acknowledged:
            assert self.copies(entry_id) >= self.sizes[2], f"P1: entry {entry_id}"
        for bookie in self.bookies.values():
            for entry_id, entry in bookie.entries.items():
                assert entry.payload == payload_of(entry_id)
                assert entry.ledger_length == length_at(entry_id)
                assert entry.last_add_confirmed < entry_id
        if metadata.is_closed:
            assert metadata.last_entry_id >= writer.acknowledged_at_close, "P2"
            assert metadata.length == length_at(metadata.last_entry_id)
            for entry_id in range(metadata.last_entry_id + 1):
                assert self.copies(entry_id) >= self.sizes[2], f"P3: entry {entry_id}"
        if self.guaranteed:
            end = metadata.last_entry_id + 1 if metadata.is_closed else metadata.last_fragment.first_entry_id
            lacking = [entry_id for entry_id in range(end) if self.copies(entry_id) < self.sizes[1]]
            assert not lacking, f"{'G2' if metadata.is_closed else 'G1'}: entries {lacking}"
        for recovery in self.recoveries:
            if recovery.closed_at is not None:
                assert metadata.is_closed
                assert recovery.closed_at == metadata.last_entry_id, "P11"


class Writer:
    """The writing client."""

    def __init__(self, world: World, rules: WriterRules) -> None:
        metadata = world.store.metadata
        self.world = world
        self.record = (metadata, 0)
        self.machine = (GuaranteedLedgerWriter if world.guaranteed else LedgerWriter)(
            LEDGER,
            metadata.last_fragment.ensemble,
            metadata.write_quorum_size,
            metadata.ack_quorum_size,
            rules=rules,
        )
        self.acknowledged: list[int] = []
        self.change: Update | None = None
        self.closing: Update | None = None
        self.closed = False

    @property
    def acknowledged_at_close(self) -> int:
        return len(self.acknowledged) - 1

    @property
    def writable(self) -> bool:
        return self.machine.error is None and self.closing is None and not self.closed

    @property
    def may_close(self) -> bool:
        """As the handle waits: until nothing is pending, and with a guaranteed write quorum all is replicated."""
        machine = self.machine
        replicated = not isinstance(machine, GuaranteedLedgerWriter) or machine.fully_replicated
        return self.closing is None and not self.closed and not machine.pending_count and replicated

    def append(self) -> None:
        entry_id = self.machine.last_add_pushed + 1
        try:
            add = self.machine.begin_add(len(payload_of(entry_id)))
        except BKException:
            return
        entry = Entry(5, entry_id, add.last_add_confirmed, add.length, payload_of(entry_id))
        add.token = entry
        for index in add.indexes:
            self.send(add, index)

    def send(self, add: PendingAdd, index: int) -> None:
        member, entry = self.machine.members[index], add.token
        assert isinstance(entry, Entry)

        def answer(outcome: object) -> None:
            if isinstance(outcome, BKException):
                self.failed(member, outcome, add)
            else:
                self.confirm(self.machine.on_ack(add, member))

        self.world.send(
            Message(
                member.bookie_id,
                lambda bookie: bookie.add(entry, recovery=False),
                answer,
                lambda error: self.failed(member, error, add),
            )
        )

    def failed(self, member: Member, error: BKException, add: PendingAdd) -> None:
        for lost in self.machine.on_failure(member, error, add):
            assert lost.entry_id > self.machine.last_add_confirmed

    def confirm(self, adds: Iterable[PendingAdd]) -> None:
        self.acknowledged += [add.entry_id for add in adds]

    @property
    def wants_step(self) -> bool:
        return self.machine.error is None and (self.change is not None or self.machine.change_wanted)

    def change_step(self, some: bool, lose_answer: bool) -> None:
        if self.change is None:
            self._begin_change(some)
            return
        try:
            done = self.change.attempt(lose_answer)
        except BKException as error:
            self.machine.abort(error)
            return
        self.record = self.change.record
        if not done:
            return
        self.change = None
        lost = refusal(LEDGER, self.record[0])
        if lost is not None:
            self.machine.abort(lost)
        elif not self.machine.change_wanted:
            changed = self.machine.finish_change(self.record[0].last_fragment.ensemble)
            for add, index in changed.resend:
                self.send(add, index)
            self.confirm(changed.confirmed)

    def _begin_change(self, some: bool) -> None:
        failed = self.machine.begin_change()
        ensemble = self.record[0].last_fragment.ensemble
        found = self.world.choose(ensemble, still_failed(ensemble, failed), set(failed.values()), some)
        transform = change_ensemble(LEDGER, failed, found, self.machine.last_add_confirmed + 1)
        self.change = Update(self.world.store, self.record, transform)

    @property
    def may_try_again(self) -> bool:
        """As the handle waits: between two changes, while members are out."""
        return self.writable and self.change is None and not self.machine.changing and bool(self.machine.failed_bookies)

    def try_again(self) -> None:
        """Writes to the members again that failed and were not replaced; what they were asked before is on its way."""
        out = self.machine.failed_bookies
        for index, name in enumerate(self.machine.ensemble):
            if name in out:
                for add, _ in self.machine.readmit(index):
                    self.send(add, index)

    def close(self) -> None:
        """As the handle does it, once it may."""
        if isinstance(self.machine.error, LedgerFencedException):
            return
        transform = close_by_writer(LEDGER, self.machine.last_add_confirmed, self.machine.confirmed_length)
        self.closing = Update(self.world.store, self.record, transform)

    def close_step(self, lose_answer: bool) -> None:
        assert self.closing is not None
        try:
            self.closed = self.closing.attempt(lose_answer)
        except MetadataVersionException:
            self.closed = True
        if self.closed:
            self.closing = None


class Recovery:
    """One recovering client; it may die at any step."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.update: Update | None = Update(world.store, (world.store.metadata, world.store.version), begin_recovery)
        self.machine: LedgerRecovery | None = None
        self.result: Finished | Failed | None = None
        self.closed_at: int | None = None
        self.replace: Replace | None = None
        self.dead = False

    @property
    def over(self) -> bool:
        return self.dead or self.closed_at is not None or isinstance(self.result, Failed)

    @property
    def wants_step(self) -> bool:
        return not self.over and (self.update is not None or self.replace is not None)

    def step(self, some: bool, lose_answer: bool) -> None:
        if self.replace is not None and self.machine is not None:
            ensemble, failed = self.replace
            self.replace = None
            found = self.world.choose(ensemble, failed, set(failed.values()), some)
            self.take(self.machine.on_replacements(found))
            return
        assert self.update is not None
        if not self.update.attempt(lose_answer):
            return
        metadata, _ = self.update.record
        if metadata.is_closed:
            self.closed_at = metadata.last_entry_id
        elif self.machine is None:
            self.machine = LedgerRecovery(LEDGER, metadata, read_batch=3)
            self.record, self.update = self.update.record, None
            self.take(self.machine.begin())

    def take(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case FenceRead(index, bookie):
                    self._read(-1, bookie, self._fence_sink(index))
                case RecoveryRead(entry_id, bookie):
                    self._read(entry_id, bookie, self._read_sink(entry_id))
                case RecoveryAdd():
                    for member in effect.members:
                        self._add(effect, member)
                case Replace():
                    self.replace = effect
                case Failed():
                    self.result = effect
                case Finished(last_entry_id, length, fragments):
                    self.result = effect
                    transform = end_recovery(last_entry_id, length, fragments)
                    self.update = Update(self.world.store, self.record, transform)

    def _fence_sink(self, index: int) -> Callable[[Answer], None]:
        assert self.machine is not None
        machine = self.machine
        return lambda answer: self.take(machine.on_fence_answer(index, answer))

    def _read_sink(self, entry_id: int) -> Callable[[Answer], None]:
        assert self.machine is not None
        machine = self.machine
        return lambda answer: self.take(machine.on_read_answer(entry_id, answer))

    def _read(self, entry_id: int, bookie: str, sink: Callable[[Answer], None]) -> None:
        def answer(outcome: object) -> None:
            assert isinstance(outcome, Entry | Missing | Unreadable)
            if not self.dead:
                sink(outcome)

        self.world.send(
            Message(bookie, lambda at: at.fencing_read(entry_id), answer, lambda error: answer(Unreadable(error)))
        )

    def _add(self, effect: RecoveryAdd, member: Member) -> None:
        add = effect.add
        entry = Entry(5, add.entry_id, add.last_add_confirmed, add.length, effect.payload)

        def answer(outcome: object) -> None:
            if self.dead or self.machine is None:
                return
            if isinstance(outcome, BKException):
                self.take(self.machine.on_add_failure(add, member, outcome))
            else:
                self.take(self.machine.on_add_ack(add, member))

        self.world.send(Message(member.bookie_id, lambda at: at.add(entry, recovery=True), answer, answer))
