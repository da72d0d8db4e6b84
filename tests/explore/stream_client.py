"""A client of an unbounded ledger in a small world: the product's `TakeOver`, then its `UnboundedWriter`.

It takes the ledger over (the creator does not), appends its entries, and leaves, or closes the ledger. Where the cores
want to try failed bookies again it does so once, and gives up after that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bookgate.ledger.entry import Entry
from bookgate.ledger.errors import BKException
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.thinclient.core.recovery import Failed, FenceRead, Replace
from bookgate.thinclient.core.recovery_reads import Missing, RecoveryRead, Unreadable
from bookgate.thinclient.core.unbounded.adds import (
    Add,
    Confirmed,
    FailedAdds,
    Horizon,
    Place,
    RetryLater,
    SendAdd,
    StoreFragment,
)
from bookgate.thinclient.core.unbounded.taking_over import TakenOver, TakeOver, TakeOverAdd
from bookgate.thinclient.core.unbounded.writing import UnboundedWriter
from tests.explore.adding import replacements
from tests.explore.letters import Handle, Look, Move, Record
from tests.explore.metadata_change import MetadataChange
from tests.explore.servers import LEDGER
from tests.explore.term_bookie import AtTerm, TermAdd, TermFence, TermRead

Sends = list[tuple[int, Handle, object]]
_RETRIES = 1
_LOOK: Handle = ("look",)


class StreamClient:
    """Client `number`; 0 is the creator, whose term is 0."""

    def __init__(
        self,
        number: int,
        record: tuple[LedgerMetadata, int],
        bookies: Mapping[str, int],
        store: int,
        entries: int,
        *,
        closes: bool = False,
        read_batch: int = 1,
    ) -> None:
        self.number, self._entries, self._closes = number, entries, closes
        self._read_batch = read_batch
        self._bookies, self._store, self._record = bookies, store, record
        self._core: TakeOver | UnboundedWriter | None = None
        self._change: MetadataChange | None = None
        self._replace: Replace | None = None
        self._places: dict[tuple[int, int], Place] = {}
        self._generations = [0] * record[0].ensemble_size
        self._adds: dict[int, Add] = {}
        self._opening: TakenOver | None = None
        self._retries = 0
        self._retry_due = False
        self.begun = number == 0
        self.appended = 0
        self.opened_at: int | None = None
        """The truncate entry of its take-over, until its first append."""
        self.term = 0
        self.acknowledged: dict[int, bytes] = {}
        self.error: BKException | None = None
        self.over = False
        self.outstanding: set[Handle] = set()
        if self.begun:
            self._core = UnboundedWriter(LEDGER, record[0], -1, 0)
            self._see()

    # What it may do

    def moves(self) -> Sequence[Move]:
        if self.over:
            return ()
        if not self.begun:
            return (("take over",),)
        if self._replace is not None:
            return replacements(self._replace.failed, self._replace.ensemble, self._bookies)
        moves: list[Move] = []
        if self._retry_due:
            moves.append(("retry",) if self._retries < _RETRIES else ("give up",))
        if isinstance(self._core, UnboundedWriter) and self._change is None:
            if self.appended < self._entries:
                moves.append(("append",))
            elif not self._core.pending_count:
                moves.append(("close",) if self._closes else ("leave",))
        return moves

    def act(self, move: Move) -> Sends:
        sends: Sends
        match move[0]:
            case "take over":
                self.begun = True
                sends = [(self._store, _LOOK, Look())]
            case "append":
                sends = self._append()
            case "replace":
                assert self._core is not None
                self._replace = None
                sends = self._take(self._core.on_replacements(dict(move[1])))
            case "retry":
                assert self._core is not None
                self._retries, self._retry_due = self._retries + 1, False
                sends = self._take(self._core.retry())
            case "close":
                assert isinstance(self._core, UnboundedWriter)
                sends = self._changing("close the stream", self._holder, self._core.last_add_pushed, self._core.length)
            case _:
                self.over, sends = True, []
        return self._sent(sends)

    def _append(self) -> Sends:
        assert isinstance(self._core, UnboundedWriter)
        self.opened_at = None
        self.appended += 1
        payload = f"{self.number}.{self.appended}".encode()
        add, effects = self._core.begin_add(len(payload))
        add.token = payload
        return self._take(effects)

    @property
    def _holder(self) -> tuple[int, int]:
        return (self.term, self.number)

    # What it hears

    def hear(self, handle: Handle, answer: object) -> Sends:
        self.outstanding.discard(handle)
        if handle == _LOOK:
            return self._sent(self._looked(answer))
        if self._change is not None and handle == self._change.handle:
            return self._sent(self._go_on(lambda change: change.hear(answer)))
        assert self._core is not None
        term, value, following = answer if isinstance(answer, AtTerm) else (self.term, answer, ())
        return self._sent(self._take(self._heard(handle, value, term, following)))

    def _heard(self, handle: Handle, value: Any, term: int, following: Sequence[Entry]) -> Sequence[object]:
        core = self._core
        assert core is not None
        if handle[0] == "add":
            add, place = self._adds[handle[1]], self._places[handle[2], handle[3]]
            if not isinstance(value, BKException):
                return (
                    core.on_add_ack(add, place, term) if isinstance(core, TakeOver) else core.on_ack(add, place, term)
                )
            return (
                core.on_add_failure(place, value, add)
                if isinstance(core, TakeOver)
                else core.on_failure(place, value, add)
            )
        assert isinstance(core, TakeOver)
        read = Unreadable(value) if isinstance(value, BKException) else value
        if handle[0] == "fence":
            assert isinstance(read, Horizon | Unreadable)
            return core.on_fence_answer(handle[1], read, term)
        assert isinstance(read, Entry | Missing | Unreadable)
        return core.on_read_answer(handle[1], handle[2], read, term, following)

    def _sent(self, sends: Sends) -> Sends:
        """Notes what is awaited, and forgets what can't matter any more."""
        self.outstanding |= {handle for _, handle, _ in sends}
        if self.over:
            self._core = self._change = self._replace = self._opening = None
            self.opened_at = None
            self.outstanding.clear()
        kinds = {"add", "look", *(["fence", "read"] if isinstance(self._core, TakeOver) else [])}
        if self._change is not None:
            kinds.add(self._change.handle[0])
        self.outstanding = {handle for handle in self.outstanding if handle[0] in kinds}
        adds = [handle for handle in self.outstanding if handle[0] == "add"]
        self._adds = {key: add for key, add in self._adds.items() if any(handle[1] == key for handle in adds)}
        kept = {(handle[2], handle[3]) for handle in adds} | set(enumerate(self._generations))
        self._places = {key: place for key, place in self._places.items() if key in kept}
        return sends

    # Metadata

    def _looked(self, answer: object) -> Sends:
        """The take-over sets out from the metadata as they are."""
        if not isinstance(answer, Record):
            return [(self._store, _LOOK, Look())]
        self._record = (answer.metadata, answer.version)
        return self._changing("take over", self._record[0], self.number)

    def _changing(self, name: str, *arguments: Any) -> Sends:
        self._change = MetadataChange(self._store, self._record, name, *arguments)
        return self._go_on(lambda change: change.attempt())

    def _go_on(self, step: Any) -> Sends:
        change = self._change
        assert change is not None
        try:
            sends = list(step(change))
        except BKException as error:
            self._end(error)
            return []
        if not change.done:
            return sends
        self._record, self._change = change.record, None
        match change.name:
            case "take over":
                core = TakeOver(LEDGER, self._record[0], read_batch=self._read_batch)
                self._core, self.term = core, core.term
                return self._take(core.begin())
            case "open":
                return self._opened()
            case "store":
                assert isinstance(self._core, UnboundedWriter)
                return self._take(self._core.on_stored())
            case _:
                self.over = True
                return []

    def _opened(self) -> Sends:
        done = self._opening
        assert done is not None
        self._core = UnboundedWriter(LEDGER, self._record[0], done.truncate_entry_id, done.length)
        self.opened_at, self._opening = done.truncate_entry_id, None
        self._places, self._adds, self.outstanding = {}, {}, set()
        self._generations = [generation + 1 for generation in self._generations]
        self._see()
        return []

    def _end(self, error: BKException) -> None:
        self.error, self.over = self.error or error, True

    # Effects of the cores

    def _take(self, effects: Iterable[object]) -> Sends:
        sends: Sends = []
        self._see()
        for effect in effects:
            match effect:
                case FenceRead(index, bookie_id):
                    sends.append((self._bookies[bookie_id], ("fence", index), TermFence(self.term)))
                case RecoveryRead(entry_id, bookie_id, following):
                    read = TermRead(self.term, entry_id, following)
                    sends.append((self._bookies[bookie_id], ("read", entry_id, bookie_id), read))
                case SendAdd(add, places, truncate):
                    sends += [self._send(add, place, truncate=truncate, recovery=False) for place in places]
                case TakeOverAdd(add, _, places):
                    sends += [self._send(add, place, truncate=add.truncate, recovery=True) for place in places]
                case Confirmed(adds):
                    self.acknowledged |= {add.entry_id: self._payload(add) for add in adds}
                case Replace():
                    self._replace = effect
                case RetryLater():
                    self._retry_due = True
                case StoreFragment(new):
                    sends += self._changing("store", self._holder, new)
                case TakenOver():
                    self._opening = effect
                    sends += self._changing("open", self._holder, self._record[0], tuple(effect.fragments))
                case Failed(error) | FailedAdds(_, error):
                    self._end(error)
        return sends

    def _see(self) -> None:
        """The places as they are now."""
        core = self._core._writer if isinstance(self._core, TakeOver) else self._core
        for index, place in enumerate(core.places if core is not None else ()):
            known = self._places.get((index, self._generations[index]))
            self._generations[index] += known is not None and known is not place
            self._places[index, self._generations[index]] = place

    def _send(self, add: Add, place: Place, *, truncate: bool, recovery: bool) -> tuple[int, Handle, object]:
        self._adds[add.entry_id] = add
        entry = Entry(LEDGER.number, add.entry_id, add.last_add_confirmed, add.length, self._payload(add))
        handle = ("add", add.entry_id, place.index, self._generations[place.index])
        return self._bookies[place.bookie_id], handle, TermAdd(self.term, entry, add.lafr, recovery, truncate)

    @staticmethod
    def _payload(add: Add) -> bytes:
        assert isinstance(add.token, bytes)
        return add.token
