"""One direction of messages of a simulated call, at either end, with flow control."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from tests.simulation.grpc_frames import WINDOW_BYTES, Frame, Kind, taken_frame

Send = Callable[[Frame], None]


class Outgoing:
    """Messages to the peer: waits while too much of them is not consumed."""

    def __init__(self, number: int, send: Send) -> None:
        self._number = number
        self._send = send
        self._outstanding = 0
        self._room = asyncio.Event()

    async def put(self, message: bytes) -> None:
        while self._outstanding and self._outstanding + len(message) > WINDOW_BYTES:
            self._room.clear()
            await self._room.wait()
        self._outstanding += len(message)
        self._send(Frame(Kind.MESSAGE, self._number, message))

    def taken(self, size: int) -> None:
        self._outstanding -= size
        self._room.set()


class Incoming:
    """Messages from the peer, until its end."""

    def __init__(self, number: int, send: Send) -> None:
        self._number = number
        self._send = send
        self._messages: deque[bytes] = deque()
        self._ended = False
        self._news = asyncio.Event()

    def add(self, message: bytes) -> None:
        self._messages.append(message)
        self._news.set()

    def end(self) -> None:
        self._ended = True
        self._news.set()

    async def next(self) -> bytes | None:
        """None at the end."""
        while not self._messages:
            if self._ended:
                return None
            self._news.clear()
            await self._news.wait()
        message = self._messages.popleft()
        self._send(taken_frame(self._number, len(message)))
        return message
