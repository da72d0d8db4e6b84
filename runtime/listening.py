"""Listening addresses: checking whether one is free, and holding one for several processes.

gRPC sets SO_REUSEPORT, with which a second server on the same port starts without complaint and receives half of the
connections. A single gateway therefore requires a port that no other process has, and several workers share one that
their parent found free and holds.
"""

from __future__ import annotations

import asyncio
import errno
import socket

from bookgate.ledger.addresses import address_of

BACKLOG = 1024

_KEEP_ALIVE: list[tuple[int, int, int]] = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
"""Socket options that accepted connections inherit. They detect a silently vanished peer after about three minutes."""
if hasattr(socket, "TCP_KEEPIDLE"):
    _KEEP_ALIVE += [
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 120),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
    ]


def backlog_for(connections: int) -> int:
    """Listen backlog for a server with that many connections: an event loop accepts all waiting connections at once."""
    return max(8, min(BACKLOG, connections // 4))


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket whose connections end when the peer's machine is gone. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Without an explicit protocol asyncio would not set TCP_NODELAY on the connections.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        for level, option, value in _KEEP_ALIVE:
            listener.setsockopt(level, option, value)
        listener.setblocking(False)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


async def check_bindable(host: str, port: int) -> None:
    """Binds a plain socket first, because its error says what is wrong, whereas gRPC would print to standard error."""
    try:
        probe = await asyncio.get_running_loop().create_server(asyncio.Protocol, host, port)
    except OSError as error:
        raise _in_words(error, host, port) from error
    probe.close()
    await probe.wait_closed()


async def hold_shared_port(host: str, port: int) -> socket.socket:
    """A bound socket that never listens: it reserves the port for this process, and its workers may serve on it.

    Raises OSError if another process uses the port.
    """
    await check_bindable(host, port)
    holder = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind((host, port))
    except OSError as error:
        holder.close()
        raise _in_words(error, host, port) from error
    return holder


def _in_words(error: OSError, host: str, port: int) -> OSError:
    if error.errno == errno.EADDRINUSE:
        return OSError(errno.EADDRINUSE, f"port {port} of {host} is in use; choose another or stop its owner")
    message = f"the gateway can't listen at {address_of(host, port)}: {error.strerror or error}"
    return OSError(error.errno or errno.EINVAL, message)
