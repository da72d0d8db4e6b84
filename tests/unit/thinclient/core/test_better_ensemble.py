"""Ensembles that hold entries already: when another one would please the policy more, and what it costs."""

from __future__ import annotations

import random
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookgate.thinclient.core.placement import (
    DEFAULT_RACK,
    Candidate,
    DefaultPlacementPolicy,
    EnsembleRequest,
    RackawarePlacementPolicy,
)
from bookgate.thinclient.core.spread import Place, missing


def better(racks: str, free: str, quorum: int = 2, wanted: int = 2, enforce: bool = False) -> tuple[str, int] | None:
    """A letter is a bookie's rack. The racks afterwards, and how many places changed."""
    ensemble = [f"member-{index}" for index in range(len(racks))]
    candidates = [Candidate(f"free-{index}", rack) for index, rack in enumerate(free)]
    rack_of = {**dict(zip(ensemble, racks, strict=True)), **{each.bookie_id: each.rack for each in candidates}}
    policy = RackawarePlacementPolicy(random.Random(1), wanted, enforce)
    members = [Candidate(name, rack_of[name]) for name in ensemble]
    found = policy.better_ensemble(
        EnsembleRequest(len(racks), quorum, quorum),
        ensemble,
        [*members, *candidates],
        lambda name: Place(rack_of[name], name),
    )
    if found is None:
        return None
    assert len(set(found)) == len(found)
    changed = [index for index, name in enumerate(found) if name != ensemble[index]]
    assert all(found[index].startswith("free") for index in changed), "who stays keeps its place"
    return "".join(rack_of[name] for name in found), len(changed)


@pytest.mark.parametrize(
    ("racks", "free", "after"),
    [("aa", "b", 1), ("aaa", "bc", 2), ("aabb", "ab", 2), ("aaaa", "bbbb", 2), ("aab", "ccc", 1)],
)
def test_as_few_places_change_as_can_be(racks: str, free: str, after: int) -> None:
    found = better(racks, free)
    assert found is not None
    assert missing(found[0], 2, 2) == 0
    assert found[1] == after


@pytest.mark.parametrize(("racks", "free"), [("ab", "abc"), ("aa", "aaa"), ("aa", ""), ("abab", "cd")])
def test_nothing_moves_where_all_is_well_or_nothing_better_is_there(racks: str, free: str) -> None:
    assert better(racks, free) is None


def test_what_can_not_be_as_wanted_is_as_good_as_it_can_be() -> None:
    found = better("aaa", "bb", quorum=3, wanted=3)
    assert found is not None
    assert (sorted(found[0]), found[1]) == (["a", "a", "b"], 1)
    assert better("aab", "bb", quorum=3, wanted=3) is None, "one more of the two racks is no better"


def test_enforced_racks_take_no_bookie_of_an_unknown_one() -> None:
    policy = RackawarePlacementPolicy(random.Random(1), 2, True)
    request = EnsembleRequest(2, 2, 2)
    places = {each.bookie_id: each for each in (Candidate("x", "/a"), Candidate("y", "/a"), Candidate("z"))}

    def place_of(name: str) -> Place:
        return places[name].place

    candidates = [*places.values()]
    assert policy.better_ensemble(request, ["x", "y"], candidates, place_of) is None
    relaxed = RackawarePlacementPolicy(random.Random(1), 2, False)
    assert relaxed.better_ensemble(request, ["x", "y"], candidates, place_of) in (["x", "z"], ["z", "y"])


def test_a_policy_without_racks_moves_what_lies_on_one_host_only() -> None:
    policy, request = DefaultPlacementPolicy(random.Random(1)), EnsembleRequest(2, 2, 2)
    candidates = [Candidate("y", host="h1"), Candidate("z", host="h2")]
    hosts = {"w": "h1", "x": "h1", "v": "h3"}

    def place_of(name: str) -> Place:
        return Place(DEFAULT_RACK, hosts[name])

    assert policy.better_ensemble(request, ["v", "x"], candidates, place_of) is None
    assert policy.better_ensemble(request, ["w", "x"], candidates, place_of) in (["z", "x"], ["w", "z"])
    assert policy.better_ensemble(request, ["w", "x"], candidates[:1], place_of) is None


@settings(max_examples=60)
@given(st.text("abc", min_size=1, max_size=4), st.text("abc", max_size=4), st.integers(1, 4), st.integers(1, 3))
def test_it_is_better_or_nothing_is(racks: str, free: str, quorum: int, wanted: int) -> None:
    quorum = min(quorum, len(racks))
    wanted = min(wanted, quorum)
    now, found = missing(racks, quorum, wanted), better(racks, free, quorum, wanted)
    choices = product(*[{rack, *free} for rack in racks])
    best = min(missing(each, quorum, wanted) for each in choices if _can_be_had(racks, each, free))
    assert (now if found is None else missing(found[0], quorum, wanted)) == best
    assert (found is None) == (best == now)


def _can_be_had(racks: str, changed: tuple[str, ...], free: str) -> bool:
    taken = [after for before, after in zip(racks, changed, strict=True) if before != after]
    return all(taken.count(rack) <= free.count(rack) for rack in taken)
