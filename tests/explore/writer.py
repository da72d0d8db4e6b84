"""The writing client of a small world: the product's `LedgerWriter`, and what its handle does around it.

It appends its entries at any moment, changes its ensemble when members fail, and closes the ledger once nothing is
pending, or when something other than a fence has ended it. With a guaranteed write quorum it is the product's
`GuaranteedLedgerWriter`, which closes once all is replicated, and tries failed members that were not replaced again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bookgate.ledger.errors import BKException, LedgerFencedException, MetadataVersionException
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.thinclient.core.ensemble_change import refusal, still_failed
from bookgate.thinclient.core.guaranteed_writing import GuaranteedLedgerWriter
from bookgate.thinclient.core.writing import LedgerWriter, PendingAdd, WriterState
from tests.explore.adding import AddsUnderWay, payload_of, replacements
from tests.explore.letters import Handle, Move, Stored, Violation
from tests.explore.metadata_change import MetadataChange
from tests.explore.servers import LEDGER

Sends = Sequence[tuple[int, Handle, object]]


class Writer:
    """One writer; `entries` is how many it appends."""

    def __init__(
        self, metadata: LedgerMetadata, bookies: Mapping[str, int], store: int, entries: int, *, closes: bool
    ) -> None:
        self._bookies, self._store, self._entries, self._closes = bookies, store, entries, closes
        self._record = (metadata, 0)
        kind = GuaranteedLedgerWriter if metadata.guaranteed_write_quorum else LedgerWriter
        self._machine: LedgerWriter | None = kind(
            LEDGER, metadata.last_fragment.ensemble, metadata.write_quorum_size, metadata.ack_quorum_size
        )
        self._adds = AddsUnderWay(bookies, recovery=False)
        self._adds.see(self._machine.members)
        self._begun = 0
        self._failed: dict[int, str] | None = None
        """What the change under way replaces; None when there is none, or it is being stored."""
        self._change: MetadataChange | None = None
        self._closing: MetadataChange | None = None
        self.acknowledged = 0
        self._length = 0
        self.error: BKException | None = None
        self.closed = False
        self.outstanding: set[Handle] = set()

    @property
    def last_add_confirmed(self) -> int:
        return self.acknowledged - 1

    @property
    def over(self) -> bool:
        return self._machine is None and self._closing is None

    def moves(self) -> Sequence[Move]:
        machine = self._machine
        if machine is None:
            return ()
        moves: list[Move] = []
        if machine.error is None and self._begun < self._entries:
            moves.append(("append",))
        if machine.change_wanted and self._change is None and self._failed is None:
            moves.append(("change ensemble",))
        if isinstance(machine, GuaranteedLedgerWriter) and machine.state is WriterState.STEADY:
            moves += [
                ("try again", index) for index, name in enumerate(machine.ensemble) if name in machine.failed_bookies
            ]
        if self._failed is not None:
            ensemble = self._record[0].last_fragment.ensemble
            moves += replacements(still_failed(ensemble, self._failed), ensemble, self._bookies)
        if self._closing is None and _is_settled(machine) and (self._closes or self._begun == self._entries):
            moves.append(("close",) if self._closes else ("leave",))
        return moves

    def act(self, move: Move) -> Sends:
        assert self._machine is not None
        match move[0]:
            case "append":
                sends = self._append(self._machine)
            case "change ensemble":
                self._failed, sends = self._machine.begin_change(), ()
            case "replace":
                sends = self._replace(self._machine, dict(move[1]))
            case "try again":
                sends = self._send_again(self._machine, self._machine.readmit(move[1]))
            case _:
                sends = self._close(leave=move[0] == "leave")
        return self._sent(sends)

    def hear(self, handle: Handle, answer: object) -> Sends:
        self.outstanding.discard(handle)
        if handle[0] == "add":
            assert self._machine is not None
            return self._sent(self._hear_add(self._machine, handle, answer))
        if handle[0] == "close":
            return self._sent(self._go_on_closing(answer))
        return self._sent(self._go_on_changing(answer))

    def _sent(self, sends: Sends) -> Sends:
        """Notes what is awaited, and forgets what can't matter any more."""
        self.outstanding |= {handle for _, handle, _ in sends}
        machine = self._machine
        if machine is not None and machine.error is not None and not machine.pending_count:
            self._end(machine)
        if self._machine is not None:
            self.outstanding = self._adds.settle(self.outstanding, self._machine)
        return sends

    def _end(self, machine: LedgerWriter) -> None:
        """The ledger has ended; it is closed unless somebody else does that."""
        self.error = machine.error
        self._change = self._failed = None
        unsettled = isinstance(machine, GuaranteedLedgerWriter) and not machine.fully_replicated
        fenced = isinstance(machine.error, LedgerFencedException)
        if fenced or unsettled or not self._closes or self._closing is not None:
            self._machine = None
            self.outstanding = {handle for handle in self.outstanding if handle[0] == "close"}

    # Adds

    def _append(self, machine: LedgerWriter) -> Sends:
        entry_id = self._begun
        self._begun += 1
        try:
            add = machine.begin_add(len(payload_of(entry_id)))
        except BKException:
            return ()
        return self._adds.send(add, payload_of(entry_id), [machine.members[index] for index in add.indexes])

    def _hear_add(self, machine: LedgerWriter, handle: Handle, answer: object) -> Sends:
        add, member = self._adds.of(handle)
        error = answer.error if isinstance(answer, Stored) else answer
        if error is None:
            self._confirm(machine, machine.on_ack(add, member))
        else:
            assert isinstance(error, BKException)
            machine.on_failure(member, error, add)
        return ()

    def _confirm(self, machine: LedgerWriter, adds: Iterable[PendingAdd]) -> None:
        for add in adds:
            if add.entry_id != self.acknowledged:
                raise Violation("P9", f"entry {add.entry_id} is acknowledged where {self.acknowledged} is next")
            self.acknowledged += 1
        self._length = machine.confirmed_length
        if machine.sequence_head != self.last_add_confirmed:
            raise Violation("P9", f"entry {machine.sequence_head} is the last, {self.acknowledged} are acknowledged")
        if machine.last_add_confirmed != machine.sequence_head and not isinstance(machine, GuaranteedLedgerWriter):
            raise Violation("P9", f"the LAC is {machine.last_add_confirmed}, {self.acknowledged} are acknowledged")

    # Ensemble changes

    def _replace(self, machine: LedgerWriter, found: Mapping[int, str]) -> Sends:
        failed, self._failed = self._failed, None
        assert failed is not None
        first = machine.last_add_confirmed + 1
        arguments = (tuple(failed.items()), tuple(found.items()), first)
        self._change = MetadataChange(self._store, self._record, "change ensemble", *arguments)
        return self._go_on_changing(None)

    def _go_on_changing(self, answer: object | None) -> Sends:
        machine, change = self._machine, self._change
        assert machine is not None
        assert change is not None
        try:
            sends = change.attempt() if answer is None else change.hear(answer)
        except BKException as error:
            machine.abort(error)
            return ()
        self._record = change.record
        if not change.done:
            return sends
        self._change = None
        lost = refusal(LEDGER, self._record[0])
        if lost is not None:
            machine.abort(lost)
            return ()
        if machine.change_wanted:
            return ()
        changed = machine.finish_change(self._record[0].last_fragment.ensemble)
        again = self._send_again(machine, changed.resend)
        self._confirm(machine, changed.confirmed)
        return again

    def _send_again(self, machine: LedgerWriter, resend: Iterable[tuple[PendingAdd, int]]) -> Sends:
        self._adds.see(machine.members)
        return [
            each
            for add, index in resend
            for each in self._adds.send(add, payload_of(add.entry_id), [machine.members[index]])
        ]

    # The end

    def _close(self, *, leave: bool) -> Sends:
        assert self._machine is not None
        self._length = self._machine.confirmed_length
        self._machine = self._change = self._failed = None
        self.outstanding.clear()
        if leave:
            return ()
        arguments = (self.last_add_confirmed, self._length)
        self._closing = MetadataChange(self._store, self._record, "close", *arguments)
        return self._go_on_closing(None)

    def _go_on_closing(self, answer: object | None) -> Sends:
        assert self._closing is not None
        try:
            sends = self._closing.attempt() if answer is None else self._closing.hear(answer)
            self.closed = self._closing.done
        except MetadataVersionException as error:
            self.error = error
            self._closing, self._record = None, (self._record[0], 0)
            return ()
        if self.closed:
            self._closing = None
        return sends


def _is_settled(machine: LedgerWriter) -> bool:
    """As the handle waits before it closes."""
    return not machine.pending_count and (not isinstance(machine, GuaranteedLedgerWriter) or machine.fully_replicated)
