"""Requests that clients got wrong, and what they leave behind: no entry, no ledger, no log that grows with them."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from bookgate.bookie.index.file_format import MAX_ENTRY_ID
from bookgate.bookie.protocol.refusal_log import RefusalLog
from bookgate.bookie.server import BookieServer
from bookgate.ledger.wire.messages import Request, Status
from bookgate.runtime.logs import Event
from tests.integration.bookie.entry_client import KEY, WRONG_KEY, EntryClient, add, fence, read
from tests.integration.bookie.in_process import entry_address, running_bookie

pytestmark = pytest.mark.asyncio

GAP = 1 << 36
"""The default."""


async def statuses(server: BookieServer, *wanted: Request) -> list[int]:
    def ask() -> list[int]:
        with EntryClient(entry_address(server)) as client:
            return [client.status(request) for request in wanted]

    return await asyncio.to_thread(ask)


async def test_an_entry_far_beyond_the_last_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    async with running_bookie(tmp_path) as server:
        far = [add(1, entry_id, key=WRONG_KEY) for entry_id in (GAP, MAX_ENTRY_ID, MAX_ENTRY_ID + 1)]
        assert set(await statuses(server, *far)) == {Status.EBADREQ}
        # Neither the first add nor a later one, whatever its kind.
        last = 1_000_000
        assert await statuses(server, add(1, last), add(1, last - 5), add(1, last + 100)) == [Status.EOK] * 3
        for recovery in (False, True):
            beyond = [add(1, last + 100 + GAP + 1, recovery=recovery), add(1, MAX_ENTRY_ID + 1, recovery=recovery)]
            assert await statuses(server, *beyond) == [Status.EBADREQ] * 2
        await asyncio.to_thread(server.storage.checkpoint)
        assert await asyncio.to_thread(lambda: [path.stat().st_size >> 20 for path in tmp_path.rglob("*.idx")]) == [7]
        assert await statuses(server, add(1, last + 100 + GAP)) == [Status.EOK]


async def test_the_distance_can_be_set_and_turned_off(tmp_path: Path) -> None:
    async with running_bookie(tmp_path, max_entry_gap=10) as server:
        adds = [add(1, 10), add(1, 9), add(1, 20), add(1, 19)]
        assert await statuses(server, *adds) == [Status.EBADREQ, Status.EOK, Status.EBADREQ, Status.EOK]
    async with running_bookie(tmp_path, max_entry_gap=0) as server:
        assert await statuses(server, add(1, MAX_ENTRY_ID)) == [Status.EOK]
    async with running_bookie(tmp_path, max_entry_gap=10) as server:
        # What was taken once stays, is replayed and served.
        assert await statuses(server, read(1, MAX_ENTRY_ID), add(1, 15)) == [Status.EOK, Status.EOK]


async def test_bad_requests_are_no_bugs_and_have_one_line_for_many(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_bookie(tmp_path) as server:
        bad: list[Request] = [add(1, MAX_ENTRY_ID + 1), add(2, 0, key=b"k" * 2000), fence(3, key=b"k" * 2000)]
        assert set(await statuses(server, *(bad * 50))) == {Status.EBADREQ}
        assert await statuses(server, add(1, 0)) == [Status.EOK]
    told = [
        record
        for record in caplog.records
        if record.name.startswith("bookgate.bookie.") and record.levelno > logging.INFO
    ]
    assert [record.msg.name for record in told if isinstance(record.msg, Event)] == ["request_refused"]
    assert not [record for record in caplog.records if record.exc_info]


async def test_the_log_of_refusals_counts_what_it_does_not_tell(caplog: pytest.LogCaptureFixture) -> None:
    now = [5.0]
    log = RefusalLog(lambda: now[0])
    for seconds in (0.0, 1.0, 50.0, 70.0, 71.0):
        now[0] = 5.0 + seconds
        log.tell("wrong", ledger=1)
    told = [record.msg.fields["others_before"] for record in caplog.records if isinstance(record.msg, Event)]
    assert told == [0, 2]


async def test_a_fence_of_an_id_that_nobody_made_yet_does_not_burn_it(tmp_path: Path) -> None:
    """Once garbage collection has removed it: nothing of it was ever here, nor in the metadata."""
    async with running_bookie(tmp_path) as server:
        for flushed in (False, True):
            fenced = await statuses(server, *(fence(number, key=WRONG_KEY) for number in range(5)))
            assert set(fenced) == {Status.ENOENTRY}
            if flushed:
                await asyncio.to_thread(server.storage.checkpoint)
            await asyncio.to_thread(server.storage.delete_ledgers, range(5))
        assert set(await statuses(server, *(add(number, 0) for number in range(5)))) == {Status.EOK}


@pytest.mark.parametrize("flushed", [False, True])
async def test_a_ledger_that_was_more_than_a_fence_is_remembered(tmp_path: Path, flushed: bool) -> None:
    """It held an entry, or a listing of the metadata had it."""
    async with running_bookie(tmp_path) as server:
        storage = server.storage
        await statuses(server, add(1, 0), *(fence(number, key=KEY) for number in (1, 2, 3, 4)))
        if flushed:
            await asyncio.to_thread(storage.checkpoint)
        storage.compared(0, [1, 2, 3, 4], [1, 3, 4])
        # It is gone from the metadata meanwhile.
        storage.compared(0, [1, 2, 3], [1, 2, 3])
        await asyncio.to_thread(storage.delete_ledgers, [1, 2, 3])
        late = await statuses(server, *(add(number, 1) for number in (1, 2, 3)))
        assert late == [Status.EFENCED, Status.EFENCED, Status.EOK]
