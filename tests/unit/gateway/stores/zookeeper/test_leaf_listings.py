"""A kept listing of a leaf node is used only while the node's stat says that its children are the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kazoo.exceptions import NoNodeError
from kazoo.protocol.states import ZnodeStat

from bookgate.gateway.stores.zookeeper.ledger_listing import LeafListings
from bookgate.gateway.stores.zookeeper.session import ZooKeeperSession

_STAT = ZnodeStat(1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1)


@dataclass
class FakeSession:
    """Leaf nodes by path: their numbers and their stat."""

    nodes: dict[str, tuple[Sequence[int], ZnodeStat]] = field(default_factory=dict)
    listed: list[str] = field(default_factory=list)

    async def exists(self, path: str) -> ZnodeStat | None:
        return self.nodes[path][1] if path in self.nodes else None

    async def numbered_children(self, path: str, mark: str, width: int) -> tuple[Sequence[int], ZnodeStat]:
        self.listed.append(path)
        if path not in self.nodes:
            raise NoNodeError
        return self.nodes[path]

    def change(self, path: str, numbers: Sequence[int], zxid: int) -> None:
        """As one transaction of a server changes a node's children."""
        before = self.nodes.get(path)
        stat = _STAT._replace(czxid=zxid) if before is None else before[1]
        stat = stat._replace(pzxid=zxid, cversion=stat.cversion + 1, numChildren=len(numbers))
        self.nodes[path] = (numbers, stat)

    def listings(self, most_bytes: int = 1 << 20) -> LeafListings:
        return LeafListings(cast(ZooKeeperSession, self), most_bytes)


@pytest.mark.asyncio
@given(st.lists(st.tuples(st.sampled_from("ab"), st.none() | st.sets(st.integers(0, 9999), max_size=5))))
async def test_every_listing_is_what_the_server_has(steps: list[tuple[str, set[int] | None]]) -> None:
    session = FakeSession()
    leaves = session.listings(most_bytes=600)
    for zxid, (path, numbers) in enumerate(steps, 2):
        if numbers is None:
            session.nodes.pop(path, None)
        else:
            session.change(path, sorted(numbers), zxid)
        for each in "ab":
            if each in session.nodes:
                assert list(await leaves.numbers(each, 4)) == list(session.nodes[each][0])
            else:
                with pytest.raises(NoNodeError):
                    await leaves.numbers(each, 4)


@pytest.mark.asyncio
async def test_what_has_not_changed_is_not_listed_again() -> None:
    session = FakeSession()
    session.change("a", [1, 2], 2)
    session.change("full", range(10_000), 3)
    leaves = session.listings()
    for _ in range(3):
        assert list(await leaves.numbers("a", 4)) == [1, 2]
        assert await leaves.numbers("full", 4) == range(10_000)
    assert session.listed == ["a", "full"]


@pytest.mark.asyncio
@pytest.mark.parametrize("forgotten", ["czxid", "pzxid", "cversion", "numChildren"])
async def test_one_part_of_the_stat_is_enough(forgotten: str) -> None:
    """All but one of them are as they were."""
    session = FakeSession()
    session.change("a", [1], 2)
    leaves = session.listings()
    await leaves.numbers("a", 4)
    stat = session.nodes["a"][1]
    session.nodes["a"] = ([2], stat._replace(**{forgotten: getattr(stat, forgotten) + 1}))
    assert list(await leaves.numbers("a", 4)) == [2]


@pytest.mark.asyncio
async def test_memory_is_bounded_and_those_used_last_are_kept() -> None:
    session = FakeSession()
    for name in "abc":
        session.change(name, list(range(1000)), 2)
    leaves = session.listings(most_bytes=6000)
    for name in "abcb":
        await leaves.numbers(name, 4)
    assert session.listed == ["a", "b", "c"]
    await leaves.numbers("a", 4)
    assert session.listed == ["a", "b", "c", "a"]
