"""The simulated world itself: virtual time, what crashes leave, the network's faults, and that seeds repeat."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import subprocess
import sys
import time
import warnings
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from bookgate.bookie.index.file_format import relative_path
from bookgate.ledger.errors import BKException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.runtime.logs import log_bug
from bookgate.thinclient.client import BookKeeper
from bookgate.thinclient.handles.write_handle import WriteHandle
from tests.faults.memory_disk import nothing_survives
from tests.simulation.loop import WorldStuckError
from tests.simulation.metadata import MemoryMetadata
from tests.simulation.network import NetworkSettings
from tests.simulation.simulated_bookie import SimulatedBookie
from tests.simulation.world import ProcessEndedError, UnhandledError, World, WorldSettings
from tests.unit.thinclient.inside import pool_of


async def append(client: BookKeeper, count: int, ensemble: int = 3) -> WriteHandle:
    """A new ledger with so many acknowledged entries, still open."""
    handle = await client.create_ledger(ensemble, ensemble, min(2, ensemble))
    for number in range(count):
        await handle.append(b"entry %d" % number)
    return handle


async def read_all(client: BookKeeper, ledger_id: LedgerId, *, recovery: bool = True) -> list[bytes]:
    reader = await client.open_ledger(ledger_id, recovery=recovery)
    return [bytes(entry.payload) async for entry in reader.read(0, reader.last_add_confirmed)]


def expected(count: int) -> list[bytes]:
    return [b"entry %d" % number for number in range(count)]


def test_time_is_virtual() -> None:
    world = World(1)
    started = time.monotonic()

    async def main() -> float:
        before = time.time()
        await asyncio.sleep(86_400)
        return time.time() - before

    assert world.run(main()) == pytest.approx(86_400)
    assert time.monotonic() - started < 60


def test_a_client_writes_and_reads_over_three_bookies() -> None:
    world = World(2)

    async def main() -> list[bytes]:
        await world.start_bookies(3)
        client = world.client("writer")
        handle = await client.run(append(client.bookkeeper, 50))
        reader = world.client("reader")
        return await reader.run(read_all(reader.bookkeeper, handle.ledger_id))

    assert world.run(main()) == expected(50)


def test_nothing_left_to_happen_is_an_error() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(WorldStuckError):
        World(1).run(main())


def test_an_exception_in_a_callback_is_an_error() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_soon(lambda: [][1])
        await asyncio.sleep(1)

    with pytest.raises(UnhandledError, match="IndexError"):
        World(1).run(main())


def test_a_bug_that_is_logged_is_an_error() -> None:
    """What is handled, so that nobody waits for ever, must not hide from a run."""
    world = World(4)

    async def main() -> None:
        log_bug(logging.getLogger("bookgate.thinclient.handles"), "planted", ValueError("lost"))
        await asyncio.sleep(1)

    with pytest.raises(UnhandledError, match="event=planted error=lost"):
        world.run(main())


def test_a_check_after_every_step_ends_the_run() -> None:
    world = World(1)

    def check() -> None:
        assert world.now < 5, "five seconds are over"

    world.after_every_step.append(check)

    async def main() -> None:
        for _ in range(10):
            await asyncio.sleep(1)

    with pytest.raises(AssertionError, match="five seconds"):
        world.run(main())


@pytest.mark.parametrize("ending", ["power", "kill", "stop"])
def test_what_was_acknowledged_survives_the_end_of_all_bookies(ending: str) -> None:
    world = World(f"all {ending}")

    async def main() -> list[bytes]:
        bookies = await world.start_bookies(3)
        client = world.client("writer")
        handle = await client.run(append(client.bookkeeper, 30))
        for bookie in bookies:
            if ending == "power":
                bookie.power_off(nothing_survives)
            elif ending == "kill":
                bookie.kill()
            else:
                await bookie.stop()
        await world.start_bookies(3)
        reader = world.client("reader")
        return await reader.run(read_all(reader.bookkeeper, handle.ledger_id))

    assert world.run(main()) == expected(30)


def test_an_acknowledged_entry_is_durable_on_an_ack_quorum_at_that_moment() -> None:
    world = World(3)

    async def main() -> None:
        bookies = await world.start_bookies(3)
        for bookie in bookies:
            # An acknowledgement that does not wait for its sync would be far ahead of it.
            bookie.disk.faults.slowness = 50.0
        client = world.client("writer")
        handle = await client.run(append(client.bookkeeper, 1))
        for entry_id in range(1, 9):
            await client.run(handle.append(b"more"))
            left = [bookie.stored(nothing_survives).get(handle.ledger_id.low) for bookie in bookies]
            assert sum(state is not None and entry_id in state.entries for state in left) >= 2

    world.run(main())


@pytest.mark.parametrize("survives", [False, True])
def test_a_power_loss_takes_what_was_not_synced_and_a_kill_does_not(survives: bool) -> None:
    """With syncs that take hours the journal holds written records that no sync has covered."""
    world = World(f"unsynced {survives}")

    async def main() -> int:
        (bookie,) = await world.start_bookies(1)
        client = world.client("writer", add_timeout_seconds=1000)
        handle = await client.run(append(client.bookkeeper, 5, ensemble=1))
        bookie.disk.times = replace(bookie.disk.times, sync=(50_000.0, 50_000.0))
        pending = world.spawn(client.process, _append_one(handle))
        await asyncio.sleep(10.5)
        assert not pending.done()
        if survives:
            bookie.kill()
        else:
            bookie.power_off(nothing_survives)
        return len(bookie.stored()[handle.ledger_id.low].entries)

    assert world.run(main()) == (6 if survives else 5)


async def _append_one(handle: WriteHandle) -> None:
    await handle.append(b"the last")


def test_a_killed_process_runs_nothing_any_more_not_even_what_is_in_finally() -> None:
    world = World(1)
    ran: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            ran.append("finally")

    async def main() -> None:
        process = world.new_process("one", "one")
        waiting = asyncio.ensure_future(world.on(process, work()))
        await asyncio.sleep(1)
        world.end_process(process, host_is_up=True)
        with pytest.raises(ProcessEndedError):
            await waiting
        await asyncio.sleep(20)
        assert ran == []

    world.run(main())


def test_tasks_that_begin_as_the_world_ends_end_with_it() -> None:
    """As one that closes a handle: nobody is warned that it never ran."""
    world = World(5)
    begun = []

    async def close() -> None:
        raise AssertionError("nothing of the world runs any more")

    async def hold() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            begun.append(world.loop.create_task(close()))

    async def main() -> None:
        begun.append(world.loop.create_task(hold()))
        await asyncio.sleep(1)

    with warnings.catch_warnings(record=True) as seen:
        world.run(main())
        assert len(begun) == 2
        begun.clear()
        gc.collect()
    assert [str(each.message) for each in seen if each.category is RuntimeWarning] == []


def test_a_partition_stops_one_direction_and_heals() -> None:
    world = World(5)

    async def main() -> list[bytes]:
        await world.start_bookies(3)
        client = world.client("writer", add_timeout_seconds=1000)
        handle = await client.run(append(client.bookkeeper, 5))
        for number in (1, 2):
            world.network.cut(f"bookie-{number}", "writer")
        pending = world.spawn(client.process, _append_one(handle))
        await asyncio.sleep(5)
        assert not pending.done()
        world.network.heal()
        await pending
        return await client.run(read_all(client.bookkeeper, handle.ledger_id))

    assert world.run(main()) == [*expected(5), b"the last"]


def test_a_paused_bookie_answers_once_it_goes_on() -> None:
    world = World(6)

    async def main() -> float:
        (bookie,) = await world.start_bookies(1)
        client = world.client("writer", add_timeout_seconds=1000)
        handle = await client.run(append(client.bookkeeper, 5, ensemble=1))
        bookie.pause()
        pending = world.spawn(client.process, _append_one(handle))
        await asyncio.sleep(30)
        assert not pending.done()
        bookie.resume()
        started = world.now
        await pending
        return world.now - started

    assert world.run(main()) < 1


def test_connections_to_a_killed_bookie_end_and_to_one_without_power_do_not() -> None:
    for power in (False, True):
        world = World(f"ends {power}")

        async def main(world: World = world, power: bool = power) -> bool:
            (bookie,) = await world.start_bookies(1)
            client = world.client("writer", add_timeout_seconds=30)
            await client.run(append(client.bookkeeper, 5, ensemble=1))
            connection = pool_of(client.bookkeeper).connection(bookie.bookie_id)
            if power:
                bookie.power_off()
            else:
                bookie.kill()
            await asyncio.sleep(2)
            return connection.connected

        assert world.run(main()) is power


def test_a_sync_that_fails_ends_the_bookie_and_acknowledges_nothing() -> None:
    world = World(8)

    async def main() -> None:
        (bookie,) = await world.start_bookies(1)
        client = world.client("writer", add_timeout_seconds=2)
        handle = await client.run(append(client.bookkeeper, 5, ensemble=1))
        bookie.disk.faults.failing_syncs = 1.0
        with pytest.raises(BKException):
            await client.run(handle.append(b"more"))
        assert not bookie.running
        assert bookie.failure is not None
        assert set(bookie.stored(nothing_survives)[handle.ledger_id.low].entries) == set(range(5))

    world.run(main())


def test_an_index_file_whose_header_never_came_to_the_disk_holds_nothing() -> None:
    world = World(9)

    async def main() -> None:
        (bookie,) = await world.start_bookies(1)
        client = world.client("writer")
        handle = await client.run(append(client.bookkeeper, 5, ensemble=1))
        nobodys = LedgerId.of_number(handle.ledger_id.number + 1)
        for directory in bookie.config.ledgers:
            bookie.disk.media.put(directory / "current" / relative_path(nobodys), b"")
        assert set(bookie.stored()) == {handle.ledger_id.number}

    world.run(main())


@pytest.mark.parametrize("slow", [True, False])
def test_a_first_start_that_fails_is_repeated_where_packets_are_slow_only(
    slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = NetworkSettings(slow_share=0.2) if slow else NetworkSettings()
    world = World(10, WorldSettings(network=network))

    async def main() -> None:
        bookie, store = world.bookie("bookie-1"), world.metadata
        assert isinstance(store, MemoryMetadata)
        store.failing = 1.0
        start = bookie.start

        async def start_once_in_vain() -> bool:
            started = await start()
            store.failing = 0.0
            return started

        monkeypatch.setattr(bookie, "start", start_once_in_vain)
        await world.start_bookies(1)
        assert bookie.running

    with nullcontext() if slow else pytest.raises(RuntimeError, match="bookie-1 did not start"):
        world.run(main())


SCRIPT = """
import sys
from tests.simulation.test_world import busy_world
print(busy_world(int(sys.argv[1])), end="")
"""


def busy_world(seed: int) -> str:
    """A transcript in which much goes wrong."""
    world = World(seed, transcript=True)

    async def write(client: BookKeeper, count: int) -> None:
        for _ in range(3):
            try:
                handle = await append(client, count)
                await handle.close()
            except BKException as error:
                world.note("writer", f"failed: {type(error).__name__}")

    async def trouble(bookies: list[SimulatedBookie]) -> None:
        rng = world.random("trouble")
        for _ in range(6):
            await asyncio.sleep(rng.random())
            bookie = bookies[int(rng.random() * len(bookies))]
            rng.choice((bookie.kill, bookie.power_off, bookie.pause))()
            await asyncio.sleep(rng.random())
            bookie.resume()
            if not bookie.running:
                await bookie.start()

    async def main() -> None:
        bookies = await world.start_bookies(4)
        clients = [world.client(f"client-{number}") for number in range(2)]
        work = [client.run(write(client.bookkeeper, 50)) for client in clients]
        await asyncio.gather(trouble(bookies), *work)

    world.run(main())
    return world.transcript.text()


def test_a_seed_gives_the_same_transcript_to_the_byte_in_every_process() -> None:
    """The other process has other hashes, and other addresses."""
    root = Path(__file__).parents[2]
    hash_seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(root)}
    command = [sys.executable, "-c", SCRIPT, "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, cwd=root) as other:
        here = busy_world(1)
        there = other.communicate()[0].decode()
    assert len(here.splitlines()) > 500
    assert here == there
    assert here != busy_world(2)
