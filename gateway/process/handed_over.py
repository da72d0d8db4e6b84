"""Client connections of HTTP that a bookie hands over to its gateway's process, which answers there.

The request and the descriptor of its connection go through a pair of sockets, one message per connection. No byte of
the response passes through the bookie, whose event loop is needed for adds; the connection ends with the response. Each
process has its own pair of sockets: connections that it has not accepted when it ends are closed with the pair.

Not its job: which connections can be handed over (`gateway.http.connections`), what is requested (`passed_on`).
"""

from __future__ import annotations

import asyncio
import logging
import socket

from bookgate.gateway.http.server import AdminServer
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)

_LONGEST_REQUEST = 256 * 1024
_FLAGS = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


class HandOver:
    """The bookie's end."""

    def __init__(self) -> None:
        self._own: socket.socket | None = None

    def renew(self) -> socket.socket:
        """The other end, for a process about to be started; the caller closes it once the process has it."""
        self.close()
        self._own, others = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._own.setblocking(False)
        return others

    def give(self, descriptor: int, request: bytes) -> None:
        """Sends a copy of the descriptor to the process. Raises OSError if it can't take one."""
        if self._own is None:
            raise BrokenPipeError("no process takes connections")
        socket.send_fds(self._own, [request], [descriptor])

    def close(self) -> None:
        if self._own is not None:
            self._own.close()
            self._own = None


class HandedOver:
    """The process's end: from `start` to `close`, `server` answers the connections that arrive."""

    def __init__(self, descriptor: int, server: AdminServer) -> None:
        self._end = socket.socket(fileno=descriptor)
        self._end.setblocking(False)
        self._server = server
        self._beginning: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        asyncio.get_running_loop().add_reader(self._end, self._take)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._end)
        self._end.close()

    def _take(self) -> None:
        try:
            request, descriptors, _, _ = socket.recv_fds(self._end, _LONGEST_REQUEST, 1, _FLAGS)
        except BlockingIOError:
            return
        # None where this process has too many already: the kernel has closed it.
        for descriptor in descriptors:
            task = asyncio.create_task(self._adopt(socket.socket(fileno=descriptor), request))
            self._beginning.add(task)
            task.add_done_callback(self._beginning.discard)

    async def _adopt(self, connection: socket.socket, request: bytes) -> None:
        try:
            await self._server.adopt(connection, request)
        except OSError as error:  # the client is gone
            connection.close()
            log_event(_log, "http_connection_lost", logging.DEBUG, error=error)
