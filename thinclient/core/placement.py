"""Placement policies: which bookies form an ensemble, and which bookie replaces a failed one.

Any choice of distinct writable bookies is compatible on the wire. A policy only determines how well a ledger survives
correlated failures and how evenly bookies fill up. A policy is a pure function of its candidates and the random numbers
it draws.

Both policies draw at random, by weight, and put no two copies of an entry on one host if there is another way: each
window of write-quorum-size neighbours in the ensemble (a ring) spans as many hosts as possible. With
`RackawarePlacementPolicy` each window also spans at least min(write quorum, minimum) racks, or as many as possible
unless that minimum is enforced. `spread` has the search.

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
from bookgate.thinclient.core.spread import NOWHERE, Place, find_ensemble, improve, lack_of, missing, spans_racks

DEFAULT_RACK = "/default-rack"
"""The rack of a bookie without a configured location; BookKeeper's name for it."""

MAX_MULTIPLE_OF_MEDIAN = 3.0
"""bookieMaxMultipleForWeightBasedPlacement: a bookie's weight is capped at this multiple of the median weight."""


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
    host: str = ""
    """The machine on which it runs; empty: a machine that it shares with no other candidate."""

    @property
    def place(self) -> Place:
        return Place(self.rack, self.host or self.bookie_id)


@dataclass(frozen=True, slots=True)
class EnsembleRequest:
    """The sizes of the ensemble to choose."""

    ensemble_size: int
    write_quorum_size: int
    ack_quorum_size: int
    custom_metadata: Mapping[str, bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, metadata: LedgerMetadata) -> EnsembleRequest:
        """The sizes of an existing ledger."""
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
        place_of: Callable[[str], Place],
    ) -> str:
        """Chooses a bookie for position `index` that is not yet in the ensemble.

        Args:
            request: The sizes of the ensemble.
            ensemble: The current bookie ids.
            index: The position to fill.
            candidates: The writable bookies.
            place_of: The place of any bookie, including those no longer registered. With an enforced minimum of racks
                it is an `UnknownPlace` if nobody has said where the bookie is.

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
        place_of: Callable[[str], Place],
    ) -> list[str] | None:
        """Finds an ensemble that the policy prefers to one that already holds entries.

        Each position keeps its bookie or gets one from outside the ensemble; of equally good ensembles, one with the
        fewest changes is returned.

        Args:
            request: The sizes of the ensemble.
            ensemble: The current bookie ids.
            candidates: The writable bookies.
            place_of: The place of any bookie.

        Returns:
            The bookie ids; None if the ensemble conforms to the policy, no better one exists, or the policy does not
            implement this.
        """
        return None


class RackawarePlacementPolicy(EnsemblePlacementPolicy):
    """Draws at random, by weight, and spreads every write set over several hosts and racks. See the module."""

    def __init__(self, rng: RandomSource, min_racks: int = 2, enforce_min_racks: bool = False) -> None:
        self._rng = rng
        self._min_racks = min_racks
        self._enforced = enforce_min_racks

    def new_ensemble(self, request: EnsembleRequest, candidates: Sequence[Candidate]) -> list[str]:
        usable = self._usable(candidates)
        check_enough(request.ensemble_size, usable)
        order = drawing_order(usable, self._rng)
        if self._may_be(order[: request.ensemble_size]):
            return [candidate.bookie_id for candidate in order[: request.ensemble_size]]
        places = [self._of(candidate.place) for candidate in order]
        window = request.write_quorum_size
        for hosts in range(window, 0, -1):
            # So many racks have at least as many hosts.
            for racks in (goal for goal in self._goals(request) if goal <= hosts):
                chosen = find_ensemble(places, request.ensemble_size, window, hosts, racks)
                if chosen is not None:
                    return [order[position].bookie_id for position in chosen]
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
        place_of: Callable[[str], Place],
    ) -> str:
        free = _not_in(ensemble, self._usable(candidates))
        check_replacement(ensemble, index, free)
        places = [self._of(place_of(bookie_id)) for bookie_id in ensemble]
        racks = [place.rack for place in places]
        others = {*places[:index], *places[index + 1 :]}
        elsewhere = set(racks) - {racks[index]}
        # The rack of the failed bookie keeps the spread unchanged; next best is a rack that no other member is in.
        order = sorted(
            ((self._of(candidate.place), candidate.bookie_id) for candidate in drawing_order(free, self._rng)),
            key=lambda each: (each[0].rack != racks[index], each[0].rack in elsewhere, each[0] in others),
        )
        window = request.write_quorum_size

        def lacking(place: Place) -> int:
            return missing([*places[:index], place, *places[index + 1 :]], window, window, index)

        def spans(rack: str, goal: int) -> bool:
            return spans_racks([*places[:index], Place(rack, ""), *places[index + 1 :]], window, goal, index)

        # From the lack that a new host would leave to the most that windows can lack.
        for hosts in range(lacking(NOWHERE), window * window):
            for goal in self._goals(request):
                for place, bookie_id in order:
                    if lacking(place) <= hosts and spans(place.rack, goal):
                        return bookie_id
        raise NotEnoughBookiesException(
            f"bookie {ensemble[index]} can't be replaced so that every {window} neighbours are in "
            f"{self._wanted(request)} racks; there are {describe(free)}"
        )

    def better_ensemble(
        self,
        request: EnsembleRequest,
        ensemble: Sequence[str],
        candidates: Sequence[Candidate],
        place_of: Callable[[str], Place],
    ) -> list[str] | None:
        wanted, window = self._wanted(request), request.write_quorum_size
        places = [self._of(place_of(bookie_id)) for bookie_id in ensemble]
        if not any(lack_of(places, window, wanted)):
            return None
        free = dict[Place, list[str]]()
        for candidate in drawing_order(_not_in(ensemble, self._usable(candidates)), self._rng):
            free.setdefault(self._of(candidate.place), []).append(candidate.bookie_id)
        best = improve(places, window, wanted, {place: len(ids) for place, ids in free.items()})
        if best is None:
            return None
        return [ensemble[index] if place is None else free[place].pop(0) for index, place in enumerate(best)]

    def _of(self, place: Place) -> Place:
        """The part of a place that this policy considers."""
        return place

    def _may_be(self, drawn: Sequence[Candidate]) -> bool:
        """Whether the first candidates drawn need no search, because nothing is better."""
        return False

    def _usable(self, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        """The usable candidates: with an enforced minimum, a bookie of unknown rack is not one of them."""
        return [c for c in candidates if c.rack != DEFAULT_RACK] if self._enforced else candidates

    def _wanted(self, request: EnsembleRequest) -> int:
        return min(request.write_quorum_size, self._min_racks)

    def _goals(self, request: EnsembleRequest) -> Iterable[int]:
        """Numbers of racks to aim for, best first."""
        wanted = self._wanted(request)
        return (wanted,) if self._enforced else range(wanted, 0, -1)


class DefaultPlacementPolicy(RackawarePlacementPolicy):
    """Spreads write sets over hosts only, as if all bookies were in one rack."""

    def __init__(self, rng: RandomSource, min_racks: int = 2, enforce_min_racks: bool = False) -> None:
        super().__init__(rng, 1)

    def _of(self, place: Place) -> Place:
        return Place(DEFAULT_RACK, f"{place.rack} {place.host}")

    def _may_be(self, drawn: Sequence[Candidate]) -> bool:
        return len({candidate.place for candidate in drawn}) == len(drawn)


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
