"""The writer of a ledger that assigns entry ids in the order of the appends, singly or in bulk."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from bookgate.ledger.errors import BKException
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.thinclient.core.writing import PendingAdd
from bookgate.thinclient.handles.appending import APPENDS_A_TURN, Appending
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
        self._gathered: list[bytes] = []
        """Entries of this turn of the event loop with a future each, which are sent together."""
        self._gathered_futures: list[asyncio.Future[int]] = []

    def _begin_with_future(self, payload: bytes) -> asyncio.Future[int]:
        future: asyncio.Future[int] = self._loop.create_future()
        self._gathered.append(payload)
        self._gathered_futures.append(future)
        count = len(self._gathered)
        if count == 1:
            self._loop.call_soon(self._begin_gathered)
        elif count == APPENDS_A_TURN:
            self._begin_gathered()
        return future

    def _begin_gathered(self) -> None:
        if not self._gathered:
            return
        payloads, futures = self._gathered, iter(self._gathered_futures)
        self._gathered, self._gathered_futures = [], []
        try:
            self._begin(payloads, futures)
        except BKException as error:
            for future in futures:
                if not future.done():
                    future.set_exception(error)

    def _begin_run(self, payloads: Sequence[bytes]) -> PendingAdd:
        self._begin_gathered()
        return self._begin(payloads)

    async def _confirmed(self, add: PendingAdd | None) -> int:
        """Waits until an add without a future is confirmed. Raises the error with which it failed."""
        if add is None:
            self._begin_gathered()
            return self._writer.last_add_pushed
        if self._writer.sequence_head >= add.entry_id:
            return add.entry_id
        if self._writer.error is not None and not self._writer.pending_count:
            raise self._writer.error.with_traceback(None)
        future: asyncio.Future[int] = self._loop.create_future()
        add.token = future
        return await future
