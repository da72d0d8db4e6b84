"""What is known of the copies of a ledger, and what follows: copy, replace a bookie, ask again, or give up.

Of each bookie that a ledger's metadata name one thing is known (`Copies`): *lost*, its registration has been gone for
longer than the delay; *holding* a set of entries, as it said itself; or *unknown*, whatever the reason: no answer, an
error, overload. Only the explicit word of a bookie makes an entry missing, and only when it was said twice
(`missing_twice`); so it is with one that is *corrupt* there: read twice, with a wrong digest or the word that the disk
gives it no more. What is unknown justifies no work and no verdict (R10).

An entry of a complete fragment that a place is due to hold is copied there from a bookie that holds it. Where the
bookie of the place is lost or to be emptied another one takes the place; where it lives it is refilled, over what is
corrupt there. An entry that nobody holds, with all that could hold it lost or without a good copy, is unrecoverable. So
is a ledger that is not closed and whose lost bookies may alone have acknowledged its last entries: nobody can tell any
more where it ends.

A bookie of the ensemble that is still written holds nothing that can be judged, but it has to answer before a ledger
counts as whole: a worker that has not yet heard of its loss would take the mark for nothing.

Source: docs/protocol/auto-recovery.md#verdicts.

Not its job: asking bookies (`bookies`), copying (`copying`), when to fence (`worker`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyroaring import BitMap64

from bookgate.bookie.replication.copies.fragments import CompleteFragment, complete_fragments, written_ensemble
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.quorum import CoverageSet


@dataclass(frozen=True, slots=True)
class Lost:
    """The bookie is gone, and has been for longer than the delay."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """Nothing can be said of the bookie's copies now."""

    reason: str


@dataclass(frozen=True, slots=True)
class Holding:
    """The bookie lives and holds these entries of the ledger."""

    entries: BitMap64
    draining: bool = False
    """It is to be emptied: another bookie takes its places."""
    corrupt: BitMap64 = field(default_factory=BitMap64)
    """What it stores of the ledger and answers with a wrong digest, or can't read; none of `entries`."""
    losses: int = field(default=0, compare=False)
    """How many connections to it had been lost when it said so: while that stays, it is the same process (R10)."""
    limbo: bool = False
    """It does not know what it has lost of the ledger: it may be refilled, and its word makes nothing unrecoverable."""


Copies = Lost | Unknown | Holding


@dataclass(frozen=True, slots=True)
class PlaceRepair:
    """One place of one fragment's ensemble that needs work."""

    fragment: CompleteFragment
    index: int
    due: BitMap64
    """All ids that the place is to hold."""
    missing: BitMap64
    """Of these the ids of which the bookie in place has no good copy."""
    replace: bool
    """Another bookie has to take the place; else the bookie in place is refilled."""
    last_copies: bool = False
    """Some of the missing ids have one good copy left, as far as is known."""

    @property
    def bookie_id(self) -> str:
        """The bookie in place."""
        return self.fragment.ensemble[self.index]

    @property
    def place(self) -> tuple[int, int]:
        """The place in the ledger: first entry of the fragment, index."""
        return self.fragment.first_entry_id, self.index


@dataclass(frozen=True, slots=True)
class Findings:
    """What a look at a ledger has found. With nothing in it the ledger is whole."""

    repairs: tuple[PlaceRepair, ...] = ()
    unrecoverable: BitMap64 = field(default_factory=BitMap64)
    """Ids of which no copy is left; the places that are due to hold them are in no repair."""
    unknown: tuple[str, ...] = ()
    """Why the look is incomplete."""
    lost_where_written: tuple[str, ...] = ()
    """Lost bookies in the ensemble of the fragment that may still be extended."""
    end_is_lost: bool = False
    """They are so many that a recovery can't tell the last entry without them."""

    @property
    def whole(self) -> bool:
        """A complete look has found nothing to do (R5)."""
        return not (self.repairs or self.unrecoverable or self.unknown or self.lost_where_written)


def judge(metadata: LedgerMetadata, copies: Mapping[str, Copies]) -> Findings:
    """Judges a ledger by what is known of the copies of all its bookies."""
    repairs: list[PlaceRepair] = []
    unrecoverable, unknown = BitMap64(), dict[str, None]()
    for fragment in complete_fragments(metadata):
        held, held_once = _held(fragment, copies)
        for index, bookie_id in enumerate(fragment.ensemble):
            state, due = copies[bookie_id], fragment.due(index)
            if isinstance(state, Unknown):
                unknown[f"{bookie_id}: {state.reason}"] = None
                continue
            replace = isinstance(state, Lost) or state.draining
            missing = due if isinstance(state, Lost) else due - state.entries
            if not missing and not replace:
                continue
            without = missing - held
            if not without:
                repairs.append(PlaceRepair(fragment, index, due, missing, replace, bool(missing & held_once)))
                continue
            for entry_id in without:
                reasons = _unknown_holders(fragment, entry_id, copies)
                unknown.update(dict.fromkeys(reasons))
                if not reasons:
                    unrecoverable.add(entry_id)
    written = written_ensemble(metadata)
    lost = tuple(bookie_id for bookie_id in written if isinstance(copies[bookie_id], Lost))
    if not lost:
        states = ((bookie_id, copies[bookie_id]) for bookie_id in written)
        unknown.update((f"{name}: {state.reason}", None) for name, state in states if isinstance(state, Unknown))
    return Findings(tuple(repairs), unrecoverable, tuple(unknown), lost, bool(lost) and _end_is_lost(metadata, lost))


