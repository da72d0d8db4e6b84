"""The writer of a ledger that assigns entry ids in the order of the appends, singly or in bulk."""

from __future__ import annotations

import asyncio

from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.thinclient.core.writing import PendingAdd
from bookgate.thinclient.handles.appending import Appending
from bookgate.thinclient.handles.base_write_handle import BaseWriteHandle
from bookgate.thinclient.handles.context import ClientContext, LedgerSecrets


class WriteHandle(BaseWriteHandle, Appending[PendingAdd]):
    """The one writer of a ledger. Use it as an async context manager, or call `close`."""

    def __init__(
        self,
        context: ClientContext,
        record: LedgerRecord,
        secrets: LedgerSecrets,
        *,
        deferred_sync: bool = False,
        id_given: bool | None = None,
    ) -> None:
        super().__init__(context, record, secrets, deferred_sync=deferred_sync, id_given=id_given)
        Appending.__init__(self)

    async def _confirmed(self, add: PendingAdd | None) -> int:
        """Waits until an add without a future is confirmed. Raises the error with which it failed."""
        if add is None:
            return self._writer.last_add_pushed
        if self._writer.sequence_head >= add.entry_id:
            return add.entry_id
        if self._writer.error is not None and not self._writer.pending_count:
            raise self._writer.error.with_traceback(None)
        future: asyncio.Future[int] = self._loop.create_future()
        add.token = future
        return await future
