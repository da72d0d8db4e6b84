"""A fence that a bookie sets by itself, for a ledger of which it has forgotten whether it had been fenced (R9)."""

from __future__ import annotations

import asyncio

from bookgate.bookie.storage.storage import LedgerStorage
from bookgate.bookie.storage_events import Completion
from bookgate.ledger.errors import WriteException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.wire.messages import ReadResponse, Response, Status


class _Waiting:
    """In the place of a client: who waits for the fence."""

    def __init__(self) -> None:
        self.stored: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def send(self, frame: bytes) -> None:
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

    def refusal(self, status: Status) -> Response:
        return ReadResponse(0, status, 0, 0)


async def fence(storage: LedgerStorage, ledger_id: LedgerId, master_key: bytes) -> None:
    """Returns once the ledger is fenced durably. Runs on the event loop that storage's events come to.

    Args:
        storage: The bookie's, which serves.
        ledger_id: The ledger.
        master_key: Its key, for a bookie that does not know the ledger.

    Raises:
        WriteException: There is no space for it now.
        OSError: Storage does not accept it.
    """
    ledger = storage.ledgers.get(ledger_id) or storage.writer.create_fenced_ledger(ledger_id, master_key)
    waiting = _Waiting()
    storage.writer.fence(ledger, _OwnFence(waiting, b"fenced"))
    if not await waiting.stored:
        raise WriteException(f"ledger {ledger_id} is not fenced: there is no space")
