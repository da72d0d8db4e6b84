"""What one client can make a bookie hold: every request is answered (F7), and memory is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from bookgate.bookie.protocol import read_scheduler
from bookgate.bookie.protocol.connection import AcceptedConnection
from bookgate.bookie.server import BookieServer
from bookgate.bookie.storage.writer import EntryWriter
from bookgate.ledger.wire import messages
from bookgate.ledger.wire.messages import BatchReadRequest, ForceLedgerRequest, ReadRequest, Request, Status
from tests.integration.bookie.entry_client import (
    KEY,
    BinaryEntryClient,
    EntryClient,
    add,
    fence,
    lac_packet,
    packet,
    read,
)
from tests.integration.bookie.in_process import entry_address, running_bookie, until

pytestmark = pytest.mark.asyncio

MIB = 1 << 20
LEDGER = 4711
BOUND = 16 * MIB
"""What a connection may hold for a client that takes nothing: the write buffer's limit and one batch of reads."""


def written(client: EntryClient, ledger_id: int, entries: int, payload: bytes) -> None:
    for entry_id in range(entries):
        assert client.status(add(ledger_id, entry_id, payload)) == Status.EOK


def receive_all(client: EntryClient, count: int) -> list[messages.Response]:
    return [client.receive() for _ in range(count)]


def one_connection(server: BookieServer) -> AcceptedConnection:
    (connection,) = server.connections
    return connection


def held(connection: AcceptedConnection) -> int:
    """Bytes of answers that wait for the client."""
    return connection.answer_bytes_held


