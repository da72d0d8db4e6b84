"""Adds that don't wait for the journal's sync, while the sync is held up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from bookgate.bookie.journal.file import JournalFile
from bookgate.bookie.server import BookieServer
from bookgate.ledger.wire import messages
from bookgate.ledger.wire.messages import DEFERRED_SYNC, AddRequest, GetBookieInfoResponse, Status
from tests.integration.bookie.entry_client import EntryClient, add
from tests.integration.bookie.in_process import entry_address, running_bookie

pytestmark = pytest.mark.asyncio


class Gate:
    """Holds up syncs of the journal while it is shut."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered = threading.Event()
        self.open = threading.Event()
        self.open.set()
        sync = JournalFile.sync

        def gated(file: JournalFile) -> None:
            self.entered.set()
            assert self.open.wait(30)
            sync(file)

        monkeypatch.setattr(JournalFile, "sync", gated)

    def shut(self) -> None:
        self.entered.clear()
        self.open.clear()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


@pytest_asyncio.fixture
async def bookie(gate: Gate, tmp_path: Path) -> AsyncIterator[BookieServer]:
    async with running_bookie(tmp_path) as server:
        yield server
        gate.open.set()


def deferred(ledger_id: int, entry_id: int, *, recovery: bool = False) -> AddRequest:
    return add(ledger_id, entry_id, recovery=recovery)._replace(write_flags=DEFERRED_SYNC)


async def test_a_deferred_add_is_answered_before_its_sync(bookie: BookieServer, gate: Gate) -> None:
    with EntryClient(entry_address(bookie)) as client:
        gate.shut()
        assert await asyncio.to_thread(client.status, deferred(1, 0)) == Status.EOK
        await asyncio.to_thread(gate.entered.wait, 30)
        force = messages.ForceLedgerRequest(5, 1)
        client.send(force, messages.GetBookieInfoRequest(6))
        assert isinstance(await asyncio.to_thread(client.receive), GetBookieInfoResponse)
        gate.open.set()
        assert await asyncio.to_thread(client.receive) == messages.ForceLedgerResponse(5, Status.EOK, 1)


@pytest.mark.parametrize("request_", [add(1, 0), deferred(1, 0, recovery=True), add(1, 0)._replace(write_flags=2)])
async def test_other_adds_wait_for_it(bookie: BookieServer, gate: Gate, request_: AddRequest) -> None:
    """A recovery add ignores the flag, and other flags mean nothing."""
    with EntryClient(entry_address(bookie)) as client:
        gate.shut()
        client.send(request_)
        await asyncio.to_thread(gate.entered.wait, 30)
        client.send(messages.GetBookieInfoRequest(6))
        assert isinstance(await asyncio.to_thread(client.receive), GetBookieInfoResponse)
        gate.open.set()
        assert await asyncio.to_thread(client.receive) == messages.AddResponse(request_.txn_id, Status.EOK, 1, 0)
