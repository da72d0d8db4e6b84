"""The stream of changed ledgers keeps little for a client that sends and does not read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from bookgate.gateway.services.ledger_feed import LedgerFeedStream
from bookgate.protos.bookkeeper.gateway.v1.replication_service_pb2 import WatchLedgersRequest

pytestmark = pytest.mark.asyncio

SENT = 20_000


class Store:
    """Factory, store and feed in one."""

    @property
    def replication_metadata(self) -> Store:
        return self

    def watch_ledgers(self, listener: Any) -> Store:
        return self

    async def catch_up(self, revision: int | None = None) -> None:
        return

    async def revision(self) -> int:
        return 7

    def close(self) -> None:
        return


async def test_a_client_that_does_not_read_is_heard_no_further_and_answered_once_it_reads() -> None:
    taken = 0

    async def requests() -> AsyncIterator[WatchLedgersRequest]:
        nonlocal taken
        for sequence in range(1, SENT + 1):
            taken += 1
            yield WatchLedgersRequest(sequence=sequence)
            await asyncio.sleep(0)
        await asyncio.Event().wait()

    store: Any = Store()
    responses: Any = LedgerFeedStream(store).serve(requests())
    answered = list((await anext(responses)).answered)
    for _ in range(3 * SENT):
        await asyncio.sleep(0)
    assert taken - len(answered) <= 2000
    async with asyncio.timeout(20):
        while len(answered) < SENT:
            answered += (await anext(responses)).answered
    assert answered == list(range(1, SENT + 1))
    await responses.aclose()
