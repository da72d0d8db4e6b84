"""Which connection has to go: where there are too many, and where all together hold too much memory.

Too many: the one goes that has been quiet the longest, among those that are owed nothing; those that never asked for
anything go first. One that waits for an answer, a long poll's among them, is not idle and stays.

Too much: the one goes that has held the most for the longest without getting on, be it with a frame that does not end
or with answers that it does not take. Bytes times seconds, so that neither a burst nor a little patience is punished.

Times are in seconds of any one clock, and arguments. Not here: counting, closing (`connections`).
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
        """Requests that have no answer yet, and bytes of answers that wait to be sent."""

    @property
    def asked(self) -> int:
        """Requests that it has sent."""

    @property
    def heard_at(self) -> float:
        """When something last came from it, about."""

    @property
    def held_bytes(self) -> int:
        """Memory."""

    @property
    def stalled_since(self) -> float | None:
        """Since when it has not got on with what it holds; None while it does."""


C = TypeVar("C", bound=Measured)


def idle_longest(connections: Iterable[C]) -> C | None:
    """The first to go where there are too many; None where every one is owed something. The oldest come first."""
    idle = (connection for connection in connections if not connection.owed)
    return min(idle, key=lambda connection: (connection.asked > 0, connection.heard_at), default=None)


def greediest(connections: Iterable[C], now: float) -> C | None:
    """The first to go where they hold too much."""
    return max(connections, key=lambda connection: connection.held_bytes * _seconds(connection, now), default=None)


def _seconds(connection: Measured, now: float) -> float:
    since = connection.stalled_since
    return _LEAST_SECONDS if since is None else max(_LEAST_SECONDS, now - since)
