"""The simulated network and threads by themselves: order, pieces, windows, ends, and who waits for whom."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, cast

import pytest

from tests.simulation.loop import Process
from tests.simulation.network import NetworkSettings
from tests.simulation.threads import SimulatedThreads
from tests.simulation.world import World, WorldSettings

PORT = 7


class Sink(asyncio.BufferedProtocol):
    """Takes in, by a small buffer, and remembers what asyncio tells it."""

    def __init__(self) -> None:
        self._room = bytearray(1000)
        self.data = bytearray()
        self.pieces = 0
        self.told: list[str] = []
        self.error: Exception | None = None
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.told.append("made")

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        self.data += self._room[:nbytes]
        self.pieces += 1

    def pause_writing(self) -> None:
        self.told.append("pause")

    def resume_writing(self) -> None:
        self.told.append("resume")

    def eof_received(self) -> bool:
        self.told.append("eof")
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.told.append("lost")
        self.error = error


class Pair:
    """A connection from host `left` to host `right`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.left = world.new_process("left", "left")
        self.right = world.new_process("right", "right")
        self.client = Sink()
        self.server = Sink()

    async def connect(self) -> None:
        await self.listen()
        await self.world.on(self.left, self.world.network.connect(lambda: self.client, "right", PORT))
        await asyncio.sleep(1)

    async def listen(self) -> None:
        async def serve() -> None:
            listener = cast("socket.socket", self.world.network.listen(self.right, PORT))
            await asyncio.get_running_loop().create_server(lambda: self.server, sock=listener)

        await self.world.on(self.right, serve())

    def send(self, data: bytes) -> None:
        self.world.loop.call_soon(self.client.transport.write, data, context=self.left.context)


def run(test: Callable[[Pair], Any], **network: Any) -> Pair:
    world = World(1, WorldSettings(network=NetworkSettings(**network)))
    pair = Pair(world)

    async def main() -> None:
        await pair.connect()
        await test(pair)

    world.run(main())
    return pair


def test_bytes_arrive_in_order_in_whatever_pieces() -> None:
    sent = bytes(range(256)) * 40

    async def test(pair: Pair) -> None:
        for start in range(0, len(sent), 100):
            pair.send(sent[start : start + 100])
            await asyncio.sleep(0.0001)
        await asyncio.sleep(10)

    pair = run(test, fragments=0.5)
    assert bytes(pair.server.data) == sent
    assert pair.server.pieces > 15


def test_a_reader_that_pauses_makes_the_writer_pause() -> None:
    async def test(pair: Pair) -> None:
        pair.server.transport.pause_reading()
        for _ in range(40):
            pair.send(bytes(5000))
            await asyncio.sleep(0.01)
        assert pair.client.told == ["made", "pause"]
        assert len(pair.server.data) == 0
        pair.server.transport.resume_reading()
        await asyncio.sleep(5)

    pair = run(test, window=20_000)
    assert len(pair.server.data) == 200_000
    assert pair.client.told == ["made", "pause", "resume"]


def test_a_close_sends_what_is_buffered_first() -> None:
    async def test(pair: Pair) -> None:
        pair.send(bytes(100_000))
        pair.send(bytes(100_000))
        pair.world.loop.call_soon(pair.client.transport.close, context=pair.left.context)
        await asyncio.sleep(5)

    pair = run(test, window=1000)
    assert len(pair.server.data) == 200_000
    assert pair.server.told[-2:] == ["eof", "lost"]
    assert pair.client.error is None


@pytest.mark.parametrize("how", ["abort", "network"])
def test_a_reset_reaches_the_other_end(how: str) -> None:
    async def test(pair: Pair) -> None:
        if how == "abort":
            pair.world.loop.call_soon(pair.client.transport.abort, context=pair.left.context)
        else:
            assert pair.world.network.reset("left", "right") == 1
        await asyncio.sleep(5)

    pair = run(test)
    assert isinstance(pair.server.error, ConnectionResetError)
    assert pair.client.told[-1] == "lost"


def test_a_connection_that_is_reset_while_it_is_made_is_none() -> None:
    async def test(pair: Pair) -> None:
        world, network = pair.world, pair.world.network
        network.cut("right", "left")
        connecting = asyncio.ensure_future(world.on(pair.left, network.connect(Sink, "right", PORT)))
        await asyncio.sleep(1)
        assert network.reset("left", "right") == 2
        network.mend("right", "left")
        with pytest.raises(ConnectionResetError):
            await connecting

    run(test)