def _end_is_lost(metadata: LedgerMetadata, lost: Collection[str]) -> bool:
    coverage = CoverageSet(metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size)
    for index, bookie_id in enumerate(metadata.last_fragment.ensemble):
        if bookie_id not in lost:
            coverage.mark_known(index)
    return not coverage.covered


def _held(fragment: CompleteFragment, copies: Mapping[str, Copies]) -> tuple[BitMap64, BitMap64]:
    """Ids of the fragment that some bookie in the place for it holds, and those of them that only one does."""
    held, again = BitMap64(), BitMap64()
    for index, bookie_id in enumerate(fragment.ensemble):
        state = copies[bookie_id]
        if isinstance(state, Holding):
            here = state.entries & fragment.due(index)
            again |= held & here
            held |= here
    return held, held - again


def _unknown_holders(fragment: CompleteFragment, entry_id: int, copies: Mapping[str, Copies]) -> list[str]:
    reasons = []
    for bookie_id in fragment.write_set(entry_id):
        state = copies[bookie_id]
        if isinstance(state, Unknown):
            reasons.append(f"{bookie_id}: {state.reason}")
        elif isinstance(state, Holding) and state.limbo:
            reasons.append(f"{bookie_id}: the ledger is in limbo there")
    return reasons


def by_danger(repairs: Sequence[PlaceRepair]) -> list[tuple[CompleteFragment, list[PlaceRepair]]]:
    """The repairs of each fragment: where most copies are wanted first, and the newest of equals."""
    fragments: dict[CompleteFragment, list[PlaceRepair]] = {}
    for repair in repairs:
        fragments.setdefault(repair.fragment, []).append(repair)
    return sorted(fragments.items(), key=lambda each: (-len(each[1]), -each[0].first_entry_id))


def lacking(metadata: LedgerMetadata, copies: Mapping[str, Copies]) -> list[str]:
    """The bookies that live and lack entries of complete fragments that they are due to hold."""
    found = dict[str, None]()
    for fragment in complete_fragments(metadata):
        for index, bookie_id in enumerate(fragment.ensemble):
            state = copies[bookie_id]
            if isinstance(state, Holding) and fragment.due(index) - state.entries:
                found[bookie_id] = None
    return list(found)


def missing_twice(first: Copies, second: Copies) -> Copies:
    """What two answers of a living bookie say together: it holds what either says that it holds."""
    if isinstance(first, Holding) and isinstance(second, Holding):
        return replace(
            second,
            entries=first.entries | second.entries,
            corrupt=(first.corrupt & second.corrupt) - first.entries - second.entries,
            limbo=first.limbo or second.limbo,
        )
    return second


def may_be_another(first: Copies, second: Copies) -> bool:
    """Whether two answers may be of two processes: the bookie was started again in between, or replaced."""
    return isinstance(first, Holding) and isinstance(second, Holding) and first.losses != second.losses


def copies_left(metadata: LedgerMetadata, lost: Iterable[str]) -> int:
    """How many copies the worst-off entry has left, by the places of its write set alone; the danger that it is in."""
    gone = set(lost)
    left = metadata.write_quorum_size
    for fragment in metadata.fragments:
        size = len(fragment.ensemble)
        for start in range(size):
            places = (fragment.ensemble[(start + behind) % size] for behind in range(metadata.write_quorum_size))
            left = min(left, sum(bookie_id not in gone for bookie_id in places))
    return left


def has_last_copies(metadata: LedgerMetadata, gone: Collection[str]) -> bool:
    """Whether an entry of a complete fragment has lost copies with these bookies and has one left, by its write set.

    What is still written is its writer's, who replaces a bookie."""
    for fragment in complete_fragments(metadata):
        size = len(fragment.ensemble)
        for entry_id in range(fragment.first_entry_id, min(fragment.last_entry_id + 1, fragment.first_entry_id + size)):
            members = fragment.write_set(entry_id)
            if sum(bookie_id not in gone for bookie_id in members) == 1 < len(members):
                return True
    return False
