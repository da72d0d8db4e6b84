"""A recovering client of a small world: the product's `LedgerRecovery` between two changes of the metadata."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bookgate.ledger.entry import Entry
from bookgate.ledger.errors import BKException
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.thinclient.core.recovery import (
    Effect,
    Failed,
    FenceRead,
    Finished,
    LedgerRecovery,
    RecoveryAdd,
    RecoveryState,
    Replace,
)
from bookgate.thinclient.core.recovery_reads import Missing, RecoveryRead, Unreadable
from tests.explore.adding import AddsUnderWay, replacements
from tests.explore.letters import FencingRead, FoundRun, Handle, Move, Stored
from tests.explore.metadata_change import MetadataChange
from tests.explore.servers import LEDGER

Sends = list[tuple[int, Handle, object]]


class Recoverer:
    """One recovery of the ledger, which begins at any moment."""

    def __init__(
        self, record: tuple[LedgerMetadata, int], bookies: Mapping[str, int], store: int, read_batch: int
    ) -> None:
        self._bookies, self._store, self._read_batch = bookies, store, read_batch
        self._change: MetadataChange | None = MetadataChange(store, record, "begin recovery")
        self._begun = False
        self._machine: LedgerRecovery | None = None
        self._adds = AddsUnderWay(bookies, recovery=True)
        self._replace: Replace | None = None
        self.closed_at: int | None = None
        """Where this client found the ledger closed, or closed it."""
        self.error: BKException | None = None
        self.outstanding: set[Handle] = set()

    @property
    def begun(self) -> bool:
        return self._begun

    @property
    def over(self) -> bool:
        return self.closed_at is not None or self.error is not None

    def moves(self) -> Sequence[Move]:
        if not self._begun:
            return (("recover",),)
        if self._replace is not None:
            return replacements(self._replace.failed, self._replace.ensemble, self._bookies)
        return ()

    def act(self, move: Move) -> Sends:
        if not self._begun:
            self._begun = True
            assert self._change is not None
            return self._sent(self._go_on(list(self._change.attempt())))
        assert self._machine is not None
        self._replace = None
        return self._sent(self._take(self._machine.on_replacements(dict(move[1]))))

    def hear(self, handle: Handle, answer: object) -> Sends:
        self.outstanding.discard(handle)
        if handle[0] in ("begin recovery", "end recovery"):
            assert self._change is not None
            return self._sent(self._go_on(list(self._change.hear(answer))))
        assert self._machine is not None
        return self._sent(self._take(self._hear_bookie(self._machine, handle, answer)))

    def _sent(self, sends: Sends) -> Sends:
        """Notes what is awaited, and forgets what can't matter any more."""
        self.outstanding |= {handle for _, handle, _ in sends}
        if self.over:
            self._machine = self._replace = self._change = None
            self._adds = AddsUnderWay(self._bookies, recovery=True)
            self.outstanding.clear()
        elif self._machine is None:
            self.outstanding = {handle for handle in self.outstanding if handle[0].endswith("recovery")}
        elif self._machine.state is not RecoveryState.FENCING:
            self.outstanding = {handle for handle in self.outstanding if handle[0] != "fence"}
            writer = self._machine._writer
            if writer is not None:
                self.outstanding = self._adds.settle(self.outstanding, writer)
            if self._machine.state is not RecoveryState.READING and self._machine.state is not RecoveryState.SIZING:
                self.outstanding = {handle for handle in self.outstanding if handle[0] != "read"}
        return sends

    def _go_on(self, sends: Sends) -> Sends:
        """After a step of the change: fences once the ledger is IN_RECOVERY; ends once it is closed."""
        assert self._change is not None
        metadata, _ = self._change.record
        if metadata.is_closed:
            self.closed_at = metadata.last_entry_id
        elif self._change.done:
            self._machine = LedgerRecovery(LEDGER, metadata, read_batch=self._read_batch)
            return self._take(self._machine.begin())
        return sends

    def _hear_bookie(self, machine: LedgerRecovery, handle: Handle, answer: object) -> Sequence[Effect]:
        if handle[0] == "add":
            add, member = self._adds.of(handle)
            error = answer.error if isinstance(answer, Stored) else answer
            if error is None:
                return machine.on_add_ack(add, member)
            assert isinstance(error, BKException)
            return machine.on_add_failure(add, member, error)
        if isinstance(answer, FoundRun):
            found, *following = answer.entries
            return machine.on_read_answer(handle[1], found, following)
        read = Unreadable(answer) if isinstance(answer, BKException) else answer
        assert isinstance(read, Entry | Missing | Unreadable)
        if handle[0] == "fence":
            return machine.on_fence_answer(handle[1], read)
        return machine.on_read_answer(handle[1], read)

    def _take(self, effects: Iterable[Effect]) -> Sends:
        machine = self._machine
        assert machine is not None
        sends: Sends = []
        if machine._writer is not None:
            self._adds.see(machine._writer.members)
        for effect in effects:
            match effect:
                case FenceRead(index, bookie_id):
                    sends.append((self._bookies[bookie_id], ("fence", index), FencingRead(-1)))
                case RecoveryRead(entry_id, bookie_id, following):
                    read = FencingRead(entry_id, following)
                    sends.append((self._bookies[bookie_id], ("read", entry_id, bookie_id), read))
                case RecoveryAdd(add, payload, members):
                    sends += self._adds.send(add, payload, members)
                case Replace():
                    self._replace = effect
                case Failed(error):
                    self.error = error
                case Finished(last_entry_id, length, fragments):
                    sends += self._finish(last_entry_id, length, fragments)
        return sends

    def _finish(self, *arguments: object) -> Sends:
        assert self._change is not None
        self._change = MetadataChange(self._store, self._change.record, "end recovery", *arguments)
        self._machine = None
        self._adds = AddsUnderWay(self._bookies, recovery=True)
        return list(self._change.attempt())
