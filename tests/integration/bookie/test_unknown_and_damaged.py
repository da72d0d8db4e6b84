"""What a bookie can't know or can't read is told so, by every operation: never as an entry that does not exist (S3)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bookgate.bookie.server import BookieServer
from bookgate.bookie.storage.closed_before import closed_before
from bookgate.bookie.system.files import REAL_FILE_SYSTEM
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.ledger_numbers import LedgerNumbers
from bookgate.ledger.wire.messages import (
    BatchReadRequest,
    ReadLacRequest,
    ReadRequest,
    ReadResponse,
    Request,
    Status,
    WriteLacRequest,
)
from tests.integration.bookie.entry_client import BinaryEntryClient, EntryClient, add, fence, lac_packet, packet, read
from tests.integration.bookie.in_process import entry_address, running_bookie

pytestmark = pytest.mark.asyncio

LEDGER = 17


def long_poll(previous_lac: int) -> ReadRequest:
    return read(LEDGER, -1)._replace(previous_lac=previous_lac, piggyback=True, timeout_ms=20_000)


def questions(missing: int) -> list[Request]:
    """That can't be answered without an entry that is not to be had."""
    return [read(LEDGER, missing), read(LEDGER, -1), fence(LEDGER, missing), ReadLacRequest(1, LEDGER)]


def ask_all(server: BookieServer, *wanted: Request) -> list[int]:
    with EntryClient(entry_address(server)) as client:
        return [client.status(request) for request in wanted]


def ask_batch(server: BookieServer, first: int) -> int:
    with BinaryEntryClient(entry_address(server)) as client:
        return client.status(BatchReadRequest(1, LEDGER, first, 10, 1 << 20, False, None))


async def test_a_ledger_in_limbo(tmp_path: Path) -> None:
    async with running_bookie(tmp_path) as server:
        await asyncio.to_thread(ask_all, server, add(LEDGER, 3))
        ledger = server.storage.ledgers.get(LedgerId(0, LEDGER))
        assert ledger is not None
        ledger.limbo = True
        server.storage.checkpoint()
        wanted = [*questions(4), long_poll(-1)]
        assert await asyncio.to_thread(ask_all, server, *wanted) == [Status.EUNKNOWNLEDGERSTATE] * len(wanted)
        assert await asyncio.to_thread(ask_batch, server, 4) == Status.EUNKNOWNLEDGERSTATE
        assert await asyncio.to_thread(ask_batch, server, 3) == Status.EOK
        with EntryClient(entry_address(server)) as client:
            answer = await asyncio.to_thread(client.ask, read(LEDGER, 3))
        assert isinstance(answer, ReadResponse)
        assert (answer.status, answer.body, answer.max_lac) == (Status.EOK, packet(LEDGER, 3), None)


async def test_a_ledger_in_limbo_of_which_nothing_is_left(tmp_path: Path) -> None:
    """Not even that there was one is denied: by no operation, also once a fence has made it."""
    async with running_bookie(tmp_path) as server:
        storage = server.storage
        storage.limbo_marks.add([LEDGER])
        plain = [read(LEDGER, 4), read(LEDGER, -1), ReadLacRequest(1, LEDGER), long_poll(-1)]
        for wanted in (plain, questions(4), plain):
            assert await asyncio.to_thread(ask_all, server, *wanted) == [Status.EUNKNOWNLEDGERSTATE] * len(wanted)
        assert await asyncio.to_thread(ask_batch, server, 4) == Status.EUNKNOWNLEDGERSTATE
        late = add(LEDGER, 4)
        assert await asyncio.to_thread(ask_all, server, late) == [Status.EUNKNOWNLEDGERSTATE]
        assert await asyncio.to_thread(ask_all, server, late._replace(recovery=True), read(LEDGER, 4)) == [0, 0]
        assert await asyncio.to_thread(ask_all, server, read(LEDGER + 1, 0)) == [Status.ENOLEDGER]


async def test_a_ledger_that_was_closed_before_the_bookie_began(tmp_path: Path) -> None:
    """R9: nothing of it is denied, its writer is turned away and leaves no key, and whoever repairs it fences it."""
    async with running_bookie(tmp_path):
        pass
    closed_before(REAL_FILE_SYSTEM, [tmp_path / "ledgers"]).replace(LedgerNumbers([LEDGER, LEDGER + 1]))
    async with running_bookie(tmp_path) as server:
        late, stranger = add(LEDGER, 4), b"another key".ljust(20)
        lac = WriteLacRequest(1, LEDGER, 3, stranger, lac_packet(LEDGER, 3))
        unknown: list[Request] = [
            add(LEDGER, 4, key=stranger),
            late,
            lac,
            read(LEDGER, 4),
            ReadLacRequest(1, LEDGER),
            long_poll(-1),
        ]
        assert await asyncio.to_thread(ask_all, server, *unknown) == [Status.EUNKNOWNLEDGERSTATE] * len(unknown)
        repairs: list[Request] = [late._replace(recovery=True), read(LEDGER, 4), add(LEDGER, 5)]
        assert await asyncio.to_thread(ask_all, server, *repairs) == [0, 0, Status.EFENCED]
        assert await asyncio.to_thread(ask_all, server, read(LEDGER, 9)) == [Status.ENOENTRY]
    async with running_bookie(tmp_path) as server:
        assert await asyncio.to_thread(ask_all, server, late, add(LEDGER + 1, 4), read(LEDGER + 2, 0)) == [
            Status.EFENCED,
            Status.EUNKNOWNLEDGERSTATE,
            Status.ENOLEDGER,
        ]


async def test_an_entry_that_is_damaged_on_the_disk(tmp_path: Path) -> None:
    async with running_bookie(tmp_path) as server:
        await asyncio.to_thread(ask_all, server, add(LEDGER, 3))
        server.storage.checkpoint()
        (log,) = (tmp_path / "ledgers" / "current").glob("*.log")
        data = bytearray(log.read_bytes())
        data[1024:1044] = bytes(20)
        log.write_bytes(data)
        wanted = questions(3)
        assert await asyncio.to_thread(ask_all, server, *wanted) == [Status.EIO] * len(wanted)
        assert await asyncio.to_thread(ask_batch, server, 3) == Status.EIO
