"""A request that comes again with its token is answered as the first time."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from weakref import WeakSet

import pytest

from bookgate.gateway.services.request_dedup import Outcome, RequestDeduplicator
from bookgate.ledger.errors import MetaStoreException, UnknownOutcomeException
from bookgate.protos.bookkeeper.common.v1.status_pb2 import StatusCode
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2 import (
    LedgerMetadataRequest,
    LedgerMetadataResponse,
)

pytestmark = pytest.mark.asyncio


class Work:
    """Answers each request with the next ledger id."""

    def __init__(self, code: StatusCode = StatusCode.SUCCESS) -> None:
        self.done = 0
        self.code = code
        self.begun = asyncio.Event()
        self.open = asyncio.Event()
        self.open.set()
        self.error: Exception | None = None

    async def __call__(self, requests: Sequence[LedgerMetadataRequest]) -> list[Outcome]:
        self.begun.set()
        await self.open.wait()
        if self.error is not None:
            raise self.error
        answers: list[Outcome] = []
        for _ in requests:
            self.done += 1
            answers.append(LedgerMetadataResponse(code=self.code, ledger_id=self.done))
        return answers


def request(token: bytes, **fields: int) -> LedgerMetadataRequest:
    return LedgerMetadataRequest(request_token=token, **fields)  # type: ignore[arg-type]


async def test_same_request_again_is_answered_as_the_first_time() -> None:
    tokens, work = RequestDeduplicator(), Work()
    first = await tokens.run_once("Create", request(b"a"), work)
    again = await tokens.run_once("Create", request(b"a", min_revision=77), work)
    assert first == again
    assert work.done == 1


async def test_other_token_content_or_method_is_another_request() -> None:
    tokens, work = RequestDeduplicator(), Work()
    for method, other in (
        ("Create", request(b"a")),
        ("Create", request(b"b")),
        ("Write", request(b"a")),
        ("Write", request(b"a", expected_version=1)),
    ):
        await tokens.run_once(method, other, work)
    assert work.done == 4


async def test_without_a_token_nothing_is_kept() -> None:
    tokens, work = RequestDeduplicator(), Work()
    for _ in range(2):
        await tokens.run_once("Create", LedgerMetadataRequest(), work)
    assert work.done == 2
    assert len(tokens) == 0


async def test_repeat_while_the_first_is_under_way_waits_for_it() -> None:
    tokens, work = RequestDeduplicator(), Work()
    work.open.clear()
    calls = [asyncio.ensure_future(tokens.run_once("Write", request(b"a"), work)) for _ in range(3)]
    await work.begun.wait()
    work.open.set()
    assert [answer.ledger_id for answer in await asyncio.gather(*calls)] == [1, 1, 1]
    assert work.done == 1


async def test_work_goes_on_when_its_caller_has_gone() -> None:
    tokens, work = RequestDeduplicator(), Work()
    work.open.clear()
    lost = asyncio.ensure_future(tokens.run_once("Create", request(b"a"), work))
    await work.begun.wait()
    lost.cancel()
    again = asyncio.ensure_future(tokens.run_once("Create", request(b"a"), work))
    work.open.set()
    assert (await again).ledger_id == 1
    assert work.done == 1


async def test_work_without_a_token_goes_on_when_its_caller_has_gone() -> None:
    tokens, work = RequestDeduplicator(), Work()
    work.open.clear()
    lost = asyncio.ensure_future(tokens.run_once("Create", LedgerMetadataRequest(), work))
    await work.begun.wait()
    lost.cancel()
    with pytest.raises(asyncio.CancelledError):
        await lost
    work.open.set()
    await tokens.run_once("Create", LedgerMetadataRequest(), work)
    assert work.done == 2, "the first one was carried out too, though nobody waited for it"


async def test_refusals_and_failures_are_tried_again() -> None:
    tokens, work = RequestDeduplicator(), Work(StatusCode.BAD_VERSION)
    assert (await tokens.run_once("Write", request(b"a"), work)).code == StatusCode.BAD_VERSION
    work.error = MetaStoreException("away")
    with pytest.raises(MetaStoreException):
        await tokens.run_once("Write", request(b"a"), work)
    work.error, work.code = None, StatusCode.SUCCESS
    assert (await tokens.run_once("Write", request(b"a"), work)).code == StatusCode.SUCCESS


async def test_batch_asks_only_for_what_is_new() -> None:
    tokens, work = RequestDeduplicator(), Work()
    first = await tokens.run_once("Create", request(b"a"), work)
    answers = await tokens.run_once_each(
        "Create", [request(b"b"), request(b"a"), LedgerMetadataRequest(), request(b"b")], work
    )
    assert [answer.ledger_id for answer in answers] == [2, first.ledger_id, 3, 2]
    assert work.done == 3


@pytest.mark.parametrize(
    "tokens", [RequestDeduplicator(most_requests=2), RequestDeduplicator(most_bytes=4)], ids=["number", "bytes"]
)
async def test_what_is_kept_is_bounded(tokens: RequestDeduplicator) -> None:
    work = Work()
    for number in range(10):
        await tokens.run_once("Create", request(b"%d" % number), work)
    assert 0 < len(tokens) <= 2
    await tokens.run_once("Create", request(b"9"), work)
    assert work.done == 10
    await tokens.run_once("Create", request(b"0"), work)
    assert work.done == 11


async def test_old_answers_are_forgotten() -> None:
    tokens, work = RequestDeduplicator(seconds_kept=-1), Work()
    for _ in range(2):
        await tokens.run_once("Create", request(b"a"), work)
    assert work.done == 2


async def test_the_outcome_of_one_of_a_batch_that_is_not_known_stays_so() -> None:
    """The same batch again made its ledger anew: as many as there were attempts."""

    class SomeUnknown(Work):
        async def __call__(self, requests: Sequence[LedgerMetadataRequest]) -> list[Outcome]:
            answers: list[Outcome] = list(await super().__call__(requests))
            return [
                UnknownOutcomeException("lost") if each.request_token == b"lost" else answer
                for each, answer in zip(requests, answers, strict=True)
            ]

    tokens, work = RequestDeduplicator(), SomeUnknown()
    batch = [request(b"a"), request(b"lost"), request(b"b")]
    first = await tokens.run_once_each("Create", batch, work)
    again = await tokens.run_once_each("Create", batch, work)
    assert work.done == 3
    for outcomes in (first, again):
        assert isinstance(outcomes[1], UnknownOutcomeException)
    assert (first[0], first[2]) == (again[0], again[2])
    with pytest.raises(UnknownOutcomeException, match="lost"):
        await tokens.run_once("Create", request(b"lost"), work)


class Held:
    """What a failing call holds in its frame, for instance the metadata of a request."""


async def test_of_an_unknown_outcome_nothing_is_kept_but_the_text() -> None:
    tokens, held = RequestDeduplicator(), WeakSet[Held]()

    async def create(requests: Sequence[LedgerMetadataRequest]) -> list[Outcome]:
        metadata = Held()
        held.add(metadata)
        if requests[0].request_token == b"alone":
            raise UnknownOutcomeException("the answer was lost")
        try:
            raise UnknownOutcomeException("the answer was lost")
        except UnknownOutcomeException as error:
            return [error]

    for token in (b"alone", b"one of a batch"):
        with pytest.raises(UnknownOutcomeException):
            await tokens.run_once("Create", request(token), create)
    # The task that did the work ends, and the loop forgets it.
    for _ in range(3):
        await asyncio.sleep(0)
    gc.collect()
    assert not held
    for token in (b"alone", b"one of a batch"):
        with pytest.raises(UnknownOutcomeException, match="the answer was lost"):
            await tokens.run_once("Create", request(token), Work())
