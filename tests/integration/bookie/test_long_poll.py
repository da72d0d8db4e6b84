"""Long polls against a real bookie, seen from the wire.

A poll and what wakes it go over one connection, which the bookie serves in order: the poll is parked by then.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from bookgate.bookie.protocol import long_polls
from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.ledger.wire import messages
from bookgate.ledger.wire.messages import ReadRequest, ReadResponse, Status
from tests.integration.bookie.entry_client import KEY, EntryClient, add, fence, lac_packet, packet
from tests.integration.bookie.in_process import entry_address, running_bookie, until

FOR_EVER_MS = 10 * 60 * 1000
_ledger_ids = itertools.count(3_000_000)
_txn_ids = itertools.count(1 << 40)


@pytest.fixture
def ledger_id() -> int:
    return next(_ledger_ids)


@pytest.fixture
def bookie(standalone_cluster: StandaloneCluster) -> Iterator[EntryClient]:
    with EntryClient(standalone_cluster.bookies[0]) as client:
        yield client


def poll(
    ledger_id: int,
    previous_lac: int,
    timeout_ms: int | None = FOR_EVER_MS,
    *,
    entry_id: int = -1,
    piggyback: bool = True,
) -> ReadRequest:
    txn_id = next(_txn_ids)
    return ReadRequest(
        txn_id, ledger_id, entry_id, previous_lac=previous_lac, timeout_ms=timeout_ms, piggyback=piggyback
    )


def answers(client: EntryClient, count: int) -> dict[int, messages.Response]:
    return {answer.txn_id: answer for answer in (client.receive() for _ in range(count))}


def written(client: EntryClient, ledger_id: int, entries: int) -> None:
    """Adds entries 0, 1, …: the LAC is two below their number."""
    for entry_id in range(entries):
        assert client.status(add(ledger_id, entry_id)) == Status.EOK


def test_a_lac_that_has_passed_is_answered_at_once_with_the_next_entry(bookie: EntryClient, ledger_id: int) -> None:
    written(bookie, ledger_id, 5)
    request = poll(ledger_id, 1)
    assert bookie.ask(request) == ReadResponse(request.txn_id, 0, ledger_id, 2, packet(ledger_id, 2), 3, None)


def test_an_add_wakes(bookie: EntryClient, ledger_id: int) -> None:
    written(bookie, ledger_id, 3)
    request, wakes = poll(ledger_id, 1), add(ledger_id, 3)
    bookie.send(request, wakes)
    got = answers(bookie, 2)
    assert got[wakes.txn_id].status == Status.EOK
    answer = got[request.txn_id]
    assert isinstance(answer, ReadResponse)
    assert answer[1:6] == (Status.EOK, ledger_id, 2, packet(ledger_id, 2), 2)
    assert answer.lac_update_timestamp_ms is not None
    assert answer.lac_update_timestamp_ms > 1_600_000_000_000


def test_a_lac_that_grows_too_little_does_not_lose_the_waiter(bookie: EntryClient, ledger_id: int) -> None:
    """F8: the Java bookie answers this one at its timeout."""
    written(bookie, ledger_id, 3)
    request = poll(ledger_id, 2)
    bookie.send(request, add(ledger_id, 3))
    assert isinstance(bookie.receive(), messages.AddResponse)
    bookie.send(add(ledger_id, 4))
    polled = [answer for answer in answers(bookie, 2).values() if isinstance(answer, ReadResponse)]
    assert [answer[:6] for answer in polled] == [
        (request.txn_id, Status.EOK, ledger_id, 3, packet(ledger_id, 3), 3),
    ]


def test_the_next_entry_may_be_on_other_bookies(bookie: EntryClient, ledger_id: int) -> None:
    assert bookie.status(add(ledger_id, 0)) == Status.EOK
    request = poll(ledger_id, 0)
    bookie.send(request, add(ledger_id, 5))
    answer = answers(bookie, 2)[request.txn_id]
    assert isinstance(answer, ReadResponse)
    assert answer[1:6] == (Status.EOK, ledger_id, -1, None, 4)


def test_an_explicit_lac_wakes(bookie: EntryClient, ledger_id: int) -> None:
    written(bookie, ledger_id, 3)
    request = poll(ledger_id, 1)
    bookie.send(request, messages.WriteLacRequest(7, ledger_id, 2, KEY, lac_packet(ledger_id, 2)))
    answer = answers(bookie, 2)[request.txn_id]
    assert isinstance(answer, ReadResponse)
    assert answer[1:6] == (Status.EOK, ledger_id, 2, packet(ledger_id, 2), 2)


def test_a_fence_wakes_and_is_no_news_of_the_lac(bookie: EntryClient, ledger_id: int) -> None:
    written(bookie, ledger_id, 3)
    request, fences = poll(ledger_id, 1), fence(ledger_id)
    bookie.send(request, fences)
    answer = answers(bookie, 2)[request.txn_id]
    assert answer == ReadResponse(request.txn_id, Status.EOK, ledger_id, -1, None, 1, None)


def test_a_fenced_ledger_is_waited_for_like_any_other(bookie: EntryClient, ledger_id: int) -> None:
    written(bookie, ledger_id, 3)
    bookie.ask(fence(ledger_id))
    request = poll(ledger_id, 1)
    bookie.send(request, fence(ledger_id))
    assert bookie.receive().txn_id != request.txn_id
    bookie.send(add(ledger_id, 3, recovery=True))
    assert request.txn_id in answers(bookie, 2)


@pytest.mark.parametrize("timeout_ms", [30, 0, -5, None])
def test_the_timeout_is_no_error(bookie: EntryClient, ledger_id: int, timeout_ms: int | None) -> None:
    written(bookie, ledger_id, 3)
    request = poll(ledger_id, 1, timeout_ms)
    assert bookie.ask(request) == ReadResponse(request.txn_id, Status.EOK, ledger_id, -1, None, 1, None)


def test_without_piggyback_it_is_a_read_that_waits(bookie: EntryClient, ledger_id: int) -> None:
    written(bookie, ledger_id, 3)
    request = poll(ledger_id, 1, entry_id=0, piggyback=False)
    bookie.send(request, add(ledger_id, 3))
    answer = answers(bookie, 2)[request.txn_id]
    assert answer == ReadResponse(request.txn_id, Status.EOK, ledger_id, 0, packet(ledger_id, 0), 2, None)


def test_refusals(bookie: EntryClient, ledger_id: int) -> None:
    assert bookie.status(poll(ledger_id, -1)) == Status.ENOLEDGER
    assert bookie.status(poll(ledger_id, -1, None)) == Status.ENOLEDGER
    assert bookie.status(poll(ledger_id, -1, entry_id=0)) == Status.EBADREQ
    assert bookie.status(fence(ledger_id)) == Status.ENOENTRY
    assert bookie.status(poll(ledger_id, -1, 20)) == Status.ENOENTRY


def test_fence_goes_before_long_poll(bookie: EntryClient, ledger_id: int) -> None:
    written(bookie, ledger_id, 1)
    both = fence(ledger_id)._replace(previous_lac=5, timeout_ms=FOR_EVER_MS)
    assert bookie.status(both) == Status.EOK
    assert bookie.status(add(ledger_id, 1)) == Status.EFENCED


@pytest.mark.asyncio
async def test_the_lac_on_disk_is_loaded_first(tmp_path: Path) -> None:
    """The Java bookie parks such a request until its timeout."""
    async with running_bookie(tmp_path) as server:
        with EntryClient(entry_address(server)) as client:
            await asyncio.to_thread(written, client, 9, 4)
    async with running_bookie(tmp_path) as server:
        with EntryClient(entry_address(server)) as client:
            request = poll(9, 1)
            answer = await asyncio.to_thread(client.ask, request)
            assert answer == ReadResponse(request.txn_id, Status.EOK, 9, 2, packet(9, 2), 2, None)


@pytest.mark.asyncio
async def test_every_poll_is_answered_also_those_that_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F7."""
    monkeypatch.setattr(long_polls, "MAX_PARKED", 3)
    async with running_bookie(tmp_path) as server:
        with EntryClient(entry_address(server)) as client:
            await asyncio.to_thread(written, client, 9, 2)
            client.send(*(poll(9, 0) for _ in range(5)))
            refused = [await asyncio.to_thread(client.receive) for _ in range(2)]
            assert [answer.status for answer in refused] == [Status.ETOOMANYREQUESTS] * 2
            client.send(add(9, 2))
            rest = await asyncio.to_thread(answers, client, 4)
            assert [answer.status for answer in rest.values()] == [Status.EOK] * 4


@pytest.mark.asyncio
async def test_a_client_that_goes_away_takes_its_polls_along(tmp_path: Path) -> None:
    async with running_bookie(tmp_path) as server:
        with EntryClient(entry_address(server)) as stays:
            await asyncio.to_thread(written, stays, 9, 2)
            with EntryClient(entry_address(server)) as client:
                client.send(poll(9, 0), poll(9, 0), messages.ForceLedgerRequest(1, 9))
                await asyncio.to_thread(client.receive)
                assert server.long_polls.parked == 2
            await until(lambda: server.long_polls.parked == 0)
            assert await asyncio.to_thread(stays.status, add(9, 2)) == Status.EOK