async def test_every_operation_is_answered_when_the_queue_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F7: the Java bookie closes the connection on half of these."""
    monkeypatch.setattr(read_scheduler, "MAX_PENDING_READS", 2)
    txn_ids = iter(range(1000, 9999))

    def wanted() -> list[Request]:
        return [
            read(1, 0),
            fence(2),
            messages.ReadLacRequest(next(txn_ids), 1),
            messages.ListEntriesRequest(next(txn_ids), 1),
            messages.GetBookieInfoRequest(next(txn_ids), 3),
            messages.ForceLedgerRequest(next(txn_ids), 1),
            messages.WriteLacRequest(next(txn_ids), 1, 0, KEY, lac_packet(1, 0)),
            ReadRequest(next(txn_ids), 1, -1, previous_lac=-5, timeout_ms=1000, piggyback=True),
            add(1, 1),
        ]

    async with running_bookie(tmp_path) as server:
        with EntryClient(entry_address(server)) as client:
            await asyncio.to_thread(written, client, 1, 1, b"x")
            sent = [request for _ in range(40) for request in wanted()]
            client.send(*sent)
            answers = await asyncio.to_thread(receive_all, client, len(sent))
            assert sorted(answer.txn_id for answer in answers) == sorted(request.txn_id for request in sent)
            refused = {type(answer) for answer in answers if answer.status == Status.ETOOMANYREQUESTS}
            assert refused == {messages.ReadResponse, messages.ReadLacResponse, messages.ListEntriesResponse}
            assert await asyncio.to_thread(client.status, read(1, 0)) == Status.EOK


async def silent_client(server: BookieServer, client: EntryClient, wanted: Sequence[Request]) -> None:
    """Sends much and takes nothing until the bookie is stuck with its answers; then takes them all."""
    sending = asyncio.create_task(asyncio.to_thread(client.send, *wanted))
    connection = one_connection(server)
    await until(lambda: not connection.takes_answers and not connection.reading)
    assert held(connection) < BOUND
    answers = await asyncio.to_thread(receive_all, client, len(wanted))
    await sending
    assert {answer.status for answer in answers} == {Status.EOK}


async def test_reads_of_a_client_that_takes_nothing(tmp_path: Path) -> None:
    async with running_bookie(tmp_path) as server:
        with EntryClient(entry_address(server)) as client:
            await asyncio.to_thread(written, client, 1, 1, bytes(64 * 1024))
            await silent_client(server, client, [read(1, 0) for _ in range(800)])


async def test_batch_reads_of_a_client_that_takes_nothing(tmp_path: Path) -> None:
    async with running_bookie(tmp_path) as server:
        with BinaryEntryClient(entry_address(server)) as client:
            await asyncio.to_thread(written, client, 1, 4, bytes(MIB))
            await silent_client(server, client, [BatchReadRequest(n, 1, 0, 0, 5 * MIB) for n in range(20)])


async def test_long_polls_of_a_client_that_takes_nothing(tmp_path: Path) -> None:
    async with running_bookie(tmp_path) as server:
        with EntryClient(entry_address(server)) as client:
            await asyncio.to_thread(written, client, 1, 2, bytes(64 * 1024))
            polls = [ReadRequest(n, 1, -1, previous_lac=0, timeout_ms=600_000, piggyback=True) for n in range(1, 801)]
            await silent_client(server, client, [*polls, add(1, 2)])


async def test_reads_of_high_priority_go_before_those_that_wait(tmp_path: Path) -> None:
    async with running_bookie(tmp_path) as server:
        with EntryClient(entry_address(server)) as client:
            await asyncio.to_thread(written, client, 1, 1, bytes(64 * 1024))
            urgent = read(1, 0)._replace(priority=messages.HIGH_PRIORITY)
            wanted = [*(read(1, 0) for _ in range(400)), urgent, fence(1, 0)]
            sending = asyncio.create_task(asyncio.to_thread(client.send, *wanted))
            await until(lambda: server.statistics.fences == 1 and len(one_connection(server).reads) > 60)
            answers = await asyncio.to_thread(receive_all, client, len(wanted))
            await sending
            order = [answer.txn_id for answer in answers]
            assert max(order.index(request.txn_id) for request in wanted[-2:]) < len(wanted) - 50, order


async def test_a_ledger_that_was_fenced_and_deleted(tmp_path: Path) -> None:
    async with running_bookie(tmp_path) as server:
        with EntryClient(entry_address(server)) as client:
            ask = client.ask
            await asyncio.to_thread(written, client, 1, 2, b"x")
            await asyncio.to_thread(ask, fence(1))
            poll = ReadRequest(1, 1, -1, previous_lac=5, timeout_ms=600_000, piggyback=True)
            client.send(poll)
            await until(lambda: server.long_polls.parked == 1)
            await asyncio.to_thread(server.storage.delete_ledgers, [1])
            assert await asyncio.to_thread(client.receive) == messages.ReadResponse(1, Status.ENOLEDGER, 1, -1)
            assert await asyncio.to_thread(client.status, add(1, 2)) == Status.EFENCED
            assert await asyncio.to_thread(client.status, fence(1)) == Status.ENOLEDGER
            assert await asyncio.to_thread(client.status, read(1, 0)) == Status.ENOLEDGER
            write = messages.WriteLacRequest(2, 1, 0, KEY, lac_packet(1, 0))
            assert await asyncio.to_thread(client.status, write) == Status.ENOLEDGER


async def test_a_repair_brings_a_fenced_and_deleted_ledger_back_and_its_writer_does_not(tmp_path: Path) -> None:
    async with running_bookie(tmp_path) as server:
        with EntryClient(entry_address(server)) as client:
            await asyncio.to_thread(written, client, 1, 2, b"x")
            await asyncio.to_thread(client.ask, fence(1))
            await asyncio.to_thread(server.storage.delete_ledgers, [1])
            assert await asyncio.to_thread(client.status, add(1, 1)) == Status.EFENCED
            assert await asyncio.to_thread(client.status, add(1, 1, recovery=True)) == Status.EOK
            assert await asyncio.to_thread(client.status, read(1, 1)) == Status.EOK
            assert await asyncio.to_thread(client.status, read(1, 0)) == Status.ENOENTRY
            assert await asyncio.to_thread(client.status, add(1, 2)) == Status.EFENCED
    async with running_bookie(tmp_path) as server:
        with EntryClient(entry_address(server)) as client:
            assert await asyncio.to_thread(client.status, add(1, 2)) == Status.EFENCED, "the fence is durable"
            assert await asyncio.to_thread(client.status, read(1, 1)) == Status.EOK


async def test_a_ledger_that_was_deleted_and_not_fenced_begins_anew(tmp_path: Path) -> None:
    async with running_bookie(tmp_path) as server:
        with EntryClient(entry_address(server)) as client:
            await asyncio.to_thread(written, client, 1, 2, b"x")
            await asyncio.to_thread(server.storage.delete_ledgers, [1])
            assert await asyncio.to_thread(client.status, read(1, 0)) == Status.ENOLEDGER
            assert await asyncio.to_thread(client.status, add(1, 5)) == Status.EOK
            answer = await asyncio.to_thread(client.ask, read(1, -1))
            assert isinstance(answer, messages.ReadResponse)
            assert answer.body == packet(1, 5)


async def test_a_bookie_without_space_keeps_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The write cache stays full until there is space again; fences and the reads behind them are served."""
    async with running_bookie(tmp_path) as server:
        await asyncio.to_thread(ask_all, server, [add(LEDGER, 0)])
        server._mode.out_of_space()
        monkeypatch.setattr(EntryWriter, "accepts_adds", False)
        requests_: list[Request] = [fence(LEDGER, 0), fence(LEDGER + 1), force(LEDGER), read(LEDGER, 0)]
        statuses = await asyncio.to_thread(ask_all, server, requests_)
        assert statuses == [Status.EOK, Status.ENOENTRY, Status.EOK, Status.EOK]


async def test_capacity_of_the_journal_is_none_of_the_write_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or every batch that the journal takes would let each connection add another buffer of entries."""
    async with running_bookie(tmp_path) as server:
        client = await asyncio.to_thread(EntryClient, entry_address(server))
        with client:
            monkeypatch.setattr(EntryWriter, "accepts_adds", False)
            assert await asyncio.to_thread(client.status, add(LEDGER, 0)) == Status.EOK
            (connection,) = server.connections
            assert connection.is_paused
            server.bridge.capacity_available()
            await asyncio.sleep(0)
            assert connection.is_paused
            monkeypatch.setattr(EntryWriter, "accepts_adds", True)
            server.bridge.capacity_available()
            await asyncio.sleep(0)
            assert not connection.is_paused


def ask_all(server: BookieServer, wanted: Sequence[Request]) -> list[int]:
    """Statuses of requests that are asked one by one on one connection."""
    with EntryClient(entry_address(server)) as client:
        return [client.status(request) for request in wanted]


def force(ledger_id: int) -> ForceLedgerRequest:
    return ForceLedgerRequest(1, ledger_id)
