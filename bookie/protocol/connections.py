"""All connections of the entry port: limits their number, and the memory that they hold together.

A new connection above the limit replaces an idle one, or is closed itself if none is idle. Receive buffers and waiting
responses count at once when they grow; every second, as long as there are connections, each is examined to release
unused buffers, to count the cost of requests in progress, and to notice connections that make no progress.

Not its job: which connection is closed (`connection_budget`), the limits of one connection (`connection`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from bookgate.bookie.protocol.connection_budget import greediest, idle_longest
from bookgate.bookie.statistics import BookieStatistics
from bookgate.runtime.logs import log_event

if TYPE_CHECKING:
    from bookgate.bookie.protocol.connection import AcceptedConnection

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0

DEFAULT_MEMORY_BYTES = 512 * 1024 * 1024


class ConnectionLimits(NamedTuple):
    """The limits of one bookie's entry port."""

    connections: int = 10_000
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    """Receive buffers, responses that clients do not read, and requests in progress, of all connections."""


class Connections:
    """The connections in the order of arrival. Belongs to the event loop."""

    def __init__(self, statistics: BookieStatistics, limits: ConnectionLimits) -> None:
        self._statistics = statistics
        self._limits = limits
        statistics.max_connections = limits.connections
        statistics.max_connection_bytes = limits.memory_bytes
        self._all: dict[AcceptedConnection, int] = {}
        """Each connection with the bytes that it counts."""
        self._timer: asyncio.TimerHandle | None = None
        self._told = (0, 0, 0)

    def __iter__(self) -> Iterator[AcceptedConnection]:
        return iter(list(self._all))

    def __len__(self) -> int:
        return len(self._all)

    def opened(self, connection: AcceptedConnection) -> None:
        """Adds a connection; closes one if there are too many."""
        statistics = self._statistics
        statistics.accepted += 1
        if len(self._all) >= self._limits.connections:
            idle = idle_longest(self._all)
            if idle is None:
                statistics.refused += 1
                connection.abort()
            else:
                statistics.closed_idle += 1
                self.closed(idle)
                idle.close()
        self._all[connection] = 0
        statistics.connections = len(self._all)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look)
        self.resized(connection)

    def closed(self, connection: AcceptedConnection) -> None:
        """Removes a connection. A second call does nothing."""
        self._statistics.connection_bytes -= self._all.pop(connection, 0)
        self._statistics.connections = len(self._all)

    def resized(self, connection: AcceptedConnection) -> None:
        """The memory held by the connection has changed."""
        before = self._all.get(connection)
        if before is None:
            return
        held = self._all[connection] = connection.held_bytes
        statistics = self._statistics
        statistics.connection_bytes += held - before
        if held > before and statistics.connection_bytes > self._limits.memory_bytes:
            self._make_room()

    def close(self) -> None:
        """Closes all of them."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for connection in self:
            connection.close()

    def abort(self) -> None:
        """Closes all of them at once: nothing more is sent."""
        for connection in self:
            connection.abort()

    def capacity_available(self) -> None:
        """Connections that waited for capacity in storage continue to read."""
        for connection in self:
            connection.resume_reading()

    def _make_room(self) -> None:
        statistics, now = self._statistics, asyncio.get_running_loop().time()
        for connection in self:
            # Nobody is closed because of unused memory; some may have read their responses since they were counted.
            connection.release_unused()
            self._all[connection] = connection.held_bytes
        statistics.connection_bytes = sum(self._all.values())
        while statistics.connection_bytes > self._limits.memory_bytes:
            greedy = greediest(self._all, now)
            if greedy is None:
                return
            statistics.closed_for_memory += 1
            self.closed(greedy)
            greedy.abort()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_LOOK_SECONDS, self._look) if self._all else None
        now = loop.time()
        for connection in self:
            connection.look(now)
            self.resized(connection)
        self._tell()

    def _tell(self) -> None:
        """Logs one line for all connections closed since the last check."""
        statistics = self._statistics
        counts = statistics.closed_idle, statistics.refused, statistics.closed_for_memory
        if counts == self._told:
            return
        idle, refused, memory = (count - before for count, before in zip(counts, self._told, strict=True))
        self._told = counts
        log_event(
            _log,
            "connections_shed",
            logging.WARNING,
            idle=idle,
            refused=refused,
            memory=memory,
            open=len(self._all),
            bytes=statistics.connection_bytes,
        )
