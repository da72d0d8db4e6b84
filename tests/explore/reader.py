"""A tailing reader of a small world: the product's `TailSteps`, `LastConfirmedRead` and `EntryRead`.

It looks at the ledger a few times, each at any moment: it reads the metadata, then the LAC, and then the entries up to
that, one by one from one replica after the other. A look that fails is over; what it knew stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bookgate.ledger.entry import Entry
from bookgate.ledger.errors import BKException, NoSuchEntryException
from bookgate.ledger.ledger_id import NO_ENTRY
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.thinclient.core.entry_read import EntryRead, write_set_bookies
from bookgate.thinclient.core.last_confirmed import LastConfirmedRead
from bookgate.thinclient.core.recovery_reads import Missing, Unreadable
from bookgate.thinclient.core.tailing import Look as LacLook
from bookgate.thinclient.core.tailing import ReadRange, TailSteps
from tests.explore.adding import payload_of
from tests.explore.letters import Handle, Look, Move, PlainRead, Record, Violation
from tests.explore.servers import LEDGER

Sends = Sequence[tuple[int, Handle, object]]


class Reader:
    """One reader; `looks` is how often it still looks."""

    def __init__(self, bookies: Mapping[str, int], store: int, looks: int) -> None:
        self._bookies, self._store, self._looks = bookies, store, looks
        self._metadata: LedgerMetadata | None = None
        """Of the look under way."""
        self._lac_read: LastConfirmedRead | None = None
        self._entry_read: EntryRead | None = None
        self._position = 0
        self.last_add_confirmed = NO_ENTRY
        """The highest that it was told."""
        self.outstanding: set[Handle] = set()

    @property
    def delivered(self) -> int:
        """The last entry that the application has."""
        return self._position - 1

    @property
    def over(self) -> bool:
        return not self._looks and not self.outstanding

    def moves(self) -> Sequence[Move]:
        return (("look",),) if self._looks and not self.outstanding else ()

    def act(self, move: Move) -> Sends:
        self._looks -= 1
        return self._sent([(self._store, ("metadata",), Look())])

    def hear(self, handle: Handle, answer: object) -> Sends:
        self.outstanding.discard(handle)
        if handle[0] == "metadata":
            return self._sent(self._begin(answer) if isinstance(answer, Record) else self._give_up())
        if handle[0] == "lac":
            return self._sent(self._hear_lac(handle[1], answer))
        return self._sent(self._hear_entry(answer))

    def _sent(self, sends: Sends) -> Sends:
        self.outstanding |= {handle for _, handle, _ in sends}
        if self._lac_read is None and self._entry_read is None:
            self.outstanding = {handle for handle in self.outstanding if handle[0] == "metadata"}
            self._metadata = None
        return sends

    def _give_up(self) -> Sends:
        self._lac_read = self._entry_read = None
        return ()

    def _begin(self, record: Record) -> Sends:
        self._metadata = metadata = record.metadata
        if metadata.is_closed:
            return self._read_on(metadata.last_entry_id)
        self._lac_read = LastConfirmedRead(LEDGER, metadata)
        bookies = enumerate(self._lac_read.bookies)
        return [(self._bookies[bookie], ("lac", index), PlainRead(NO_ENTRY)) for index, bookie in bookies]

    def _hear_lac(self, index: int, answer: object) -> Sends:
        read = self._lac_read
        assert read is not None
        if isinstance(answer, Entry):
            read.on_answer(index, answer.last_add_confirmed, True)
        elif isinstance(answer, Missing):
            read.on_answer(index, NO_ENTRY, False)
        else:
            read.on_error(index, _error_of(answer))
        if read.error is not None:
            return self._give_up()
        if not read.done:
            return ()
        self._lac_read = None
        self.outstanding = {handle for handle in self.outstanding if handle[0] != "lac"}
        return self._read_on(read.result)

    def _read_on(self, last_add_confirmed: int) -> Sends:
        """As the tail does it: what comes next, given what is known now."""
        assert self._metadata is not None
        self.last_add_confirmed = max(self.last_add_confirmed, last_add_confirmed)
        closed = self._metadata.is_closed
        step = TailSteps(self._position, long_polls=False).next(self.last_add_confirmed, closed, 0.0)
        if not isinstance(step, ReadRange):
            assert closed or isinstance(step, LacLook), "an open ledger is looked at again"
            return self._give_up()
        self._entry_read = EntryRead(step.first, write_set_bookies(self._metadata, step.first))
        return self._ask()

    def _ask(self) -> Sends:
        read = self._entry_read
        assert read is not None
        replica = read.next_replica()
        if replica is None:
            return self._give_up()
        return [(self._bookies[replica], ("entry", read.entry_id, replica), PlainRead(read.entry_id))]

    def _hear_entry(self, answer: object) -> Sends:
        read = self._entry_read
        assert read is not None
        if not isinstance(answer, Entry):
            missing = isinstance(answer, Missing)
            read.on_error(NoSuchEntryException() if missing else _error_of(answer))
            return self._ask()
        if (answer.entry_id, answer.payload) != (self._position, payload_of(self._position)):
            raise Violation("P4", f"the reader got entry {answer.entry_id} where {self._position} was next")
        self._position += 1
        return self._read_on(self.last_add_confirmed)


def _error_of(answer: object) -> BKException:
    error = answer.error if isinstance(answer, Unreadable) else answer
    assert isinstance(error, BKException)
    return error
