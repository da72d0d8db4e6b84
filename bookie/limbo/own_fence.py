"""Fences a ledger on the bookie's own initiative, because the bookie may have lost an earlier fence (R9)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from bookgate.bookie.storage.storage import LedgerStorage
from bookgate.bookie.storage_events import Completion
from bookgate.ledger.errors import WriteException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.wire.messages import ReadResponse, Response, Status


class _Waiting:
    """Takes the place of the client that a fence is acknowledged to."""

    def __init__(self) -> None:
        self.stored: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def send(self, frame: bytes, count: int = 1) -> None:
        self._settle(True)

    def answer(self, response: Response) -> None:
        self._settle(False)

    def flush(self) -> None:
        return

    def _settle(self, stored: bool) -> None:
        if not self.stored.done():
            self.stored.set_result(stored)


class _OwnFence(Completion):
    __slots__ = ()

    def refusals(self, status: Status) -> Sequence[Response]:
        return (ReadResponse(0, status, 0, 0),)


async def fence(storage: LedgerStorage, ledger_id: LedgerId, master_key: bytes) -> None:
    """Fences the ledger, and returns once the fence is durable. Runs on the event loop of the storage's events.

    Args:
        storage: The storage of the running bookie.
        ledger_id: The ledger.
        master_key: The ledger's key, used if the bookie does not know the ledger.

    Raises:
        WriteException: There is no space for the fence now.
        OSError: The storage rejects the fence.
    """
    ledger = storage.ledgers.get(ledger_id) or storage.writer.create_fenced_ledger(ledger_id, master_key)
    waiting = _Waiting()
    storage.writer.fence(ledger, _OwnFence(waiting, b"fenced"))
    if not await waiting.stored:
        raise WriteException(f"ledger {ledger_id} is not fenced: there is no space")
