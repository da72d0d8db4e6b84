"""Ids reserved ahead: how many, how often, and that none is given twice."""

from __future__ import annotations

import asyncio

import pytest

from bookgate.gateway.stores.zookeeper.id_blocks import IdBlocks
from bookgate.ledger.errors import LedgerIdOverflowException, MetaStoreException

pytestmark = pytest.mark.asyncio


class Generator:
    """Counts on; a test may hold it up or make it fail."""

    def __init__(self) -> None:
        self.blocks: list[int] = []
        self.next = 0
        self.at_once = 0
        self.most_at_once = 0
        self.failures = 0
        self.begun = asyncio.Event()
        self.open = asyncio.Event()
        self.open.set()

    async def reserve(self, count: int) -> range:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.begun.set()
        try:
            await self.open.wait()
            if self.failures:
                self.failures -= 1
                raise LedgerIdOverflowException("none left")
        finally:
            self.at_once -= 1
        self.blocks.append(count)
        self.next += count
        return range(self.next - count, self.next)


async def test_first_asks_for_one_and_demand_makes_blocks_larger() -> None:
    generator = Generator()
    blocks = IdBlocks(generator)
    taken = [await blocks.take() for _ in range(3000)]
    assert taken == list(range(3000))
    assert generator.blocks[0] == 1
    assert max(generator.blocks) == 1024
    assert len(generator.blocks) < 20


async def test_many_at_once_wait_for_one_reservation() -> None:
    generator = Generator()
    blocks = IdBlocks(generator)
    taken = await asyncio.gather(*(blocks.take() for _ in range(500)))
    assert sorted(taken) == list(range(500))
    assert generator.most_at_once == 1
    assert generator.blocks[0] == 500


async def test_more_than_a_block_is_taken_in_parts() -> None:
    generator = Generator()
    taken = await IdBlocks(generator).take_many(2500)
    assert len(set(taken)) == 2500
    assert max(generator.blocks) == 1024


async def test_without_haste_no_block_is_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookgate.gateway.stores.zookeeper.id_blocks._BUSY_SECONDS", 0)
    generator = Generator()
    blocks = IdBlocks(generator)
    for _ in range(5):
        await blocks.take()
    assert generator.blocks == [1] * 5


async def test_failure_is_told_to_all_who_wait_and_the_next_tries_again() -> None:
    generator = Generator()
    generator.failures = 1
    blocks = IdBlocks(generator)
    results = await asyncio.gather(blocks.take(), blocks.take_many(3), return_exceptions=True)
    assert [type(result) for result in results] == [LedgerIdOverflowException] * 2
    assert await blocks.take_many(2) == [0, 1]


async def test_ids_of_one_who_gave_up_go_to_others() -> None:
    generator = Generator()
    blocks = IdBlocks(generator)
    assert await blocks.take_many(4) == [0, 1, 2, 3]
    await asyncio.sleep(0)
    generator.open.clear()
    generator.begun.clear()
    waiting = asyncio.create_task(blocks.take_many(2000))
    await generator.begun.wait()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    generator.open.set()
    taken = await blocks.take_many(100)
    assert sorted(taken) == list(range(4, 104))


async def test_closing_ends_those_who_wait() -> None:
    generator = Generator()
    generator.open.clear()
    blocks = IdBlocks(generator)
    waiting = asyncio.create_task(blocks.take())
    await generator.begun.wait()
    await blocks.close()
    with pytest.raises(MetaStoreException, match="closed"):
        await waiting
