"""The state of a ledger's copies, and the consequences: copy, replace a bookie, ask again, or give up.

Each bookie that a ledger's metadata name has one state (`Copies`): *lost*, its registration has been missing for longer
than the delay; *holding* a set of entries, according to its own response; or *unknown*, for any reason: no response, an
error, overload. An entry counts as missing only if the bookie explicitly says so twice (`missing_twice`), and as
*corrupt* only after two reads with a wrong digest or an error of the disk. An unknown state justifies no work and no
verdict (R10).

An entry of a complete fragment is copied to each position that should hold it but does not, from a bookie that holds
it. If the bookie at the position is lost or to be emptied, another one replaces it; an available one is refilled, and
its corrupt copies are overwritten. An entry is unrecoverable if no bookie holds it, and all that should hold it are
lost or have no good copy. So is a ledger that is not closed if its lost bookies alone may have acknowledged its last
entries: its end can't be determined any more.

Bookies of the ensemble that is still being written hold nothing that can be judged, but they must respond before a
ledger counts as whole: otherwise a worker that has not yet noticed their loss would remove a valid mark.

Source: docs/protocol/auto-recovery.md#verdicts.

Not its job: asking bookies (`bookies`), copying (`copying`), when to fence (`worker`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyroaring import BitMap64

from bookgate.bookie.replication.copies.fragments import CompleteFragment, complete_fragments, written_ensemble
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.quorum import CoverageSet


@dataclass(frozen=True, slots=True)
class Lost:
    """The bookie has been missing for longer than the delay."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """The bookie's copies can't be determined now."""

    reason: str


@dataclass(frozen=True, slots=True)
class Holding:
    """The bookie is available and holds these entries of the ledger."""

    entries: BitMap64
    draining: bool = False
    """Whether it is to be emptied: other bookies replace it."""
    corrupt: BitMap64 = field(default_factory=BitMap64)
    """Entries that it stores with a wrong digest, or can't read; none of `entries`."""
    losses: int = field(default=0, compare=False)
    """Number of connections to it lost before this response: while it stays the same, so does the process (R10)."""
    limbo: bool = False
    """Whether the ledger is in limbo there: it may be refilled, and its response makes nothing unrecoverable."""


Copies = Lost | Unknown | Holding


@dataclass(frozen=True, slots=True)
class PlaceRepair:
    """A position of a fragment's ensemble that needs work."""

    fragment: CompleteFragment
    index: int
    due: BitMap64
    """All ids that the position should hold."""
    missing: BitMap64
    """The ids in `due` without a good copy on the present bookie."""
    replace: bool
    """Whether another bookie must replace the present one; otherwise that is refilled."""
    last_copies: bool = False
    """Whether some of the missing ids have one good copy left, as far as known."""

    @property
    def bookie_id(self) -> str:
        """The present bookie at the position."""
        return self.fragment.ensemble[self.index]

    @property
    def place(self) -> tuple[int, int]:
        """The position in the ledger: first entry of the fragment, index."""
        return self.fragment.first_entry_id, self.index


@dataclass(frozen=True, slots=True)
class Findings:
    """The findings of an examination of a ledger. If empty, the ledger is whole."""

    repairs: tuple[PlaceRepair, ...] = ()
    unrecoverable: BitMap64 = field(default_factory=BitMap64)
    """Ids without any copy; positions that should hold any of them are not in `repairs`."""
    unknown: tuple[str, ...] = ()
    """The reasons why the examination is incomplete."""
    lost_where_written: tuple[str, ...] = ()
    """Lost bookies in the ensemble that is still being written."""
    end_is_lost: bool = False
    """Whether they are so many that a recovery can't determine the last entry without them."""

    @property
    def whole(self) -> bool:
        """Whether a complete examination has found nothing to do (R5)."""
        return not (self.repairs or self.unrecoverable or self.unknown or self.lost_where_written)


