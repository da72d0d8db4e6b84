"""The writer's side of an unbounded ledger at one term: full replication, ensemble changes, roll-over.

An add moves through: *pending* → *confirmed* (ack quorum reached, every lower entry confirmed; the application is
informed) → *fully replicated* (its whole write set has it, and every lower entry is fully replicated), or from pending
to *failed*. The LAC is the last confirmed entry, the LAFR the last fully replicated one. The writer's states are
`WriterState`, with the table `UNBOUNDED_WRITER`.

Events in: `begin_add`, `on_ack`, `on_failure`, `on_replacements`, `on_ensemble`, `on_stored`, `retry`, `disengage`.
Effects out: a list of `SendAdd`, `Confirmed`, `FailedAdds`, `Replace`, `ChooseEnsemble`, `StoreFragment`, `RetryLater`.

Invariants. P9: the LAC is the longest prefix from LAC + 1 with ack quorums, the LAFR the longest from LAFR + 1 with
write quorums; the LAFR never jumps to the LAC. G1, G4: a new fragment begins at LAFR + 1, and replaces the last one
if that begins there. G3: a failed bookie that acknowledged an entry which is confirmed but not fully replicated is
pinned: it is not replaced while fewer than Qa others have that entry. While a new fragment is being stored neither LAC
nor LAFR advances. U2: an acknowledgement of another term is ignored. U1: EINVALIDTERM ends the writer; pending adds
fail and are not sent again. U3: a bookie that the metadata get to name has no dirty entries.

Failed bookies. A failure starts a change; later failures belong to the next one. If there is no replacement, or all
failed bookies are pinned, adds continue with the others, and `retry` tries the failed bookies again, after a pause that
the caller makes. This never closes or loses the ledger.

Roll-over. A fragment that has reached its size limit ends with that entry. Later adds get their ids and wait; when all
earlier ones are fully replicated, the next fragment begins on a newly chosen ensemble.

Bookies that join. A bookie that joins the ensemble may hold dirty entries of a term in which it was a member. Named in
the metadata with them, it would show them once an add told it a higher LAC (U4), and the next take-over would read them
as entries of this term (U5). So it is truncated before the fragment is stored: it is sent the last fully replicated
entry, whose request has the truncate flag; adds are confirmed meanwhile. At term 0 there is nothing dirty. No bookie
is sent the flag again while a request with it may still arrive, which would delete entries that the bookie has
acknowledged since. So a bookie that did not respond to it is barred for the term, unless its response still arrives:
it is not chosen. One that refused it, or to which it was never sent (`BKException.request_over`), is only passed over
until the next `retry`, or the next fragment.

A take-over writes by the same rules, with the LAC and LAFR of its fencing in every add (`frozen`, U6). It confirms
nothing, so no bookie is pinned; its truncate entry is sent to every member.

Not its job: time, packets, placement, and storing metadata (`changes`). Source:
docs/protocol/unbounded-ledgers.md#writer.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Sequence
from itertools import takewhile

from bookgate.ledger.errors import (
    BKException,
    ClientClosedException,
    IncorrectParameterException,
    InvalidTermException,
    TermSupersededException,
)
from bookgate.ledger.ledger_id import NO_ENTRY, LedgerId
from bookgate.ledger.metadata import Fragment, LedgerMetadata
from bookgate.ledger.quorum import write_sets
from bookgate.ledger.terms import NO_CAPS
from bookgate.ledger.transitions import Transitions
from bookgate.ledger.unbounded import terms_of
from bookgate.thinclient.core.ensemble_change import Replacements, pinned, replaced
from bookgate.thinclient.core.recovery import Replace
from bookgate.thinclient.core.unbounded.adds import (
    Add,
    ChooseEnsemble,
    Confirmed,
    Effect,
    FailedAdds,
    Horizon,
    Place,
    RetryLater,
    SendAdd,
    StoreFragment,
)
from bookgate.thinclient.core.unbounded.changes import NewFragment
from bookgate.thinclient.core.writing import FATAL_ERRORS


class WriterState(enum.Enum):
    """The states of the writer of an unbounded ledger."""

    STEADY = "adds are confirmed and replicated as acknowledgements come"
    PLACING = "bookies are looked for: for those that failed, or for the next fragment"
    TRUNCATING = "bookies that are to join delete their dirty entries"
    STORING = "a new fragment is being stored; nothing is confirmed"
    ENDED = "`error` says why nothing more is accepted"


class WriterEvent(enum.Enum):
    """What moves a writer from state to state."""

    CHANGE_WANTED = "a member failed that is not pinned"
    FRAGMENT_FULL = "the last fragment has reached its cap and is fully replicated"
    JOINERS_DIRTY = "bookies were found that may hold entries of earlier terms"
    PLACED = "the next ensemble is known, and none that joins holds dirty entries"
    NONE_FOUND = "there is none that could take a place"
    STORED = "the metadata have the new fragment"
    LOST = "a higher term, another fatal error, or `disengage`"


_STEADY, _PLACING, _TRUNCATING, _STORING, _ENDED = WriterState

UNBOUNDED_WRITER = Transitions(
    _STEADY,
    {
        _STEADY: {
            WriterEvent.CHANGE_WANTED: _PLACING,
            WriterEvent.FRAGMENT_FULL: _PLACING,
            WriterEvent.LOST: _ENDED,
        },
        _PLACING: {
            WriterEvent.JOINERS_DIRTY: _TRUNCATING,
            WriterEvent.PLACED: _STORING,
            WriterEvent.NONE_FOUND: _STEADY,
            WriterEvent.LOST: _ENDED,
        },
        _TRUNCATING: {WriterEvent.PLACED: _STORING, WriterEvent.NONE_FOUND: _STEADY, WriterEvent.LOST: _ENDED},
        _STORING: {WriterEvent.STORED: _STEADY, WriterEvent.LOST: _ENDED},
        _ENDED: {WriterEvent.LOST: _ENDED},
    },
)


class UnboundedWriter:
    """The adds of one client in one term."""

    def __init__(
        self,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        last_entry_id: int,
        length: int,
        *,
        frozen: Horizon | None = None,
    ) -> None:
        """Starts after the last entry.

        Args:
            ledger_id: The id of the ledger.
            metadata: The metadata with the client's own term.
            last_entry_id: The last written entry; confirmed and fully replicated, like everything before it.
            length: Payload bytes up to that entry; in a take-over 0 if they are not known yet.
            frozen: In a take-over, the LAC and LAFR of its fencing, which all adds contain; None for a writer.
        """
        terms = terms_of(metadata)
        self._ledger_id = ledger_id
        self._write_sets = [_bits(each) for each in write_sets(metadata.ensemble_size, metadata.write_quorum_size)]
        self._everywhere = _bits(range(metadata.ensemble_size))
        self._ack_quorum_size = metadata.ack_quorum_size
        self._caps = None if frozen or terms.caps == NO_CAPS else terms.caps
        self._frozen = frozen
        self._joiners_are_clean = terms.term == 0 or frozen is not None
        self._clean = set(metadata.last_fragment.ensemble)
        """Bookies without dirty entries: this term has truncated them."""
        self.barred: set[str] = set()
        """Bookies at which a request with the truncate flag may still arrive in this term."""
        self._passed_over: set[str] = set()
        """Bookies at which the last such request had no effect; they may be sent another one after the next `retry`,
        or for the next fragment.
        """
        self._places = [Place(index, bookie) for index, bookie in enumerate(metadata.last_fragment.ensemble)]
        self._failed: dict[int, BKException] = {}
        self._spared: set[int] = set()
        """Indexes of failed bookies that the last change did not replace because they were pinned."""
        self._failed_anew = False
        self._replacing: dict[int, str] = {}
        """The failed bookies that the change under way is to replace; empty if it begins the next fragment."""
        self._chosen: tuple[str, ...] = ()
        """The ensemble that the change under way is to have."""
        self._joining: dict[str, Place] = {}
        """Bookies of it that have not responded to the truncate flag."""
        self._next: NewFragment | None = None
        self._pending: deque[Add] = deque()
        """Adds not yet fully replicated, from LAFR + 1 on."""
        self._unconfirmed: deque[Add] = deque()
        """Adds not yet confirmed, from LAC + 1 on."""
        self._fragment = NewFragment(metadata.last_fragment, terms.length_before)
        self._full_at: int | None = None
        self._targets: Sequence[Sequence[Place]] | None = None
        """The places of each write set while adds and acknowledgements need no look at the members; else None."""
        self.term = terms.term
        self.state = UNBOUNDED_WRITER.initial
        self.last_add_confirmed = self.lafr = self.last_add_pushed = last_entry_id
        self.previous_last_add_confirmed = last_entry_id
        self.last_replicated = _ended_with(last_entry_id, length)
        """The add of entry `lafr`: a bookie that joins is truncated behind it. Initially without a packet."""
        self.length = self.confirmed_length = self.replicated_length = length
        """Payload bytes up to the last entry sent, up to the LAC, and up to the LAFR."""
        self.error: BKException | None = None
        self._aim()

    @property
    def ensemble(self) -> tuple[str, ...]:
        return tuple(place.bookie_id for place in self._places)

    @property
    def places(self) -> Sequence[Place]:
        """The members by index."""
        return self._places

    @property
    def pending_count(self) -> int:
        """Number of entries not yet fully replicated; the ledger may be closed only if there are none (G4)."""
        return len(self._pending)

    @property
    def unconfirmed_count(self) -> int:
        return len(self._unconfirmed)

    @property
    def failed_bookies(self) -> dict[str, BKException]:
        """Members that failed and were not replaced, with their errors."""
        return {self._places[index].bookie_id: error for index, error in self._failed.items()}

    @property
    def avoided(self) -> set[str]:
        """Bookies that must not be chosen now."""
        return self.barred | self._passed_over

    def lac_receivers(self, last_add_confirmed: int) -> Sequence[str]:
        """All members: none has dirty entries, which a LAC would make readable (U4)."""
        return self.ensemble

    @property
    def pinned(self) -> set[int]:
        """Indexes of failed bookies that may not be replaced now (G3)."""
        confirmed = takewhile(lambda add: add.entry_id <= self.last_add_confirmed, self._pending)
        return pinned(self._failed, (add.acked for add in confirmed), self._ack_quorum_size)

    # Adds

    def begin_add(self, size: int) -> tuple[Add, Sequence[SendAdd]]:
        """Assigns the next entry id to a payload of `size` bytes, at least 1: an empty entry is a truncate entry.

        Raises the error that ended the writer, IncorrectParameterException for an empty payload.
        """
        if size < 1:
            raise IncorrectParameterException("an unbounded ledger takes no empty entry: it means that a term began")
        return self._begin(size)

    def add_again(self, size: int, length: int, payload: bytes) -> Sequence[Effect]:
        """Adds the next entry that a take-over has read, also an empty one; `length` is the ledger's up to it."""
        assert self._frozen is not None, "only a take-over adds entries of others"
        self._goes_on_at(length - size)
        add, sends = self._begin(size)
        add.token = payload
        if add.entry_id == 0:
            # Ledger, entry and LAC 0: a bookie's journal takes such a beginning for its end.
            add.last_add_confirmed = NO_ENTRY
        return sends

    def begin_truncate(self, length: int) -> Sequence[Effect]:
        """Adds the truncate entry that ends a take-over: it is sent to every member, not only to a write set (U3)."""
        assert self._frozen is not None, "a writer truncates by way of its first add to a bookie"
        self._goes_on_at(length)
        add, sends = self._begin(0, truncate=True)
        add.token = b""
        return sends

    def _goes_on_at(self, length: int) -> None:
        """A take-over may learn the ledger's length only with the first entry that it adds."""
        self.length = length
        if not self._pending:
            self.replicated_length = length

    def _begin(self, size: int, *, truncate: bool = False) -> tuple[Add, Sequence[SendAdd]]:
        if self.error is not None:
            raise self.error.with_traceback(None)
        entry_id = self.last_add_pushed = self.last_add_pushed + 1
        self.length += size
        horizon = self._frozen or (self.last_add_confirmed, self.lafr)
        position = entry_id % len(self._write_sets)
        indexes, required = self._everywhere if truncate else self._write_sets[position]
        add = Add(entry_id, size, self.length, horizon, indexes, required, truncate)
        self._pending.append(add)
        self._unconfirmed.append(add)
        if self._targets is None or truncate:
            sends = self._sends(add)
        else:
            add.sent = required
            sends = [_new(SendAdd, (add, self._targets[position], False))]
        if self._caps is not None:
            self._note_cap(add)
        return add, sends

    def _aim(self) -> None:
        """Prepares the short way, which adds and acknowledgements take while each member gets every add at once."""
        is_steady = self.error is None and self._full_at is None and not self._failed
        self._targets = (
            [[self._places[index] for index in indexes] for indexes, _ in self._write_sets] if is_steady else None
        )

    def _sends(self, add: Add) -> list[SendAdd]:
        """The bookies to which the add must be sent now."""
        if self._full_at is not None and add.entry_id > self._full_at:
            return []
        places: list[Place] = []
        for index in add.indexes:
            place = self._places[index]
            if not add.sent & place.bit and index not in self._failed:
                add.sent |= place.bit
                places.append(place)
        return [SendAdd(add, places, add.truncate)] if places else []

    def _all_sends(self) -> list[Effect]:
        return [send for add in self._pending for send in self._sends(add)]

    def on_ack(self, add: Add, place: Place, term: int) -> Sequence[Effect]:
        """A bookie has stored the entry; `term` is that of its response."""
        if term != self.term:
            return ()
        if self._targets is None or add.truncate or self._places[place.index] is not place:
            return self._on_ack_amid_change(add, place)
        acked = add.acked | place.bit
        if acked == add.acked:
            return ()
        add.acked = acked
        confirmed: Sequence[Effect] = ()
        if acked.bit_count() == self._ack_quorum_size and self._unconfirmed and self._unconfirmed[0] is add:
            confirmed = self._confirm()
        if acked == add.required and self._pending and self._pending[0] is add:
            self._replicate()
        return confirmed

    def _on_ack_amid_change(self, add: Add, place: Place) -> Sequence[Effect]:
        """The same where members fail, join or leave, or a fragment is full; decides for every state."""
        if self.error is not None:
            return ()
        if add.truncate or place.joins:
            self.barred.discard(place.bookie_id)
        if place.joins:
            self._clean.add(place.bookie_id)
            return self._on_truncation_over(place)
        if add.acked & place.bit or not self._is_member(place):
            return ()
        add.acked |= place.bit
        return self._settle()

    def _is_member(self, place: Place) -> bool:
        return self._places[place.index] is place

    def _settle(self) -> list[Effect]:
        """Advances LAC and LAFR, and begins a change that is due then."""
        if self.state is _STORING:
            return []
        effects: list[Effect] = [*self._confirm()]
        self._replicate()
        if self.state is not _STEADY:
            return effects
        if self._failed and (self._failed_anew or self._spared - self.pinned):
            return [*effects, *self._begin_change()]
        if self._full_at is not None and self.lafr >= self._full_at:
            self._on(WriterEvent.FRAGMENT_FULL)
            effects.append(ChooseEnsemble(self.ensemble))
        return effects

    def _confirm(self) -> Sequence[Effect]:
        confirmed = []
        while self._unconfirmed and self._unconfirmed[0].acked.bit_count() >= self._ack_quorum_size:
            if self._frozen is not None:
                break
            confirmed.append(self._unconfirmed.popleft())
        if not confirmed:
            return ()
        assert confirmed[0].entry_id == self.last_add_confirmed + 1, "confirmed entries are consecutive (P9)"
        self.previous_last_add_confirmed = self.last_add_confirmed
        self.last_add_confirmed, self.confirmed_length = confirmed[-1].entry_id, confirmed[-1].length
        return [Confirmed(confirmed)]

    def _replicate(self) -> None:
        while self._pending and self._pending[0].replicated:
            add = self._pending.popleft()
            assert add.entry_id == self.lafr + 1, "the LAFR moves over an unbroken run (P9)"
            self.lafr, self.replicated_length, self.last_replicated = add.entry_id, add.length, add

    # Failures and ensemble changes

    def on_failure(self, place: Place, error: BKException, add: Add | None = None) -> Sequence[Effect]:
        """A bookie rejected an add, or did not respond; the add matters where a take-over sends its truncate entry."""
        if self.error is not None:
            return ()
        if isinstance(error, InvalidTermException):
            return self.disengage(
                TermSupersededException(
                    f"another client has taken over ledger {self._ledger_id}: bookie {place.bookie_id} refuses term "
                    f"{self.term}",
                    ledger_id=self._ledger_id,
                )
            )
        joining = self._joining.get(place.bookie_id) is place
        if not joining and not self._is_member(place):
            self._note_truncation_failure(place, error, add)
            return ()
        if isinstance(error, ClientClosedException if joining else FATAL_ERRORS):
            return self.disengage(error)
        self._note_truncation_failure(place, error, add)
        if joining:
            return self._on_truncation_over(place)
        self._failed[place.index] = error
        self._failed_anew = True
        self._aim()
        return self._settle()

    def _note_truncation_failure(self, place: Place, error: BKException, add: Add | None) -> None:
        """Bars the bookie if the truncate flag may still arrive there, whichever request to it failed."""
        has_flag = place.joins or (add is not None and add.truncate)
        if has_flag and error.request_over:
            self.barred.discard(place.bookie_id)
            self._passed_over.add(place.bookie_id)
            if add is not None and self._is_member(place):
                add.sent &= ~place.bit
        elif place.joins or (self._is_member(place) and self._awaits_truncation(place)):
            self.barred.add(place.bookie_id)

    def _awaits_truncation(self, place: Place) -> bool:
        return any(add.truncate and (add.sent & ~add.acked) >> place.index & 1 for add in self._pending)

    def _begin_change(self) -> Sequence[Effect]:
        self._failed_anew = False
        self._spared = self.pinned
        self._replacing = {i: self._places[i].bookie_id for i in sorted(self._failed) if i not in self._spared}
        if not self._replacing:
            return [self._retry_later()]
        self._on(WriterEvent.CHANGE_WANTED)
        return [Replace(self.ensemble, dict(self._replacing))]

    def _retry_later(self) -> RetryLater:
        return RetryLater(self.failed_bookies)

    def on_replacements(self, replacements: Replacements) -> Sequence[Effect]:
        """The replacements that placement found for `Replace`, possibly fewer than requested, or none."""
        if self.state is not _PLACING or not self._replacing:
            return ()
        allowed = {index: bookie for index, bookie in replacements.items() if bookie not in self.avoided}
        return self._choose(replaced(self.ensemble, self._replacing, allowed))

    def on_ensemble(self, ensemble: Sequence[str] | None) -> Sequence[Effect]:
        """The ensemble that placement chose for `ChooseEnsemble`; None to keep the present one."""
        if self.state is not _PLACING or self._full_at is None or self._replacing:
            return ()
        is_usable = ensemble is not None and self.avoided.isdisjoint(ensemble)
        return self._choose(tuple(ensemble) if ensemble is not None and is_usable else self.ensemble)

    def _choose(self, ensemble: tuple[str, ...]) -> Sequence[Effect]:
        """Truncates the bookies that join, if they may hold dirty entries; then the fragment is stored."""
        assert len(set(ensemble)) == len(ensemble) == len(self._places), "a bookie is in an ensemble once (P5)"
        self._chosen = ensemble
        if not self._joiners_are_clean:
            joiners = [(i, bookie) for i, bookie in enumerate(ensemble) if bookie not in self._clean]
            self._joining = {bookie: Place(index, bookie, joins=True) for index, bookie in joiners}
        if not self._joining:
            return self._store()
        self._on(WriterEvent.JOINERS_DIRTY)
        return [SendAdd(self.last_replicated, list(self._joining.values()), True), *self._settle()]

    def _on_truncation_over(self, place: Place) -> Sequence[Effect]:
        """A bookie that is to join was truncated, or is barred."""
        if self._joining.get(place.bookie_id) is not place:
            return ()
        del self._joining[place.bookie_id]
        return () if self._joining else self._store()

    def _store(self) -> Sequence[Effect]:
        """Stores the fragment with those that may join and, for bookies that failed, with those that may leave now."""
        ensemble = self._chosen
        refusing = self.avoided.intersection(ensemble).difference(self.ensemble)
        if self._replacing:
            self._failed_anew |= bool(refusing)
            ensemble = self._with_replacements(ensemble)
            if ensemble == self.ensemble:
                return self._change_nothing()
        elif refusing:
            ensemble = self.ensemble
        self._replacing = {}
        self._on(WriterEvent.PLACED)
        self._next = NewFragment(Fragment(self.lafr + 1, ensemble), self.replicated_length)
        return [StoreFragment(self._next)]

    def _with_replacements(self, chosen: Sequence[str]) -> tuple[str, ...]:
        """The chosen ensemble but for who was not truncated, or whose place is pinned by what was confirmed since."""
        pinned_now = self.pinned & self._replacing.keys()
        self._spared |= pinned_now
        return tuple(
            place.bookie_id if index in pinned_now or bookie in self.avoided else bookie
            for index, (bookie, place) in enumerate(zip(chosen, self._places, strict=True))
        )

    def _change_nothing(self) -> Sequence[Effect]:
        self._replacing = {}
        self._on(WriterEvent.NONE_FOUND)
        later = [] if self._failed_anew else [self._retry_later()]
        return [*later, *self._settle()]

    def on_stored(self) -> Sequence[Effect]:
        """The metadata have the fragment of `StoreFragment`. Pending adds are sent to the new bookies."""
        if self.state is not _STORING or self._next is None:
            return ()
        self._fragment, self._next = self._next, None
        ensemble = self._fragment.fragment.ensemble
        for index in [i for i, place in enumerate(self._places) if place.bookie_id != ensemble[i]]:
            self._join(index, ensemble[index])
        if self._full_at is not None and self.lafr >= self._full_at:
            self._full_at = None
            self._passed_over.clear()
            for add in self._pending:
                self._note_cap(add)
        self._aim()
        self._on(WriterEvent.STORED)
        later = [self._retry_later()] if self._failed and not self._failed_anew else []
        return [*self._all_sends(), *later, *self._settle()]

    def _join(self, index: int, bookie_id: str) -> None:
        self._places[index] = Place(index, bookie_id)
        self._failed.pop(index, None)
        self._spared.discard(index)
        for add in self._pending:
            add.sent &= ~(1 << index)
            add.acked &= ~(1 << index)

    def retry(self) -> Sequence[Effect]:
        """Tries failed bookies again: sends each the adds that it has not acknowledged, and requests replacements for
        barred ones.
        """
        if self.state is not _STEADY or not self._failed:
            return ()
        self._passed_over.clear()
        for index in [index for index in self._failed if self._places[index].bookie_id not in self.barred]:
            old = self._places[index]
            self._places[index] = Place(index, old.bookie_id)
            for add in self._pending:
                add.sent &= add.acked | ~(1 << index)
            del self._failed[index]
        self._spared &= self._failed.keys()
        self._failed_anew = bool(self._failed)
        self._aim()
        return [*self._all_sends(), *self._settle()]

    # Full fragments

    def end_fragment(self) -> Sequence[Effect]:
        """Ends the last fragment with the entry sent last, unless it has none."""
        if (
            self.error is None
            and self._full_at is None
            and self.last_add_pushed >= self._fragment.fragment.first_entry_id
        ):
            self._full_at = self.last_add_pushed
            self._aim()
        return self._settle()

    def _note_cap(self, add: Add) -> None:
        caps, (fragment, length_before) = self._caps or NO_CAPS, self._fragment
        entries, size = add.entry_id - fragment.first_entry_id + 1, add.length - length_before
        limits = ((entries, caps.max_entries), (size, caps.max_bytes))
        if self._full_at is None and any(limit is not None and value >= limit for value, limit in limits):
            self._full_at = add.entry_id
            self._aim()

    # The end

    def disengage(self, error: BKException) -> Sequence[Effect]:
        """Ends the writer (the first reason stays); unconfirmed adds fail and are never sent again."""
        if self.error is not None:
            return ()
        self.error = error
        self._on(WriterEvent.LOST)
        failed = list(self._unconfirmed)
        self._unconfirmed.clear()
        self._pending.clear()
        self._joining.clear()
        self._aim()
        return [FailedAdds(failed, error)]

    def _on(self, event: WriterEvent) -> None:
        self.state = UNBOUNDED_WRITER.after(self.state, event)


def _ended_with(entry_id: int, length: int) -> Add:
    """The truncate entry with which a take-over has ended, as if the writer had added it."""
    return Add(entry_id, 0, length, (entry_id - 1, entry_id - 1), (), 0, truncate=True)


def _bits(indexes: Sequence[int]) -> tuple[Sequence[int], int]:
    """The indexes, and the same as bits."""
    return indexes, sum(1 << index for index in indexes)


_new = tuple.__new__  # takes half the time of the named constructor
