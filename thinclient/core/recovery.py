"""Recovery of a ledger whose writer is gone: finds its end, makes it durable, and determines how to close it.

The ledger is IN_RECOVERY in the metadata before this begins (the caller has set that by compare-and-set). States
(`RecoveryState`, with the table `RECOVERY`):

* *fencing*: a fencing read of the last entry is outstanding at every bookie of the last ensemble. It ends when a
  response is valid and the ensemble is covered: in every write set fewer than ack quorum bookies are unknown, so no
  entry can have been acknowledged by unknown bookies only. A response with a bad digest leaves its bookie unknown.
* *reading forward* from L + 1, where L = max(highest LAC seen, first entry of the last ensemble − 1). Entries are read
  with fencing, from one replica after the other or in runs (`recovery_reads`). The result is positive with one good
  copy, negative with write quorum − ack quorum + 1 explicit "missing" responses; otherwise recovery fails. Good copies
  are added again to the whole write set, in entry order; the first negative result is the end. Reads run ahead, and
  adds are pipelined, within a window of entries and bytes; entries read beyond the end are dropped.
* *storing* the last of them: the end is known, and adds are outstanding. An add is complete with an ack quorum; with a
  guaranteed write quorum, whose LAC covers only entries that are on their whole write sets, with all of its write set
  (G2).

  A bookie that fails a recovery add is replaced as in writing, but in memory only: the closing write stores the
  fragments (docs/protocol/client-protocol.md#recovery-adds). Until then the ledger's ensembles are those of the start,
  which hold everything acknowledged, so a recovery that dies loses nothing. Nor may it have promised anything:
  its adds carry L unchanged, and not the current LAC as BookKeeper's do. The current LAC holds only in the ensembles in
  memory; another recovery, which can't know them, may find an earlier end, and a reader would then have seen a LAC
  beyond that end.
* *sizing*, only if nothing was added again and L is not before the ledger's first entry: entry L is read, because its
  packet contains the ledger's length, and the packets seen while fencing may be of later entries.
* *finished* with last entry and length, or *failed*; then the ledger stays IN_RECOVERY, and recovery can begin again.

Events in: `begin`, `on_fence_answer`, `on_read_answer`, `on_add_ack`, `on_add_failure`, `on_replacements`. Effects out:
a list of `FenceRead`, `RecoveryRead`, `RecoveryAdd`, `Replace`, `Finished`, `Failed`. Reads go to the ensembles as they
were at the start.

Invariants. P2/P3: the last entry is at least every LAC that a writer reported, and every entry up to it has an ack
quorum. P8 and P11: a read that counts as negative was fencing, so no older writer can complete that entry afterwards;
of two recoveries, both therefore agree, or one fails the version check when it closes.

Not its job: digests (a bad one arrives as `Unreadable`), packets, time, the metadata.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple, cast

from bookgate.ledger.entry import Entry
from bookgate.ledger.errors import (
    BKException,
    LedgerRecoveryException,
    NoSuchEntryException,
    NotEnoughBookiesException,
    TimeoutException,
    UnexpectedConditionException,
)
from bookgate.ledger.ledger_id import NO_ENTRY, LedgerId
from bookgate.ledger.metadata import Fragment, LedgerMetadata
from bookgate.ledger.quorum import CoverageSet
from bookgate.ledger.transitions import Transitions
from bookgate.thinclient.core.ensemble_change import Failures, RecoveredFragments, Replacements, replaced, still_failed
from bookgate.thinclient.core.entry_read import ENDS_AT_ONCE
from bookgate.thinclient.core.recovery_reads import Answer, Missing, RecoveryRead, RecoveryReads, Unreadable
from bookgate.thinclient.core.writing import LedgerWriter, Member, PendingAdd, WriterRules, second_places


class RecoveryState(enum.Enum):
    """The states of a recovery."""

    FENCING = "fencing reads of the last entry are outstanding"
    READING = "entries are read forward and added again"
    STORING = "the end is known; the last adds are outstanding"
    SIZING = "the last entry is read for the ledger's length"
    FINISHED = "the last entry and the length are known"
    FAILED = "the ledger stays IN_RECOVERY; recovery can begin again"


class RecoveryEvent(enum.Enum):
    """What moves a recovery from state to state."""

    COVERED = "fewer than an ack quorum of every write set is unknown"
    END_FOUND = "an entry is surely missing"
    LENGTH_UNKNOWN = "all adds are stored, and none of them told the length"
    DONE = "all adds are stored, and the length is known"
    FAILED = "an entry neither readable nor surely missing, or one that can't be stored; too few bookies fenced"


RECOVERY = Transitions(
    RecoveryState.FENCING,
    {
        RecoveryState.FENCING: {
            RecoveryEvent.COVERED: RecoveryState.READING,
            RecoveryEvent.FAILED: RecoveryState.FAILED,
        },
        RecoveryState.READING: {
            RecoveryEvent.END_FOUND: RecoveryState.STORING,
            RecoveryEvent.FAILED: RecoveryState.FAILED,
        },
        RecoveryState.STORING: {
            RecoveryEvent.LENGTH_UNKNOWN: RecoveryState.SIZING,
            RecoveryEvent.DONE: RecoveryState.FINISHED,
            RecoveryEvent.FAILED: RecoveryState.FAILED,
        },
        RecoveryState.SIZING: {
            RecoveryEvent.DONE: RecoveryState.FINISHED,
            RecoveryEvent.FAILED: RecoveryState.FAILED,
        },
        RecoveryState.FINISHED: {},
        RecoveryState.FAILED: {},
    },
)


class FenceRead(NamedTuple):
    """Send a fencing read of the last entry to the bookie at `ensemble_index` of the last ensemble."""

    ensemble_index: int
    bookie_id: str


class RecoveryAdd(NamedTuple):
    """Send a recovery add of `payload` to these members; report the result with the member."""

    add: PendingAdd
    payload: bytes
    members: Sequence[Member]


class Replace(NamedTuple):
    """Find replacements for the failed bookies (index → bookie) of `ensemble`; report them with `on_replacements`."""

    ensemble: tuple[str, ...]
    failed: Failures


class Finished(NamedTuple):
    """Close the ledger with this end, and with the fragments that recovery added or changed."""

    last_entry_id: int
    length: int
    fragments: tuple[Fragment, ...] = ()


class Failed(NamedTuple):
    """Recovery ends without a result."""

    error: BKException


Effect = FenceRead | RecoveryRead | RecoveryAdd | Replace | Finished | Failed


DEFAULT_READ_BATCH = 400
"""Entries read ahead of the next one to be added again."""

_FIRST_BATCH = 16
"""Read-ahead until the first entry shows how large entries are: most recoveries find none at all."""
_BATCHES_OF_ADDS = 3
"""Batches being added again while another is read."""
_WINDOW_BYTES = 8 * 1024 * 1024
"""Maximum payload bytes being read or added again; reads in flight are estimated by the largest entry so far."""


class LedgerRecovery:
    """One recovery of one ledger."""

    def __init__(
        self,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        rules: WriterRules | None = None,
        read_batch: int = DEFAULT_READ_BATCH,
        *,
        runs: bool = True,
    ) -> None:
        """Begins with `begin`.

        Args:
            ledger_id: The id of the ledger.
            metadata: IN_RECOVERY.
            rules: How failures of recovery adds are handled.
            read_batch: The most entries that are read ahead.
            runs: Whether a read may ask for several entries (`RecoveryReads`).
        """
        self._ledger_id = ledger_id
        self._metadata = metadata
        self._rules = rules or WriterRules()
        self._read_batch = read_batch
        self._fragments = RecoveredFragments(metadata)
        self._failed: Failures = {}
        self._replacing = False
        self._ensemble = metadata.last_fragment.ensemble
        self._coverage = CoverageSet(metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size)
        self._fence_outstanding = set(range(len(self._ensemble)))
        self._valid_answer = False
        self._fence_errors: dict[str, BKException] = {}
        self._best_lac = NO_ENTRY
        self._last_entry_lengths: dict[int, int] = {metadata.fragments[0].first_entry_id: 0}
        self._writer: LedgerWriter | None = None
        self._start = NO_ENTRY
        self._reads = RecoveryReads(metadata, read_batch, runs=runs)
        self._next_to_read = 0
        self._next_to_add = 0
        self._bytes_of_adds = 0
        self._largest = 0
        """Payload bytes of the largest entry so far."""
        self._closing_length: int | None = None
        self.state = RECOVERY.initial

    @property
    def over(self) -> bool:
        """Finished or failed: later events have no effect."""
        return self.state is RecoveryState.FINISHED or self.state is RecoveryState.FAILED

    def _on(self, event: RecoveryEvent) -> None:
        self.state = RECOVERY.after(self.state, event)

    def begin(self) -> Sequence[Effect]:
        """Fences the last ensemble."""
        return [FenceRead(index, bookie) for index, bookie in enumerate(self._ensemble)]

    # Fencing

    def on_fence_answer(self, index: int, answer: Answer) -> Sequence[Effect]:
        """A response to a fencing read of the last entry."""
        if self.state is not RecoveryState.FENCING or index not in self._fence_outstanding:
            return ()
        self._fence_outstanding.discard(index)
        if isinstance(answer, Unreadable):
            if isinstance(answer.error, ENDS_AT_ONCE):
                return self._fail(answer.error)
            self._fence_errors[self._ensemble[index]] = answer.error
        else:
            self._take_fence_answer(index, answer)
        if self._valid_answer and self._coverage.covered:
            return self._start_reading()
        return () if self._fence_outstanding else self._fail_fencing()

    def _take_fence_answer(self, index: int, answer: Entry | Missing) -> None:
        self._valid_answer = True
        self._coverage.mark_known(index)
        if isinstance(answer, Entry):
            self._best_lac = max(self._best_lac, answer.last_add_confirmed)
            self._last_entry_lengths[answer.entry_id + 1] = answer.ledger_length

    def _fail_fencing(self) -> Sequence[Effect]:
        reasons = "; ".join(map(str, self._fence_errors.values()))
        message = (
            f"ledger {self._ledger_id} can't be recovered: too few bookies of {', '.join(self._ensemble)} answered "
            f"({reasons}). It stays IN_RECOVERY; open it again once they are back"
        )
        errors = list(self._fence_errors.values())
        kind = TimeoutException if errors and isinstance(errors[-1], TimeoutException) else LedgerRecoveryException
        first = self._metadata.last_fragment.first_entry_id
        return self._fail(kind(message, ledger_id=self._ledger_id, first_entry_id=first, bookies=self._fence_errors))

    # Reading forward

    def _start_reading(self) -> Sequence[Effect]:
        self._on(RecoveryEvent.COVERED)
        metadata = self._metadata
        self._start = max(self._best_lac, metadata.last_fragment.first_entry_id - 1)
        # The key is entry id + 1, so that a ledger without an entry (length 0) needs no case of its own.
        self._closing_length = self._last_entry_lengths.get(self._start + 1)
        self._writer = LedgerWriter(
            self._ledger_id,
            self._ensemble,
            metadata.write_quorum_size,
            metadata.write_quorum_size if metadata.guaranteed_write_quorum else metadata.ack_quorum_size,
            last_add_confirmed=self._start,
            rules=self._rules,
        )
        self._next_to_read = self._next_to_add = self._start + 1
        return self._read_ahead()

    def _read_ahead(self) -> Sequence[Effect]:
        if self.state is not RecoveryState.READING:
            return ()
        first, end = self._next_to_read, self._next_to_read + self._room()
        assert end >= self._next_to_add, "what is added again was read before"
        self._next_to_read = end
        return self._reads.begin(first, end, self._largest)

    def _room(self) -> int:
        """How many entries may be read ahead now: none until half the batch is used up, so that requests are sent in
        runs.
        """
        assert self._writer is not None
        ahead, adds = self._next_to_read - self._next_to_add, self._writer.pending_count
        if ahead > self._read_batch // 2 or adds > self._read_batch * _BATCHES_OF_ADDS:
            return 0
        if self._largest:
            batch = min(self._read_batch, (_WINDOW_BYTES - self._bytes_of_adds) // self._largest)
        else:
            batch = min(self._read_batch, _FIRST_BATCH)
        return max(batch - ahead, 0 if ahead or adds else 1)

    def on_read_answer(self, entry_id: int, answer: Answer, following: Sequence[Entry] = ()) -> Sequence[Effect]:
        """A replica's response to a recovery read.

        Args:
            entry_id: The entry that was asked for.
            answer: What the replica has of it.
            following: The entries behind it that the response has besides, in order and without a gap.
        """
        if self.over:
            return ()
        if isinstance(answer, Unreadable) and isinstance(answer.error, ENDS_AT_ONCE):
            return self._fail(answer.error)
        reads = self._reads.on_answer(entry_id, answer, following)
        if reads is None:
            return ()
        return [*(self._size() if self.state is RecoveryState.SIZING else self._advance()), *reads]

    def _advance(self) -> Sequence[Effect]:
        """Processes answered reads in entry order."""
        effects: list[Effect] = []
        while self.state is RecoveryState.READING and (answer := self._reads.take(self._next_to_add)) is not None:
            if isinstance(answer, Unreadable):
                return self._fail_at(self._next_to_add, answer.error)
            if isinstance(answer, Missing):
                self._on(RecoveryEvent.END_FOUND)
                self._reads.clear()
                break
            effects.append(self._add_again(answer))
            if isinstance(effects[-1], Failed):
                return effects
        return [*effects, *self._replace_if_wanted(), *self._read_ahead(), *self._finish_if_done()]

    def _add_again(self, entry: Entry) -> Effect:
        assert self._writer is not None
        if entry.entry_id != self._next_to_add or entry.ledger_length < len(entry.payload):
            error = UnexpectedConditionException(
                f"ledger {self._ledger_id}: entry {entry.entry_id} of length {entry.ledger_length} came where entry "
                f"{self._next_to_add} was read"
            )
            return self._fail(error)[0]
        if self._next_to_add == self._start + 1:
            self._leave_second_places()
        self._next_to_add += 1
        # The packet's length is the ledger's up to this entry; the entries before it may add up to another sum.
        self._writer.length = entry.ledger_length - len(entry.payload)
        try:
            add = self._writer.begin_add(len(entry.payload))
        except BKException as error:
            return self._fail_at(entry.entry_id, error)[0]
        # Not the current LAC: what is confirmed now holds only in this recovery's ensemble, and only if it closes the
        # ledger.
        add.last_add_confirmed = self._start
        self._closing_length = entry.ledger_length
        self._bytes_of_adds += add.size
        self._largest = max(self._largest, add.size, 1)
        add.token = entry.payload
        members = self._writer.members
        return RecoveryAdd(add, entry.payload, [members[index] for index in add.indexes])

    # Adding again

    def _leave_second_places(self) -> None:
        """Takes the further places of a bookie that others have put into the ensemble twice for failed: one copy of an
        entry on it counts once, and another bookie may be found for them.
        """
        assert self._writer is not None
        for index in second_places(self._ensemble):
            error = UnexpectedConditionException(f"bookie {self._ensemble[index]} is in the ensemble twice")
            self._writer.on_failure(self._writer.members[index], error)

    def on_add_ack(self, add: PendingAdd, member: Member) -> Sequence[Effect]:
        """A bookie has stored a recovery add."""
        if self.over or self._writer is None:
            return ()
        return self._confirmed(self._writer.on_ack(add, member))

    def _confirmed(self, adds: Sequence[PendingAdd]) -> Sequence[Effect]:
        if not adds:
            return ()
        self._bytes_of_adds -= sum(done.size for done in adds)
        assert self._bytes_of_adds >= 0, "no more bytes are stored than were sent"
        return [*self._read_ahead(), *self._finish_if_done()]

    def on_add_failure(self, add: PendingAdd, member: Member, error: BKException) -> Sequence[Effect]:
        """A bookie failed to store a recovery add."""
        if self.over or self._writer is None:
            return ()
        failed = self._writer.on_failure(member, error, add)
        return self._fail_at(failed[0].entry_id, self._writer.error or error) if failed else self._replace_if_wanted()

    def _replace_if_wanted(self) -> Sequence[Effect]:
        assert self._writer is not None
        if not self._writer.change_wanted or self._replacing:
            return ()
        try:
            self._failed = self._writer.begin_change()
        except BKException as error:
            return self._fail_at(self._writer.last_add_confirmed + 1, error)
        self._replacing = True
        return [Replace(self._fragments.ensemble, still_failed(self._fragments.ensemble, self._failed))]

    def on_replacements(self, replacements: Replacements) -> Sequence[Effect]:
        """The replacements that placement found, possibly fewer than requested."""
        writer = self._writer
        if self.over or writer is None or not self._replacing:
            return ()
        self._replacing = False
        ensemble = replaced(self._fragments.ensemble, self._failed, replacements)
        if ensemble != self._fragments.ensemble:
            self._fragments.change(writer.last_add_confirmed + 1, ensemble)
        if writer.change_wanted:
            return self._replace_if_wanted()
        changed = writer.finish_change(ensemble)
        if changed.failed:
            return self._fail_at(changed.failed[0].entry_id, writer.error or NotEnoughBookiesException())
        again = [RecoveryAdd(add, cast("bytes", add.token), [writer.members[i]]) for add, i in changed.resend]
        return [*again, *self._confirmed(changed.confirmed)]

    # The end

    def _finish_if_done(self) -> Sequence[Effect]:
        writer = self._writer
        if self.state is not RecoveryState.STORING or writer is None or writer.pending_count:
            return ()
        if self._closing_length is not None:
            return self._finish(writer.last_add_confirmed, self._closing_length)
        self._on(RecoveryEvent.LENGTH_UNKNOWN)
        return self._reads.begin(self._start, self._start + 1, self._largest)

    def _size(self) -> Sequence[Effect]:
        """Finishes with the length that entry L tells, once it is read."""
        answer = self._reads.take(self._start)
        if answer is None:
            return ()
        if isinstance(answer, Entry):
            return self._finish(self._start, answer.ledger_length)
        error = answer.error if isinstance(answer, Unreadable) else NoSuchEntryException("its bookies deny it")
        return self._fail_at(self._start, error)

    def _finish(self, last_entry_id: int, length: int) -> Sequence[Effect]:
        assert last_entry_id >= self._start, "recovery never closes before a LAC that a writer reported (P2)"
        assert length >= 0, "a ledger's length is at least 0"
        self._on(RecoveryEvent.DONE)
        return [Finished(last_entry_id, length, self._fragments.fragments)]

    def _fail_at(self, entry_id: int, error: BKException) -> Sequence[Effect]:
        if isinstance(error, ENDS_AT_ONCE):
            return self._fail(error)
        kind = TimeoutException if isinstance(error, TimeoutException) else LedgerRecoveryException
        return self._fail(
            kind(
                f"ledger {self._ledger_id} can't be recovered: entry {entry_id} is neither readable nor surely "
                f"missing, or could not be stored again ({error}). It stays IN_RECOVERY; open it again later",
                ledger_id=self._ledger_id,
                first_entry_id=self._metadata.fragment_at(entry_id).first_entry_id,
                bookies=error.bookies,
            )
        )

    def _fail(self, error: BKException) -> Sequence[Effect]:
        self._on(RecoveryEvent.FAILED)
        return [Failed(error)]
