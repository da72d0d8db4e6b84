"""The writer of a ledger that numbers entries in the order of the appends, singly or in bulk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Iterable

from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.thinclient.core.writing import PendingAdd
from bookgate.thinclient.handles.base_write_handle import BaseWriteHandle, Payload
from bookgate.thinclient.handles.context import ClientContext, LedgerSecrets

_APPENDS_A_TURN = 128
"""Bulk appends between two turns of the event loop, so that responses are processed while requests are sent."""


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
        """Appends an entry. Concurrent calls are pipelined, in the order of the calls.

        Waits while the limits of `ClientConfig` on outstanding appends are reached.

        Args:
            payload: The entry's bytes.

        Returns:
            The entry id, once the entry is acknowledged.

        Raises:
            LedgerFencedException: Another client has taken over the ledger.
            NotEnoughBookiesException: Failed bookies can't be replaced and the ack quorum is out of reach.
            LedgerClosedException: The handle was closed.
            BKException: Another error has ended the ledger for this writer.
        """
        data = self._check(payload)
        await self._window.wait_to_enter(len(data))
        return await self._begin_with_future(data)

    def append_nowait(self, payload: Payload) -> asyncio.Future[int]:
        """Appends without waiting for capacity; the caller limits its outstanding appends. The future returns the entry
        id.
        """
        data = self._check(payload)
        self._window.enter(len(data))
        return self._begin_with_future(data)

    async def append_all(self, payloads: Iterable[Payload] | AsyncIterable[Payload]) -> int:
        """Appends many entries, pipelined within the limits of `ClientConfig`.

        Concurrent calls keep their entries contiguous, in the order of the calls.

        Args:
            payloads: The entries, as an iterable or an async iterable.

        Returns:
            The id of the last entry, once all are acknowledged; without payloads, the last entry id so far.

        Raises:
            BKException: As `append`. Entries up to `last_add_confirmed` are acknowledged and kept.
        """
        async with self._bulk_turn:
            last = await self._begin_all(payloads)
        if last is None:
            return self._writer.last_add_pushed
        await self._confirmed(last)
        return last.entry_id

    async def _begin_all(self, payloads: Iterable[Payload] | AsyncIterable[Payload]) -> PendingAdd | None:
        """Sends many entries; returns the last add."""
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
        """Waits until an add without a future is confirmed. Raises the error that made it fail."""
        if self._writer.sequence_head >= add.entry_id:
            return
        if self._writer.error is not None and not self._writer.pending_count:
            raise self._writer.error.with_traceback(None)
        future: asyncio.Future[int] = self._loop.create_future()
        add.token = future
        await future
