"""Ports for servers that can't choose one themselves, held from the moment of the choice.

A port that was found free and let go may be another process's by the time that the server binds it. A held one is bound
by a socket that never listens: the system gives it to nobody who asks for any free port, a connection to it is refused,
and a server that names it, with SO_REUSEADDR as all do, can listen.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

_HOST = "127.0.0.1"
_ATTEMPTS = 100
"""The port behind a free one may be taken; then another is tried."""


@contextmanager
def held_ports(count: int = 1) -> Iterator[list[int]]:
    """As many ports of 127.0.0.1, one after the other, until the block ends."""
    with ExitStack() as holders:
        for _ in range(_ATTEMPTS):
            with suppress(OSError, OverflowError), ExitStack() as attempt:
                first = _hold(attempt, 0)
                ports = [first, *(_hold(attempt, first + step) for step in range(1, count))]
                holders.push(attempt.pop_all())
                break
        else:
            raise AssertionError(f"no {count} free ports in a row in {_ATTEMPTS} attempts")
        yield ports


@contextmanager
def held_port() -> Iterator[int]:
    """A port of 127.0.0.1 until the block ends."""
    with held_ports() as [port]:
        yield port


def _hold(holders: ExitStack, port: int) -> int:
    holder = holders.enter_context(socket.socket())
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind((_HOST, port))
    held: int = holder.getsockname()[1]
    return held
