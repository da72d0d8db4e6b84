"""Placement policies: which bookies form an ensemble, and which bookie replaces a failed one.

Any choice of distinct writable bookies is compatible on the wire. A policy only determines how well a ledger survives
correlated failures and how evenly bookies fill up. A policy is a pure function of its candidates and the random numbers
it draws.

`DefaultPlacementPolicy` draws at random, by weight. `RackawarePlacementPolicy` also spreads every write set: each
window of write-quorum-size neighbours in the ensemble (a ring) spans at least min(write quorum, minimum) racks, or as
many as possible unless that minimum is enforced.

Sources: docs/protocol/client-protocol.md#choosing-bookies.

Not its job: which bookies are candidates, racks and weights (`bookgate.thinclient.placement.chooser`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Protocol

from bookgate.ledger.errors import NotEnoughBookiesException
from bookgate.ledger.metadata import LedgerMetadata

DEFAULT_RACK = "/default-rack"
"""The rack of a bookie without a configured location; BookKeeper's name for it."""

MAX_MULTIPLE_OF_MEDIAN = 3.0
"""bookieMaxMultipleForWeightBasedPlacement: a bookie's weight is capped at this multiple of the median weight."""

_SEARCH_LIMIT = 20_000
"""Search steps after which a number of racks is considered unattainable."""


class RandomSource(Protocol):
    """A source of random numbers; `random.Random` implements it."""

    def random(self) -> float:
        """A number in [0, 1)."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A writable bookie that may be chosen. `weight` is relative: free bytes, or 1 for all."""

    bookie_id: str
    rack: str = DEFAULT_RACK
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class EnsembleRequest:
    """The sizes of the ensemble to choose."""

    ensemble_size: int
    write_quorum_size: int
    ack_quorum_size: int
    custom_metadata: Mapping[str, bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, metadata: LedgerMetadata) -> EnsembleRequest:
        """That of a ledger that exists."""
        return cls(
            metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size, metadata.custom_metadata
        )


class EnsemblePlacementPolicy(ABC):
    """The interface of placement policies. Custom policies are found by name in the entry-point group
    `bookgate.placement_policies`.

    A policy is constructed with a random source and the configuration's `min_racks` and `enforce_min_racks`.
    """

    @abstractmethod
    def new_ensemble(self, request: EnsembleRequest, candidates: Sequence[Candidate]) -> list[str]:
        """Chooses an ensemble.

        Args:
            request: The sizes of the ensemble.
            candidates: The writable bookies.

        Returns:
            `request.ensemble_size` distinct bookie ids, in ensemble order.

        Raises:
            NotEnoughBookiesException: There are too few candidates; the message lists them.
        """

    @abstractmethod
    def replace_bookie(
        self,
        request: EnsembleRequest,
        ensemble: Sequence[str],
        index: int,
        candidates: Sequence[Candidate],
        rack_of: Callable[[str], str],
    ) -> str:
        """Chooses a bookie for position `index` that is not yet in the ensemble.

        Args:
            request: The sizes of the ensemble.
            ensemble: The current bookie ids.
            index: The position to fill.
            candidates: The writable bookies.
            rack_of: The rack of any bookie, including those no longer registered.

        Returns:
            The bookie id.

        Raises:
            NotEnoughBookiesException: No suitable bookie is left.
        """

    def better_ensemble(
        self,
        request: EnsembleRequest,
        ensemble: Sequence[str],
        candidates: Sequence[Candidate],
        rack_of: Callable[[str], str],
    ) -> list[str] | None:
        """An ensemble that pleases the policy strictly more than one that holds entries already.

        Each place keeps its bookie or gets one from outside the ensemble; of equally good ensembles one with the fewest
        changes is returned.

        Args:
            request: The sizes of the ensemble.
            ensemble: The current bookie ids.
            candidates: The writable bookies.
            rack_of: The rack of any bookie.

        Returns:
            The bookie ids; None if the ensemble adheres to the policy, or nothing better can be had. So does a policy
            that does not tell.
        """
        return None


class DefaultPlacementPolicy(EnsemblePlacementPolicy):
    """Draws at random, by weight."""

    def __init__(self, rng: RandomSource, min_racks: int = 2, enforce_min_racks: bool = False) -> None:
        self._rng = rng

    def new_ensemble(self, request: EnsembleRequest, candidates: Sequence[Candidate]) -> list[str]:
        check_enough(request.ensemble_size, candidates)
        drawn = drawing_order(candidates, self._rng)[: request.ensemble_size]
        return [candidate.bookie_id for candidate in drawn]

    def replace_bookie(
        self,
        request: EnsembleRequest,
        ensemble: Sequence[str],
        index: int,
        candidates: Sequence[Candidate],
        rack_of: Callable[[str], str],
    ) -> str:
        free = _not_in(ensemble, candidates)
        check_replacement(ensemble, index, free)
        return drawing_order(free, self._rng)[0].bookie_id


