"""The writer of a ledger whose entry ids the application chooses (BookKeeper's advanced ledgers)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.thinclient.config import ClientConfig
from bookgate.thinclient.core.advanced_writing import AdvancedLedgerWriter
from bookgate.thinclient.core.writing import LedgerWriter, PendingAdd, WriterRules
from bookgate.thinclient.handles.appending import Payload
from bookgate.thinclient.handles.base_write_handle import BaseWriteHandle
from bookgate.thinclient.handles.in_flight_window import InFlightWindow, OrderedWindow


class AdvancedWriteHandle(BaseWriteHandle):
    """The one writer of an advanced ledger. Use it as an async context manager, or call `close`.

    Ids may arrive in any order, each once. An entry is acknowledged when it and all entries from 0 up to it are stored,
    so every id must eventually be appended: `close` ends the ledger before the first missing id and fails the appends
    that wait for it.
    """

    _writer: AdvancedLedgerWriter
    _window: OrderedWindow

    def _make_window(self, config: ClientConfig) -> InFlightWindow:
        return OrderedWindow(
            config.max_in_flight_entries, config.max_in_flight_bytes, lambda: self._writer.lowest_missing
        )

    def _make_writer(self, record: LedgerRecord, rules: WriterRules) -> LedgerWriter:
        metadata = record.metadata
        return AdvancedLedgerWriter(
            record.ledger_id,
            metadata.last_fragment.ensemble,
            metadata.write_quorum_size,
            metadata.ack_quorum_size,
            rules,
        )

    async def append(self, entry_id: int, payload: Payload) -> int:
        """Appends an entry with a given id.

        Waits while the limits of `ClientConfig` on outstanding appends are reached, unless the entry has the lowest
        missing id, for which the others wait.

        Args:
            entry_id: The id, 0 or above.
            payload: The entry's bytes.

        Returns:
            `entry_id`, once this entry and all lower ones are acknowledged.

        Raises:
            DuplicateEntryIdException: The id was used before.
            BKException: As `WriteHandle.append`.
        """
        self._writer.check_id(entry_id)
        data = self._check(payload)
        await self._window.wait_for(entry_id, len(data))
        return await self._begin_with_future(data, entry_id)

    def append_nowait(self, entry_id: int, payload: Payload) -> asyncio.Future[int]:
        """Appends without waiting for capacity; the caller limits its outstanding appends. The future returns the entry
        id.
        """
        self._writer.check_id(entry_id)
        data = self._check(payload)
        self._window.enter(len(data))
        return self._begin_with_future(data, entry_id)

    def _begin_with_future(self, payload: bytes, entry_id: int) -> asyncio.Future[int]:
        future: asyncio.Future[int] = self._loop.create_future()
        self._begin((payload,), iter((future,)), entry_id)
        return future

    def _begin_adds(self, sizes: Sequence[int], entry_id: int) -> Sequence[PendingAdd]:
        add = self._writer.begin_add_at(entry_id, sizes[0])
        self._window.hand_out()
        return (add,)