def test_what_is_sent_into_a_cut_arrives_when_it_is_mended() -> None:
    async def test(pair: Pair) -> None:
        pair.world.network.cut("left", "right")
        pair.send(b"through the cut")
        pair.world.loop.call_soon(pair.server.transport.write, b"the other way", context=pair.right.context)
        await asyncio.sleep(5)
        assert bytes(pair.client.data) == b"the other way"
        assert bytes(pair.server.data) == b""
        pair.world.network.mend("left", "right")
        await asyncio.sleep(5)

    assert bytes(run(test).server.data) == b"through the cut"


def test_a_connection_through_which_nothing_gets_ends() -> None:
    async def test(pair: Pair) -> None:
        pair.world.network.cut("left", "right")
        pair.send(b"for nobody")
        await asyncio.sleep(90)

    assert isinstance(run(test, give_up_after=60.0).client.error, TimeoutError)


def test_a_host_that_was_without_power_resets_what_it_does_not_know() -> None:
    async def test(pair: Pair) -> None:
        network = pair.world.network
        network.host("right").up = False
        pair.world.end_process(pair.right, host_is_up=False)
        pair.send(b"anybody there?")
        await asyncio.sleep(10)
        assert pair.client.told == ["made"]
        network.host("right").up = True
        await asyncio.sleep(1)

    assert isinstance(run(test).client.error, ConnectionResetError)


def test_a_killed_process_is_noticed_and_its_port_refuses() -> None:
    async def test(pair: Pair) -> None:
        pair.world.end_process(pair.right, host_is_up=True)
        await asyncio.sleep(1)
        assert pair.client.told[-1] == "lost"
        with pytest.raises(ConnectionRefusedError):
            await pair.world.on(pair.left, pair.world.network.connect(Sink, "right", PORT))

    run(test)


# Threads


def test_a_process_that_waits_for_a_lock_does_not_hold_up_the_others() -> None:
    world = World(1)
    order: list[str] = []

    async def main() -> None:
        one, other = world.new_process("one", "one"), world.new_process("other", "other")
        threads = SimulatedThreads(world.loop, one)
        lock = threads.lock()

        def hold() -> None:
            with lock:
                world.loop.suspend(10)
                order.append(f"released at {world.now:.0f}")

        def take() -> None:
            with lock:
                order.append(f"taken at {world.now:.0f}")

        one.context.copy().run(threads.start, hold, "holder")
        world.loop.call_later(1, take, context=one.context)
        world.loop.call_later(2, lambda: order.append("same process"), context=one.context)
        world.loop.call_later(3, lambda: order.append("other process"), context=other.context)
        await asyncio.sleep(20)

    world.run(main())
    assert order == ["other process", "released at 10", "taken at 10", "same process"]


def test_a_condition_wakes_one_in_order_and_times_out() -> None:
    world = World(1)
    woken: list[tuple[str, bool, float]] = []

    async def main() -> None:
        process: Process = world.new_process("one", "one")
        threads = SimulatedThreads(world.loop, process)
        condition = threads.condition()

        def wait(name: str, timeout: float | None) -> None:
            with condition:
                heard = condition.wait(timeout)
            woken.append((name, heard, round(world.now, 3)))

        for name, timeout in (("first", 5.0), ("second", None), ("third", None)):
            threads.start(lambda name=name, timeout=timeout: wait(name, timeout), name)  # type: ignore[misc]
            await asyncio.sleep(1)
        await asyncio.sleep(7)
        for _ in range(2):
            with condition:
                condition.notify()
            await asyncio.sleep(1)

    world.run(main())
    assert woken == [("first", False, 5.0), ("second", True, 10.0), ("third", True, 11.0)]


def test_an_executor_runs_its_jobs_one_after_the_other_and_the_default_one_side_by_side() -> None:
    world = World(1)

    async def main() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        executor = SimulatedThreads(world.loop, world.loop.outside).executor("one")
        started = world.now
        jobs = [loop.run_in_executor(executor, world.loop.suspend, 1.0) for _ in range(3)]
        await asyncio.gather(*jobs)
        executor.shutdown()
        middle = world.now
        await asyncio.gather(*(asyncio.to_thread(world.loop.suspend, 1.0) for _ in range(3)))
        return middle - started, world.now - middle

    assert world.run(main()) == (3.0, 1.0)
