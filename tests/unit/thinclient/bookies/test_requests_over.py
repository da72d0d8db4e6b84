"""Which failed requests can have no effect any more: those that were never handed to a transport, and no others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bookgate.ledger.errors import (
    BKException,
    BookieHandleNotAvailableException,
    ClientClosedException,
    IllegalOpException,
    TooManyRequestsException,
)
from bookgate.ledger.wire.messages import ForceLedgerRequest, Operation, ReadRequest, Response
from bookgate.ledger.wire.v3 import encode_request
from bookgate.thinclient.bookies.connection import Address, BookieConnection, ConnectionSettings
from bookgate.thinclient.bookies.connection_v2 import V2Connection
from tests.unit.thinclient.fakes import FakeBookie

pytestmark = [
    pytest.mark.usefixtures("virtual_time"),
    pytest.mark.parametrize("kind", [BookieConnection, V2Connection]),
]
SETTINGS = ConnectionSettings(5, 1 << 20, 1 << 16)
Kind = type[BookieConnection]


class Errors:
    """The errors of requests on one connection, by number."""

    def __init__(self, kind: Kind, port: int, settings: ConnectionSettings = SETTINGS) -> None:
        async def resolve(_bookie_id: str) -> Address:
            return Address("127.0.0.1", port)

        self.connection = kind("b", resolve, settings)
        self.by_number: dict[int, BKException] = {}
        self._came = asyncio.Event()

    def send(self, number: int) -> None:
        request = ReadRequest(number, 1, number)
        frame = self.connection.encode(request)
        self.connection.send(Operation.READ_ENTRY, number, frame, 1e9, self._sink, number)

    def _sink(self, number: int, response: Response | None, error: BKException | None) -> None:
        assert error is not None
        self.by_number[number] = error
        self._came.set()

    async def error(self, number: int) -> BKException:
        async with asyncio.timeout(60):
            while number not in self.by_number:
                self._came.clear()
                await self._came.wait()
        return self.by_number[number]

    @property
    def over(self) -> set[int]:
        return {number for number, error in self.by_number.items() if error.request_over}


@asynccontextmanager
async def silent_bookie() -> AsyncIterator[FakeBookie]:
    bookie = FakeBookie()
    await bookie.start()
    bookie.silent = True
    try:
        yield bookie
    finally:
        await bookie.stop()


async def test_what_was_to_be_sent_to_a_bookie_that_is_away(kind: Kind) -> None:
    async with silent_bookie() as bookie:
        port = bookie.port
    errors = Errors(kind, port)
    for number in range(4):  # the first ones wait for the connection; the others are refused while it pauses
        errors.send(number)
        assert isinstance(await errors.error(number), BookieHandleNotAvailableException)
    assert "is not asked" in str(errors.by_number[3])
    assert errors.over == {0, 1, 2, 3}
    errors.connection.close()
    errors.send(4)
    assert isinstance(await errors.error(4), ClientClosedException)
    assert 4 in errors.over


@pytest.mark.parametrize("ending", ["lost", "late", "closed"])
async def test_what_was_sent_may_still_arrive(kind: Kind, ending: str) -> None:
    async with silent_bookie() as bookie:
        errors = Errors(kind, bookie.port)
        errors.send(0)
        await bookie.until_requested(1)
        errors.send(1)
        await asyncio.sleep(0)
        if ending == "lost":
            await bookie.stop()
        elif ending == "late":
            errors.connection.expire(2e9)
        else:
            errors.connection.close()
        await errors.error(0)
        await errors.error(1)
        assert errors.over == set()
        errors.connection.close()


@pytest.mark.parametrize("ending", ["lost", "late", "refused", "closed"])
async def test_what_waited_for_room_was_not_sent(kind: Kind, ending: str) -> None:
    """The bookie takes nothing in, so the transport takes no more either."""
    async with silent_bookie() as bookie:
        settings = SETTINGS._replace(backpressure_timeout=1.0, send_buffer_size=64)
        errors = Errors(kind, bookie.port, settings)
        errors.send(0)
        await bookie.until_requested(1)
        wire = errors.connection._wire
        assert wire is not None
        errors.connection.on_writable(wire, False)
        errors.send(1)
        if ending == "lost":
            await bookie.stop()
        elif ending == "late":
            errors.connection.expire(2e9)
        elif ending == "refused":
            await asyncio.sleep(2)
            errors.send(2)
            assert isinstance(await errors.error(2), TooManyRequestsException)
            errors.connection.expire(0)
        else:
            errors.connection.close()
        await errors.error(1)
        assert errors.over == ({1, 2} if ending == "refused" else {1})
        errors.connection.close()


async def test_what_the_protocol_can_not_say_is_never_sent(kind: Kind) -> None:
    if kind is BookieConnection:
        pytest.skip("v3 says it")
    errors = Errors(kind, 1)
    frame = encode_request(ForceLedgerRequest(0, 1))
    errors.connection.send(Operation.FORCE_LEDGER, 0, frame, 1e9, errors._sink, 0)
    assert isinstance(await errors.error(0), IllegalOpException)
    assert errors.over == {0}
    errors.connection.close()
