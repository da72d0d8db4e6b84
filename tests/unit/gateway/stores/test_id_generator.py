"""Overflow of ZooKeeper's counters, which no test can reach on a real server."""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.exceptions import NodeExistsError, NoNodeError, NotEmptyError

from bookgate.gateway.stores.zookeeper.id_generator import IdGenerator, LongIdGenerator, ShortIdGenerator
from bookgate.ledger.errors import LedgerIdOverflowException, MetaStoreException, UnknownOutcomeException

pytestmark = pytest.mark.asyncio


class Nodes:
    """The calls of a session that the generators make; a counter a parent, which a test may set."""

    def __init__(self) -> None:
        self.paths = {"", "/l"}
        self.counters: dict[str, int] = {}
        self.lost_answers = 0
        self.lists, self.deletions = 0, 0
        self.removed_after_list = ""

    async def create(self, path: str, data: bytes = b"", *, open_to_all: bool = False) -> None:
        if path.rpartition("/")[0] not in self.paths:
            raise NoNodeError
        if path in self.paths:
            raise NodeExistsError
        self.paths.add(path)

    async def reserve_numbers(self, prefix: str, count: int) -> str:
        parent = prefix.rpartition("/")[0]
        if parent not in self.paths:
            raise NoNodeError
        number = self.counters.get(parent, 0)
        self.counters[parent] = number + count
        path = prefix + (f"{number:010d}" if number < 2**31 else f"{number - 2**32:010d}")
        self.paths.add(path)
        if self.lost_answers:
            self.lost_answers -= 1
            raise UnknownOutcomeException("lost")
        return path

    def delete_soon(self, path: str) -> None:
        self.paths.discard(path)

    async def delete(self, path: str, version: int = -1) -> None:
        self.deletions += 1
        if path not in self.paths:
            raise NoNodeError
        if any(other.startswith(path + "/") for other in self.paths):
            raise NotEmptyError
        self.paths.remove(path)
        self.counters.pop(path, None)

    async def exists(self, path: str) -> object | None:
        return path if path in self.paths else None

    async def children(self, path: str) -> list[str]:
        self.lists += 1
        if path not in self.paths:
            raise NoNodeError
        names = [p.rpartition("/")[2] for p in self.paths if p.rpartition("/")[0] == path]
        if self.removed_after_list:
            removed, self.removed_after_list = self.removed_after_list, ""
            await self.delete(removed)
        return names

    def hobs(self) -> list[str]:
        return sorted(path.rpartition("/")[2] for path in self.paths if path.rpartition("/")[2].startswith("HOB-"))


async def one(generator: IdGenerator) -> int:
    (number,) = await generator.reserve(1)
    return number


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


def long_generator(nodes: Any) -> LongIdGenerator:
    return LongIdGenerator(nodes, "/l")


async def test_short_ids_count_and_leave_no_node(nodes: Any) -> None:
    generator = ShortIdGenerator(nodes, "/l/idgen/ID-", "/l")
    assert [await one(generator) for _ in range(3)] == [0, 1, 2]
    assert nodes.paths == {"", "/l", "/l/idgen"}


@pytest.mark.parametrize("counter", [2**31 - 1, 2**31])
async def test_short_ids_overflow_at_the_border_and_when_negative(nodes: Any, counter: int) -> None:
    generator = ShortIdGenerator(nodes, "/l/idgen/ID-", "/l")
    nodes.counters["/l/idgen"] = 2**31 - 2
    assert await one(generator) == 2**31 - 2
    nodes.counters["/l/idgen"] = counter
    with pytest.raises(LedgerIdOverflowException):
        await one(generator)


async def test_block_is_in_a_row_and_the_next_one_behind_it(nodes: Any) -> None:
    generator = ShortIdGenerator(nodes, "/l/idgen/ID-", "/l")
    assert await generator.reserve(5) == range(5)
    assert await generator.reserve(3) == range(5, 8)


async def test_block_ends_where_31_bits_end(nodes: Any) -> None:
    nodes.paths.add("/l/idgen")
    nodes.counters["/l/idgen"] = 2**31 - 4
    assert await ShortIdGenerator(nodes, "/l/idgen/ID-", "/l").reserve(100) == range(2**31 - 4, 2**31 - 1)


async def test_block_of_long_ids_ends_where_the_low_half_ends(nodes: Nodes) -> None:
    nodes.paths |= {"/l/idgen-long", "/l/idgen-long/HOB-0000000001"}
    nodes.counters["/l/idgen-long/HOB-0000000001"] = 2**31 - 3
    generator = long_generator(nodes)
    assert await generator.reserve(10) == range((1 << 32) + 2**31 - 3, (1 << 32) + 2**31 - 1)
    assert await generator.reserve(10) == range(2 << 32, (2 << 32) + 10)


async def test_lost_answer_costs_a_number(nodes: Any) -> None:
    generator = ShortIdGenerator(nodes, "/l/idgen/ID-", "/l")
    await one(generator)
    nodes.lost_answers = 2
    assert await one(generator) == 3
    nodes.lost_answers = 3
    with pytest.raises(UnknownOutcomeException):
        await one(generator)


async def test_long_ids_begin_where_31_bits_end(nodes: Nodes) -> None:
    generator = long_generator(nodes)
    assert await one(generator) == 0
    nodes.counters["/l/idgen"] = 2**31 - 1
    assert [await one(generator) for _ in range(2)] == [1 << 32, (1 << 32) + 1]
    assert nodes.hobs() == ["HOB-0000000001"]
    # Another client goes on in the same place.
    assert await one(long_generator(nodes)) == (1 << 32) + 2


