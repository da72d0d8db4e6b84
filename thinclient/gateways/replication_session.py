"""One session of auto-recovery: the lease under which one gateway holds locks and votes for this client.

States: opening → ready → over. A stream carries heartbeats, eight per lease, and reports changes. When it breaks,
another stream to the same gateway continues the session, as long as the lease runs. The lease is counted from the
sending of the last heartbeat that got a response, which is before the gateway received it. So this side considers the
session over before the gateway gives anything to another client.

Not its job: what is held, and the next session (`replication_claims`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

from grpc.aio import AioRpcError

from bookgate.protos.bookkeeper.common.v1.status_pb2 import StatusCode
from bookgate.protos.bookkeeper.gateway.v1 import replication_service_pb2 as wire
from bookgate.runtime.logs import log_bug
from bookgate.thinclient.gateways.failures import failure_in_words, unasked_cancellations
from bookgate.thinclient.gateways.gateway import Gateway

_LOG = logging.getLogger(__name__)

_OPEN_SECONDS = 5.0
"""Time for the first response of a gateway."""
_FIRST_HEARTBEAT_SECONDS = 1.0
_HEARTBEATS_A_LEASE = 8
_RETRY_SECONDS = 0.1

Take = Callable[[wire.AttendResponse], None]


class _Refused(Exception):
    """The gateway has ended the session, or does not open one."""


class RpcReplicationSession:
    """See the module. Begins at once, and ends by itself or with `close`."""

    def __init__(self, gateway: Gateway, session_id: str, take: Take, begins: Callable[[], None]) -> None:
        """`take` is called with each change that the gateway reports; `begins` is called before each stream, which
        repeats changes that an earlier one may have reported.
        """
        self.gateway = gateway
        self.session_id = session_id
        self._take = take
        self._begins = begins
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._sequence = 0
        self._sent: dict[int, float] = {}
        self._heartbeat = _FIRST_HEARTBEAT_SECONDS
        self._deadline = loop.time() + _OPEN_SECONDS
        self.ready: asyncio.Future[None] = loop.create_future()
        self.over: asyncio.Future[str] = loop.create_future()
        """Why the session has ended."""
        self.refused = False
        """The gateway does not open a session; `over` has its reason."""
        self._tasks = [loop.create_task(self._run()), loop.create_task(self._watch_lease())]

    def end(self, reason: str) -> None:
        """The session counts as over from now on."""
        for task in self._tasks:
            task.cancel()
        if not self.over.done():
            self.over.set_result(reason)
        self.ready.cancel()

    async def close(self) -> None:
        self.end("closed")
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self) -> None:
        resume, reason = False, ""
        try:
            while not reason or (self.ready.done() and self._loop.time() < self._deadline):
                try:
                    await self._attend(resume)
                    reason = "the stream ended"
                except AioRpcError as error:
                    reason = failure_in_words(self.gateway, "attend", error)
                resume = True
                await asyncio.sleep(_RETRY_SECONDS)
        except _Refused as refused:
            reason = str(refused)
        except Exception as error:  # callers that wait for the end would wait for ever
            log_bug(_LOG, "replication_session_failed", error, gateway=self.gateway.address)
            reason = str(error)
        self.end(reason)

    async def _attend(self, resume: bool) -> None:
        self._begins()
        with unasked_cancellations():
            call = self.gateway.replication.Attend(self._requests(resume))
            try:
                async for response in call:
                    self._hear(response)
            finally:
                call.cancel()

    def _hear(self, response: wire.AttendResponse) -> None:
        if response.code != StatusCode.SUCCESS:
            self.refused = response.code == StatusCode.ILLEGAL_OPERATION
            raise _Refused(response.message or StatusCode.Name(response.code))
        if response.draining:
            raise _Refused("it is about to stop")
        sent = self._sent.pop(response.sequence, None)
        if sent is None:
            self._take(response)
            return
        lease = response.lease_ms / 1000
        self._heartbeat = lease / _HEARTBEATS_A_LEASE
        self._deadline = max(self._deadline if self.ready.done() else 0.0, sent + lease)
        if not self.ready.done():
            self.ready.set_result(None)

    async def _requests(self, resume: bool) -> AsyncIterator[wire.AttendRequest]:
        yield self._next(wire.AttendRequest(session_id=self.session_id, resume=resume))
        # The first response contains the lease, which may be shorter than the interval until then.
        await asyncio.wait([self.ready], timeout=_FIRST_HEARTBEAT_SECONDS)
        while True:
            await asyncio.sleep(self._heartbeat)
            yield self._next(wire.AttendRequest())

    def _next(self, request: wire.AttendRequest) -> wire.AttendRequest:
        self._sequence += 1
        request.sequence = self._sequence
        self._sent[self._sequence] = self._loop.time()
        while len(self._sent) > 2 * _HEARTBEATS_A_LEASE:
            del self._sent[next(iter(self._sent))]
        return request

    async def _watch_lease(self) -> None:
        while True:
            left = self._deadline - self._loop.time()
            if left <= 0:
                self.end("the gateway was silent for a lease")
                return
            await asyncio.sleep(left)
