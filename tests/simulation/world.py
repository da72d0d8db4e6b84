"""A simulated world: bookies, clients and a metadata store in one process, under virtual time, all from one seed.

    world = World(7, transcript=True)

    async def main() -> None:
        for name in ("bookie-1", "bookie-2", "bookie-3"):
            await world.bookie(name).start()
        client = world.client("writer")
        await client.run(append_some(client.bookkeeper))
        world.bookie("bookie-2").power_off()

    world.run(main())

`main` and what it calls directly is outside the world: it sees everything and controls it. Code of a client runs in
the client's process, by `client.run` or `world.spawn`. The same seed on the same code gives the same transcript.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import random
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from bookgate.bookie.environment import MakesGateway
from bookgate.ledger.metadata_store import LedgerManagerFactory
from bookgate.runtime.background import RESTARTS
from bookgate.thinclient.client import BookKeeper
from tests.simulation import threads
from tests.simulation.access import WorldAccess
from tests.simulation.disk import Disk, DiskTimes
from tests.simulation.loop import CURRENT, Process, WorldLoop
from tests.simulation.metadata import MemoryMetadata, Metadata
from tests.simulation.network import Network, NetworkSettings, Server
from tests.simulation.patches import replaced
from tests.simulation.settings import client_settings, root_of
from tests.simulation.simulated_bookie import SimulatedBookie
from tests.simulation.transcript import Bugs, LogLines, Transcript

T = TypeVar("T")


_STARTS = 3
"""How often a bookie is started where packets are slow, before the world counts as one that can't begin."""


class ProcessEndedError(Exception):
    """The process in which something was under way is gone."""


class UnhandledError(AssertionError):
    """The product let an exception reach the event loop, or logged it as a bug."""


@dataclass(frozen=True, slots=True)
class WorldSettings:
    """How a world is when nothing is wrong."""

    network: NetworkSettings = field(default_factory=NetworkSettings)
    disk: DiskTimes | None = None
    """None: those of each disk are drawn."""
    session_seconds: float = 3.0
    """How long a registration outlives its process."""


class _Loop(WorldLoop):
    """The loop with the world's network and threads behind asyncio's own calls."""

    network: Network

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        return threads.run_in_executor(self, executor, lambda: func(*args))

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **kwargs: Any) -> Any:
        return await self.network.connect(protocol_factory, host, port)

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **kwargs: Any) -> Any:
        listener = kwargs.get("sock") or self.network.listen(CURRENT.get(), port)
        listener.factory = protocol_factory
        return Server(listener)


class SimulatedClient:
    """A client's process on a host of its name, and the real client in it."""

    def __init__(self, world: World, name: str, settings: dict[str, Any]) -> None:
        self._world = world
        self.name = name
        self.process = world.new_process(name, name)
        world.network.host(name).up = True
        own = {} if world.access is None else world.access.client_settings(name)
        self.config = client_settings({**settings, **own})
        self.factory: LedgerManagerFactory = self.process.context.run(world.metadata.factory, "sim://metadata")
        self.bookkeeper: BookKeeper = self.process.context.run(self._make)

    def _make(self) -> BookKeeper:
        rng = self._world.random(f"client {self.name}")
        manager, discovery, catch_up = (
            self.factory.ledger_manager,
            self.factory.service_discovery,
            partial(self.factory.catch_up, None),
        )
        return BookKeeper(manager, discovery, self.config, rng, catch_up=catch_up)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs it in the client's process. Raises ProcessEndedError when that is killed meanwhile."""
        return await self._world.on(self.process, work)

    def kill(self) -> None:
        """The process is gone, with its connections."""
        self._world.note(self.name, "is killed")
        self._world.end_process(self.process, host_is_up=True)

    def power_off(self) -> None:
        """Its host is gone without a word; a new client of this name finds it up again."""
        self._world.note(self.name, "loses power")
        self._world.network.host(self.name).up = False
        self._world.end_process(self.process, host_is_up=False)

    def pause(self) -> None:
        self._world.note(self.name, "is paused")
        self.process.pause()

    def resume(self) -> None:
        self._world.note(self.name, "goes on")
        self.process.resume()


