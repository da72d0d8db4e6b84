"""The network of a simulated world: TCP between named hosts, with all that may happen to it.

Bytes of one direction of a connection arrive in order, late, and in other pieces than they were sent; connections
overtake each other. A direction between two hosts may be cut or stalled: what is under way waits, as retransmission
makes it, and a connection that gets nothing through for `give_up_after` ends. A sender whose peer does not read fills
its window, then its buffer, and is told to pause.

A process that ends has its connections closed by its host, with FIN or RST; a host that loses power says nothing: its
peers learn it when they send something after it is up again, or give up.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.simulation.loop import CURRENT, Process, WorldLoop
from tests.simulation.transcript import Transcript
from tests.simulation.transport import FIN, RETRY_SECONDS, RST, Pipe, Transport


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """Seconds, bytes, probabilities."""

    latency: tuple[float, float] = (0.0001, 0.001)
    slow_share: float = 0.01
    """Packets that take up to `slow` instead."""
    slow: float = 0.05
    fragments: float = 0.05
    """Deliveries that come in two pieces, at different times."""
    window: int = 256 * 1024
    connect_timeout: float = 20.0
    give_up_after: float = 60.0


class Host:
    def __init__(self, name: str) -> None:
        self.name = name
        self.up = True
        self.boots = 0


class Listener:
    """A listening socket, as far as a server needs one; and the server on it."""

    def __init__(self, network: Network, process: Process, port: int) -> None:
        self._network = network
        self.process = process
        self.port = port
        self.factory: Callable[[], asyncio.BaseProtocol] | None = None

    def getsockname(self) -> tuple[str, int]:
        return self.process.host, self.port

    def close(self) -> None:
        self._network.unlisten(self)


class Server(asyncio.AbstractServer):
    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    @property
    def sockets(self) -> tuple[Listener, ...]:
        return (self._listener,)

    def close(self) -> None:
        self._listener.close()

    async def wait_closed(self) -> None:
        return

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._listener.process.loop

    def is_serving(self) -> bool:
        return self._listener.factory is not None

    async def start_serving(self) -> None:
        return

    async def serve_forever(self) -> None:
        await self.get_loop().create_future()


class Network:
    """All hosts and what is between them."""

    def __init__(self, loop: WorldLoop, rng: random.Random, settings: NetworkSettings, transcript: Transcript) -> None:
        self.loop = loop
        self.rng = rng
        self.settings = settings
        self.transcript = transcript
        self.hosts: dict[str, Host] = {}
        self._listeners: dict[tuple[str, int], Listener] = {}
        self._transports: dict[Transport, None] = {}
        self._cut: dict[tuple[str, str], None] = {}
        self._stalled: dict[tuple[str, str], float] = {}
        self._refusing: dict[str, None] = {}
        self._next_port = 40_000

    def host(self, name: str) -> Host:
        """The host of that name; there is one from now on."""
        return self.hosts.setdefault(name, Host(name))

    # Faults

    def cut(self, source: str, target: str) -> None:
        """Nothing gets from one host to the other, until healed."""
        self.transcript.note(source, f"can no longer reach {target}")
        self._cut[source, target] = None

    def mend(self, source: str, target: str) -> None:
        self.transcript.note(source, f"can reach {target} again")
        self._cut.pop((source, target), None)

    def heal(self) -> None:
        """Ends every cut, stall and refusal; packets are slow or in pieces no more often than usual."""
        usual = NetworkSettings()
        self.settings = replace(self.settings, slow_share=usual.slow_share, slow=usual.slow, fragments=usual.fragments)
        self.transcript.note("network", "is healed")
        self._cut.clear()
        self._stalled.clear()
        self._refusing.clear()

    def stall(self, source: str, target: str, seconds: float) -> None:
        """What goes from one host to the other waits so long."""
        self.transcript.note(source, f"stalls towards {target} for {seconds:.3f} s")
        self._stalled[source, target] = self.loop.time() + seconds

    def refuse(self, host: str, refusing: bool = True) -> None:
        """Whether new connections to a host are refused."""
        self.transcript.note(host, "refuses connections" if refusing else "takes connections")
        if refusing:
            self._refusing[host] = None
        else:
            self._refusing.pop(host, None)

    def reset(self, one: str, other: str) -> int:
        """Resets the connections between two hosts; how many these were."""
        ends = [end for end in self._transports if {end.host, end.peer[0]} == {one, other}]
        for end in ends:
            error = ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
            self.loop.call_soon(end.fail, error, context=end.context)
        self.transcript.note(one, f"connections with {other} are reset: {len(ends) // 2}")
        return len(ends) // 2

    def passes(self, source: str, target: str) -> bool:
        """Whether something sent now arrives."""
        return self.hosts[target].up and self.blocked_until(source, target) is None

    def blocked_until(self, source: str, target: str) -> float | None:
        """When to try again to get something through, None: it passes."""
        if source == target:
            return None
        if (source, target) in self._cut:
            return self.loop.time() + RETRY_SECONDS
        until = self._stalled.get((source, target))
        return until if until is not None and until > self.loop.time() else None

    def process_ended(self, process: Process, *, host_is_up: bool) -> None:
        """Ends what the process had open: with FIN or RST, or silently where the host is gone with it."""
        for address in [address for address, listener in self._listeners.items() if listener.process is process]:
            del self._listeners[address]
        for end in [end for end in self._transports if end.process is process]:
            if host_is_up:
                end.vanish(RST if self.rng.random() < 0.3 else FIN)
                continue
            if self.rng.random() < 0.5:
                end.out.drop()
            end.vanish(None)

    # Chance

    def arrival(self) -> float:
        """When what is sent now arrives, if nothing is in its way."""
        settings, random = self.settings, self.rng.random
        low, high = settings.latency
        if random() < settings.slow_share:
            high = settings.slow
        return self.loop.time() + low + (high - low) * random()

    def splits(self, size: int) -> bool:
        return size > 1 and self.rng.random() < self.settings.fragments

    # asyncio's side

    def listen(self, process: Process, port: int) -> Listener:
        """Raises OSError for a port in use."""
        if port == 0:
            port = self._port()
        address = process.host, port
        if address in self._listeners:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        listener = self._listeners[address] = Listener(self, process, port)
        return listener

    def unlisten(self, listener: Listener) -> None:
        address = listener.getsockname()
        if self._listeners.get(address) is listener:
            del self._listeners[address]

    def _port(self) -> int:
        self._next_port += 1
        return self._next_port

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[Transport, asyncio.BaseProtocol]:
        """Raises OSError."""
        process = CURRENT.get()
        if host not in self.hosts:
            raise OSError(errno.EHOSTUNREACH, f"there is no host {host}")
        await self._packet(process.host, host)
        listener = self._listeners.get((host, port))
        if listener is None or listener.factory is None or host in self._refusing:
            await self._packet(host, process.host)
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"connection refused by {host}:{port}")
        own = process.host, self._port()
        client = Transport(self, process, own, (host, port))
        server = Transport(self, listener.process, (host, port), own)
        client.out = server.into = Pipe(self, client, server)
        server.out = client.into = Pipe(self, server, client)
        self._transports[client] = self._transports[server] = None
        self.loop.call_soon(_accept, server, listener.factory, context=server.context)
        try:
            await self._packet(host, process.host)
        except BaseException:
            client.abort()
            raise
        if client.closed:
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        self.transcript.note(process.host, f"connects to {host}")
        protocol = factory()
        client.attach(protocol)
        return client, protocol

    async def _packet(self, source: str, target: str) -> None:
        """Something on its way. Raises TimeoutError."""
        give_up = self.loop.time() + self.settings.connect_timeout
        await asyncio.sleep(self.arrival() - self.loop.time())
        while not self.passes(source, target):
            if self.loop.time() >= give_up:
                raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
            await asyncio.sleep(RETRY_SECONDS)

    def forget(self, transport: Transport) -> None:
        self._transports.pop(transport, None)


def _accept(server: Transport, factory: Callable[[], asyncio.BaseProtocol]) -> None:
    server.attach(factory())