class RackawarePlacementPolicy(EnsemblePlacementPolicy):
    """Draws at random, by weight, and spreads every write set over several racks. See the module."""

    def __init__(self, rng: RandomSource, min_racks: int = 2, enforce_min_racks: bool = False) -> None:
        self._rng = rng
        self._min_racks = min_racks
        self._enforced = enforce_min_racks

    def new_ensemble(self, request: EnsembleRequest, candidates: Sequence[Candidate]) -> list[str]:
        usable = self._usable(candidates)
        check_enough(request.ensemble_size, usable)
        order = drawing_order(usable, self._rng)
        for racks in self._goals(request):
            chosen = _Search(request, order, racks).run()
            if chosen is not None:
                return [candidate.bookie_id for candidate in chosen]
        raise NotEnoughBookiesException(
            f"no ensemble of {request.ensemble_size} with every {request.write_quorum_size} neighbours in "
            f"{self._wanted(request)} racks can be had from {describe(usable)}. Add bookies in other racks, or do not "
            "enforce the minimum of racks"
        )

    def replace_bookie(
        self,
        request: EnsembleRequest,
        ensemble: Sequence[str],
        index: int,
        candidates: Sequence[Candidate],
        rack_of: Callable[[str], str],
    ) -> str:
        free = _not_in(ensemble, self._usable(candidates))
        check_replacement(ensemble, index, free)
        racks = [rack_of(bookie_id) for bookie_id in ensemble]
        elsewhere = set(racks) - {racks[index]}
        # The rack of the failed bookie keeps the spread unchanged; next best is a rack that no other member is in.
        order = sorted(drawing_order(free, self._rng), key=lambda c: (c.rack != racks[index], c.rack in elsewhere))
        for goal in self._goals(request):
            for candidate in order:
                changed = [*racks[:index], candidate.rack, *racks[index + 1 :]]
                if all(count >= goal for count in racks_of_windows(changed, request.write_quorum_size, index)):
                    return candidate.bookie_id
        raise NotEnoughBookiesException(
            f"bookie {ensemble[index]} can't be replaced so that every {request.write_quorum_size} neighbours are in "
            f"{self._wanted(request)} racks; there are {describe(free)}"
        )

    def better_ensemble(
        self,
        request: EnsembleRequest,
        ensemble: Sequence[str],
        candidates: Sequence[Candidate],
        rack_of: Callable[[str], str],
    ) -> list[str] | None:
        wanted, window = self._wanted(request), request.write_quorum_size
        racks = [rack_of(bookie_id) for bookie_id in ensemble]
        lacking = missing_racks(racks, window, wanted)
        if not lacking:
            return None
        free = dict[str, list[str]]()
        for candidate in drawing_order(_not_in(ensemble, self._usable(candidates)), self._rng):
            free.setdefault(candidate.rack, []).append(candidate.bookie_id)
        best = _Improvement(racks, window, wanted, {rack: len(ids) for rack, ids in free.items()}).run()
        if best is None:
            return None
        return [ensemble[index] if rack is None else free[rack].pop(0) for index, rack in enumerate(best)]

    def _usable(self, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        """The usable candidates: with an enforced minimum, a bookie of unknown rack is not one of them."""
        return [c for c in candidates if c.rack != DEFAULT_RACK] if self._enforced else candidates

    def _wanted(self, request: EnsembleRequest) -> int:
        return min(request.write_quorum_size, self._min_racks)

    def _goals(self, request: EnsembleRequest) -> Iterable[int]:
        """Numbers of racks to aim for, best first."""
        wanted = self._wanted(request)
        return (wanted,) if self._enforced else range(wanted, 0, -1)


class _Search:
    """Depth-first search for an ensemble whose windows all span `goal` racks.

    The rule treats all bookies of a rack alike, so at each position only the next bookie of each rack is tried: racks
    not yet among the neighbours first, in drawing order.
    """

    def __init__(self, request: EnsembleRequest, order: Sequence[Candidate], goal: int) -> None:
        self._size = request.ensemble_size
        self._window = request.write_quorum_size
        self._goal = goal
        self._order = order
        self._chosen: list[Candidate] = []
        self._steps = 0

    def run(self) -> list[Candidate] | None:
        return self._chosen if self._extend() else None

    def _extend(self) -> bool:
        if len(self._chosen) == self._size:
            return True
        for candidate in self._options():
            self._steps += 1
            if self._steps > _SEARCH_LIMIT:
                return False
            self._chosen.append(candidate)
            if self._fits() and self._extend():
                return True
            self._chosen.pop()
        return False

    def _options(self) -> list[Candidate]:
        taken = {candidate.bookie_id for candidate in self._chosen}
        first_of_rack: dict[str, Candidate] = {}
        for candidate in self._order:
            if candidate.bookie_id not in taken:
                first_of_rack.setdefault(candidate.rack, candidate)
        neighbours = {candidate.rack for candidate in self._chosen[len(self._chosen) - self._window + 1 :]}
        if len(self._chosen) < self._window:
            neighbours = {candidate.rack for candidate in self._chosen}
        return sorted(first_of_rack.values(), key=lambda candidate: candidate.rack in neighbours)

    def _fits(self) -> bool:
        """Whether the windows completed by the last choice span enough racks."""
        racks = [candidate.rack for candidate in self._chosen]
        if len(racks) == self._size:
            return all(count >= self._goal for count in racks_of_windows(racks, self._window))
        if len(racks) < self._window:
            return True
        return len(set(racks[-self._window :])) >= self._goal


class _Improvement:
    """Search for the racks to which the fewest places have to go so that the windows lack as few racks as possible.

    `run` returns for each place its new rack, or None where the bookie stays; None if nothing is better than before.
    Changes of one place are tried first, then of two, and so on, until no rack is lacking or the steps are used up.
    """

    def __init__(self, racks: Sequence[str], window: int, wanted: int, free: Mapping[str, int]) -> None:
        """`free` says how many bookies of each rack may be chosen."""
        self._racks = list(racks)
        self._window = window
        self._wanted = wanted
        self._free = dict(free)
        self._least = missing_racks(racks, window, wanted)
        self._chosen: list[str | None] = [None] * len(racks)
        self._best: list[str | None] | None = None
        self._steps = 0

    def run(self) -> list[str | None] | None:
        for changes in range(1, len(self._racks) + 1):
            self._change(changes, 0)
            if not self._least or self._steps > _SEARCH_LIMIT:
                break
        return self._best

    def _change(self, changes: int, start: int) -> None:
        for index in range(start, len(self._racks) - changes + 1):
            before = self._racks[index]
            for rack, count in self._free.items():
                if rack == before or not count or not self._least or self._steps > _SEARCH_LIMIT:
                    continue
                self._steps += 1
                self._racks[index] = self._chosen[index] = rack
                self._free[rack] -= 1
                if changes > 1:
                    self._change(changes - 1, index + 1)
                else:
                    self._judge()
                self._free[rack] += 1
            self._racks[index], self._chosen[index] = before, None

    def _judge(self) -> None:
        lacking = missing_racks(self._racks, self._window, self._wanted)
        if lacking < self._least:
            self._least, self._best = lacking, list(self._chosen)


def missing_racks(racks: Sequence[str], window: int, wanted: int) -> int:
    """How many racks all windows of the ring lack together; 0 where each spans as many as wanted."""
    return sum(max(0, wanted - count) for count in racks_of_windows(racks, window))


def racks_of_windows(racks: Sequence[str], window: int, index: int | None = None) -> list[int]:
    """The number of racks in each window of the ring, or only in the windows that contain position `index`."""
    size = len(racks)
    starts = range(size) if index is None else {(index - offset) % size for offset in range(window)}
    return [len({racks[(start + offset) % size] for offset in range(window)}) for start in starts]


def drawing_order(candidates: Sequence[Candidate], rng: RandomSource) -> list[Candidate]:
    """The candidates in random order, in which heavier ones tend to come first (weighted draw without replacement)."""
    keys = {candidate.bookie_id: rng.random() ** (1 / max(candidate.weight, 1e-9)) for candidate in candidates}
    return sorted(candidates, key=lambda candidate: keys[candidate.bookie_id], reverse=True)


def weighted(candidates: Sequence[Candidate], weights: Mapping[str, float]) -> list[Candidate]:
    """The candidates with their weights relative to the median; a bookie of unknown weight gets the median weight."""
    known = [weight for weight in weights.values() if weight > 0]
    middle = median(known) if known else 1.0
    return [
        replace(c, weight=min(max(weights.get(c.bookie_id, middle), 0.0) / middle, MAX_MULTIPLE_OF_MEDIAN))
        for c in candidates
    ]


def check_enough(size: int, candidates: Sequence[Candidate]) -> None:
    """Raises NotEnoughBookiesException if there are fewer than `size` candidates."""
    if len(candidates) < size:
        raise NotEnoughBookiesException(
            f"an ensemble of {size} needs as many writable bookies; there are {describe(candidates)}. Start more "
            f"bookies, or ask for a smaller ensemble{_that_fits(len(candidates))}"
        )


def _that_fits(bookies: int) -> str:
    return f" (ensemble_size={bookies}; the quorums follow it)" if bookies else ""


def check_replacement(ensemble: Sequence[str], index: int, free: Sequence[Candidate]) -> None:
    """Raises NotEnoughBookiesException if no bookie is left."""
    if not free:
        raise NotEnoughBookiesException(
            f"bookie {ensemble[index]} can't be replaced: no other writable bookie is left beside {', '.join(ensemble)}"
        )


def describe(candidates: Sequence[Candidate]) -> str:
    """The number of candidates, and their ids."""
    names = ", ".join(c.bookie_id if c.rack == DEFAULT_RACK else f"{c.bookie_id} in {c.rack}" for c in candidates)
    return f"{len(candidates)}{': ' + names if names else ''}"


def _not_in(ensemble: Sequence[str], candidates: Sequence[Candidate]) -> list[Candidate]:
    members = set(ensemble)
    return [candidate for candidate in candidates if candidate.bookie_id not in members]
