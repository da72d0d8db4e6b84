"""The writer's side of a ledger: entry ids, acknowledgement, ensemble changes, and the loss of the ledger.

An add moves through: *pending* (sent to its write set) → *confirmed* (ack quorum reached, every lower entry confirmed,
no ensemble change in progress) or *failed*. The ledger's own states are `WriterState`, with the table `WRITER`. Adds
that were pending when the beginning of another one ended the ledger can still be confirmed.

Events in: `begin_adds`, `on_acks`, `on_failure`, `begin_change`, `finish_change`, `abort`. Effects out: the adds that
the event confirmed or failed, in entry order, and the adds to send again; the state CHANGE_WANTED asks for
`begin_change`. The caller sends packets, keeps time, completes the application's futures, and changes the metadata
(`ensemble_change`).

Invariants. P9: the last add confirmed (LAC) moves only over a contiguous prefix whose entries all have an ack quorum in
the current ensemble, and adds are confirmed in entry order. P1: an acknowledgement counts only from a member of the
ensemble; when a bookie is replaced, its acknowledgements of pending adds are discarded, those adds are sent to the new
bookie, and its later responses are ignored. Responses to what a bookie was asked before it was tried again are ignored
as well: it is asked again for what it has not acknowledged, and may be replaced before they arrive. The LAC is at most
the highest id assigned. After a fatal event the LAC never moves again, so that what the application was told and what
`close` stores agree.

Failures (docs/protocol/client-protocol.md#responses-to-adds, docs/protocol/client-protocol.md#ensemble-changes). The
first failure of a bookie starts a change; failures during a change are merged into it; a failure of an add that is
already complete is handled at the next add. With `delay_ensemble_change` an add first tolerates write quorum − ack
quorum failures, and remembers them when it is complete: a change may take its acknowledgements away. Adds that begin
during a change are not sent to the failed members but to their replacements when it ends. A bookie for which there is
no replacement is out: adds go to the rest of their write set as long as that contains an ack quorum (with
`require_replacement` the ledger ends instead, as in BookKeeper). A single response of fenced, unauthorised or not
allowed ends the ledger at once, and so does closing the client. With `deferred_sync` adds are acknowledged before they
are durable, so the LAC waits for `on_forced`, and any failure ends the ledger, because a new bookie could not be given
the acknowledged entries. Writers that differ: `advanced_writing`, `guaranteed_writing`.

Not its job: time, packets, placement, and storing the ledger's metadata.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from bookgate.ledger.errors import (
    BKException,
    ClientClosedException,
    IllegalOpException,
    LedgerFencedException,
    NotEnoughBookiesException,
    UnauthorizedAccessException,
    UnexpectedConditionException,
    WriteException,
    WriteOnReadOnlyBookieException,
)
from bookgate.ledger.ledger_id import NO_ENTRY, LedgerId
from bookgate.ledger.quorum import write_set
from bookgate.ledger.transitions import Transitions

FATAL_ERRORS = (LedgerFencedException, UnauthorizedAccessException, IllegalOpException, ClientClosedException)
"""Errors of which a single response ends the ledger for this writer
(docs/protocol/client-protocol.md#responses-to-adds).
"""


class WriterState(enum.Enum):
    """The states of a writer's ledger."""

    STEADY = "adds are confirmed as their ack quorums are reached"
    CHANGE_WANTED = "members have failed, and the caller has to begin a change; nothing is confirmed"
    CHANGING = "a change is being stored; nothing is confirmed"
    ENDED = "`error` says why nothing more is accepted"


class WriterEvent(enum.Enum):
    """What moves a writer from state to state."""

    MEMBER_FAILED = "a failure that needs a change, or a member that can be replaced now"
    CHANGE_BEGUN = "`begin_change`"
    CHANGE_STORED = "`finish_change`"
    LOST = "a fatal error, an entry that can't reach its ack quorum any more, or `abort`"


_STEADY, _CHANGE_WANTED, _CHANGING, _ENDED = WriterState

WRITER = Transitions(
    _STEADY,
    {
        _STEADY: {WriterEvent.MEMBER_FAILED: _CHANGE_WANTED, WriterEvent.LOST: _ENDED},
        _CHANGE_WANTED: {
            WriterEvent.MEMBER_FAILED: _CHANGE_WANTED,
            WriterEvent.CHANGE_BEGUN: _CHANGING,
            WriterEvent.LOST: _ENDED,
        },
        _CHANGING: {
            WriterEvent.MEMBER_FAILED: _CHANGE_WANTED,
            WriterEvent.CHANGE_STORED: _STEADY,
            WriterEvent.LOST: _ENDED,
        },
        _ENDED: {WriterEvent.LOST: _ENDED},
    },
)


@dataclass(frozen=True, slots=True)
class WriterRules:
    """How a writer handles failures."""

    delay_ensemble_change: bool = False
    require_replacement: bool = False
    max_ensemble_changes: int = 2**31 - 1
    deferred_sync: bool = False


class Member:
    """A bookie at its position in the ensemble. `bit` marks it in sets of indexes; 0 once another one has taken its
    place, or it was tried again: what it was asked before counts no more.
    """

    __slots__ = ("bit", "bookie_id", "index")

    def __init__(self, index: int, bookie_id: str) -> None:
        self.index = index
        self.bookie_id = bookie_id
        self.bit = 1 << index


class PendingAdd:
    """An add in progress. `began`, `token`, `packet` and `unsettled` belong to the caller."""

    __slots__ = (
        "acked",
        "acks",
        "began",
        "entry_id",
        "failures",
        "indexes",
        "last_add_confirmed",
        "length",
        "packet",
        "size",
        "token",
        "unsettled",
    )

    began: float
    packet: bytes

    def __init__(self, entry_id: int, size: int, length: int, last_add_confirmed: int, indexes: Sequence[int]) -> None:
        self.entry_id = entry_id
        self.size = size
        """Payload bytes."""
        self.length = length
        """The ledger's payload bytes including this entry."""
        self.last_add_confirmed = last_add_confirmed
        """The LAC in the packet; fixed when the add begins, also for bookies that receive it later."""
        self.indexes = indexes
        """Where to send it: the write set without the indexes that had failed before."""
        self.unsettled = len(indexes)
        """Number of bookies that have neither responded nor failed; maintained by the caller."""
        self.acked = 0
        self.acks = 0
        self.failures = 0
        self.token: object = None


class Changed(NamedTuple):
    """The consequences of a completed ensemble change."""

    resend: Sequence[tuple[PendingAdd, int]]
    """Adds, each with the index whose bookie must now receive it."""
    confirmed: Sequence[PendingAdd]
    failed: Sequence[PendingAdd]


_NONE: tuple[PendingAdd, ...] = ()


def second_places(ensemble: Sequence[str]) -> Set[int]:
    """The indexes of bookies that the ensemble has at a lower index as well: none by what this client stores (P5), but
    others can store it.
    """
    return {index for index, bookie_id in enumerate(ensemble) if ensemble.index(bookie_id) < index}


class LedgerWriter:
    """The adds of one ledger. Also carries recovery's adds, which start after `last_add_confirmed`."""

    def __init__(
        self,
        ledger_id: LedgerId,
        ensemble: Sequence[str],
        write_quorum_size: int,
        ack_quorum_size: int,
        last_add_confirmed: int = NO_ENTRY,
        length: int = 0,
        rules: WriterRules | None = None,
    ) -> None:
        self._ledger_id = ledger_id
        self._rules = rules or WriterRules()
        self._lac_waits = self._rules.deferred_sync
        """Whether something else than the acknowledgement to the application moves the LAC."""
        self._members = [Member(index, bookie_id) for index, bookie_id in enumerate(ensemble)]
        self._write_quorum_size = write_quorum_size
        self._ack_quorum_size = ack_quorum_size
        self._tolerated = write_quorum_size - ack_quorum_size
        self._pending: deque[PendingAdd] = deque()
        self._failed: dict[int, BKException] = {}
        self._noted: set[int] = set()
        """Indexes that failed for complete adds; handled when the next add begins."""
        self._errors: dict[int, BKException] = {}
        self._changes = 0
        self._ensemble_size = len(ensemble)
        # The write set of entry e depends on e mod E only; stored without the failed indexes.
        self._write_sets = self._make_write_sets()
        self.state = WRITER.initial
        self.last_add_confirmed = last_add_confirmed
        self.last_add_pushed = last_add_confirmed
        self.previous_last_add_confirmed = last_add_confirmed
        """The LAC before it last moved."""
        self.sequence_head = last_add_confirmed
        """The last entry acknowledged to the application; it exceeds the LAC only with deferred sync or a guaranteed
        write quorum.
        """
        self.length = length
        """Payload bytes of all entries begun so far."""
        self.acknowledged_length = length
        """Payload bytes of the entries up to `sequence_head`."""
        self.confirmed_length = length
        """Payload bytes of the entries up to the LAC."""
        self.error: BKException | None = None

    @property
    def changing(self) -> bool:
        """An ensemble change is wanted or in progress; nothing is confirmed."""
        return self.state is _CHANGING or self.state is _CHANGE_WANTED

    @property
    def change_wanted(self) -> bool:
        """The caller must call `begin_change`, now or when the change in progress has been stored."""
        return self.state is _CHANGE_WANTED

    @property
    def pending_count(self) -> int:
        return len(self._pending)

    @property
    def oldest_incomplete(self) -> PendingAdd | None:
        """The add that blocks all others while it lacks acknowledgements."""
        head = next(iter(self._waiting()), None)
        return head if head is not None and head.acks < self._ack_quorum_size else None

    @property
    def ensemble(self) -> tuple[str, ...]:
        return tuple(member.bookie_id for member in self._members)

    def lac_receivers(self, last_add_confirmed: int) -> Sequence[str]:
        """The bookies of the write set of that entry."""
        indexes = write_set(last_add_confirmed, self._ensemble_size, self._write_quorum_size)
        return [self._members[index].bookie_id for index in indexes]

    @property
    def members(self) -> Sequence[Member]:
        """The members by index. A response is reported with the member to which the request was sent."""
        return self._members

    @property
    def failed_bookies(self) -> dict[str, BKException]:
        """Bookies of the ensemble that failed and are not written to, with their errors."""
        return {self._members[index].bookie_id: error for index, error in self._failed.items()}

    @property
    def replaceable(self) -> Set[int]:
        """The indexes of the failed members that a change that begins now may replace."""
        return self._failed.keys()

    # Adds

    def begin_add(self, size: int) -> PendingAdd:
        """Assigns the next entry id to a payload of `size` bytes. Raises the error that ended the ledger."""
        return self.begin_adds((size,))[0]

    def begin_adds(self, sizes: Sequence[int]) -> Sequence[PendingAdd]:
        """Assigns the next entry ids to payloads of these sizes: to all, or while members are out to the first alone,
        since that may change the state. Raises the error that ended the ledger.
        """
        if self.error is not None:
            raise self.error.with_traceback(None)
        entry_id = self.last_add_pushed + 1
        if self._failed:
            sizes = sizes[:1]
            indexes = self._write_sets[entry_id % self._ensemble_size]
            if len(indexes) < self._write_quorum_size:
                self._check_write_set(entry_id, indexes)
        adds, length, lac = [], self.length, self.last_add_confirmed
        write_sets, ensemble_size = self._write_sets, self._ensemble_size
        for size in sizes:
            length += size
            adds.append(PendingAdd(entry_id, size, length, lac, write_sets[entry_id % ensemble_size]))
            entry_id += 1
        self.last_add_pushed = entry_id - 1
        self.length = length
        self._pending += adds
        return adds

    def _check_write_set(self, entry_id: int, indexes: Sequence[int]) -> None:
        """Handles deferred failures when an add begins while members are out."""
        if self._noted:
            self.want_change()
        if len(indexes) < self._ack_quorum_size and not self.changing:
            self.error = self._too_many_failures(entry_id)
            self._on(WriterEvent.LOST)
            raise self.error

    def on_ack(self, add: PendingAdd, member: Member) -> Sequence[PendingAdd]:
        """A bookie has stored the entry. Returns the adds that this confirms, in entry order."""
        return self.on_acks((add,), member)

    def on_acks(self, adds: Sequence[PendingAdd], member: Member) -> Sequence[PendingAdd]:
        """A bookie has stored these entries: like `on_ack` for one after the other."""
        if not self._note_acks(adds, member) or self.changing:
            return _NONE
        return self._confirm()

    def _note_acks(self, adds: Sequence[PendingAdd], member: Member) -> bool:
        """Counts acknowledgements. Returns whether an add has reached its ack quorum by them."""
        bit, quorum, reached = member.bit, self._ack_quorum_size, False
        for add in adds if bit else ():
            if not add.acked & bit:
                add.acked |= bit
                add.acks += 1
                if add.acks == quorum:
                    reached = True
        return reached

    def _confirm(self) -> Sequence[PendingAdd]:
        """Removes and returns the adds that can be confirmed: the complete ones from the head on."""
        pending, ack_quorum_size = self._pending, self._ack_quorum_size
        confirmed = []
        while pending and pending[0].acks >= ack_quorum_size:
            confirmed.append(pending.popleft())
        if confirmed:
            last = confirmed[-1]
            assert last.entry_id == self.sequence_head + len(confirmed), "confirmed entries are consecutive (P9)"
            assert last.entry_id <= self.last_add_pushed, "nothing is confirmed that was not begun"
            self._acknowledge(last.entry_id, last.length)
        return confirmed

    def _acknowledge(self, entry_id: int, length: int) -> None:
        self.sequence_head = entry_id
        self.acknowledged_length = length
        if not self._lac_waits:
            self.previous_last_add_confirmed = self.last_add_confirmed
            self.last_add_confirmed = entry_id
            self.confirmed_length = length

    def on_forced(self, entry_id: int, length: int) -> None:
        """All entries up to `entry_id` (a former `sequence_head`, with its length) are durable on the whole
        ensemble.
        """
        assert entry_id <= self.sequence_head, "an entry is forced after it was acknowledged"
        if entry_id > self.last_add_confirmed and self.error is None:
            self.previous_last_add_confirmed = self.last_add_confirmed
            self.last_add_confirmed = entry_id
            self.confirmed_length = length

    def unreachable(self) -> Sequence[PendingAdd]:
        """Removes and returns adds that can't be confirmed unless another add begins: none when ids are assigned in
        order.

        Call it when the ledger closes, and when beginning an add has ended the ledger.
        """
        return _NONE

    # Failures

    def on_failure(self, member: Member, error: BKException, add: PendingAdd | None = None) -> Sequence[PendingAdd]:
        """A bookie failed, for `add` if known. Returns the adds that fail with it: none, or all (`error` is set).

        The caller must check `change_wanted` afterwards.
        """
        if self._members[member.index] is not member or (self.error is not None and not self.pending_count):
            return _NONE
        if isinstance(error, FATAL_ERRORS) or self.error is not None:
            return self.abort(error)  # no repair for a ledger that has already ended
        if self._rules.deferred_sync:
            return self.abort(self._failed_unforced(member, error))
        complete = add is not None and self._is_complete(add)
        if self._rules.delay_ensemble_change and add is not None:
            self._on_delayed_failure(member, error, add, complete=complete)
            return _NONE
        index = member.index
        if index in self._failed and (complete or index not in self._noted):
            return _NONE
        self._set_failed({index: error})
        if complete and not self.changing:
            self._noted.add(index)
        else:
            self.want_change()
        return _NONE

    def _on_delayed_failure(self, member: Member, error: BKException, add: PendingAdd, *, complete: bool) -> None:
        # Of a complete add too: a change for another add may take its acknowledgements away.
        add.failures |= member.bit
        self._errors[member.index] = error
        if complete:
            return
        # Members that were out before got no request, so no event from them will arrive.
        lacking = (add.failures | self._out(add)) & ~add.acked
        if lacking.bit_count() <= self._tolerated and not isinstance(error, WriteOnReadOnlyBookieException):
            return
        indexes = [
            index for index in range(self._ensemble_size) if lacking & (1 << index) and index not in self._failed
        ]
        if indexes:
            self._set_failed({index: self._errors.get(index, error) for index in indexes})
            self.want_change()

    def _set_failed(self, failed: dict[int, BKException]) -> None:
        self._failed.update(failed)
        self._write_sets = self._make_write_sets()

    def want_change(self) -> None:
        """Starts a change for the members that are out, without a new failure."""
        self._noted.clear()
        self._on(WriterEvent.MEMBER_FAILED)

    def abort(self, error: BKException) -> Sequence[PendingAdd]:
        """Ends the ledger for this writer (the first reason stays). Returns what was pending, failed now."""
        self.error = self.error or error
        assert self.last_add_confirmed <= self.sequence_head <= self.last_add_pushed
        self._on(WriterEvent.LOST)
        failed = list(self._waiting())
        self._clear_pending()
        return failed

    # Ensemble changes

    def begin_change(self) -> dict[int, str]:
        """The failed bookies by index that a change is to replace. Raises WriteException after too many changes."""
        self._on(WriterEvent.CHANGE_BEGUN)
        self._changes += 1
        if self._changes > self._rules.max_ensemble_changes:
            raise WriteException(
                f"ledger {self._ledger_id} takes no more entries: its ensemble was changed "
                f"{self._rules.max_ensemble_changes} times, the most that is allowed "
                f"({self._reasons()}). Open it with recovery, and write on in a new one",
                ledger_id=self._ledger_id,
                bookies=self.failed_bookies,
            )
        return {index: self._members[index].bookie_id for index in self._replaceable()}

    def finish_change(self, ensemble: Sequence[str]) -> Changed:
        """The metadata has this ensemble now: "unset and resend" for every pending add and replaced index."""
        assert len(ensemble) == self._ensemble_size, "an ensemble change keeps the ensemble's size"
        new = [index for index, member in enumerate(self._members) if member.bookie_id != ensemble[index]]
        for index in new:
            self._members[index].bit = 0
            self._members[index] = Member(index, ensemble[index])
            self._failed.pop(index, None)
            self._errors.pop(index, None)
        self._noted.clear()
        self._write_sets = self._make_write_sets()
        self._on(WriterEvent.CHANGE_STORED)
        if any(ensemble.count(ensemble[index]) > 1 for index in new):
            return Changed((), (), self.abort(self._doubled(ensemble)))
        if self._rules.require_replacement and not new and self._replaceable():
            return Changed((), (), self.abort(self._too_many_failures(self.sequence_head + 1)))
        resend = self._unset(new)
        lost = next((add for add in self._waiting() if self._lacking(add) > self._tolerated), None)
        if lost is not None:
            return Changed((), (), self.abort(self._too_many_failures(lost.entry_id)))
        return Changed(resend, self._confirm(), ())

    def _unset(self, new: Sequence[int]) -> list[tuple[PendingAdd, int]]:
        resend: list[tuple[PendingAdd, int]] = []
        kept = ~sum(1 << index for index in new)
        for add in self._unfinished() if new else ():
            add.acked &= kept
            add.failures &= kept
            add.acks = add.acked.bit_count()
            resend += [(add, index) for index in self._write_set(add) if index in new]
        return resend

    def readmit(self, index: int) -> Sequence[tuple[PendingAdd, int]]:
        """Tries a failed bookie that was not replaced again. Returns the adds that it has yet to store."""
        if self._failed.pop(index, None) is None:
            return ()
        old = self._members[index]
        self._members[index] = Member(index, old.bookie_id)
        # What it acknowledged stays; what it says late to requests of the time before counts neither for it nor, once
        # it is replaced, for the one in its place.
        old.bit = 0
        self._noted.discard(index)
        self._write_sets = self._make_write_sets()
        bit = 1 << index
        lacking = [add for add in self._unfinished() if not add.acked & bit and index in self._write_set(add)]
        for add in lacking:
            add.failures &= ~bit
        return [(add, index) for add in lacking]

    def _on(self, event: WriterEvent) -> None:
        self.state = WRITER.after(self.state, event)

    # What is pending, and when it is complete, for writers with other rules

    def _waiting(self) -> Iterable[PendingAdd]:
        """The adds that are not confirmed, in entry order."""
        return self._pending

    def _unfinished(self) -> Iterable[PendingAdd]:
        """The adds that a bookie has to get which joins the ensemble, in entry order."""
        return self._waiting()

    def _is_complete(self, add: PendingAdd) -> bool:
        """Whether the failure of one more of its bookies can wait until the next add."""
        return add.acks >= self._ack_quorum_size

    def _replaceable(self) -> Iterable[int]:
        """The indexes of the failed members that may be replaced now."""
        return self._failed

    def _clear_pending(self) -> None:
        self._pending.clear()

    def _lacking(self, add: PendingAdd) -> int:
        """How many of an add's bookies are out without having stored it."""
        return (self._out(add) & ~add.acked).bit_count()

    def _out(self, add: PendingAdd) -> int:
        """The failed members of an add's write set, as bits."""
        return sum(1 << index for index in self._write_set(add) if index in self._failed)

    def _write_set(self, add: PendingAdd) -> Sequence[int]:
        return write_set(add.entry_id, self._ensemble_size, self._write_quorum_size)

    def _make_write_sets(self) -> list[tuple[int, ...]]:
        size = self._ensemble_size
        sets = [write_set(position, size, self._write_quorum_size) for position in range(size)]
        return [tuple(index for index in indexes if index not in self._failed) for indexes in sets]

    # Errors

    def _reasons(self) -> str:
        return "; ".join(f"{bookie}: {error}" for bookie, error in self.failed_bookies.items())

    def _too_many_failures(self, entry_id: int) -> BKException:
        return NotEnoughBookiesException(
            f"ledger {self._ledger_id} takes no more entries: entry {entry_id} can't reach {self._ack_quorum_size} of "
            f"{self._write_quorum_size} bookies, and there is none to replace those that failed ({self._reasons()}). "
            f"Everything acknowledged (up to entry {self.sequence_head}) is kept: open the ledger with recovery, "
            "and write on in a new one",
            ledger_id=self._ledger_id,
            bookies=self.failed_bookies,
        )

    def _doubled(self, ensemble: Sequence[str]) -> BKException:
        return UnexpectedConditionException(
            f"ledger {self._ledger_id} takes no more entries: in its ensemble, {', '.join(ensemble)}, a bookie has "
            "joined that was there: another client has changed it. Open it with recovery, and write on in a new one",
            ledger_id=self._ledger_id,
        )

    def _failed_unforced(self, member: Member, error: BKException) -> BKException:
        return WriteException(
            f"ledger {self._ledger_id} takes no more entries: bookie {member.bookie_id} failed ({error}), and with "
            "deferred sync it can't be replaced, since entries that were acknowledged may not be durable. Everything "
            f"up to entry {self.last_add_confirmed}, the last that was forced, is kept",
            ledger_id=self._ledger_id,
            bookies={member.bookie_id: error},
        )
