"""What goes wrong around the metadata: gateways, ZooKeeper servers, sessions, and the links between them and clients.

Drawn in two stages: which kinds a run has, then when, whom and how long. `heal` ends all of it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

from tests.history import events
from tests.history.recorder import Recorder
from tests.history.violations import NoProgress
from tests.simulation.simulated_store import SimulatedGateway, SimulatedStore
from tests.simulation.world import World

_PATIENCE_SECONDS = 40.0


class StoreFaults:
    """See the module. `clients` are the hosts whose links to gateways may fail."""

    def __init__(self, world: World, store: SimulatedStore, recorder: Recorder, clients: Sequence[str]) -> None:
        self._world = world
        self._store = store
        self._recorder = recorder
        self._rng = world.random("faults")
        self._clients = clients
        self.counts: Counter[str] = Counter()
        self._kinds: dict[str, Callable[[float], str]] = {
            "gateway-kill": self._kill_gateway,
            "gateway-drain": self._drain_gateway,
            "gateway-pause": self._pause_gateway,
            "quorum-lost": self._lose_quorum,
            "server-cut-off": self._cut_off,
            "server-kill": self._kill_server,
            "server-lags": self._lag,
            "answers-lost": self._lose_answers,
            "session-expired": self._expire,
            "link-cut": self._cut,
            "link-reset": self._reset,
            "link-stalls": self._stall,
            "gateway-busy": self._keep_busy,
            "answer-breaks-off": self._break_off,
            "answer-miscounted": self._miscount,
        }

    async def run(self, until: float) -> None:
        kinds = [kind for kind in self._kinds if self._rng.random() < 0.4]
        every = self._rng.choice((0.5, 1.0, 2.0, 5.0))
        while kinds and self._world.now < until:
            await asyncio.sleep(self._rng.expovariate(1 / every))
            kind = self._rng.choice(kinds)
            seconds = self._rng.choice((0.05, 0.3, 1.0, 3.0, 8.0)) * self._rng.uniform(0.5, 1.5)
            target = self._kinds[kind](seconds)
            if target:
                self.counts[kind] += 1
                self._world.note("faults", f"{kind} of {target} for {seconds:.2f} s")
                self._recorder.add(events.Fault(self._recorder.now, kind, target, f"{seconds:.2f} s"))

    async def heal(self) -> None:
        """Everything is there and in reach."""
        world, store = self._world, self._store
        world.network.heal()
        for server in store.ensemble.servers:
            server.lag = server.answers_lost = server.breaks_off = 0.0
            server.miscounts = False
            if not store.running(server):
                await store.start_server(server)
            server.join()
        await store.ensemble.led()
        for gateway in store.gateways:
            if gateway.process is not None and gateway.process.paused:
                gateway.process.resume()
        await asyncio.gather(*(self._is_up(gateway) for gateway in store.gateways))

    async def _is_up(self, gateway: SimulatedGateway) -> None:
        deadline = self._world.now + _PATIENCE_SECONDS
        while not gateway.serving:
            if gateway.process is None:
                await gateway.start()
            await asyncio.sleep(0.5)
            if self._world.now > deadline:
                raise NoProgress(f"{gateway.name} does not serve though all is healed")

    def _later(self, seconds: float, undo: Callable[[], None]) -> None:
        self._world.loop.call_later(seconds, undo)

    def _gateway(self) -> SimulatedGateway | None:
        up = [gateway for gateway in self._store.gateways if gateway.serving]
        return self._rng.choice(up) if up else None

    def _start_again(self, gateway: SimulatedGateway, seconds: float) -> None:
        async def start() -> None:
            await asyncio.sleep(seconds)
            if gateway.process is None:
                await gateway.start()

        self._world.spawn(self._world.loop.outside, start())

    def _kill_gateway(self, seconds: float) -> str:
        gateway = self._gateway()
        if gateway is None:
            return ""
        gateway.kill()
        self._start_again(gateway, seconds)
        return gateway.name

    def _drain_gateway(self, seconds: float) -> str:
        gateway = self._gateway()
        if gateway is None:
            return ""

        async def drain() -> None:
            await gateway.stop()
            self._start_again(gateway, seconds)

        self._world.spawn(self._world.loop.outside, drain())
        return gateway.name

    def _pause_gateway(self, seconds: float) -> str:
        gateway = self._gateway()
        if gateway is None or gateway.process is None:
            return ""
        gateway.process.pause()
        self._later(seconds, gateway.process.resume)
        return gateway.name

    def _lose_quorum(self, seconds: float) -> str:
        if not self._store.ensemble.has_leader:
            return ""
        self._store.ensemble.lose_quorum(seconds)
        return "zookeeper"

    def _cut_off(self, seconds: float) -> str:
        server = self._rng.choice(self._store.ensemble.servers)
        server.cut_off()
        self._later(seconds, server.join)
        return server.name

    def _kill_server(self, seconds: float) -> str:
        server = self._rng.choice(self._store.ensemble.servers)
        if not self._store.running(server):
            return ""
        self._store.kill_server(server)

        async def start() -> None:
            await asyncio.sleep(seconds)
            if not self._store.running(server):
                await self._store.start_server(server)

        self._world.spawn(self._world.loop.outside, start())
        return server.name

    def _lag(self, seconds: float) -> str:
        server = self._rng.choice(self._store.ensemble.servers)
        server.lag = self._rng.choice((0.05, 0.5, 3.0))
        self._later(2 * seconds, lambda: setattr(server, "lag", 0.0))
        return server.name

    def _lose_answers(self, seconds: float) -> str:
        server = self._rng.choice(self._store.ensemble.servers)
        server.answers_lost = self._rng.choice((0.05, 0.5))
        self._later(seconds, lambda: setattr(server, "answers_lost", 0.0))
        return server.name

    def _expire(self, seconds: float) -> str:
        sessions = list(self._store.ensemble.sessions)
        if not sessions or not self._store.ensemble.has_leader:
            return ""
        number = self._rng.choice(sessions)
        self._store.ensemble.expire(number)
        return f"session {number:x}"

    def _keep_busy(self, seconds: float) -> str:
        gateway = self._gateway()
        if gateway is None or gateway.process is None:
            return ""
        process, until = gateway.process, self._world.now + seconds

        async def keep_busy() -> None:
            while process.alive and self._world.now < until:
                process.keep_busy(self._rng.choice((0.002, 0.02, 0.1)) * self._rng.uniform(0.5, 1.5))
                await asyncio.sleep(self._rng.uniform(0.0, 0.15))

        self._world.spawn(self._world.loop.outside, keep_busy())
        return gateway.name

    def _break_off(self, seconds: float) -> str:
        """The next answer comes in two parts; the second is long in coming."""
        server = self._rng.choice(self._store.ensemble.servers)
        server.breaks_off = seconds
        return server.name

    def _miscount(self, seconds: float) -> str:
        """The next answer names another request than the one it is to: no client can go on after it."""
        server = self._rng.choice(self._store.ensemble.servers)
        server.miscounts = True
        return server.name

    def _link(self) -> tuple[str, str]:
        gateway = self._rng.choice(self._store.gateways).name
        if self._rng.random() < 0.5:
            return gateway, self._rng.choice(self._store.ensemble.servers).name
        return self._rng.choice(list(self._clients)), gateway

    def _cut(self, seconds: float) -> str:
        one, other = self._link()
        directions = self._rng.choice((((one, other),), ((other, one),), ((one, other), (other, one))))
        for source, target in directions:
            self._world.network.cut(source, target)
            self._later(seconds, lambda s=source, t=target: self._world.network.mend(s, t))  # type: ignore[misc]
        return f"{one} and {other}"

    def _reset(self, seconds: float) -> str:
        one, other = self._link()
        return f"{one} and {other}" if self._world.network.reset(one, other) else ""

    def _stall(self, seconds: float) -> str:
        one, other = self._link()
        self._world.network.stall(one, other, seconds)
        return f"{one} and {other}"