def judge(metadata: LedgerMetadata, copies: Mapping[str, Copies]) -> Findings:
    """Determines the findings of a ledger from the copies on all its bookies."""
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
            doubted = BitMap64()
            for reason, ids in _unknown_holders(fragment, copies):
                if not ids.isdisjoint(without):
                    unknown[reason] = None
                    doubted |= ids
            unrecoverable |= without - doubted
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
    """The ids of the fragment held by a bookie at a position for them, and those of them held by only one."""
    held, again = BitMap64(), BitMap64()
    for index, bookie_id in enumerate(fragment.ensemble):
        state = copies[bookie_id]
        if isinstance(state, Holding):
            here = state.entries & fragment.due(index)
            again |= held & here
            held |= here
    return held, held - again


def _unknown_holders(fragment: CompleteFragment, copies: Mapping[str, Copies]) -> Iterator[tuple[str, BitMap64]]:
    """The positions whose bookie may hold entries that it does not show: why, and the ids that it should hold."""
    for index, bookie_id in enumerate(fragment.ensemble):
        state = copies[bookie_id]
        if isinstance(state, Unknown):
            yield f"{bookie_id}: {state.reason}", fragment.due(index)
        elif isinstance(state, Holding) and state.limbo:
            yield f"{bookie_id}: the ledger is in limbo there", fragment.due(index)


def by_danger(repairs: Sequence[PlaceRepair]) -> list[tuple[CompleteFragment, list[PlaceRepair]]]:
    """The repairs by fragment: fragments that need the most copies first, then the newest."""
    fragments: dict[CompleteFragment, list[PlaceRepair]] = {}
    for repair in repairs:
        fragments.setdefault(repair.fragment, []).append(repair)
    return sorted(fragments.items(), key=lambda each: (-len(each[1]), -each[0].first_entry_id))


def lacking(metadata: LedgerMetadata, copies: Mapping[str, Copies]) -> list[str]:
    """The available bookies that lack entries of complete fragments that they should hold."""
    found = dict[str, None]()
    for fragment in complete_fragments(metadata):
        for index, bookie_id in enumerate(fragment.ensemble):
            state = copies[bookie_id]
            if isinstance(state, Holding) and not fragment.due(index).issubset(state.entries):
                found[bookie_id] = None
    return list(found)


def missing_twice(first: Copies, second: Copies) -> Copies:
    """Combines two responses of an available bookie: it holds the entries in either of them."""
    if isinstance(first, Holding) and isinstance(second, Holding):
        return replace(
            second,
            entries=first.entries | second.entries,
            corrupt=(first.corrupt & second.corrupt) - first.entries - second.entries,
            limbo=first.limbo or second.limbo,
        )
    return second


def may_be_another(first: Copies, second: Copies) -> bool:
    """Whether two responses may come from two processes: the bookie was restarted in between, or replaced."""
    return isinstance(first, Holding) and isinstance(second, Holding) and first.losses != second.losses


def copies_left(metadata: LedgerMetadata, lost: Iterable[str]) -> int:
    """The number of copies left of the most endangered entry, determined from its write set alone."""
    gone = set(lost)
    left = metadata.write_quorum_size
    for fragment in metadata.fragments:
        left = min(left, min(_left_of_write_sets(fragment.ensemble, metadata.write_quorum_size, gone)))
    return left


def _left_of_write_sets(ensemble: Sequence[str], write_quorum_size: int, gone: Collection[str]) -> list[int]:
    """The number of copies left of an entry, by the position at which its write set begins.

    Each follows from the one before: an ensemble may have as many bookies as metadata have room for.
    """
    stays, size = [bookie_id not in gone for bookie_id in ensemble], len(ensemble)
    left = [sum(stays[:write_quorum_size])]
    for start in range(1, size):
        left.append(left[-1] - stays[start - 1] + stays[(start - 1 + write_quorum_size) % size])
    return left


def has_last_copies(metadata: LedgerMetadata, gone: Collection[str]) -> bool:
    """Whether an entry of a complete fragment has lost copies with these bookies and has one left, by its write set.

    The fragment that is still being written does not count: its writer replaces the bookie."""
    for fragment in complete_fragments(metadata):
        size, first = len(fragment.ensemble), fragment.first_entry_id
        left = _left_of_write_sets(fragment.ensemble, fragment.write_quorum_size, gone)
        if any(left[entry_id % size] == 1 for entry_id in range(first, min(fragment.last_entry_id + 1, first + size))):
            return metadata.write_quorum_size > 1
    return False
