"""Taking over an unbounded ledger: finds the entries of earlier terms, replicates them, and truncates after their end.

The metadata are IN_RECOVERY with the client's own term before this begins (`changes.taking`). States (`TakeOverState`,
with the table `TAKE_OVER`):

* *fencing*: each bookie of the last fragment is asked for LAC and LAFR, with the term. It ends when the ensemble is
  covered: in every write set fewer than ack quorum bookies are unknown. S = max(highest LAFR, first entry of the
  fragment − 1) is where reading begins; the highest LAC and S remain the LAC and LAFR of this take-over.
* *reading forward* from S + 1, from the last fragment as it was at the start, each entry from one replica after the
  other, with the term. Where every bookie holds every entry, one read asks for a run of entries; those that the
  response lacks are read singly. One good copy is enough; write quorum − ack quorum + 1 explicit "missing" responses
  mark the end; otherwise the take-over fails. Copies are added again in entry order, to their whole write sets. An end
  at or below the LAC is a loss of confirmed entries: the take-over fails.
* *sizing*, only if nothing was added again and the fragment has entries: entry S is read, because its packet contains
  the ledger's length. For the fragment's first entry the metadata have the length before it.
* *storing*: the truncate entry follows at the first missing id; it and all adds must reach all their bookies. Bookies
  that fail are replaced in memory only; the write that ends the take-over stores the fragments.
* *finished*: the caller stores the result (`changes.taken`), and is the writer from then on. Or *failed*: the ledger
  stays IN_RECOVERY, and any client may take it over again with a higher term.

Events in: `begin`, `on_fence_answer`, `on_read_answer`, `on_add_ack`, `on_add_failure`, `on_replacements`, `retry`.
Effects out: a list of `FenceRead`, `RecoveryRead`, `TakeOverAdd`, `Replace`, `RetryLater`, `TakenOver`, `Failed`.

Invariants. U1: a bookie that rejects the term ends the take-over. U2: a response of another term is ignored. U3: the
truncate entry is on every member. U6: reading begins at LAFR + 1, and all adds have the LAC and LAFR of the fencing.
U5: a confirmed entry is below the end, because coverage finds at least one of its copies.

Not its job: digests (a bad one arrives as `Unreadable`), packets, time, the metadata. Source:
docs/protocol/unbounded-ledgers.md#taking-over.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple, cast

from bookgate.ledger.entry import Entry
from bookgate.ledger.errors import (
    BKException,
    InvalidTermException,
    LedgerRecoveryException,
    TermSupersededException,
    UnexpectedConditionException,
)
from bookgate.ledger.ledger_id import NO_ENTRY, LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.quorum import CoverageSet
from bookgate.ledger.transitions import Transitions
from bookgate.ledger.unbounded import terms_of
from bookgate.thinclient.core.ensemble_change import Replacements
from bookgate.thinclient.core.entry_read import ENDS_AT_ONCE
from bookgate.thinclient.core.recovery import (
    DEFAULT_READ_BATCH,
    Answer,
    Failed,
    FenceRead,
    Missing,
    RecoveryRead,
    Replace,
    ReplicaRead,
    Unreadable,
)
from bookgate.thinclient.core.unbounded.adds import (
    Add,
    FailedAdds,
    Horizon,
    Place,
    RetryLater,
    SendAdd,
    StoreFragment,
)
from bookgate.thinclient.core.unbounded.adds import Effect as WriterEffect
from bookgate.thinclient.core.unbounded.changes import NewFragment
from bookgate.thinclient.core.unbounded.writing import UnboundedWriter


class TakeOverState(enum.Enum):
    """The states of a take-over."""

    FENCING = "the bookies of the last fragment are asked for LAC and LAFR"
    READING = "entries are read forward and added again"
    SIZING = "the last replicated entry is read for the ledger's length"
    STORING = "the end is known; the last adds and the truncate entry are outstanding"
    FINISHED = "everything is on all its bookies"
    FAILED = "the ledger stays IN_RECOVERY; it can be taken over again"


class TakeOverEvent(enum.Enum):
    """What moves a take-over from state to state."""

    COVERED = "fewer than an ack quorum of every write set is unknown"
    LENGTH_UNKNOWN = "an entry is surely missing, and none before it told the length"
    END_FOUND = "an entry is surely missing, and the length is known"
    DONE = "all adds and the truncate entry are stored"
    FAILED = (
        "a higher term; an entry neither readable nor surely missing; a confirmed one missing; too few bookies fenced"
    )


TAKE_OVER = Transitions(
    TakeOverState.FENCING,
    {
        TakeOverState.FENCING: {
            TakeOverEvent.COVERED: TakeOverState.READING,
            TakeOverEvent.FAILED: TakeOverState.FAILED,
        },
        TakeOverState.READING: {
            TakeOverEvent.LENGTH_UNKNOWN: TakeOverState.SIZING,
            TakeOverEvent.END_FOUND: TakeOverState.STORING,
            TakeOverEvent.FAILED: TakeOverState.FAILED,
        },
        TakeOverState.SIZING: {
            TakeOverEvent.END_FOUND: TakeOverState.STORING,
            TakeOverEvent.FAILED: TakeOverState.FAILED,
        },
        TakeOverState.STORING: {
            TakeOverEvent.DONE: TakeOverState.FINISHED,
            TakeOverEvent.FAILED: TakeOverState.FAILED,
        },
        TakeOverState.FINISHED: {},
        TakeOverState.FAILED: {},
    },
)


class TakeOverAdd(NamedTuple):
    """Send a recovery add of `payload` to bookies; report each result with its place."""

    add: Add
    payload: bytes
    places: Sequence[Place]


class TakenOver(NamedTuple):
    """Store this (`changes.taken`), and continue writing after the truncate entry."""

    truncate_entry_id: int
    length: int
    fragments: Sequence[NewFragment]
    """The fragments that the take-over has added or changed, ascending."""


Effect = FenceRead | RecoveryRead | TakeOverAdd | Replace | RetryLater | TakenOver | Failed

_AT_FIRST = 16
"""Entries read ahead until the first one arrives: most take-overs find few."""
_WINDOW_BYTES = 8 * 1024 * 1024
"""Maximum payload bytes being read or added again; reads are estimated by the largest entry so far."""
_BATCHES_OF_ADDS = 20
"""Batches being added again while another is read."""


class TakeOver:
    """One attempt of one client to take a ledger over."""

    def __init__(
        self, ledger_id: LedgerId, metadata: LedgerMetadata, read_batch: int = DEFAULT_READ_BATCH, *, runs: bool = True
    ) -> None:
        """Begins with `begin`.

        Args:
            ledger_id: The id of the ledger.
            metadata: IN_RECOVERY with this client's term.
            read_batch: The most entries that are read ahead.
            runs: Whether a read may ask for several entries: their response has up to `MOST_FOLLOWING_BYTES`.
        """
        self._ledger_id = ledger_id
        self._metadata = metadata
        self._read_batch = read_batch
        self._ensemble = metadata.last_fragment.ensemble
        striped = metadata.ensemble_size > metadata.write_quorum_size
        self._longest_run = 1 if striped or not runs else max(read_batch // 2, 1)
        self._coverage = CoverageSet(metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size)
        self._unheard = set(range(metadata.ensemble_size))
        self._fence_errors: dict[str, BKException] = {}
        self._highest = Horizon(NO_ENTRY, NO_ENTRY)
        self._start = NO_ENTRY
        self._writer: UnboundedWriter | None = None
        self._fragments: dict[int, NewFragment] = {}
        self._reads: dict[int, ReplicaRead] = {}
        self._asked: dict[int, str] = {}
        """By entry, the replica that was asked last; none for an entry that was asked for with one before it."""
        self._followers: dict[int, int] = {}
        """By entry, the number of those behind it that were asked for with it, until the response."""
        self._sizing: ReplicaRead | None = None
        self._next_to_read = self._next_to_add = 0
        self._length: int | None = None
        self._largest = 0
        self.term = terms_of(metadata).term
        self.state = TAKE_OVER.initial

    @property
    def over(self) -> bool:
        """Finished or failed: later events have no effect."""
        return self.state is TakeOverState.FINISHED or self.state is TakeOverState.FAILED

    @property
    def barred(self) -> set[str]:
        """Bookies that must not be chosen (`writing`)."""
        return set() if self._writer is None else self._writer.barred

    def _on(self, event: TakeOverEvent) -> None:
        self.state = TAKE_OVER.after(self.state, event)

    def begin(self) -> Sequence[Effect]:
        """Fences the last fragment."""
        return [FenceRead(index, bookie) for index, bookie in enumerate(self._ensemble)]

    # Fencing

    def on_fence_answer(self, index: int, answer: Horizon | Unreadable, term: int) -> Sequence[Effect]:
        """The LAC and LAFR that a bookie knows, -1 for unknown; `term` is that of its response."""
        if self.state is not TakeOverState.FENCING or index not in self._unheard:
            return ()
        if isinstance(answer, Unreadable):
            if fatal := self._fatal(answer.error):
                return self._fail(fatal)
            self._unheard.discard(index)
            self._fence_errors[self._ensemble[index]] = answer.error
        elif term == self.term:
            self._unheard.discard(index)
            self._coverage.mark_known(index)
            self._highest = Horizon(*map(max, self._highest, answer))
        if self._coverage.covered:
            return self._start_reading()
        return () if self._unheard else self._fail(self._too_few_fenced())

    def _too_few_fenced(self) -> BKException:
        reasons = "; ".join(f"{bookie}: {error}" for bookie, error in self._fence_errors.items())
        return LedgerRecoveryException(
            f"ledger {self._ledger_id} can't be taken over: too few bookies of {', '.join(self._ensemble)} answered "
            f"({reasons}). Try again once they are back",
            ledger_id=self._ledger_id,
            first_entry_id=self._metadata.last_fragment.first_entry_id,
            bookies=self._fence_errors,
        )

    def _fatal(self, error: BKException) -> BKException | None:
        """The error with which a single response ends the take-over, if it does."""
        if isinstance(error, InvalidTermException):
            return TermSupersededException(
                f"another client has taken over ledger {self._ledger_id} at a term above {self.term}",
                ledger_id=self._ledger_id,
            )
        return error if isinstance(error, ENDS_AT_ONCE) else None

    # Reading forward

    def _start_reading(self) -> Sequence[Effect]:
        self._on(TakeOverEvent.COVERED)
        before = self._metadata.last_fragment.first_entry_id - 1
        self._start = max(self._highest.lafr, before)
        self._length = terms_of(self._metadata).length_before if self._start == before else None
        frozen = Horizon(max(self._highest.last_add_confirmed, self._start), self._start)
        self._highest = frozen
        self._writer = UnboundedWriter(self._ledger_id, self._metadata, self._start, self._length or 0, frozen=frozen)
        self._next_to_read = self._next_to_add = self._start + 1
        return self._read_ahead()

    def _read_ahead(self) -> Sequence[Effect]:
        if self.state is not TakeOverState.READING:
            return ()
        first, end = self._next_to_read, self._next_to_read + self._room()
        self._reads |= {entry_id: ReplicaRead(entry_id, self._metadata) for entry_id in range(first, end)}
        self._next_to_read = end
        runs = range(first, end, self._longest_run)
        return [self._ask_next(entry_id, min(self._longest_run, end - entry_id) - 1) for entry_id in runs]

    def _ask_next(self, entry_id: int, followers: int = 0) -> RecoveryRead:
        if followers:
            self._followers[entry_id] = followers
        return self._ask(entry_id, self._reads[entry_id].read.next_replica() or "", followers)

    def _ask(self, entry_id: int, bookie_id: str, followers: int = 0) -> RecoveryRead:
        self._asked[entry_id] = bookie_id
        return RecoveryRead(entry_id, bookie_id, followers)

    def _room(self) -> int:
        """How many entries may be read ahead now: none until half the batch is used up."""
        assert self._writer is not None
        ahead, adds = self._next_to_read - self._next_to_add, self._writer.pending_count
        if ahead > self._read_batch // 2 or adds > self._read_batch * _BATCHES_OF_ADDS:
            return 0
        being_added = self._writer.length - self._writer.replicated_length
        fits = (_WINDOW_BYTES - being_added) // self._largest if self._largest else _AT_FIRST
        return max(min(self._read_batch, fits) - ahead, 0 if ahead or adds else 1)

    def on_read_answer(
        self, entry_id: int, bookie_id: str, answer: Answer, term: int, following: Sequence[Entry] = ()
    ) -> Sequence[Effect]:
        """A replica's response to a recovery read.

        Only the replica that was asked last counts, so a replica that responds twice counts as missing once.

        Args:
            entry_id: The entry that was asked for.
            bookie_id: The replica.
            answer: What it has of the entry.
            term: The term of the response, if there is one.
            following: The entries behind it that the response has besides, in order and without a gap.
        """
        if self.over or (term != self.term and not isinstance(answer, Unreadable)):
            return ()
        if isinstance(answer, Unreadable) and (fatal := self._fatal(answer.error)):
            return self._fail(fatal)
        read = self._sizing if self._sizing is not None else self._reads.get(entry_id)
        if read is None or read.answer is not None or read.read.entry_id != entry_id:
            return ()
        if self._asked.get(entry_id) != bookie_id:
            return ()
        replica = read.on_answer(answer)
        if replica is not None:
            return [self._ask(entry_id, replica, self._followers.get(entry_id, 0))]
        # Without the entry the take-over ends at it, or fails: what is behind it does not matter.
        singly = self._take_followers(entry_id, following) if isinstance(answer, Entry) else ()
        return [*singly, *(self._sized(read) if read is self._sizing else self._advance())]

    def _take_followers(self, entry_id: int, following: Sequence[Entry]) -> Sequence[Effect]:
        """Takes the entries that came with another one, and reads those singly that were asked for and did not come."""
        followers = range(entry_id + 1, entry_id + 1 + self._followers.pop(entry_id, 0))
        for follower, entry in zip(followers, following, strict=False):
            assert entry.entry_id == follower, "the entries behind one come in order"
            self._reads[follower].on_answer(entry)
        return [self._ask_next(follower) for follower in followers[len(following) :]]

    def _advance(self) -> Sequence[Effect]:
        """Processes completed reads in entry order."""
        effects: list[Effect] = []
        while (
            self.state is TakeOverState.READING
            and (read := self._reads.get(self._next_to_add))
            and read.answer is not None
        ):
            entry_id = self._next_to_add
            del self._reads[entry_id]
            self._asked.pop(entry_id, None)
            if isinstance(read.answer, Entry):
                effects += self._add_again(read.answer)
            elif isinstance(read.answer, Missing):
                effects += self._end_found(entry_id)
            else:
                effects += self._fail(self._unreadable(entry_id, read.answer.error))
        return [*effects, *self._read_ahead()]

    def _add_again(self, entry: Entry) -> Sequence[Effect]:
        assert self._writer is not None
        size = len(entry.payload)
        if entry.entry_id != self._next_to_add or entry.ledger_length < size:
            return self._fail(
                UnexpectedConditionException(
                    f"ledger {self._ledger_id}: entry {entry.entry_id} of length {entry.ledger_length} came where "
                    f"entry {self._next_to_add} was read"
                )
            )
        self._next_to_add += 1
        self._length = entry.ledger_length
        self._largest = max(self._largest, size, 1)
        return self._run(self._writer.add_again(size, entry.ledger_length, entry.payload))

    def _unreadable(self, entry_id: int, error: BKException) -> BKException:
        return LedgerRecoveryException(
            f"ledger {self._ledger_id} can't be taken over: entry {entry_id} is neither readable nor surely missing "
            f"({error}). Try again once its bookies are back",
            ledger_id=self._ledger_id,
            first_entry_id=self._metadata.last_fragment.first_entry_id,
            bookies=error.bookies,
        )

    def _end_found(self, entry_id: int) -> Sequence[Effect]:
        self._reads.clear()
        if entry_id <= self._highest.last_add_confirmed:
            return self._fail(
                LedgerRecoveryException(
                    f"ledger {self._ledger_id} can't be taken over: its bookies deny entry {entry_id}, though entries "
                    f"up to {self._highest.last_add_confirmed} were confirmed: they have lost it",
                    ledger_id=self._ledger_id,
                )
            )
        if self._length is not None:
            self._on(TakeOverEvent.END_FOUND)
            return self._truncate(self._length)
        self._on(TakeOverEvent.LENGTH_UNKNOWN)
        self._sizing = ReplicaRead(self._start, self._metadata)
        return [self._ask(self._start, self._sizing.read.next_replica() or "")]

    def _sized(self, read: ReplicaRead) -> Sequence[Effect]:
        if not isinstance(read.answer, Entry):
            error = read.answer.error if isinstance(read.answer, Unreadable) else read.read.error
            return self._fail(self._unreadable(self._start, error or LedgerRecoveryException("it is missing")))
        self._on(TakeOverEvent.END_FOUND)
        return self._truncate(read.answer.ledger_length)

    def _truncate(self, length: int) -> Sequence[Effect]:
        assert self._writer is not None
        return self._run(self._writer.begin_truncate(length))

    # Adding again

    def on_add_ack(self, add: Add, place: Place, term: int) -> Sequence[Effect]:
        """A bookie has stored an add."""
        if self.over or self._writer is None:
            return ()
        pending = self._writer.pending_count
        effects = self._writer.on_ack(add, place, term)
        return self._run(effects) if effects or self._writer.pending_count < pending else ()

    def on_add_failure(self, place: Place, error: BKException) -> Sequence[Effect]:
        """A bookie failed to store an add."""
        if self.over or self._writer is None:
            return ()
        return self._run(self._writer.on_failure(place, error))

    def on_replacements(self, replacements: Replacements) -> Sequence[Effect]:
        """The replacements that placement found, possibly fewer than requested."""
        if self.over or self._writer is None:
            return ()
        return self._run(self._writer.on_replacements(replacements))

    def retry(self) -> Sequence[Effect]:
        """Tries failed bookies again for which there was no replacement."""
        if self.over or self._writer is None:
            return ()
        return self._run(self._writer.retry())

    def _run(self, effects: Sequence[WriterEffect]) -> Sequence[Effect]:
        """Converts the writer's effects to effects of the take-over, whose fragments are kept in memory."""
        assert self._writer is not None
        found: list[Effect] = []
        for effect in effects:
            if isinstance(effect, SendAdd):
                found.append(TakeOverAdd(effect.add, cast("bytes", effect.add.token), effect.places))
            elif isinstance(effect, StoreFragment):
                self._fragments[effect.new.fragment.first_entry_id] = effect.new
                found += self._run(self._writer.on_stored())
            elif isinstance(effect, FailedAdds):
                return [*found, *self._fail(effect.error)]
            elif isinstance(effect, Replace | RetryLater):
                found.append(effect)
        return [*found, *self._read_ahead(), *self._finish_if_done()]

    def _finish_if_done(self) -> Sequence[Effect]:
        writer = self._writer
        if self.state is not TakeOverState.STORING or writer is None or writer.pending_count:
            return ()
        self._on(TakeOverEvent.DONE)
        fragments = [self._fragments[first] for first in sorted(self._fragments)]
        return [TakenOver(writer.lafr, writer.replicated_length, fragments)]

    def _fail(self, error: BKException) -> Sequence[Effect]:
        self._on(TakeOverEvent.FAILED)
        return [Failed(error)]
