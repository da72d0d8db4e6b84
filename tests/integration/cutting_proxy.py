"""A proxy in front of a server that cuts connections after so many bytes, or passes no more: also within a frame."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Self

from bookgate.thinclient.bookies.connection import tcp_connector


class CuttingProxy:
    """Listens on a port of its own for one target. A context manager.

    `cut_after` gives, for every new connection, how many bytes may pass in both directions together before both ends
    are aborted; None for no limit.
    """

    def __init__(self, host: str, port: int, cut_after: Callable[[], int | None]) -> None:
        self.target = (host, port)
        """Of connections made from now on."""
        self._cut_after = cut_after
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.cuts = 0
        self.passes: int | None = None
        """How many bytes of the target's pass before all stands still; None: all. What waits passes when this grows."""
        self.alter: Callable[[bytes], bytes] = lambda data: data
        """What becomes of the target's bytes."""
        self._changed = asyncio.Event()

    def pass_on(self, count: int | None) -> None:
        """Sets `passes`."""
        self.passes = count
        self._changed.set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut_all()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut_all(self) -> None:
        """Aborts every connection there is."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        ends = [writer]
        try:
            far_reader, far_writer = await asyncio.open_connection(*self.target)
            self._writers.add(far_writer)
            ends.append(far_writer)
            left = [self._cut_after()]
            pumps = [self._pump(reader, far_writer, left), self._pump(far_reader, writer, left, self._held_back)]
            await asyncio.gather(*pumps, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass  # streams complain of a task that ends cancelled; the proxy cancels them when it is closed
        finally:
            self._tasks.discard(task)
            for end in ends:
                self._writers.discard(end)
                end.transport.abort()

    async def _held_back(self, data: bytes, writer: asyncio.StreamWriter) -> bytes:
        """What is left of data that may pass in the end; what may pass before, has."""
        data = self.alter(data)
        while self.passes is not None and self.passes < len(data):
            part, data, self.passes = data[: self.passes], data[self.passes :], 0
            writer.write(part)
            self._changed.clear()
            await self._changed.wait()
        if self.passes is not None:
            self.passes -= len(data)
        return data

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        left: list[int | None],
        hold: Callable[[bytes, asyncio.StreamWriter], Awaitable[bytes]] | None = None,
    ) -> None:
        try:
            while data := await reader.read(1 << 16):
                if hold is not None:
                    data = await hold(data, writer)
                limit = left[0]
                if limit is not None:
                    data, left[0] = data[:limit], limit - len(data)
                writer.write(data)
                await writer.drain()
                if limit is not None and limit <= len(data):
                    self.cuts += 1
                    break
        finally:
            for end in (writer,):
                end.close()


class CuttingConnector:
    """A client's connector that takes every connection to a bookie through a proxy of its own. A context manager."""

    def __init__(self, rng: random.Random, least: int, most: int) -> None:
        self._rng = rng
        self._least, self._most = least, most
        self._proxies: dict[tuple[str, int], CuttingProxy] = {}
        self._starting = asyncio.Lock()
        self.cutting = True

    @property
    def cuts(self) -> int:
        return sum(proxy.cuts for proxy in self._proxies.values())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for proxy in self._proxies.values():
            await proxy.__aexit__()

    def cut_all(self) -> None:
        """Aborts every connection there is."""
        for proxy in self._proxies.values():
            proxy.cut_all()

    async def __call__(self, factory: Callable[[], asyncio.BufferedProtocol], host: str, port: int) -> object:
        async with self._starting:  # nobody is sent to a proxy that does not listen yet
            proxy = self._proxies.get((host, port))
            if proxy is None:
                proxy = await CuttingProxy(host, port, self._limit).__aenter__()
                self._proxies[(host, port)] = proxy
        return await tcp_connector(factory, "127.0.0.1", proxy.port)

    def _limit(self) -> int | None:
        return self._rng.randint(self._least, self._most) if self.cutting else None
