"""One ranged read under way: carries out what the `RangeReader` of `core.reading` wants, and feeds it the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ledger.entry import Entry, decode_entry
from ledger.errors import (
    BKException,
    DigestMatchException,
)
from ledger.manager import LedgerRecord
from ledger.protocol_v3 import encode_request
from ledger.requests import Operation, ReadRequest, ReadResponse, Response, Status
from thinclient.context import ClientContext, LedgerSecrets, status_error
from thinclient.core.reading import RangeReader, ReadEffect


class ReadSession:
    """One ranged read under way: carries out what the `RangeReader` wants and feeds it the answers."""

    def __init__(
        self, context: ClientContext, record: LedgerRecord, secrets: LedgerSecrets, first: int, last: int
    ) -> None:
        config, self._ledger_id = context.config, record.ledger_id
        self._pool = context.pool
        self._secrets = secrets
        self._timeout = config.read_timeout
        self._max_batch_bytes = config.read_ahead_bytes
        self._loop = asyncio.get_running_loop()
        self._wake: asyncio.Future[None] | None = None
        self.reader = RangeReader(
            record.metadata,
            first,
            last,
            preferred_index=record.ledger_id.ledger_id,
            max_entries=config.read_ahead_entries,
            max_bytes=config.read_ahead_bytes,
        )

    async def next_batch(self, max_entries: int) -> list[Entry]:
        """The next entries: as many as asked for, fewer at the end, before a failure, or when they are large."""
        batch: list[Entry] = []
        batch_bytes = 0
        while True:
            self._send(self.reader.next_reads())
            taken = self.reader.take(max_entries - len(batch))
            batch += taken
            batch_bytes += sum(len(entry.payload) for entry in taken)
            if taken:
                self._send(self.reader.next_reads())
            full = len(batch) >= max_entries or batch_bytes >= self._max_batch_bytes
            if full or self.reader.finished or self.reader.failure is not None:
                return batch
            if not taken:
                self._wake = self._loop.create_future()
                await self._wake
                self._wake = None

    def _send(self, effects: Sequence[ReadEffect]) -> None:
        if not effects:
            return
        deadline = self._loop.time() + self._timeout
        ledger_id = self._ledger_id.ledger_id
        for effect in effects:
            txn_id = self._pool.next_txn_id()
            frame = encode_request(ReadRequest(txn_id, ledger_id, effect.entry_id))
            connection = self._pool.connection(effect.bookie_id)
            connection.send(Operation.READ_ENTRY, txn_id, frame, deadline, self._on_answer, effect)

    def _on_answer(self, effect: ReadEffect, response: Response | None, error: BKException | None) -> None:
        entry_id, bookie_id = effect
        try:
            if error is None:
                self.reader.on_entry(self._open(entry_id, bookie_id, response))
        except BKException as unreadable:
            error = unreadable
        if error is not None:
            self.reader.on_error(entry_id, bookie_id, error)
            self._send(self.reader.next_reads())
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _open(self, entry_id: int, bookie_id: str, response: Response | None) -> Entry:
        if not isinstance(response, ReadResponse) or response.status != Status.EOK:
            status = Status.EBADREQ if response is None else response.status
            raise status_error(status, bookie_id, self._ledger_id, f"the read of entry {entry_id}")
        try:
            return decode_entry(self._secrets.digest, response.body or b"", self._ledger_id.ledger_id, entry_id)
        except DigestMatchException as error:
            raise DigestMatchException(f"bookie {bookie_id}: {error}") from error
