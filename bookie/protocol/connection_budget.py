"""Which connection is closed when there are too many, or when all together hold too much memory.

Too many: the one that has been quiet longest among those that are owed nothing; those that never sent a request go
first. A connection that waits for a response, including that of a long poll, is not idle and stays.

Too much memory: the one that has held most for longest without progress, be it with an incomplete frame or with
responses that it does not read. The measure is bytes times seconds, so that neither a burst nor a short delay is
punished.

Times are arguments, in seconds of any one clock. Not its job: counting, closing (`connections`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

_LEAST_SECONDS = 0.001
"""What a connection that gets on counts, so that the largest goes where all do."""


class Measured(Protocol):
    """What is known of a connection."""

    @property
    def owed(self) -> int:
        """Number of requests without a response, plus bytes of responses waiting to be sent."""

    @property
    def asked(self) -> int:
        """Number of requests received."""

    @property
    def heard_at(self) -> float:
        """Approximate time at which it last sent something."""

    @property
    def held_bytes(self) -> int:
        """Memory in use, in bytes."""

    @property
    def stalled_since(self) -> float | None:
        """Since when it has made no progress; None while it makes progress."""


C = TypeVar("C", bound=Measured)


def idle_longest(connections: Iterable[C]) -> C | None:
    """The first connection to close when there are too many; None if all are owed something. The oldest come first."""
    idle = (connection for connection in connections if not connection.owed)
    return min(idle, key=lambda connection: (connection.asked > 0, connection.heard_at), default=None)


def greediest(connections: Iterable[C], now: float) -> C | None:
    """The first connection to close when they hold too much memory."""
    return max(connections, key=lambda connection: connection.held_bytes * _seconds(connection, now), default=None)


def _seconds(connection: Measured, now: float) -> float:
    since = connection.stalled_since
    return _LEAST_SECONDS if since is None else max(_LEAST_SECONDS, now - since)
