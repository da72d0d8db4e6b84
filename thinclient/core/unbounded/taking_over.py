"""Taking over an unbounded ledger: finds the entries of earlier terms, replicates them, and truncates after their end.

The metadata are IN_RECOVERY with the client's own term before this begins (`changes.taking`). States (`TakeOverState`,
with the table `TAKE_OVER`):

* *fencing*: each bookie of the last fragment is asked for LAC and LAFR, with the term. It ends when the ensemble is
  covered: in every write set fewer than ack quorum bookies are unknown. S = max(highest LAFR, first entry of the
  fragment − 1) is where reading begins; the highest LAC and S remain the LAC and LAFR of this take-over.
* *reading forward* from S + 1, from the last fragment as it was at the start, each entry from one replica after the
  other or in runs (`recovery_reads`), with the term. One good copy is enough; write quorum − ack quorum + 1 explicit
  "missing" responses mark the end; otherwise the take-over fails. Copies are added again in entry order, to their whole
  write sets. An end at or below the LAC is a loss of confirmed entries: the take-over fails. A truncate entry above the
  LAC is the last one that is taken: a take-over that died may have written it, and some bookies then still have what it
  cut off.
* *sizing*, only if nothing was added again and the fragment has entries: entry S is read, because its packet contains
  the ledger's length. For the fragment's first entry the metadata have the length before it.
* *storing*: the truncate entry follows the last entry taken; it and all adds must reach all their bookies. Bookies
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
from bookgate.thinclient.core.recovery import DEFAULT_READ_BATCH, Failed, FenceRead, Replace
from bookgate.thinclient.core.recovery_reads import Answer, Missing, RecoveryRead, RecoveryReads, Unreadable
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
from bookgate.thinclient.core.writing import second_places


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
    END_FOUND = "an entry is surely missing, or a truncate entry above the LAC was read; the length is known"
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
_BATCHES_OF_ADDS = 5
"""Batches being added again while another is read."""


class Patience:
    """How long a take-over tries bookies in whose place there is none: from the first failure on, while no further
    entry gets to its whole write set. Time is an argument, in seconds.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._since = 0.0
        self._replicated: int | None = None

    def is_over(self, replicated: int, now: float) -> bool:
        """Bookies failed without a replacement; `replicated` is the last entry on its whole write set."""
        if replicated != self._replicated:
            self._since, self._replicated = now, replicated
        return now - self._since >= self._limit


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
            runs: Whether a read may ask for several entries (`RecoveryReads`).
        """
        self._ledger_id = ledger_id
        self._metadata = metadata
        self._read_batch = read_batch
        self._ensemble = metadata.last_fragment.ensemble
        self._coverage = CoverageSet(metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size)
        self._unheard = set(range(metadata.ensemble_size))
        self._fence_errors: dict[str, BKException] = {}
        self._highest = Horizon(NO_ENTRY, NO_ENTRY)
        self._start = NO_ENTRY
        self._writer: UnboundedWriter | None = None
        self._fragments: dict[int, NewFragment] = {}
        self._reads = RecoveryReads(metadata, read_batch, runs=runs)
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
    def last_replicated(self) -> int:
        """The last entry that is on its whole write set."""
        return self._start if self._writer is None else self._writer.lafr

    @property
    def avoided(self) -> set[str]:
        """Bookies that must not be chosen (`writing`)."""
        return set() if self._writer is None else self._writer.avoided

    def _on(self, event: TakeOverEvent) -> None:
        self.state = TAKE_OVER.after(self.state, event)

    def begin(self) -> Sequence[Effect]:
        """Fences the last fragment, unless it names a bookie twice: a request with the truncate flag for one of its
        places could arrive after entries that it has acknowledged for the other.
        """
        if second_places(self._ensemble):
            return self._fail(
                LedgerRecoveryException(
                    f"ledger {self._ledger_id} can't be taken over: a bookie is in its last fragment twice "
                    f"({', '.join(self._ensemble)}), which no writer makes so",
                    ledger_id=self._ledger_id,
                    first_entry_id=self._metadata.last_fragment.first_entry_id,
                )
            )
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
        self._next_to_read = end
        return self._reads.begin(first, end, self._largest)

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
        if self._reads.asked(entry_id) != bookie_id:
            return ()
        reads = self._reads.on_answer(entry_id, answer, following)
        if reads is None:
            return ()
        return [*(self._size() if self.state is TakeOverState.SIZING else self._advance()), *reads]

    def _advance(self) -> Sequence[Effect]:
        """Processes answered reads in entry order."""
        effects: list[Effect] = []
        while self.state is TakeOverState.READING and (answer := self._reads.take(self._next_to_add)) is not None:
            if isinstance(answer, Entry):
                effects += self._add_again(answer)
            elif isinstance(answer, Missing):
                effects += self._end_found(self._next_to_add)
            else:
                effects += self._fail(self._unreadable(self._next_to_add, answer.error))
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
        effects = self._run(self._writer.add_again(size, entry.ledger_length, entry.payload))
        if size or entry.entry_id <= self._highest.last_add_confirmed or self.over:
            return effects
        # Whoever completed a take-over tells a LAC from its truncate entry on with each add: none is confirmed behind.
        return [*effects, *self._end_found(self._next_to_add)]

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
        return self._reads.begin(self._start, self._start + 1, self._largest)

    def _size(self) -> Sequence[Effect]:
        """Truncates with the length that entry S tells, once it is read."""
        answer = self._reads.take(self._start)
        if answer is None:
            return ()
        if not isinstance(answer, Entry):
            error = answer.error if isinstance(answer, Unreadable) else LedgerRecoveryException("its bookies deny it")
            return self._fail(self._unreadable(self._start, error))
        self._on(TakeOverEvent.END_FOUND)
        return self._truncate(answer.ledger_length)

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

    def on_add_failure(self, place: Place, error: BKException, add: Add | None = None) -> Sequence[Effect]:
        """A bookie failed to store an add, if it is known which."""
        if self.over or self._writer is None:
            return ()
        return self._run(self._writer.on_failure(place, error, add))

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