async def test_generator_that_counts_in_31_bits_goes_on_where_another_has_begun_63(nodes: Nodes) -> None:
    early = long_generator(nodes)
    assert await one(early) == 0
    nodes.paths.add("/l/idgen-long")
    assert await one(early) == 1 << 32
    assert await one(long_generator(nodes)) == (1 << 32) + 1


async def test_overflow_of_the_low_half_opens_the_next_and_three_stay(nodes: Nodes) -> None:
    nodes.paths.add("/l/idgen-long")
    generator = long_generator(nodes)
    for hob in range(1, 6):
        assert await one(generator) == hob << 32
        nodes.counters[f"/l/idgen-long/HOB-{hob:010d}"] = 2**31 - 1
    assert await one(generator) == 6 << 32
    assert nodes.hobs() == ["HOB-0000000004", "HOB-0000000005", "HOB-0000000006"]


async def test_last_hob_overflows(nodes: Nodes) -> None:
    nodes.paths |= {"/l/idgen-long", f"/l/idgen-long/HOB-{2**31 - 1:010d}"}
    with pytest.raises(LedgerIdOverflowException):
        await one(long_generator(nodes))


async def test_ids_are_counted_on_to_beyond_one(nodes: Any) -> None:
    generator = ShortIdGenerator(nodes, "/l/idgen/ID-", "/l")
    assert await generator.advance(2500) == 2501
    assert (await generator.reserve(1)).start == 2501
    assert await generator.advance(7) > 2501, "never back"


async def test_far_beyond_is_another_hob_for_everybody(nodes: Any) -> None:
    generator, other = long_generator(nodes), long_generator(nodes)
    assert await generator.advance(10**6) == 1 << 32
    assert (await other.reserve(1)).start == 1 << 32
    assert await generator.advance((7 << 32) + 5) == 8 << 32
    assert (await generator.reserve(1)).start == 8 << 32


async def test_a_generator_at_work_goes_on_above_what_an_operator_advanced_beyond(nodes: Nodes) -> None:
    generator = long_generator(nodes)
    assert await one(generator) == 0
    assert await long_generator(nodes).advance(10**9) == 1 << 32
    assert await one(generator) == 1 << 32
    assert await long_generator(nodes).advance((4 << 32) + 5) == 5 << 32
    assert (await generator.reserve(10)).start == 5 << 32


async def test_no_id_comes_twice_when_the_node_of_a_generator_at_work_was_outdated(nodes: Nodes) -> None:
    nodes.paths |= {"/l/idgen-long", "/l/idgen-long/HOB-0000000001"}
    generator = long_generator(nodes)
    taken = [await one(generator) for _ in range(3)]
    for hob in range(2, 6):
        await long_generator(nodes).advance((hob << 32) + 10**6)
    await one(long_generator(nodes))
    assert "HOB-0000000001" not in nodes.hobs()
    taken += [await one(generator) for _ in range(3)]
    assert taken == sorted(set(taken))
    assert taken[3] > 6 << 32


async def test_no_id_comes_twice_when_the_node_goes_between_the_list_and_the_reservation(nodes: Nodes) -> None:
    nodes.paths |= {"/l/idgen-long", "/l/idgen-long/HOB-0000000001", "/l/idgen-long/HOB-0000000002"}
    generator = long_generator(nodes)
    taken = [await one(generator) for _ in range(3)]
    nodes.removed_after_list = "/l/idgen-long/HOB-0000000002"
    nodes.counters["/l/idgen-long/HOB-0000000001"] = 7
    taken += [await one(generator) for _ in range(2)]
    assert taken == sorted(set(taken))
    assert nodes.hobs() == ["HOB-0000000001", "HOB-0000000003"], "the one that was removed is not made again"


@pytest.mark.parametrize("made_again", [[], ["/l/idgen-long"], ["/l/idgen-long", "/l/idgen-long/HOB-0000000001"]])
async def test_no_id_comes_twice_when_all_was_removed(nodes: Nodes, made_again: list[str]) -> None:
    nodes.paths |= {"/l/idgen-long", "/l/idgen-long/HOB-0000000001"}
    generator = long_generator(nodes)
    taken = [await one(generator) for _ in range(3)]
    for path in ("/l/idgen-long/HOB-0000000001", "/l/idgen-long"):
        await nodes.delete(path)
    nodes.paths |= set(made_again)
    taken += [await one(generator) for _ in range(3)]
    assert taken == sorted(set(taken))


async def test_a_block_costs_one_list(nodes: Nodes) -> None:
    generator = long_generator(nodes)
    await generator.reserve(1000)
    nodes.paths |= {"/l/idgen-long", *(f"/l/idgen-long/HOB-{hob:010d}" for hob in range(1, 6))}
    await generator.reserve(1000)
    assert (nodes.lists, nodes.deletions) == (2, 2)
    await generator.reserve(1000)
    assert (nodes.lists, nodes.deletions) == (3, 2)


async def test_a_root_that_is_gone_is_not_made_again(nodes: Any) -> None:
    nodes.paths = {""}
    with pytest.raises(MetaStoreException, match="has no /l"):
        await ShortIdGenerator(nodes, "/l/idgen/ID-", "/l").reserve(1)
    assert nodes.paths == {""}
