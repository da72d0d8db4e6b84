"""One Register stream to one gateway, with eight heartbeats per lease.

The bookie must leave it (`ended`) when it breaks, or when the gateway is silent for two heartbeats, has lost its store,
drains, or does not complete a request in time: within half a lease, which leaves the other half for another gateway,
or, while a bookie starts, within two leases, since an entry of its previous life must expire first. Unless it broke,
the stream stays open until it is closed.

Not its job: which gateway, and what is registered (`registration`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import NamedTuple

from grpc.aio import AioRpcError

from bookgate.protos.bookkeeper.common.v1.status_pb2 import StatusCode
from bookgate.protos.bookkeeper.gateway.v1 import registration_service_pb2 as wire
from bookgate.runtime.logs import log_bug
from bookgate.thinclient.gateways.failures import failure_in_words, unasked_cancellations
from bookgate.thinclient.gateways.gateway import Gateway

_LOG = logging.getLogger(__name__)

PATIENCE_LEASES = 0.5
"""Time that a gateway has for a request of a bookie whose lease runs, in leases."""

_FIRST_HEARTBEAT_SECONDS = 1.0
"""Heartbeat interval until the gateway has sent its lease duration."""

_HEARTBEATS_A_LEASE = 8
_SILENT_HEARTBEATS = 2

_REGISTERED = wire.RegistrationState.REGISTRATION_STATE_REGISTERED
_HELD = wire.RegistrationState.REGISTRATION_STATE_HELD_BY_ANOTHER
_UNREGISTERED = wire.RegistrationState.REGISTRATION_STATE_UNREGISTERED
_LEAVE = {
    wire.RegistrationState.REGISTRATION_STATE_SUSPENDED: "it has lost its metadata store",
    wire.RegistrationState.REGISTRATION_STATE_DRAINING: "it is about to stop",
}

_Outgoing = asyncio.Queue[wire.RegisterRequest | None]


class Refused(Exception):
    """The gateway's final rejection of a registration: its code and message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class _Waiting(NamedTuple):
    """A request that the gateway has not completed: since when, and for how many leases that is acceptable."""

    done: asyncio.Future[None]
    since: float
    patience: float


class RegisterStream:
    """One Register stream. Runs until it breaks, is rejected or closed."""

    def __init__(self, gateway: Gateway, first: wire.RegisterRequest, patience: float) -> None:
        """`patience`: how many leases the first request may take."""
        self.gateway = gateway
        self._loop = asyncio.get_running_loop()
        self._outgoing: _Outgoing = asyncio.Queue()
        self._sequence = first.sequence
        self._heartbeat = _FIRST_HEARTBEAT_SECONDS
        self._asked: float | None = None
        """Since when a heartbeat has been waiting for a response."""
        self._waiting: dict[int, _Waiting] = {}
        self._over = False
        self.ended: asyncio.Future[str] = self._loop.create_future()
        """Why the stream must be left; it may still be open."""
        self.registered = self._expect(first, patience)
        self._call = gateway.registration.Register(self._requests())
        self._tasks = [self._loop.create_task(self._read()), self._loop.create_task(self._beat())]

    async def change(self, request: wire.RegisterRequest) -> None:
        """Sends a request other than the first; returns once the gateway has completed it. Raises ConnectionError."""
        if self._over:
            raise ConnectionError(self.ended.result())
        self._sequence += 1
        request.sequence = self._sequence
        await self._expect(request, PATIENCE_LEASES)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._end("closed")
        self._call.cancel()
        self._outgoing.put_nowait(None)

    def _expect(self, request: wire.RegisterRequest, patience: float) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting[request.sequence] = _Waiting(future, self._loop.time(), patience)
        self._outgoing.put_nowait(request)
        return future

    async def _requests(self) -> AsyncIterator[wire.RegisterRequest]:
        while (request := await self._outgoing.get()) is not None:
            yield request

    async def _read(self) -> None:
        reason = "the stream ended"
        try:
            with unasked_cancellations():
                async for response in self._call:
                    self._asked = None
                    self._take(response)
        except AioRpcError as error:
            reason = failure_in_words(self.gateway, "register the bookie", error)
        except Refused as refused:
            self._fail(refused)
            reason = str(refused)
        except Exception as error:  # the task that keeps the bookie registered waits for the end of this stream
            log_bug(_LOG, "registration_stream_failed", error, gateway=self.gateway.address)
            reason = str(error)
        self._end(reason)

    def _take(self, response: wire.RegisterResponse) -> None:
        if response.lease_ms > 0:
            self._heartbeat = response.lease_ms / 1000 / _HEARTBEATS_A_LEASE
        if response.code != StatusCode.SUCCESS or response.state == _HELD:
            raise Refused(response.code, response.message)
        if response.state in _LEAVE:
            self._leave(_LEAVE[response.state])
        if response.state in (_REGISTERED, _UNREGISTERED):
            waiting = self._waiting.pop(response.sequence, None)
            if waiting is not None and not waiting.done.done():
                waiting.done.set_result(None)

    async def _beat(self) -> None:
        """Sends heartbeats, and ends the stream if the gateway no longer responds to them."""
        while True:
            await asyncio.sleep(self._heartbeat)
            now = self._loop.time()
            if self._asked is None:
                self._asked = now
            silence = now - self._asked
            if silence > _SILENT_HEARTBEATS * self._heartbeat:
                self._end(f"silent for {silence:.1f} s")
                self._tasks[0].cancel()
                return
            self._sequence += 1
            self._outgoing.put_nowait(wire.RegisterRequest(sequence=self._sequence))
            lease = self._heartbeat * _HEARTBEATS_A_LEASE
            if any(now - waiting.since > waiting.patience * lease for waiting in self._waiting.values()):
                self._leave("it answers, and does not get the bookie registered")

    def _leave(self, reason: str) -> None:
        """Marks the stream to be left; it stays open until another one has the bookie."""
        if not self.ended.done():
            self.ended.set_result(reason)

    def _end(self, reason: str) -> None:
        self._over = True
        self._leave(reason)
        self._fail(ConnectionError(reason))

    def _fail(self, error: Exception) -> None:
        for waiting in self._waiting.values():
            if not waiting.done.done():
                waiting.done.set_exception(error)
                # A sender need not wait for the response.
                waiting.done.exception()
        self._waiting.clear()