class World:
    """See the module. One `run` a world."""

    def __init__(self, seed: int | str, settings: WorldSettings | None = None, *, transcript: bool = False) -> None:
        self.seed = seed
        self.settings = settings or WorldSettings()
        self.loop = _Loop(self.random("schedule"))
        self.transcript = Transcript(self.loop.time, keep=transcript)
        self.network = Network(self.loop, self.random("network"), self.settings.network, self.transcript)
        self.loop.network = self.network
        self.network.host(self.loop.outside.host)
        self.metadata: Metadata = MemoryMetadata(self.loop, self.network, self.settings.session_seconds)
        self.hosted_gateway: MakesGateway | None = None
        """What makes the gateways that bookies host; None: they host none."""
        self.access: WorldAccess | None = None
        """The policy that bookies have, and what everybody shows them; None: none is asked for anything."""
        self.bookies: dict[str, SimulatedBookie] = {}
        self.clients: dict[str, SimulatedClient] = {}
        self.after_every_step: list[Callable[[], None]] = []
        """Checks of state; what they raise ends the run. Set before `run`."""
        self.unhandled: list[dict[str, Any]] = []
        self._ending = False

    # The seed

    def random(self, name: str) -> random.Random:
        """A stream of its own for everything that has a name."""
        return random.Random(f"{self.seed}/{name}")

    # Time

    @property
    def now(self) -> float:
        """Virtual seconds since the beginning."""
        return self.loop.time()

    def note(self, who: str, what: str) -> None:
        """A line of the transcript."""
        self.transcript.note(who, what)

    def fail(self, error: BaseException) -> None:
        """Ends the run with this error after the step under way, wherever it was found."""
        if self.loop.failure is None:
            self.loop.failure = error

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Runs `main` to its end, and with it the world. Raises what `main` or a check raises, UnhandledError,
        WorldStuckError."""
        loop = self.loop
        loop.set_exception_handler(self._on_unhandled)
        if self.after_every_step:
            loop.after_step = self._check
        failed_before = RESTARTS.copy()
        was_collecting = gc.isenabled()
        # Which garbage is collected when must not decide what happens.
        gc.disable()
        try:
            logs = LogLines(self.transcript, self._who) if self.transcript.keeps else contextlib.nullcontext()
            with replaced(self.random("patches"), loop.time, loop.wall_clock), logs, Bugs(self._on_bug):
                try:
                    task = loop.create_task(main, name="main", context=loop.outside.context.copy())
                    result: T = loop.run_until_complete(task)
                finally:
                    # What is cut off afterwards may fail for that.
                    failed = RESTARTS - failed_before
                    self._end()
        finally:
            if was_collecting:
                gc.enable()
        if self.unhandled:
            first = self.unhandled[0]
            raise UnhandledError(f"{first.get('message')}: {first.get('exception')!r}") from first.get("exception")
        if failed:
            raise UnhandledError(f"background tasks failed and were begun anew: {dict(failed)}")
        return result

    def _end(self) -> None:
        self._ending = True
        # What is cut off in the middle has things to say that concern nobody.
        logging.disable(logging.CRITICAL)
        try:
            self.loop.shut_down()
        finally:
            logging.disable(logging.NOTSET)

    def _who(self) -> str:
        return CURRENT.get(self.loop.outside).name

    def _check(self) -> None:
        for check in self.after_every_step:
            check()

    def _on_unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not self._ending:
            self.unhandled.append(context)
            self.note("world", f"unhandled: {context.get('message')} {context.get('exception')!r}")

    def _on_bug(self, message: str, error: BaseException) -> None:
        if not self._ending:
            self.unhandled.append({"message": f"a bug was logged: {message}", "exception": error})

    # Processes

    def new_process(self, name: str, host: str) -> Process:
        self.network.host(host)
        return Process(self.loop, name, host)

    def end_process(self, process: Process, *, host_is_up: bool) -> None:
        """Ends it, and what it had open."""
        process.end()
        self.network.process_ended(process, host_is_up=host_is_up)

    def spawn(self, process: Process, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Runs work in a process."""
        return self.loop.create_task(work, context=process.context.copy())

    async def on(self, process: Process, work: Coroutine[Any, Any, T]) -> T:
        """Runs work in a process and waits for it, outside of it. Raises ProcessEndedError."""
        outcome: asyncio.Future[T] = self.loop.create_future()

        def ended() -> None:
            if not outcome.done():
                outcome.set_exception(ProcessEndedError(f"process {process.name} has ended"))

        def done(task: asyncio.Task[T]) -> None:
            if outcome.done():
                return
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            if error is None:
                outcome.set_result(task.result())
            elif isinstance(error, asyncio.CancelledError):
                outcome.cancel()
            else:
                outcome.set_exception(error)

        if not process.alive:
            work.close()
            raise ProcessEndedError(f"process {process.name} has ended")
        process.on_end.append(ended)
        task = self.spawn(process, work)
        task.add_done_callback(done)
        try:
            return await outcome
        finally:
            if process.alive:
                process.on_end.remove(ended)
                if not task.done():
                    task.cancel()

    # Who is in it

    def bookie(self, name: str, **settings: Any) -> SimulatedBookie:
        """The bookie of that name, with settings of `BookieConfig` where it is new; not started."""
        bookie = self.bookies.get(name)
        if bookie is None:
            self.network.host(name)
            root = root_of(name)
            rng = self.random(f"disk of {name}")
            times = self.settings.disk or DiskTimes.drawn(rng)
            disk = Disk(self.loop, rng, times, self.transcript, root)
            bookie = self.bookies[name] = SimulatedBookie(self, name, disk, **settings)
        return bookie

    def client(self, name: str, **settings: Any) -> SimulatedClient:
        """A new client, with settings of `ClientConfig`, in a process of its own; a second of that name replaces it."""
        client = self.clients[name] = SimulatedClient(self, name, settings)
        return client

    async def start_bookies(
        self, count: int, first: Mapping[str, Any] | None = None, /, **settings: Any
    ) -> list[SimulatedBookie]:
        """Bookies bookie-1, bookie-2, … that serve. `first` are settings in which the first one differs."""
        bookies = [
            self.bookie(f"bookie-{number}", **{**settings, **((number == 1 and first) or {})})
            for number in range(1, count + 1)
        ]
        for bookie in bookies:
            if not bookie.running and not await self._starts(bookie):
                raise RuntimeError(f"{bookie.name} did not start: {bookie.failure}")
        return bookies

    async def _starts(self, bookie: SimulatedBookie) -> bool:
        """Where packets are slow calls may not come through in time: it is begun again, as a service manager does."""
        slow = self.network.settings.slow_share > NetworkSettings().slow_share
        for _ in range(_STARTS if slow else 1):
            if await bookie.start():
                return True
        return False
