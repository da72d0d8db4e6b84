"""The writer of a ledger whose entry ids are given in the order of the appends: one entry at a time, or many."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Iterable

from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.thinclient.core.writing import PendingAdd
from bookgate.thinclient.handles.base_write_handle import BaseWriteHandle, Payload
from bookgate.thinclient.handles.context import ClientContext, LedgerSecrets

_APPENDS_A_TURN = 128
"""Bulk appends between two turns of the event loop, so that answers are taken in while frames go out."""


class WriteHandle(BaseWriteHandle):
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
        self._bulk_turn = asyncio.Lock()

    async def append(self, payload: Payload) -> int:
        """Appends an entry; returns its id once it is acknowledged. Concurrent calls are pipelined.

        Waits while the bounds of `ClientConfig` on what is under way are reached. Raises LedgerFencedException,
        NotEnoughBookiesException, … when the ledger takes no more entries; LedgerClosedException after `close`.
        """
        data = self._check(payload)
        await self._window.wait_to_enter(len(data))
        return await self._begin_with_future(data)

    def append_nowait(self, payload: Payload) -> asyncio.Future[int]:
        """Appends without waiting for room; the caller bounds what it has under way. The future gives the entry id."""
        data = self._check(payload)
        self._window.enter(len(data))
        return self._begin_with_future(data)

    async def append_all(self, payloads: Iterable[Payload] | AsyncIterable[Payload]) -> int:
        """Appends many entries, pipelined within the bounds; returns the last id once all are acknowledged.

        Concurrent calls keep their entries together, in the order of the calls. Without a payload it returns the last
        entry id so far. When it fails, entries up to `last_add_confirmed` are acknowledged and kept.
        """
        async with self._bulk_turn:
            last = await self._begin_all(payloads)
        if last is None:
            return self._writer.last_add_pushed
        await self._confirmed(last)
        return last.entry_id

    async def _begin_all(self, payloads: Iterable[Payload] | AsyncIterable[Payload]) -> PendingAdd | None:
        """Sends many entries; returns the last of them."""
        last: PendingAdd | None = None
        if isinstance(payloads, AsyncIterable):
            async for payload in payloads:
                last = await self._append_one_of_many(payload)
            return last
        for count, payload in enumerate(payloads):
            if count % _APPENDS_A_TURN == _APPENDS_A_TURN - 1:
                await asyncio.sleep(0)
            last = await self._append_one_of_many(payload)
        return last

    async def _append_one_of_many(self, payload: Payload) -> PendingAdd:
        data = self._check(payload)
        if not self._window.try_enter(len(data)):
            await self._window.wait_to_enter(len(data))
        return self._begin(data)

    async def _confirmed(self, add: PendingAdd) -> None:
        """Waits until an add that has no future yet is confirmed. Raises what made it fail."""
        if self._writer.sequence_head >= add.entry_id:
            return
        if self._writer.error is not None and not self._writer.pending_count:
            raise self._writer.error.with_traceback(None)
        future: asyncio.Future[int] = self._loop.create_future()
        add.token = future
        await future
