"""All gateways out of reach for a while, under load: everything goes on once they are back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest

from bookgate.ledger.errors import BKException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import BookieSet
from bookgate.thinclient.client import BookKeeper
from tests.simulation.simulated_store import SimulatedStore
from tests.simulation.world import World

CALLS_AT_ONCE = 20
_BACK_SECONDS = 30.0
"""Within these all is as before."""


@contextlib.contextmanager
def gateways_out_of_reach(world: World) -> Iterator[None]:
    gateways = [name for name in world.network.hosts if name.startswith("gateway")]
    ways = [
        (a, b) for name in world.network.hosts for gateway in gateways for a, b in ((name, gateway), (gateway, name))
    ]
    for way in ways:
        world.network.cut(*way)
    for gateway in gateways:
        for name in world.network.hosts:
            world.network.reset(gateway, name)
    yield
    for way in ways:
        world.network.mend(*way)


async def ask_for_ever(client: BookKeeper, ledger_id: LedgerId) -> None:
    """What a busy client asks, and gives up."""
    while True:
        with contextlib.suppress(BKException):
            await client.read_record(ledger_id)
        await asyncio.sleep(0.05)


async def follow(client: BookKeeper, ledger_id: LedgerId) -> list[bytes]:
    reader = await client.open_ledger(ledger_id, recovery=False)
    return [bytes(entry.payload) async for entry in reader.tail()]


async def states(client: BookKeeper, ledger_id: LedgerId) -> list[str]:
    found: list[str] = []
    async for record in client.watch_ledger(ledger_id):
        found.append(record.metadata.state.name)
        if record.metadata.is_closed:
            break
    return found


@pytest.mark.parametrize(
    "seconds", [1, pytest.param(60, marks=pytest.mark.long), pytest.param(600, marks=pytest.mark.long)]
)
def test_everything_goes_on_once_gateways_are_back(seconds: int) -> None:
    world = World(f"outage of {seconds} s")

    async def main() -> None:
        world.metadata = store = SimulatedStore(world, gateways=2)
        await store.start()
        bookies = await world.start_bookies(3)
        writer, reader = world.client("writer"), world.client("reader")
        handle = await writer.run(writer.bookkeeper.create_ledger(3, 3, 2))
        asking = [
            world.spawn(writer.process, ask_for_ever(writer.bookkeeper, handle.ledger_id)) for _ in range(CALLS_AT_ONCE)
        ]
        tail = world.spawn(reader.process, follow(reader.bookkeeper, handle.ledger_id))
        watch = world.spawn(reader.process, states(reader.bookkeeper, handle.ledger_id))
        await asyncio.sleep(2)
        await writer.run(handle.append(b"before"))
        with gateways_out_of_reach(world):
            await asyncio.sleep(seconds)
            await writer.run(handle.append(b"amid"))
        await asyncio.sleep(_BACK_SECONDS)
        assert not any(task.done() for task in (*asking, tail, watch))
        await writer.run(handle.append(b"after"))
        await writer.run(handle.close())
        async with asyncio.timeout(_BACK_SECONDS):
            assert await tail == [b"before", b"amid", b"after"]
            assert (await watch)[-1] == "CLOSED"
            await reader.run(reader.bookkeeper.create_ledger(3, 3, 2))
            writable = await reader.run(reader.bookkeeper.bookies(BookieSet.WRITABLE))
        assert {bookie.bookie_id for bookie in writable if bookie.writable} == {each.bookie_id for each in bookies}
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    world.run(main())
