"""One bookie's registration by lease at this gateway, and what its stream is told. The rules are the service's."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from bookgate.ledger.bookie_info import BookieServiceInfo, Lease
from bookgate.protos.bookkeeper.gateway.v1 import registration_service_pb2 as pb

_MOST_ANSWERS = 100
"""That wait for a bookie to take them; its next requests wait until there are fewer."""


class Answers:
    """What one stream is to be told; None ends it."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[pb.RegisterResponse | None] = asyncio.Queue()
        self._room = asyncio.Event()
        self._room.set()

    def put(self, answer: pb.RegisterResponse | None) -> None:
        self._queue.put_nowait(answer)
        if self._queue.qsize() >= _MOST_ANSWERS:
            self._room.clear()

    async def get(self) -> pb.RegisterResponse | None:
        answer = await self._queue.get()
        if self._queue.qsize() < _MOST_ANSWERS:
            self._room.set()
        return answer

    async def room(self) -> None:
        """Returns once the bookie has taken enough of what it was told."""
        await self._room.wait()


@dataclass(eq=False)
class LeasedRegistration:
    """One lease of a bookie, as a stream has opened it."""

    bookie_id: str
    lease: Lease
    answers: Answers
    expires: float
    wanted: tuple[int, BookieServiceInfo, bool]
    """Sequence number, info, read-only: the newest request."""
    done: int = 0
    """The sequence number of the newest request that is in the store."""
    over: bool = False
    """On its way out: no request revives it."""
    refusal: str = "the lease is over"
    worker: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once it holds nothing any more: dropped, replaced or refused."""

    @property
    def registered(self) -> bool:
        return self.done == self.wanted[0]
