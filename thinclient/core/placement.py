"""Which bookies hold a ledger: the policies that choose an ensemble, and a replacement for a bookie that failed.

Any choice of distinct writable bookies is compatible on the wire; a policy only decides how well a ledger survives
what fails together, and how evenly bookies fill up. A policy is a pure function of the candidates it is given and of
the random numbers it draws.

`DefaultPlacementPolicy` draws at random, by weight. `RackawarePlacementPolicy` also spreads every write set: each
window of write-quorum-size neighbours in the ensemble (a ring) spans at least min(write quorum, minimum) racks, or as
many as can be had unless that minimum is enforced.

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

DEFAULT_RACK = "/default-rack"
"""The rack of a bookie that nobody placed anywhere; BookKeeper's name for it."""

MAX_MULTIPLE_OF_MEDIAN = 3.0
"""bookieMaxMultipleForWeightBasedPlacement: no bookie counts for more than this many times the median weight."""

_SEARCH_LIMIT = 20_000
"""Steps of the search for an ensemble after which a number of racks counts as out of reach."""


class RandomSource(Protocol):
    """Where chance comes from; `random.Random` is one."""

    def random(self) -> float:
        """A number from 0 up to 1."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A writable bookie that may be chosen. `weight` is relative: free bytes, or 1 for each."""

    bookie_id: str
    rack: str = DEFAULT_RACK
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class EnsembleRequest:
    """What is wanted."""

    ensemble_size: int
    write_quorum_size: int
    ack_quorum_size: int
    custom_metadata: Mapping[str, bytes] = field(default_factory=dict)


class EnsemblePlacementPolicy(ABC):
    """The interface for policies of others, found by name through the entry-point group `bookgate.placement_policies`.

    A policy is made with a random source and with `min_racks` and `enforce_min_racks` of the configuration.
    """

    @abstractmethod
    def new_ensemble(self, request: EnsembleRequest, candidates: Sequence[Candidate]) -> list[str]:
        """`request.ensemble_size` distinct bookies. Raises NotEnoughBookiesException that lists what there is."""

    @abstractmethod
    def replace_bookie(
        self,
        request: EnsembleRequest,
        ensemble: Sequence[str],
        index: int,
        candidates: Sequence[Candidate],
        rack_of: Callable[[str], str],
    ) -> str:
        """A bookie for position `index` that is not in the ensemble. `rack_of` also knows bookies that have gone.

        Raises NotEnoughBookiesException.
        """


class DefaultPlacementPolicy(EnsemblePlacementPolicy):
    """Random, by weight."""

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
    """Random, by weight, with every write set over several racks. See the module."""

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
        # The rack of the one that failed keeps the spread as it was; next best is a rack that nobody else is in.
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

    def _usable(self, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        """With an enforced minimum a bookie of unknown place can't be counted on."""
        return [c for c in candidates if c.rack != DEFAULT_RACK] if self._enforced else candidates

    def _wanted(self, request: EnsembleRequest) -> int:
        return min(request.write_quorum_size, self._min_racks)

    def _goals(self, request: EnsembleRequest) -> Iterable[int]:
        """Numbers of racks to try for, best first."""
        wanted = self._wanted(request)
        return (wanted,) if self._enforced else range(wanted, 0, -1)


class _Search:
    """Depth first search for an ensemble whose windows all span `goal` racks.

    Bookies of one rack are alike for the rule, so at each position only the next of each rack is tried: racks not yet
    among the neighbours first, in drawing order.
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
        """Whether the windows that the last choice completed span enough racks."""
        racks = [candidate.rack for candidate in self._chosen]
        if len(racks) == self._size:
            return all(count >= self._goal for count in racks_of_windows(racks, self._window))
        if len(racks) < self._window:
            return True
        return len(set(racks[-self._window :])) >= self._goal


def racks_of_windows(racks: Sequence[str], window: int, index: int | None = None) -> list[int]:
    """The number of racks in each window of the ring, or only in those that hold position `index`."""
    size = len(racks)
    starts = range(size) if index is None else {(index - offset) % size for offset in range(window)}
    return [len({racks[(start + offset) % size] for offset in range(window)}) for start in starts]


def drawing_order(candidates: Sequence[Candidate], rng: RandomSource) -> list[Candidate]:
    """The candidates in random order, heavier ones likelier to come first (a draw by weight without putting back)."""
    keys = {candidate.bookie_id: rng.random() ** (1 / max(candidate.weight, 1e-9)) for candidate in candidates}
    return sorted(candidates, key=lambda candidate: keys[candidate.bookie_id], reverse=True)


def weighted(candidates: Sequence[Candidate], weights: Mapping[str, float]) -> list[Candidate]:
    """The candidates with their weights, those of unknown weight as heavy as the median one; scaled to the median."""
    known = [weight for weight in weights.values() if weight > 0]
    middle = median(known) if known else 1.0
    return [
        replace(c, weight=min(max(weights.get(c.bookie_id, middle), 0.0) / middle, MAX_MULTIPLE_OF_MEDIAN))
        for c in candidates
    ]


def check_enough(size: int, candidates: Sequence[Candidate]) -> None:
    """Raises NotEnoughBookiesException when there are fewer candidates than wanted."""
    if len(candidates) < size:
        raise NotEnoughBookiesException(
            f"an ensemble of {size} needs as many writable bookies; there are {describe(candidates)}. Start more "
            "bookies or ask for a smaller ensemble"
        )


def check_replacement(ensemble: Sequence[str], index: int, free: Sequence[Candidate]) -> None:
    """Raises NotEnoughBookiesException when nobody is left."""
    if not free:
        raise NotEnoughBookiesException(
            f"bookie {ensemble[index]} can't be replaced: no other writable bookie is left beside {', '.join(ensemble)}"
        )


def describe(candidates: Sequence[Candidate]) -> str:
    """How many there are, and which."""
    names = ", ".join(c.bookie_id if c.rack == DEFAULT_RACK else f"{c.bookie_id} in {c.rack}" for c in candidates)
    return f"{len(candidates)}{': ' + names if names else ''}"


def _not_in(ensemble: Sequence[str], candidates: Sequence[Candidate]) -> list[Candidate]:
    members = set(ensemble)
    return [candidate for candidate in candidates if candidate.bookie_id not in members]
