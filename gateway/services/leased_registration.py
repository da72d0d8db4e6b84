"""One bookie's leased registration at this gateway, the responses for its stream, and its lines in the audit trail.

The rules are in the service.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import StrEnum

from bookgate.gateway.services.caller import Caller, caller
from bookgate.ledger.bookie_info import BookieServiceInfo, Lease
from bookgate.protos.bookkeeper.gateway.v1 import registration_service_pb2 as pb
from bookgate.runtime.security.actions import Action
from bookgate.runtime.security.decision import Resource

_MOST_ANSWERS = 100
"""Maximum number of responses waiting for the bookie; further requests are read only when fewer are waiting."""


class Outcome(StrEnum):
    """The outcome of a registration in the audit trail; its end has no status code."""

    REGISTERED = "REGISTERED"
    """The store has the registration, or its changed endpoints or mode."""
    REFUSED = "HELD_BY_ANOTHER"
    UNREGISTERED = "UNREGISTERED"
    LOST = "LOST"
    """The bookie sent nothing for the duration of a lease."""


class Answers:
    """The responses queued for one stream; None ends it."""

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
        """Returns once the bookie has received enough of the queued responses."""
        await self._room.wait()


@dataclass(eq=False)
class LeasedRegistration:
    """One lease of a bookie, as opened by one stream."""

    bookie_id: str
    lease: Lease
    answers: Answers
    expires: float
    wanted: tuple[int, BookieServiceInfo, bool]
    """The newest request: sequence number, info, read-only."""
    done: int = 0
    """Sequence number of the newest request that the store has."""
    over: bool = False
    """The registration is ending; no further request revives it."""
    refusal: str = "the lease is over"
    worker: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the registration holds nothing in the store: dropped, replaced or rejected."""
    who: Caller | None = field(default_factory=caller)
    """The caller whose stream opened it; None in a gateway without security."""

    @property
    def registered(self) -> bool:
        return self.done == self.wanted[0]

    def write_down(self, outcome: str, seconds: float = 0.0) -> None:
        """Writes a line to the audit trail; `seconds` is the duration of the store's work."""
        if self.who is not None:
            self.who.done(Action.BOOKIE_REGISTER, Resource(bookie_id=self.bookie_id), outcome, seconds)
