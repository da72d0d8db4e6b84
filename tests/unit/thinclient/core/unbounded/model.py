"""Bookies, a metadata register and clients of one unbounded ledger, message by message, around the real cores.

Messages wait in a bag: whoever drives the model delivers any of them, loses one, delivers one twice or too late. A
bookie honours terms as docs/protocol/unbounded-ledgers.md#bookie says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from bookgate.ledger.entry import Entry
from bookgate.ledger.errors import (
    BKException,
    BookieHandleNotAvailableException,
    InvalidTermException,
    ReadException,
    TimeoutException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.quorum import write_set
from bookgate.ledger.terms import FragmentCaps
from bookgate.ledger.unbounded import create_unbounded, terms_of
from bookgate.thinclient.core.recovery import Failed, FenceRead, Replace
from bookgate.thinclient.core.recovery_reads import Answer, Missing, RecoveryRead, Unreadable
from bookgate.thinclient.core.unbounded.adds import (
    Add,
    ChooseEnsemble,
    Confirmed,
    FailedAdds,
    Horizon,
    Place,
    RetryLater,
    SendAdd,
    StoreFragment,
)
from bookgate.thinclient.core.unbounded.changes import Holder, NewFragment, Transform, closing, storing, taken, taking
from bookgate.thinclient.core.unbounded.taking_over import TakenOver, TakeOver, TakeOverAdd
from bookgate.thinclient.core.unbounded.writing import UnboundedWriter

LEDGER = LedgerId.unscoped(9)
SIZE = 10
"""Payload bytes of every entry."""


class Refused(Exception):
    """Status EINVALIDTERM."""


class Denied(Exception):
    """Status EBADREQ: a truncation of what is confirmed."""


class Bookie:
    """What one bookie holds of the ledger."""

    def __init__(self) -> None:
        self.term = 0
        self.entries: dict[int, Entry] = {}
        self.horizon = Horizon(-1, -1)

    def _check(self, term: int) -> None:
        if term < self.term:
            raise Refused
        self.term = term

    def fence(self, term: int) -> Horizon:
        self._check(term)
        return self.horizon

    def read(self, entry_id: int, term: int) -> Answer:
        self._check(term)
        return self.entries.get(entry_id, Missing.MISSING)

    def read_behind(self, entry_id: int, count: int) -> list[Entry]:
        """The entries behind one, up to a missing one."""
        run = takewhile(self.entries.__contains__, range(entry_id + 1, entry_id + 1 + count))
        return [self.entries[each] for each in run]

    def add(self, entry: Entry, lafr: int, term: int, *, truncate: bool) -> None:
        self._check(term)
        if truncate and entry.entry_id <= self.horizon.last_add_confirmed:
            raise Denied
        if truncate:
            self.entries = {number: each for number, each in self.entries.items() if number < entry.entry_id}
        self.entries[entry.entry_id] = entry
        self.horizon = Horizon(*map(max, self.horizon, (entry.last_add_confirmed, lafr)))

    def read_confirmed(self, entry_id: int) -> Entry | None:
        """What a normal read gets: nothing above the LAC."""
        return self.entries.get(entry_id) if entry_id <= self.horizon.last_add_confirmed else None


@dataclass
class Message:
    """A request under way; or, once it was served, its answer."""

    text: str
    serve: Callable[[], Callable[[], None]]
    fail: Callable[[BKException], None]
    answer: Callable[[], None] | None = None


class Model:
    """One ledger, its bookies and its clients."""

    def __init__(
        self, sizes: tuple[int, int, int] = (3, 3, 2), spares: int = 1, caps: FragmentCaps | None = None
    ) -> None:
        names = [f"b{number}" for number in range(sizes[0] + spares)]
        self.bookies = {name: Bookie() for name in names}
        self.metadata = create_unbounded(
            LedgerMetadata.new(names[: sizes[0]], sizes[1], sizes[2]), caps or FragmentCaps()
        )
        self.messages: list[Message] = []
        self.acknowledged: dict[int, bytes] = {}
        self.appended: dict[int, list[tuple[int, bytes]]] = {}
        """By term, what its writer appended: entry ids and payloads."""
        self.clients: list[Client] = []
        self.last_opened = (-1, 0)
        """The truncate entry and the term of the last take-over that was completed."""

    def client(self) -> Client:
        self.clients.append(Client(self, len(self.clients) + 1))
        return self.clients[-1]

    def change(self, transform: Transform) -> LedgerMetadata:
        """A compare-and-set that meets nobody."""
        self.metadata = transform(self.metadata) or self.metadata
        return self.metadata

    def deliver(self, index: int, *, twice: bool = False) -> None:
        """Serves a request, or hands an answer over. With `twice` the message stays under way."""
        message = self.messages[index]
        if not twice:
            del self.messages[index]
        if message.answer is not None:
            message.answer()
            return
        try:
            answer = message.serve()
        except Denied:
            denied = ReadException("bad request").of_request_over()
            self.messages.append(
                Message(f"denial of {message.text}", message.serve, message.fail, lambda: message.fail(denied))
            )
        except Refused:
            refused = InvalidTermException("refused")
            self.messages.append(
                Message(f"refusal of {message.text}", message.serve, message.fail, lambda: message.fail(refused))
            )
        else:
            self.messages.append(Message(f"answer to {message.text}", message.serve, message.fail, answer))

    def lose(self, index: int) -> None:
        """The sender finds no answer within its timeout."""
        self.messages.pop(index).fail(TimeoutException("lost"))

    def refuse(self, index: int) -> None:
        """A request is never sent; an answer is lost."""
        message = self.messages.pop(index)
        error = BookieHandleNotAvailableException("down")
        message.fail(error if message.answer is not None else error.of_request_over())

    def time_out(self, index: int) -> None:
        """The sender gives the request up, and it arrives all the same, later."""
        self.messages[index].fail(TimeoutException("late"))

    def messages_of(self, text: str) -> list[int]:
        """Where the messages are whose text has this part, the last one first: so that each can be taken out."""
        return [index for index, message in enumerate(self.messages) if text in message.text][::-1]

    def settle(self) -> None:
        """Delivers everything, in order."""
        while self.messages:
            self.deliver(0)

    # What has to hold in each state

    def check(self) -> None:
        self._acknowledged_values_are_readable()
        self._no_log_diverges()
        self._complete_fragments_are_replicated()
        self._truncated_where_open()
        self._members_hold_nothing_from_before()

    def _members(self, entry_id: int) -> list[str]:
        ensemble = self.metadata.fragment_at(entry_id).ensemble
        sizes = (self.metadata.ensemble_size, self.metadata.write_quorum_size)
        return [ensemble[index] for index in write_set(entry_id, *sizes)]

    def _held(self, bookie_id: str, entry_id: int) -> bytes | None:
        entry = self.bookies[bookie_id].entries.get(entry_id)
        return None if entry is None else entry.payload

    def _acknowledged_values_are_readable(self) -> None:
        """U5."""
        for entry_id, payload in self.acknowledged.items():
            held = [self._held(bookie_id, entry_id) for bookie_id in self._members(entry_id)]
            assert held.count(payload) >= self.metadata.ack_quorum_size, (
                f"U5: entry {entry_id} is {payload!r} on {held}"
            )

    def _no_log_diverges(self) -> None:
        """U4."""
        for entry_id in range(self._end()):
            read = [self.bookies[each].read_confirmed(entry_id) for each in self._members(entry_id)]
            values = {entry.payload for entry in read if entry is not None}
            assert len(values) <= 1, f"U4: entry {entry_id} reads as {values}"
            if entry_id in self.acknowledged:
                assert values <= {self.acknowledged[entry_id]}, f"U4: entry {entry_id} reads as {values}"

    def _end(self) -> int:
        return max((number for each in self.bookies.values() for number in each.entries), default=-1) + 1

    def _complete_fragments_are_replicated(self) -> None:
        """G1, and G2 of a closed ledger."""
        metadata = self.metadata
        end = metadata.last_entry_id + 1 if metadata.is_closed else metadata.last_fragment.first_entry_id
        for entry_id in range(end):
            held = {self._held(bookie_id, entry_id) for bookie_id in self._members(entry_id)}
            assert len(held) == 1, f"G1: entry {entry_id} is {held}"
            assert None not in held, f"G1: entry {entry_id} is not everywhere"

    def _truncated_where_open(self) -> None:
        """U3, at the moment a client has opened the metadata."""
        for client in self.clients:
            if client.opened_at is not None:
                self._no_gap_up_to(client.opened_at)
                for bookie_id in self.metadata.last_fragment.ensemble:
                    held = self.bookies[bookie_id].entries
                    assert max(held, default=-1) == client.opened_at, f"U3: {bookie_id} holds {sorted(held)}"
                client.opened_at = None

    def _members_hold_nothing_from_before(self) -> None:
        """U3, of those that join too: what they hold above the truncate entry is of the term that it began."""
        truncate_entry_id, term = self.last_opened
        written = {payload for _, payload in self.appended.get(term, [])}
        for bookie_id in self.metadata.last_fragment.ensemble:
            held = self.bookies[bookie_id].entries
            above = {held[number].payload for number in held if number > truncate_entry_id} - {b""}
            assert above <= written, f"U3: {bookie_id} holds {above - written} above entry {truncate_entry_id}"

    def _no_gap_up_to(self, last: int) -> None:
        """Of what a writer appended, the log has a beginning: nothing comes without what was before it (T1)."""
        for term, entries in self.appended.items():
            kept = [
                entry_id <= last and any(self._held(each, entry_id) == payload for each in self._members(entry_id))
                for entry_id, payload in entries
            ]
            assert sorted(kept, reverse=True) == kept, f"of term {term} the log has {kept} of {entries}"


@dataclass
class Client:
    """One client: takes over, and appends."""

    model: Model
    number: int
    writer: UnboundedWriter | None = None
    take_over: TakeOver | None = None
    failed: BKException | None = None
    retry_due: bool = False
    appended: int = 0
    opened_at: int | None = None
    given_up: list[int] = field(default_factory=list)
    """Entries that failed."""

    # Writing

    def start(self) -> None:
        """The creator's writer, at term 0."""
        self.writer = UnboundedWriter(LEDGER, self.model.metadata, -1, 0)

    def append(self) -> None:
        assert self.writer is not None
        self.appended += 1
        add, effects = self.writer.begin_add(SIZE)
        add.token = f"{self.number}-{self.appended}".ljust(SIZE, ".").encode()
        self.model.appended.setdefault(self.writer.term, []).append((add.entry_id, add.token))
        self._write(effects)

    def close(self) -> None:
        assert self.writer is not None
        self._change(closing(self._holder(), self.writer.last_add_pushed, self.writer.length))

    def _holder(self) -> Holder:
        core = self.writer or self.take_over
        assert core is not None
        return Holder(core.term, self.number if core.term else 0)

    def _write(self, effects: Sequence[object]) -> None:
        for effect in effects:
            match effect:
                case SendAdd(add, places, truncate):
                    for place in places:
                        self._send(add, place, truncate=truncate)
                case Confirmed(adds):
                    self.model.acknowledged |= {add.entry_id: add.token for add in adds}
                case FailedAdds(adds, error):
                    self.failed = error
                    self.given_up += [add.entry_id for add in adds]
                case Replace(ensemble, failed):
                    assert self.writer is not None
                    self._write(self.writer.on_replacements(self._spares(ensemble, failed)))
                case ChooseEnsemble(present):
                    assert self.writer is not None
                    self._write(self.writer.on_ensemble((*present[1:], present[0])))
                case StoreFragment(new):
                    self._store(new)
                case RetryLater():
                    self.retry_due = True

    def _store(self, new: NewFragment) -> None:
        assert self.writer is not None
        if self._change(storing(self._holder(), new)):
            self._write(self.writer.on_stored())

    def _change(self, transform: Transform) -> bool:
        try:
            self.model.change(transform)
        except BKException as error:
            self.failed = error
            if self.writer is not None:
                self._write(self.writer.disengage(error))
            return False
        return True

    def _spares(self, ensemble: Sequence[str], failed: Mapping[int, str]) -> dict[int, str]:
        spares = [name for name in self.model.bookies if name not in ensemble]
        return dict(zip(failed, spares, strict=False))

    def _send(self, add: Add, place: Place, *, truncate: bool) -> None:
        core = self.writer or self.take_over
        assert core is not None
        bookie, term = self.model.bookies[place.bookie_id], core.term

        def serve() -> Callable[[], None]:
            payload = add.token
            assert isinstance(payload, bytes)
            entry = Entry(9, add.entry_id, add.last_add_confirmed, add.length, payload)
            bookie.add(entry, add.lafr, term, truncate=truncate)
            return lambda: self._acked(core, add, place, term)

        text = f"add {add.entry_id}{' truncating' * truncate} by {self.number} at {term} to {place.bookie_id}"
        self.model.messages.append(Message(text, serve, lambda error: self._add_failed(core, place, error, add)))

    def _acked(self, core: UnboundedWriter | TakeOver, add: Add, place: Place, term: int) -> None:
        if core is self.writer:
            self._write(self.writer.on_ack(add, place, term))
        elif core is self.take_over:
            self._take(self.take_over.on_add_ack(add, place, term))

    def _add_failed(self, core: UnboundedWriter | TakeOver, place: Place, error: BKException, add: Add) -> None:
        if core is self.writer:
            self._write(self.writer.on_failure(place, error, add))
        elif core is self.take_over:
            self._take(self.take_over.on_add_failure(place, error, add))

    def retry(self) -> None:
        self.retry_due = False
        if self.writer is not None:
            self._write(self.writer.retry())
        elif self.take_over is not None:
            self._take(self.take_over.retry())

    # Taking over

    def begin_take_over(self) -> None:
        self.writer, self.failed = None, None
        self.take_over = TakeOver(LEDGER, self.model.change(taking(self.model.metadata, self.number)))
        self._before = self.model.metadata
        self._take(self.take_over.begin())

    def _take(self, effects: Sequence[object]) -> None:
        take_over = self.take_over
        for effect in effects:
            match effect:
                case FenceRead(index, bookie_id):
                    self._ask_fence(index, bookie_id)
                case RecoveryRead(entry_id, bookie_id, following):
                    self._ask_entry(entry_id, bookie_id, following)
                case TakeOverAdd(add, _, places):
                    for place in places:
                        self._send(add, place, truncate=add.truncate)
                case Replace(ensemble, failed):
                    assert take_over is not None
                    self._take(take_over.on_replacements(self._spares(ensemble, failed)))
                case RetryLater():
                    self.retry_due = True
                case Failed(error):
                    self.failed = error
                case TakenOver():
                    self._open(effect)

    def _heard(self, core: TakeOver, event: Callable[[], Sequence[object]]) -> None:
        """An answer for a take-over; one for an earlier attempt goes nowhere."""
        if core is self.take_over:
            self._take(event())

    def _open(self, done: TakenOver) -> None:
        if not self._change(taken(self._holder(), self._before, done.fragments)):
            return
        assert terms_of(self.model.metadata).holder == self.number
        self.opened_at = done.truncate_entry_id
        self.model.last_opened = (done.truncate_entry_id, self._holder().term)
        self.writer = UnboundedWriter(LEDGER, self.model.metadata, done.truncate_entry_id, done.length)
        self.writer.last_replicated.token = b""

    def _ask_fence(self, index: int, bookie_id: str) -> None:
        core, bookie = self.take_over, self.model.bookies[bookie_id]
        assert core is not None

        def serve() -> Callable[[], None]:
            horizon = bookie.fence(core.term)
            return lambda: self._heard(core, lambda: core.on_fence_answer(index, horizon, core.term))

        def fail(error: BKException) -> None:
            self._heard(core, lambda: core.on_fence_answer(index, Unreadable(error), core.term))

        self.model.messages.append(Message(f"fence {bookie_id} by {self.number} at {core.term}", serve, fail))

    def _ask_entry(self, entry_id: int, bookie_id: str, following: int) -> None:
        core, bookie = self.take_over, self.model.bookies[bookie_id]
        assert core is not None

        def serve() -> Callable[[], None]:
            answer = bookie.read(entry_id, core.term)
            behind = bookie.read_behind(entry_id, following) if isinstance(answer, Entry) else []
            return lambda: self._heard(
                core, lambda: core.on_read_answer(entry_id, bookie_id, answer, core.term, behind)
            )

        def fail(error: BKException) -> None:
            self._heard(core, lambda: core.on_read_answer(entry_id, bookie_id, Unreadable(error), core.term))

        text = f"read {entry_id} of {bookie_id} by {self.number} at {core.term}"
        self.model.messages.append(Message(text, serve, fail))
