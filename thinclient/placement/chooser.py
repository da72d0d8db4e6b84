"""Chooses bookies: passes the known writable bookies, with racks, weights and quarantine, to the policy.

The candidates are the set that the bookie watch delivered last (`known_bookies`); if it is insufficient, or not there
yet, service discovery is called. Bookies in quarantine are excluded at first; if no choice is possible without them
they are included again. Weights are the bookies' free bytes, requested in the background at most every
`weight_interval_seconds`; until the first responses arrive all bookies weigh the same.

With an enforced minimum of racks, members of an ensemble whose place is not known are looked for among all registered
bookies before one is replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import replace
from importlib.metadata import entry_points
from typing import TypeVar

from bookgate.ledger.bookie_info import NO_FEATURES, Features, meaning_of
from bookgate.ledger.errors import BKException, IncorrectParameterException, NotEnoughBookiesException
from bookgate.ledger.metadata_store import BookieSet, RegisteredBookie, ServiceDiscovery
from bookgate.runtime.logs import log_event
from bookgate.thinclient.config import ClientConfig
from bookgate.thinclient.core.placement import (
    DEFAULT_RACK,
    Candidate,
    DefaultPlacementPolicy,
    EnsemblePlacementPolicy,
    EnsembleRequest,
    RackawarePlacementPolicy,
    weighted,
)
from bookgate.thinclient.core.spread import Place, UnknownPlace, lack_of
from bookgate.thinclient.placement.known_bookies import KnownBookies
from bookgate.thinclient.placement.racks import RackMapping

_Choice = TypeVar("_Choice")

_log = logging.getLogger(__name__)

_PREFERRED = 1e9
"""Additional weight of a bookie that must be chosen before the others."""

_SHOWN = 10
"""Maximum number of bookies that an error names."""

POLICY_GROUP = "bookgate.placement_policies"
"""Entry points: a name, and a callable (rng, min_racks, enforce_min_racks) that returns an EnsemblePlacementPolicy."""

_OWN_POLICIES: dict[str, Callable[[random.Random, int, bool], EnsemblePlacementPolicy]] = {
    "default": DefaultPlacementPolicy,
    "rackaware": RackawarePlacementPolicy,
}

FreeBytes = Callable[[str], Awaitable[int]]
"""Requests from a bookie the free bytes of its ledger directories. Raises BKException."""


def create_policy(config: ClientConfig, rng: random.Random) -> EnsemblePlacementPolicy:
    """The policy that the configuration names. Raises IncorrectParameterException, which lists the existing ones."""
    make = _OWN_POLICIES.get(config.placement_policy)
    if make is None:
        others = {point.name: point for point in entry_points(group=POLICY_GROUP)}
        if config.placement_policy not in others:
            known = ", ".join([*_OWN_POLICIES, *others])
            raise IncorrectParameterException(
                f"placement_policy {config.placement_policy!r} is not known; there are {known}"
            )
        make = others[config.placement_policy].load()
    return make(rng, config.min_racks_per_write_quorum, config.enforce_min_racks)


class Placement:
    """Calls the policy with the known state of the bookies."""

    def __init__(
        self,
        discovery: ServiceDiscovery,
        policy: EnsemblePlacementPolicy,
        config: ClientConfig,
        *,
        quarantined: Callable[[], Collection[str]] = tuple,
        free_bytes: FreeBytes | None = None,
        on_counted: Callable[[str], None] = lambda metric: None,
    ) -> None:
        """`on_counted` is called with the name of a client metric."""
        self._discovery = discovery
        self._known = KnownBookies(discovery)
        self._policy = policy
        self._racks = RackMapping(config.rack_mapping)
        self._wanted_racks = 1 if config.placement_policy == "default" else config.min_racks_per_write_quorum
        self._racks_enforced = config.enforce_min_racks
        self._on_counted = on_counted
        self._quarantined = quarantined
        self._free_bytes = free_bytes if config.weight_by_free_space else None
        self._weight_interval = config.weight_interval_seconds
        self._weights: dict[str, float] = {}
        self._weights_due = 0.0
        self._weighing: asyncio.Task[None] | None = None

    async def new_ensemble(self, request: EnsembleRequest, *, needs: Features = NO_FEATURES) -> list[str]:
        """Distinct writable bookies that have the features.

        Raises NotEnoughBookiesException, which lists the candidates.
        """
        ensemble = await self._choose((), lambda found: self._policy.new_ensemble(request, found), needs)
        self._judge(request, ensemble)
        return ensemble

    async def replace_bookie(
        self,
        request: EnsembleRequest,
        ensemble: Sequence[str],
        index: int,
        exclude: Collection[str] = (),
        *,
        needs: Features = NO_FEATURES,
    ) -> str:
        """A writable bookie that has the features, for position `index`, neither in the ensemble nor excluded.

        Raises NotEnoughBookiesException.
        """
        await self._look_for([*ensemble[:index], *ensemble[index + 1 :]])
        chosen = await self._choose(
            exclude,
            lambda found: self._policy.replace_bookie(request, ensemble, index, found, place_of=self._place_of),
            needs,
        )
        self._judge(request, [*ensemble[:index], chosen, *ensemble[index + 1 :]])
        return chosen

    def better_ensemble(
        self,
        request: EnsembleRequest,
        ensemble: Sequence[str],
        bookies: Sequence[RegisteredBookie],
        exclude: Collection[str] = (),
        prefer: Collection[str] = (),
    ) -> list[str] | None:
        """An ensemble that the policy rates strictly better than this one (`EnsemblePlacementPolicy.better_ensemble`).

        Args:
            request: The sizes of the ensemble.
            ensemble: The current bookie ids.
            bookies: All registered bookies.
            exclude: Bookies that must not be chosen.
            prefer: Bookies to take first among equally good ones.

        Returns:
            The bookie ids; None if there is nothing better now, or if a bookie of the ensemble is not registered, since
            its place is not certain.
        """
        places = {each.bookie_id: self._racks.place(each.info) for each in bookies}
        if not places.keys() >= {*ensemble}:
            return None
        found = [
            replace(each, weight=_PREFERRED * each.weight) if each.bookie_id in prefer else each
            for each in self._candidates(bookies, exclude)
        ]
        return self._policy.better_ensemble(request, ensemble, found, place_of=places.__getitem__)

    def see(self, bookies: Iterable[RegisteredBookie]) -> None:
        """Remembers the places of registered bookies, for the time when they are not registered."""
        self._racks.refresh()
        for each in bookies:
            if each.registered:
                self._racks.place(each.info)

    def racks_of(self, bookies: Iterable[RegisteredBookie]) -> dict[str, str]:
        """The racks of bookies, registered or not, that a file or a registration seen by this process gives."""
        bookies = list(bookies)
        self.see(bookies)
        racks = {each.bookie_id: self._racks.place_of(each.bookie_id).rack for each in bookies}
        return {bookie_id: rack for bookie_id, rack in racks.items() if rack != DEFAULT_RACK}

    async def _look_for(self, members: Sequence[str]) -> None:
        """Reads all registered bookies if an enforced minimum of racks depends on a member of unknown place: the watch
        delivers only writable ones.
        """
        self._racks.refresh()
        if self._racks_enforced and not all(map(self._racks.knows, members)):
            self.see(await self._discovery.bookies(BookieSet.ALL))

    def _place_of(self, bookie_id: str) -> Place:
        place = self._racks.place_of(bookie_id)
        return UnknownPlace(*place) if self._racks_enforced and not self._racks.knows(bookie_id) else place

    def _judge(self, request: EnsembleRequest, ensemble: Sequence[str]) -> None:
        """Counts ensembles that span fewer racks than requested, or a single host although there are several."""
        window = request.write_quorum_size
        lack = lack_of([*map(self._place_of, ensemble)], window, min(window, self._wanted_racks))
        if lack.racks or (lack.hosts and self._racks.has_hosts):
            self._on_counted("bookie_watcher_ENSEMBLE_NOT_ADHERING_TO_PLACEMENT_POLICY_TOTAL")

    async def _choose(
        self, exclude: Collection[str], choose: Callable[[list[Candidate]], _Choice], needs: Features
    ) -> _Choice:
        told = self._known.told
        if told is not None:
            with contextlib.suppress(NotEnoughBookiesException):  # an update with more bookies may be on its way
                return self._choose_from(self._candidates(fit_for(told, needs), exclude), choose)
        known = await self._known.ask()
        fit = fit_for(known, needs)
        try:
            return self._choose_from(self._candidates(fit, exclude), choose)
        except NotEnoughBookiesException as error:
            unfit = [each.bookie_id for each in known if each.writable and each not in fit]
            if not unfit:
                raise
            raise NotEnoughBookiesException(
                f"{error}; {len(unfit)} other bookies do not understand {meaning_of(needs)}: "
                f"{', '.join(unfit[:_SHOWN])}. Upgrade them"
            ) from error

    def _choose_from(self, candidates: list[Candidate], choose: Callable[[list[Candidate]], _Choice]) -> _Choice:
        quarantined = self._quarantined()
        healthy = [c for c in candidates if c.bookie_id not in quarantined] if quarantined else candidates
        try:
            return choose(healthy)
        except NotEnoughBookiesException:
            if len(healthy) == len(candidates):
                raise
        return choose(candidates)

    def _candidates(self, known: Sequence[RegisteredBookie], exclude: Collection[str]) -> list[Candidate]:
        bookies = [b for b in known if b.writable]
        self._racks.refresh()
        candidates = [self._candidate(b) for b in bookies if b.bookie_id not in exclude]
        if self._free_bytes is None:
            return candidates
        self._weigh_if_due(bookies, self._free_bytes)
        return weighted(candidates, self._weights)

    def _candidate(self, bookie: RegisteredBookie) -> Candidate:
        place = self._racks.place(bookie.info)
        return Candidate(bookie.bookie_id, place.rack, host=place.host)

    def _weigh_if_due(self, bookies: Sequence[RegisteredBookie], free_bytes: FreeBytes) -> None:
        loop = asyncio.get_running_loop()
        if self._weighing is not None or loop.time() < self._weights_due:
            return
        self._weights_due = loop.time() + self._weight_interval
        self._weighing = loop.create_task(self._weigh([b.bookie_id for b in bookies], free_bytes))

    async def _weigh(self, bookie_ids: Sequence[str], free_bytes: FreeBytes) -> None:
        answers = await asyncio.gather(*map(free_bytes, bookie_ids), return_exceptions=True)
        for bookie_id, answer in zip(bookie_ids, answers, strict=True):
            if isinstance(answer, int):
                self._weights[bookie_id] = float(answer)
            elif isinstance(answer, BKException):
                log_event(_log, "placement_weight", state="unknown", bookie=bookie_id, error=answer)
        self._weighing = None

    async def close(self) -> None:
        """Ends background work."""
        await self._known.close()
        if self._weighing is not None:
            self._weighing.cancel()
            await asyncio.gather(self._weighing, return_exceptions=True)
            self._weighing = None


def fit_for(known: Sequence[RegisteredBookie], needs: Features) -> Sequence[RegisteredBookie]:
    """The bookies that may hold a ledger which needs these features."""
    return [each for each in known if all(map(each.info.understands, needs))] if needs else known
