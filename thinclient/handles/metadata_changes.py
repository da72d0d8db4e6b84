"""What somebody who watches a ledger has yet to hear: the newest record, the ledger's removal, or the client's end."""

from __future__ import annotations

import asyncio

from bookgate.ledger.errors import BKException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import LedgerRecord


class LedgerChanges:
    """Filled by a metadata listener, emptied by one reader. Records that nobody took are replaced by newer ones."""

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
        """Nothing more will come."""
        self._error = error
        self._changed.set()

    async def next(self) -> LedgerRecord | None:
        """The newest record not taken yet; None once the ledger is removed. Raises what `client_closed` was told."""
        while self._newest is None and not self._removed and self._error is None:
            self._changed.clear()
            await self._changed.wait()
        if self._error is not None:
            raise self._error
        newest, self._newest = self._newest, None
        return newest
