"""Pending news for a watcher of a ledger: the newest record, the ledger's deletion, or the end of the client."""

from __future__ import annotations

import asyncio

from bookgate.ledger.errors import BKException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import LedgerRecord


class LedgerChanges:
    """Filled by a metadata listener, read by one reader. A newer record replaces one that was not read."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._newest: LedgerRecord | None = None
        self._removed = False
        self._error: BKException | None = None

    def on_metadata(self, _ledger_id: LedgerId, record: LedgerRecord | None) -> None:
        """A listener for `LedgerManager.register_listener`."""
        self._newest, self._removed = record, record is None
        self._changed.set()

    def client_closed(self, error: BKException) -> None:
        """No more records will arrive."""
        self._error = error
        self._changed.set()

    async def next(self) -> LedgerRecord | None:
        """The newest record not read yet; None once the ledger is deleted. Raises the error of `client_closed`."""
        while self._newest is None and not self._removed and self._error is None:
            self._changed.clear()
            await self._changed.wait()
        if self._error is not None:
            raise self._error
        newest, self._newest = self._newest, None
        return newest
