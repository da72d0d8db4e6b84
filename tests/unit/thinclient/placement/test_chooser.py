"""The placement policies, and what is put to them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookgate.ledger.bookie_info import BookieServiceInfo, Endpoint
from bookgate.ledger.errors import IncorrectParameterException, NotEnoughBookiesException
from bookgate.ledger.metadata_store import BookieSet, RegisteredBookie
from bookgate.thinclient.config import ClientConfig
from bookgate.thinclient.core.placement import (
    DEFAULT_RACK,
    Candidate,
    DefaultPlacementPolicy,
    EnsembleRequest,
    RackawarePlacementPolicy,
    drawing_order,
    weighted,
)
from bookgate.thinclient.core.spread import Place, kinds_in_windows
from bookgate.thinclient.placement.chooser import Placement, create_policy
from bookgate.thinclient.placement.racks import RackMapping
from tests.unit.thinclient.fakes import FakeDiscovery


def bookies_in(*racks: str) -> list[Candidate]:
    return [Candidate(f"bookie-{number}", rack) for number, rack in enumerate(racks, 1)]


def places_of(candidates: Sequence[Candidate]) -> Callable[[str], Place]:
    return {candidate.bookie_id: candidate.place for candidate in candidates}.__getitem__


@st.composite
def requests_and_candidates(draw: st.DrawFn) -> tuple[EnsembleRequest, list[Candidate], random.Random]:
    racks = draw(st.lists(st.sampled_from(["/a", "/b", "/c", DEFAULT_RACK]), min_size=1, max_size=8))
    size = draw(st.integers(1, len(racks)))
    quorum = draw(st.integers(1, size))
    return EnsembleRequest(size, quorum, 1), bookies_in(*racks), random.Random(draw(st.integers()))


def best_possible(request: EnsembleRequest, candidates: Sequence[Candidate], wanted: int) -> int:
    """The highest smallest number of racks a window can have, by trying every ensemble."""
    racks = [candidate.rack for candidate in candidates]
    best = 0
    for chosen in set(permutations(racks, request.ensemble_size)):
        best = max(best, min(kinds_in_windows(chosen, request.write_quorum_size)))
        if best >= wanted:
            return wanted
    return best


class TestPolicies:
    @given(requests_and_candidates(), st.booleans())
    def test_an_ensemble_has_distinct_bookies_of_those_there_are(
        self, given_: tuple[EnsembleRequest, list[Candidate], random.Random], aware: bool
    ) -> None:
        request, candidates, rng = given_
        policy = RackawarePlacementPolicy(rng) if aware else DefaultPlacementPolicy(rng)
        ensemble = policy.new_ensemble(request, candidates)
        assert len(set(ensemble)) == request.ensemble_size == len(ensemble)
        assert set(ensemble) <= {candidate.bookie_id for candidate in candidates}

    @given(requests_and_candidates(), st.integers(1, 3))
    def test_write_sets_span_as_many_racks_as_can_be_had(
        self, given_: tuple[EnsembleRequest, list[Candidate], random.Random], min_racks: int
    ) -> None:
        request, candidates, rng = given_
        ensemble = RackawarePlacementPolicy(rng, min_racks).new_ensemble(request, candidates)
        rack_of = {candidate.bookie_id: candidate.rack for candidate in candidates}
        wanted = min(min_racks, request.write_quorum_size)
        spans = kinds_in_windows([rack_of[bookie_id] for bookie_id in ensemble], request.write_quorum_size)
        assert min(spans) >= best_possible(request, candidates, wanted)

    @given(requests_and_candidates(), st.data())
    def test_a_replacement_is_never_in_the_ensemble(
        self, given_: tuple[EnsembleRequest, list[Candidate], random.Random], data: st.DataObject
    ) -> None:
        request, candidates, rng = given_
        policy = RackawarePlacementPolicy(rng)
        ensemble = policy.new_ensemble(request, candidates)
        index = data.draw(st.integers(0, len(ensemble) - 1))
        place_of = places_of(candidates)
        if len(candidates) == len(ensemble):
            with pytest.raises(NotEnoughBookiesException, match=ensemble[index]):
                policy.replace_bookie(request, ensemble, index, candidates, place_of)
            return
        assert policy.replace_bookie(request, ensemble, index, candidates, place_of) not in ensemble

    def test_a_replacement_keeps_the_spread(self) -> None:
        candidates = bookies_in("/a", "/b", "/a", "/b")
        policy = RackawarePlacementPolicy(random.Random(1))
        place_of = places_of(candidates)
        for _ in range(20):
            chosen = policy.replace_bookie(EnsembleRequest(2, 2, 2), ["bookie-1", "bookie-2"], 0, candidates, place_of)
            assert chosen == "bookie-3"

    def test_enforced_racks_refuse_rather_than_fall_back(self) -> None:
        policy = RackawarePlacementPolicy(random.Random(1), 2, enforce_min_racks=True)
        with pytest.raises(NotEnoughBookiesException, match="2 racks"):
            policy.new_ensemble(EnsembleRequest(2, 2, 2), bookies_in("/a", "/a", "/a"))
        with pytest.raises(NotEnoughBookiesException, match="there are 1"):
            policy.new_ensemble(EnsembleRequest(2, 2, 2), bookies_in("/a", DEFAULT_RACK))
        with pytest.raises(NotEnoughBookiesException, match="can't be replaced"):
            policy.replace_bookie(
                EnsembleRequest(2, 2, 2),
                ["bookie-1", "bookie-9"],
                1,
                bookies_in("/a", "/a"),
                lambda name: Place("/a", name),
            )

    def test_heavier_bookies_are_drawn_more_often(self) -> None:
        rng = random.Random(7)
        candidates = weighted(bookies_in("/a", "/a", "/a"), {"bookie-1": 10.0, "bookie-2": 10.0, "bookie-3": 1000.0})
        assert [candidate.weight for candidate in candidates] == [1.0, 1.0, 3.0]
        first = [drawing_order(candidates, rng)[0].bookie_id for _ in range(3000)]
        assert 1500 < first.count("bookie-3") < 2100  # 3/5 of them, within chance

    def test_too_few_bookies_are_listed(self) -> None:
        with pytest.raises(NotEnoughBookiesException, match="there are 1: bookie-1"):
            DefaultPlacementPolicy(random.Random(1)).new_ensemble(EnsembleRequest(2, 2, 2), bookies_in(DEFAULT_RACK))


class Discovery(FakeDiscovery):
    """A set of writable bookies of these names."""

    def __init__(self, *bookie_ids: str) -> None:
        super().__init__([])
        self.infos = [BookieServiceInfo(name) for name in bookie_ids]

    async def bookies(self, bookie_set: BookieSet) -> Sequence[RegisteredBookie]:
        return [RegisteredBookie(info, writable=True, read_only=False) for info in self.infos]


def placement_over(*bookie_ids: str, quarantined: Sequence[str] = (), **settings: object) -> Placement:
    config = ClientConfig(**settings)  # type: ignore[arg-type]
    policy = create_policy(config, random.Random(3))
    return Placement(Discovery(*bookie_ids), policy, config, quarantined=lambda: quarantined)


class Racks(Discovery):
    """Bookies with the racks that they register; some may be read-only."""

    def __init__(self, racks: Mapping[str, str], read_only: Collection[str]) -> None:
        super().__init__()
        self.infos = [BookieServiceInfo(name, (), {"rack": rack}) for name, rack in racks.items()]
        self.read_only = read_only
        self.sets: list[BookieSet] = []

    async def bookies(self, bookie_set: BookieSet) -> Sequence[RegisteredBookie]:
        self.sets.append(bookie_set)
        known = [
            RegisteredBookie(
                each, writable=each.bookie_id not in self.read_only, read_only=each.bookie_id in self.read_only
            )
            for each in self.infos
        ]
        return [each for each in known if each.writable or bookie_set is BookieSet.ALL]


def enforcing(
    racks: Mapping[str, str],
    read_only: Collection[str] = (),
    counted: list[str] | None = None,
    enforce_min_racks: bool = True,
) -> tuple[Placement, Racks]:
    config = ClientConfig(placement_policy="rackaware", enforce_min_racks=enforce_min_racks)
    discovery, found = Racks(racks, read_only), [] if counted is None else counted
    policy = create_policy(config, random.Random(3))
    return Placement(discovery, policy, config, on_counted=found.append), discovery


class TestPlacement:
    @pytest.mark.asyncio
    async def test_quarantined_bookies_come_last(self) -> None:
        two = EnsembleRequest(2, 2, 2)
        placement = placement_over("a", "b", "c", quarantined=["b"])
        assert set(await placement.new_ensemble(two)) == {"a", "c"}
        assert await placement.replace_bookie(two, ["a", "c"], 0) == "b"
        assert set(await placement.new_ensemble(EnsembleRequest(3, 2, 2))) == {"a", "b", "c"}

    @pytest.mark.asyncio
    async def test_excluded_bookies_never_come(self) -> None:
        placement = placement_over("a", "b", "c")
        with pytest.raises(NotEnoughBookiesException):
            await placement.replace_bookie(EnsembleRequest(2, 2, 2), ["a", "b"], 0, exclude=["c"])

    @pytest.mark.asyncio
    @pytest.mark.parametrize("policy", ["default", "rackaware"])
    async def test_instances_of_one_host_hold_no_two_copies_while_there_are_others(self, policy: str) -> None:
        counted: list[str] = []
        config = ClientConfig(placement_policy=policy, min_racks_per_write_quorum=1)
        discovery = Discovery("h1:1", "h1:2", "h2:1", "h2:2", "h3:1")
        discovery.infos = [BookieServiceInfo.legacy(name) for name in ("h1:1", "h1:2", "h2:1", "h2:2", "h3:1")]
        made = create_policy(config, random.Random(3))
        placement = Placement(discovery, made, config, on_counted=counted.append)
        request = EnsembleRequest(3, 3, 2)
        for _ in range(20):
            ensemble = await placement.new_ensemble(request)
            assert sorted(name[:2] for name in ensemble) == ["h1", "h2", "h3"]
            at = next(index for index, name in enumerate(ensemble) if name.startswith("h1"))
            assert (await placement.replace_bookie(request, ensemble, at))[:2] == "h1"
        assert not counted
        assert await placement.replace_bookie(request, ["h1:1", "h2:1", "h3:1"], 2) in ("h1:2", "h2:2")
        assert len(counted) == 1
        registered = await discovery.bookies(BookieSet.ALL)
        better = placement.better_ensemble(request, ["h1:1", "h2:1", "h2:2"], registered)
        assert better in (["h1:1", "h3:1", "h2:2"], ["h1:1", "h2:1", "h3:1"])

    @pytest.mark.asyncio
    async def test_a_cluster_of_one_host_makes_no_compromise(self) -> None:
        counted: list[str] = []
        config, discovery = ClientConfig(), Discovery()
        discovery.infos = [BookieServiceInfo.legacy(name) for name in ("h1:1", "h1:2")]
        placement = Placement(discovery, create_policy(config, random.Random(3)), config, on_counted=counted.append)
        assert {*await placement.new_ensemble(EnsembleRequest(2, 2, 2))} == {"h1:1", "h1:2"}
        assert not counted

    @pytest.mark.asyncio
    async def test_free_space_is_asked_for_in_the_background(self) -> None:
        asked = asyncio.Event()

        async def free_bytes(bookie_id: str) -> int:
            asked.set()
            return 1

        config = ClientConfig(weight_by_free_space=True)
        placement = Placement(
            Discovery("a", "b"), create_policy(config, random.Random(1)), config, free_bytes=free_bytes
        )
        await placement.new_ensemble(EnsembleRequest(1, 1, 1))
        await asyncio.wait_for(asked.wait(), 5)
        await placement.close()

    @pytest.mark.asyncio
    async def test_an_enforced_minimum_looks_for_read_only_members(self) -> None:
        """The watch tells of writable bookies only, so a client may never have heard of a member."""
        counted: list[str] = []
        racks = {"x": "/a", "y": "/b", "z": "/a", "w": "/a"}
        placement, _ = enforcing(racks, read_only=["x"], counted=counted)
        with pytest.raises(NotEnoughBookiesException, match="can't be replaced"):
            await placement.replace_bookie(EnsembleRequest(3, 3, 2), ["x", "y", "z"], 1, exclude=["y"])
        placement, discovery = enforcing({**racks, "x": "/b"}, read_only=["x"], counted=counted)
        for _ in range(2):
            chosen = await placement.replace_bookie(EnsembleRequest(3, 3, 2), ["x", "y", "z"], 1, exclude=["y"])
            assert chosen == "w"
        assert discovery.sets.count(BookieSet.ALL) == 1
        assert not counted

    @pytest.mark.asyncio
    async def test_members_that_are_gone_are_no_rack_of_an_enforced_minimum(self) -> None:
        counted: list[str] = []
        placement, _ = enforcing({"z": "/a", "w": "/a"}, counted=counted)
        with pytest.raises(NotEnoughBookiesException, match="can't be replaced"):
            await placement.replace_bookie(EnsembleRequest(3, 3, 2), ["gone", "y", "z"], 1)
        placement, _ = enforcing({"z": "/a", "w": "/a", "v": "/b"}, counted=counted)
        assert await placement.replace_bookie(EnsembleRequest(3, 3, 2), ["gone", "y", "z"], 1) == "v"
        assert not counted

    @pytest.mark.asyncio
    async def test_two_members_that_are_gone_can_be_replaced_one_after_the_other(self) -> None:
        counted: list[str] = []
        placement, _ = enforcing({"z": "/a", "w": "/a", "v": "/b", "u": "/b"}, counted=counted)
        request = EnsembleRequest(3, 2, 2)
        first = await placement.replace_bookie(request, ["gone-1", "gone-2", "z"], 0)
        assert first in ("u", "v")
        assert len(counted) == 1, "in which rack gone-2 is, nobody can say"
        with pytest.raises(NotEnoughBookiesException):
            await placement.replace_bookie(request, [first, "gone-2", "z"], 1, exclude=["w", "u", "v"])

    @pytest.mark.asyncio
    async def test_bookies_that_register_no_rack_are_in_one(self) -> None:
        request, rackless = EnsembleRequest(3, 3, 2), dict.fromkeys("xyzv", DEFAULT_RACK)
        placement, _ = enforcing(rackless)
        with pytest.raises(NotEnoughBookiesException, match="no other writable bookie"):
            await placement.replace_bookie(request, ["x", "y", "z"], 1)
        placement, _ = enforcing({**rackless, "w": "/a"}, read_only=["x"])
        assert await placement.replace_bookie(request, ["x", "y", "z"], 1) == "w"
        placement, _ = enforcing(rackless, enforce_min_racks=False)
        assert await placement.replace_bookie(request, ["x", "y", "z"], 1) == "v"

    @pytest.mark.asyncio
    async def test_without_an_enforced_minimum_nobody_is_looked_for(self) -> None:
        placement, discovery = enforcing({"z": "/a", "w": "/a"}, enforce_min_racks=False)
        assert await placement.replace_bookie(EnsembleRequest(3, 3, 2), ["gone", "y", "z"], 1) == "w"
        assert discovery.sets == [BookieSet.WRITABLE]

    def test_an_unknown_policy_is_named(self) -> None:
        with pytest.raises(IncorrectParameterException, match=r"'nearest' is not known; there are default, rackaware"):
            create_policy(ClientConfig(placement_policy="nearest"), random.Random(1))


class TestRacks:
    def test_the_file_wins_over_what_a_bookie_says_of_itself(self, tmp_path: Path) -> None:
        file = tmp_path / "racks.toml"
        file.write_text('[racks]\n"b1" = "/r1"\n"10.0.0.7" = "/r2"\n"host-3" = "/r3"\n')
        racks = RackMapping(file)
        assert racks.place(BookieServiceInfo("b1", (), {"rack": "/own"})).rack == "/r1"
        assert racks.place(BookieServiceInfo("b2", (Endpoint("bookie", "10.0.0.7", 1, "bookie-rpc"),))).rack == "/r2"
        assert racks.place(BookieServiceInfo("host-3:3181")).rack == "/r3"
        assert racks.place(BookieServiceInfo("b4", (), {"rack": "/own"})).rack == "/own"
        assert racks.place(BookieServiceInfo("b5")).rack == DEFAULT_RACK
        assert racks.place_of("b4").rack == "/own"

    def test_a_host_is_what_the_bookie_says_else_where_it_serves(self) -> None:
        racks, endpoint = RackMapping(), Endpoint("bookie", "10.0.0.7", 3182, "bookie-rpc")
        assert not racks.has_hosts
        assert racks.place(BookieServiceInfo("b1", (endpoint,))).host == "10.0.0.7"
        assert racks.place(BookieServiceInfo.legacy("10.0.0.7:3181")).host == "10.0.0.7"
        assert not racks.has_hosts
        assert racks.place(BookieServiceInfo("b2", (endpoint,), {"host": "node-1"})).host == "node-1"
        assert racks.has_hosts
        assert racks.place(BookieServiceInfo("b3")).host == "b3"
        assert racks.place_of("b2") == Place(DEFAULT_RACK, "node-1")
        assert racks.place_of("gone:3181") == Place(DEFAULT_RACK, "gone")

    def test_bookies_that_only_ledgers_name_are_not_on_a_host_of_their_own(self) -> None:
        """They may not exist, and there may be any number of them."""
        racks = RackMapping()
        racks.place(BookieServiceInfo.legacy("10.0.0.7:3181"))
        assert {racks.place_of(f"no-such-{index}:3181").host for index in range(3)} == {
            f"no-such-{i}" for i in range(3)
        }
        assert not racks.has_hosts

    def test_a_changed_file_counts_and_a_broken_one_does_not(self, tmp_path: Path) -> None:
        file = tmp_path / "racks.toml"
        file.write_text('[racks]\n"b1" = "/r1"\n')
        racks = RackMapping(file)
        (tmp_path / "new").write_text('[racks]\n"b1" = "/r2"\n')
        (tmp_path / "new").rename(file)
        racks.refresh()
        assert racks.place_of("b1").rack == "/r2"
        (tmp_path / "new").write_text("not toml at all")
        (tmp_path / "new").rename(file)
        racks.refresh()
        assert racks.place_of("b1").rack == "/r2"

    @pytest.mark.parametrize(
        "content",
        [
            'racks = "/r2"\n',
            "racks = []\n",
            '[[racks]]\n"b1" = "/r2"\n',
            '[racks]\n"b1" = 2\n',
            '[racks.b1]\nx = "/r2"\n',
        ],
    )
    @pytest.mark.asyncio
    async def test_a_file_whose_racks_are_no_table_of_texts_changes_nothing(self, tmp_path: Path, content: str) -> None:
        file = tmp_path / "racks.toml"
        file.write_text('[racks]\n"b1" = "/r1"\n')
        placement = placement_over("b1", "b2", rack_mapping=file)
        (tmp_path / "new").write_text(content)
        (tmp_path / "new").rename(file)
        assert {*await placement.new_ensemble(EnsembleRequest(2, 2, 2))} == {"b1", "b2"}
        assert placement.racks_of(await Discovery("b1", "b2").bookies(BookieSet.ALL)) == {"b1": "/r1"}
        with pytest.raises(IncorrectParameterException, match=r"racks\.toml: .*must be"):
            placement_over("b1", rack_mapping=file)

    @pytest.mark.parametrize("content", ["x = 1\n", '[racks]\n"b1" = "r1"\n', "]["])
    def test_a_file_that_is_no_mapping_is_named(self, tmp_path: Path, content: str) -> None:
        file = tmp_path / "racks.toml"
        file.write_text(content)
        with pytest.raises(IncorrectParameterException, match=r"racks\.toml"):
            RackMapping(file)
