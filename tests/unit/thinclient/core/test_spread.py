"""No two copies of an entry on one host while there is another way: against every way there is."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookgate.ledger.errors import NotEnoughBookiesException
from bookgate.thinclient.core.placement import (
    DEFAULT_RACK,
    Candidate,
    DefaultPlacementPolicy,
    EnsemblePlacementPolicy,
    EnsembleRequest,
    RackawarePlacementPolicy,
)
from bookgate.thinclient.core.spread import Lack, Place, UnknownPlace, find_ensemble, kinds_in_windows, lack_of

# A rack and a host in it; hosts of one name in different racks are different ones.
PLACES = st.builds(Place, st.sampled_from(["/a", "/b"]), st.sampled_from(["h1", "h2", "h3"]))
POLICIES = (DefaultPlacementPolicy, RackawarePlacementPolicy)


def bookies_at(places: Sequence[Place]) -> list[Candidate]:
    return [Candidate(f"bookie-{index}", place.rack, host=place.host) for index, place in enumerate(places)]


def least_hosts(places: Sequence[Place], window: int) -> int:
    return min(kinds_in_windows(places, window))


def least_racks(places: Sequence[Place], window: int) -> int:
    return min(kinds_in_windows([place.rack for place in places], window))


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Place], EnsembleRequest]:
    places = draw(st.lists(PLACES, min_size=1, max_size=6))
    size = draw(st.integers(1, len(places)))
    quorum = draw(st.integers(1, size))
    return places, EnsembleRequest(size, quorum, 1)


@settings(max_examples=150)
@given(clusters(), st.sampled_from(POLICIES), st.integers())
def test_write_sets_are_on_as_many_hosts_as_can_be(
    cluster: tuple[list[Place], EnsembleRequest],
    policy: type[DefaultPlacementPolicy | RackawarePlacementPolicy],
    seed: int,
) -> None:
    places, request = cluster
    window, racks = request.write_quorum_size, min(2, request.write_quorum_size)
    candidates = bookies_at(places)
    place_of = {each.bookie_id: each.place for each in candidates}
    chosen = [place_of[name] for name in policy(random.Random(seed)).new_ensemble(request, candidates)]
    ways = {*permutations(places, request.ensemble_size)}
    hosts = max(least_hosts(way, window) for way in ways)
    assert least_hosts(chosen, window) == hosts
    if policy is RackawarePlacementPolicy:
        best = max(least_racks(way, window) for way in ways if least_hosts(way, window) == hosts)
        assert least_racks(chosen, window) >= min(best, racks)


@settings(max_examples=150)
@given(clusters(), st.sampled_from(POLICIES), st.integers(), st.data())
def test_replacement_takes_no_host_of_its_neighbours_while_there_is_another(
    cluster: tuple[list[Place], EnsembleRequest],
    policy: type[DefaultPlacementPolicy | RackawarePlacementPolicy],
    seed: int,
    data: st.DataObject,
) -> None:
    places, request = cluster
    size, window = request.ensemble_size, request.write_quorum_size
    candidates = bookies_at(places)
    names = [each.bookie_id for each in candidates]
    place_of = dict(zip(names, places, strict=True))
    index = data.draw(st.integers(0, size - 1))
    free = candidates[size:]
    if not free:
        return

    def after(place: Place) -> int:
        return lack_of([*places[:index], place, *places[index + 1 : size]], window, 1).hosts

    found = policy(random.Random(seed)).replace_bookie(request, names[:size], index, candidates, place_of.__getitem__)
    assert found in names[size:]
    assert after(place_of[found]) == min(after(each.place) for each in free)


@settings(max_examples=150)
@given(clusters(), st.sampled_from(POLICIES), st.integers())
def test_what_lies_better_elsewhere_is_moved(
    cluster: tuple[list[Place], EnsembleRequest],
    policy: type[DefaultPlacementPolicy | RackawarePlacementPolicy],
    seed: int,
) -> None:
    places, request = cluster
    size, window = request.ensemble_size, request.write_quorum_size
    wanted = min(window, 2) if policy is RackawarePlacementPolicy else 1
    candidates = bookies_at(places)
    names = [each.bookie_id for each in candidates]
    place_of = dict(zip(names, places, strict=True))
    found = policy(random.Random(seed)).better_ensemble(request, names[:size], candidates, place_of.__getitem__)
    now = lack_of(places[:size], window, wanted)
    best = min(
        lack_of([place_of[name] for name in way], window, wanted)
        for way in permutations(names, size)
        if all(name == own or name not in names[:size] for name, own in zip(way, names, strict=False))
    )
    if found is None:
        assert now == best
        return
    assert best < now
    assert lack_of([place_of[name] for name in found], window, wanted) == best
    assert len({*found}) == size


def test_hosts_come_before_racks() -> None:
    places = [Place("/a", "h1"), Place("/a", "h2"), Place("/a", "h3"), Place("/b", "h4"), Place("/b", "h4")]
    policy = RackawarePlacementPolicy(random.Random(1))
    candidates = [*bookies_at(places[:2]), *bookies_at(places)[3:]]
    for _ in range(20):
        chosen = policy.new_ensemble(EnsembleRequest(3, 3, 2), candidates)
        assert {"bookie-0", "bookie-1"} < {*chosen}
    alone = bookies_at([Place("/a", "h1"), Place("/a", "h1"), Place("/b", "h2"), Place("/b", "h2")])
    assert set(policy.new_ensemble(EnsembleRequest(4, 2, 2), alone)) == {each.bookie_id for each in alone}


def test_replacement_of_its_own_rack_is_no_reason_for_a_host_twice() -> None:
    places = [Place("/a", "h1"), Place("/a", "h2"), Place("/b", "h3"), Place("/a", "h2"), Place("/b", "h4")]
    candidates, policy = bookies_at(places), RackawarePlacementPolicy(random.Random(1))
    place_of = {each.bookie_id: each.place for each in candidates}.__getitem__
    members = [each.bookie_id for each in candidates[:3]]
    assert policy.replace_bookie(EnsembleRequest(3, 3, 2), members, 0, candidates, place_of) == "bookie-4"


def test_hosts_with_more_bookies_are_not_like_the_others() -> None:
    order = [Place("/a", "h1"), Place("/a", "h2"), Place("/a", "h3"), Place("/a", "h3")]
    found = find_ensemble(order, 4, 2, 2, 1)
    assert found is not None, "those of h3 are no neighbours if h1 is followed by one of them"
    assert least_hosts([order[position] for position in found], 2) == 2


def test_enforced_racks_come_before_hosts() -> None:
    policy = RackawarePlacementPolicy(random.Random(1), 2, enforce_min_racks=True)
    places = [Place("/a", "h1"), Place("/a", "h2"), Place("/b", "h3")]
    request = EnsembleRequest(2, 2, 2)
    place_of = {each.bookie_id: each.place for each in bookies_at(places)}.__getitem__
    assert "bookie-2" in policy.new_ensemble(request, bookies_at(places))
    with pytest.raises(NotEnoughBookiesException, match="can't be replaced so that"):
        policy.replace_bookie(request, ["bookie-0", "bookie-2"], 1, bookies_at(places)[:2], place_of)


def enforced(ensemble: str, free: str, quorum: int = 3, wanted: int = 2) -> str | None:
    """The rack of the replacement of the first member, "!": a letter is a rack, "?" a place that nobody knows."""
    names = [f"member-{index}" for index in range(len(ensemble))]
    places: list[Place] = [
        UnknownPlace(DEFAULT_RACK, name) if rack == "?" else Place(rack, name)
        for name, rack in zip(names, ensemble, strict=True)
    ]
    candidates = [Candidate(f"free-{index}", rack) for index, rack in enumerate(free)]
    place_of = dict(zip(names, places, strict=True)).__getitem__
    policy = RackawarePlacementPolicy(random.Random(1), wanted, enforce_min_racks=True)
    try:
        found = policy.replace_bookie(EnsembleRequest(len(names), quorum, 1), names, 0, candidates, place_of)
    except NotEnoughBookiesException:
        return None
    return next(each.rack for each in candidates if each.bookie_id == found)


@pytest.mark.parametrize(
    ("ensemble", "free", "wanted", "found"),
    [
        ("!?a", "aa", 2, None),
        ("!?a", "ab", 2, "b"),
        ("!??", "aa", 2, "a"),  # no rack is better
        ("!?a", "ab", 3, "b"),
        ("!?a", "aa", 3, None),
        ("!ba", "ab", 3, None),
        ("!aa", "aa", 2, None),
        ("!ab", "a", 2, "a"),
    ],
)
def test_a_member_of_unknown_place_is_no_further_rack(ensemble: str, free: str, wanted: int, found: str | None) -> None:
    assert enforced(ensemble, free, wanted=wanted) == found


@given(st.text("abc", min_size=1, max_size=4), st.text("abc", min_size=1, max_size=4), st.integers(1, 5), st.data())
def test_what_is_not_known_allows_no_choice_that_the_truth_forbids_while_a_better_one_is_there(
    others: str, free: str, quorum: int, data: st.DataObject
) -> None:
    quorum = min(quorum, len(others) + 1)
    unknown = data.draw(st.sets(st.integers(0, len(others) - 1)))
    seen = "".join("?" if at in unknown else rack for at, rack in enumerate(others))
    found, wanted = enforced(f"!{seen}", free, quorum), min(quorum, 2)
    if found is None:
        assert unknown or all(min(kinds_in_windows([rack, *others], quorum, 0)) < wanted for rack in free)
    elif not unknown:
        assert min(kinds_in_windows([found, *others], quorum, 0)) >= wanted
    elif min(kinds_in_windows([found, *others], quorum, 0)) < wanted:
        worst = ["!" if at in unknown else rack for at, rack in enumerate(others)]
        assert min(kinds_in_windows(["!", *worst], quorum, 0)) < wanted, "another rack would have done for sure"


@pytest.mark.parametrize(
    "policy", [DefaultPlacementPolicy(random.Random(1)), RackawarePlacementPolicy(random.Random(1))]
)
def test_bookies_of_unknown_host_are_of_different_ones(policy: EnsemblePlacementPolicy) -> None:
    candidates = [Candidate("x"), Candidate("y"), Candidate("z", host="h"), Candidate("v", host="h")]
    for _ in range(20):
        assert {*policy.new_ensemble(EnsembleRequest(3, 3, 2), candidates)} in ({"x", "y", "z"}, {"x", "y", "v"})


def test_default_policy_draws_whatever_the_rack() -> None:
    rng = random.Random(5)
    policy = DefaultPlacementPolicy(rng)
    candidates = bookies_at([Place("/a", f"h{number}") for number in range(9)] + [Place("/b", "other")])
    ensembles = [policy.new_ensemble(EnsembleRequest(2, 2, 2), candidates) for _ in range(1000)]
    assert 140 < sum("bookie-9" in ensemble for ensemble in ensembles) < 260  # a fifth of them, within chance
    place_of = {each.bookie_id: each.place for each in candidates}.__getitem__
    members = ["bookie-0", "bookie-1"]
    found = [policy.replace_bookie(EnsembleRequest(2, 2, 2), members, 0, candidates, place_of) for _ in range(800)]
    assert 60 < found.count("bookie-9") < 145  # an eighth


def test_many_hosts_make_no_long_search() -> None:
    """What can't be had is found out in no time, though there are many bookies: those that are alike are tried once."""
    order = [Place("/a", f"h{number}") for number in range(1000)] + [Place("/b", "other")]
    began = time.process_time()
    assert find_ensemble(order, 6, 2, 2, 2) is None
    assert find_ensemble(order[:-1], 6, 3, 3, 1) == [0, 1, 2, 3, 4, 5]
    assert time.process_time() - began < 2
    assert find_ensemble(order[:1], 1, 1, 2, 1) is None
    assert lack_of([Place("/a", "h1"), Place("/a", "h1"), Place("/b", "h1")], 2, 2) == Lack(1, 1)
