"""Answers that a bookie does not take."""

from __future__ import annotations

import asyncio

import pytest

from bookgate.gateway.services.leased_registration import Answers
from bookgate.protos.bookkeeper.gateway.v1 import registration_service_pb2 as pb

pytestmark = pytest.mark.asyncio


async def test_a_bookie_that_takes_no_answers_is_asked_nothing_more_until_it_does() -> None:
    answers, read = Answers(), 0

    async def serve() -> None:
        nonlocal read
        while read < 1_000:
            await answers.room()
            read += 1
            answers.put(pb.RegisterResponse(sequence=read))

    serving = asyncio.create_task(serve())
    for _ in range(3):
        await asyncio.sleep(0)
    waiting = read
    assert 0 < waiting < 1_000
    for number in range(1, 51):
        answer = await answers.get()
        assert answer is not None
        assert answer.sequence == number
        await asyncio.sleep(0)
    assert read <= waiting + 50
    serving.cancel()
