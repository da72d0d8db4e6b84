"""Reads that need no disk are answered on the event loop, in both protocols, in the order they came."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bookgate.bookie.storage.reader import EntryReader
from bookgate.ledger.wire.messages import BatchReadRequest, ReadResponse, Status
from tests.integration.bookie.entry_client import BinaryEntryClient, EntryClient, add, packet, read
from tests.integration.bookie.in_process import entry_address, running_bookie

COUNT = 100
PAYLOAD = bytes(1000)
LEDGER = 5


def all_bodies(client: EntryClient | BinaryEntryClient) -> list[bytes | None]:
    """Of all entries, asked for at once."""
    client.send(*(read(LEDGER, entry_id) for entry_id in range(COUNT)))
    answers = [client.receive() for _ in range(COUNT)]
    assert all(isinstance(answer, ReadResponse) and answer.status == Status.EOK for answer in answers)
    return [answer.body for answer in answers if isinstance(answer, ReadResponse)]


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", [EntryClient, BinaryEntryClient])
async def test_what_was_read_before_needs_no_reader_thread(
    tmp_path: Path, kind: type[EntryClient | BinaryEntryClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [packet(LEDGER, entry_id, PAYLOAD) for entry_id in range(COUNT)]

    def fill() -> None:
        with EntryClient(entry_address(server)) as client:
            assert {client.status(add(LEDGER, entry_id, PAYLOAD)) for entry_id in range(COUNT)} == {Status.EOK}

    def ask() -> list[bytes | None]:
        with kind(entry_address(server)) as client:
            return all_bodies(client)

    def refuse(*_: object) -> bytes:
        raise AssertionError("the reader thread was asked")

    async with running_bookie(tmp_path, flush_interval_seconds=3600) as server:
        await asyncio.to_thread(fill)
        await asyncio.to_thread(server.storage.checkpoint)
        assert await asyncio.to_thread(ask) == wanted
        monkeypatch.setattr(EntryReader, "read_entry", refuse)
        assert await asyncio.to_thread(ask) == wanted


@pytest.mark.asyncio
async def test_a_read_does_not_overtake_one_that_waits_for_the_disk(tmp_path: Path) -> None:
    """Clients of protocol v2 tell answers apart by their ids, but batch reads among them come in turn."""

    def ask() -> list[int]:
        with BinaryEntryClient(entry_address(server)) as client:
            for entry_id in range(COUNT):
                client.ask(add(LEDGER, entry_id, PAYLOAD))
            batch = BatchReadRequest(7, LEDGER, 0, 10, 1 << 20)
            client.send(batch, *(read(LEDGER, entry_id) for entry_id in range(20)))
            return [getattr(client.receive(), "entry_id", -1) for _ in range(21)]

    async with running_bookie(tmp_path, flush_interval_seconds=3600) as server:
        assert await asyncio.to_thread(ask) == [0, *range(20)]
