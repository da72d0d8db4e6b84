"""Deduplicates requests that carry a token: a repeated request gets the response of the first one.

A key consists of method, token and content. A repetition that arrives while the first request is in progress waits for
its response. The work continues when its caller has gone, because that is exactly when a repetition follows; it does so
for a request without a token too, since what the store was asked for happens all the same, and quotas and the audit
trail must learn of it. Only successes are remembered: a rejected request changed nothing, and a repetition finds the
same state or a better one. A Create with a generated id whose outcome is unknown is remembered too: running it again
could create a second ledger, so a retry gets the same unknown outcome. The memory is bounded in entries, bytes and
time, and belongs to this gateway alone. Every gateway recognises a Create of a given id, because its token is stored
with the ledger. A Write, or a Create with a generated id, is not recognised at another gateway. The Write then fails on
its version with the current state in the response, in which the caller finds its own change; for such a Create nobody
can tell.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from bookgate.ledger.errors import BKException, UnknownOutcomeException
from bookgate.protos.bookkeeper.common.v1.status_pb2 import StatusCode
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2 import (
    LedgerMetadataRequest,
    LedgerMetadataResponse,
)

_SECONDS_KEPT = 600.0
_MOST_REQUESTS = 50_000
_MOST_BYTES = 16 * 1024 * 1024
_MOST_UNKNOWN = 1_000


Outcome = LedgerMetadataResponse | BKException

Work = Callable[[Sequence[LedgerMetadataRequest]], Awaitable[Sequence[Outcome]]]
"""Executes requests and returns one response or exception per request, in order. Raises an exception that holds for
all.
"""

_Answer = LedgerMetadataResponse | asyncio.Future[LedgerMetadataResponse]


class _New(NamedTuple):
    key: bytes | None
    request: LedgerMetadataRequest
    answer: asyncio.Future[LedgerMetadataResponse]


class _Answered(NamedTuple):
    response: bytes
    at: float


class RequestDeduplicator:
    """The deduplicator; see the module. One per gateway, on one event loop."""

    def __init__(
        self,
        seconds_kept: float = _SECONDS_KEPT,
        most_requests: int = _MOST_REQUESTS,
        most_bytes: int = _MOST_BYTES,
    ) -> None:
        self._seconds_kept = seconds_kept
        self._most_requests = most_requests
        self._most_bytes = most_bytes
        self._answered: OrderedDict[bytes, _Answered] = OrderedDict()
        self._bytes = 0
        self._under_way: dict[bytes, asyncio.Future[LedgerMetadataResponse]] = {}
        self._unknown: OrderedDict[bytes, str] = OrderedDict()
        """The texts of the errors: an exception would keep its frames alive, and with them the request's metadata."""
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._answered)

    async def run_once(self, method: str, request: LedgerMetadataRequest, work: Work) -> LedgerMetadataResponse:
        """Returns the response of `work`, which runs only if the same request was neither completed nor in progress
        before.
        """
        (outcome,) = await self.run_once_each(method, [request], work)
        if isinstance(outcome, BKException):
            raise outcome
        return outcome

    async def run_once_each(self, method: str, requests: Sequence[LedgerMetadataRequest], work: Work) -> list[Outcome]:
        """Like `run_once` for many requests: `work` gets the new ones and responds in their order, a failure as its
        exception.
        """
        answers: list[_Answer] = []
        new: list[_New] = []
        for request in requests:
            key = _key(method, request) if request.request_token else None
            answer = self._known(key) or self._under_way.get(key) or self._still_unknown(key) if key else None
            if answer is None:
                answer = asyncio.get_running_loop().create_future()
                answer.add_done_callback(_nobody_may_wait)
                new.append(_New(key, request, answer))
                if key is not None:
                    self._under_way[key] = answer
            answers.append(answer)
        if new:
            task = asyncio.get_running_loop().create_task(self._work(new, work))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return [await _outcome(a) if isinstance(a, asyncio.Future) else a for a in answers]

    def knows(self, method: str, request: LedgerMetadataRequest) -> bool:
        """Whether `run_once` would not execute the request again."""
        if not request.request_token:
            return False
        key = _key(method, request)
        self._forget_old()
        return key in self._answered or key in self._under_way or key in self._unknown

    async def _work(self, new: Sequence[_New], work: Work) -> None:
        try:
            responses = await work([item.request for item in new])
        except BaseException as error:
            for item in new:
                item.answer.set_exception(error)
                if isinstance(error, UnknownOutcomeException):
                    self._keep_unknown(item, error)
            if not isinstance(error, Exception):
                raise
        else:
            for item, response in zip(new, responses, strict=True):
                if isinstance(response, BKException):
                    item.answer.set_exception(response)
                    if isinstance(response, UnknownOutcomeException):
                        self._keep_unknown(item, response)
                    continue
                if item.key is not None and response.code == StatusCode.SUCCESS:
                    self._keep(item.key, response.SerializeToString())
                item.answer.set_result(response)
        finally:
            for item in new:
                if item.key is not None:
                    self._under_way.pop(item.key, None)

    def _keep_unknown(self, item: _New, error: UnknownOutcomeException) -> None:
        if item.key is None or item.request.HasField("ledger_id"):
            return
        self._unknown[item.key] = str(error)
        while len(self._unknown) > _MOST_UNKNOWN:
            self._unknown.popitem(last=False)

    def _still_unknown(self, key: bytes) -> asyncio.Future[LedgerMetadataResponse] | None:
        if key not in self._unknown:
            return None
        answer: asyncio.Future[LedgerMetadataResponse] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(_nobody_may_wait)
        answer.set_exception(UnknownOutcomeException(self._unknown[key]))
        return answer

    def _known(self, key: bytes) -> LedgerMetadataResponse | None:
        self._forget_old()
        answered = self._answered.get(key)
        return None if answered is None else LedgerMetadataResponse.FromString(answered.response)

    def _keep(self, key: bytes, response: bytes) -> None:
        self._answered[key] = _Answered(response, asyncio.get_running_loop().time())
        self._bytes += len(response)
        while len(self._answered) > self._most_requests or self._bytes > self._most_bytes:
            self._forget_oldest()

    def _forget_old(self) -> None:
        oldest_kept = asyncio.get_running_loop().time() - self._seconds_kept
        while self._answered and next(iter(self._answered.values())).at < oldest_kept:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        _, answered = self._answered.popitem(last=False)
        self._bytes -= len(answered.response)
        assert self._bytes >= 0, "what is forgotten was counted"


def _key(method: str, request: LedgerMetadataRequest) -> bytes:
    content = LedgerMetadataRequest()
    content.CopyFrom(request)
    # The revision that the client has seen meanwhile does not make it another request.
    content.ClearField("min_revision")
    return hashlib.sha256(method.encode() + b"\0" + content.SerializeToString(deterministic=True)).digest()


async def _outcome(answer: asyncio.Future[LedgerMetadataResponse]) -> Outcome:
    try:
        return await asyncio.shield(answer)
    except BKException as error:
        return error


def _nobody_may_wait(answer: asyncio.Future[LedgerMetadataResponse]) -> None:
    """Retrieves the exception of a response whose callers have all gone, so that asyncio does not report it."""
    if not answer.cancelled():
        answer.exception()
