"""The reader of a stream: records in order, from a position, from a time, from the end, or from where a cursor stands.

It follows the stream for ever, or ends at what is confirmed when it begins (`follow=False`). With a cursor it delivers
at least once: what was delivered but not committed is delivered again to the next reader of the cursor.

An iterator begins at the reader's position and keeps its own place from then on; what it delivers moves the reader's.

Not its job: reading entries across fragments and terms (`handles.read_handle`). Source:
docs/protocol/streams.md#readers.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import Self

from bookgate.ledger.entry import Entry
from bookgate.ledger.errors import IllegalOpException
from bookgate.ledger.payload_codec import RecordPosition
from bookgate.ledger.stream_entry import StreamRecord, records_of_entry
from bookgate.thinclient.core.streams.cursors import after
from bookgate.thinclient.handles.read_handle import ReadHandle
from bookgate.thinclient.streams.cursor import Cursor


class StreamReader:
    """A reader of a stream. Use it as an async context manager, or call `close`."""

    def __init__(
        self, name: str, handle: ReadHandle, start: RecordPosition, cursor: Cursor | None, *, follow: bool
    ) -> None:
        """Called by `Stream.reader`."""
        self._name = name
        self._handle = handle
        self._position = start
        self._cursor = cursor
        self._follow = follow

    def __repr__(self) -> str:
        return self._described(self._position)

    def _described(self, position: RecordPosition) -> str:
        entry_id, number = position
        return f"<StreamReader of {self._name!r} at entry {entry_id} record {number}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def position(self) -> RecordPosition:
        """The next record: after the last one that was delivered."""
        return self._position

    @property
    def cursor(self) -> Cursor | None:
        """The cursor, if it reads with one."""
        return self._cursor

    def seek(self, position: RecordPosition) -> None:
        """The next call of `records` or `records_batches` begins here; the cursor stays where it is."""
        self._position = position

    async def records(self) -> AsyncGenerator[StreamRecord, None]:
        """Yields records in order. See `records_batches`."""
        async with aclosing(self.records_batches()) as batches:
            async for batch in batches:
                for record in batch:
                    self._position = after(record.position)
                    yield record

    async def records_batches(self, max_entries: int = 1000) -> AsyncGenerator[list[StreamRecord], None]:
        """Yields lists of records in order, each of the records of at most `max_entries` entries.

        Raises:
            LedgerTrimmedException: The next record was deleted; `first_available` is the first entry that there is.
            NoSuchLedgerExistsOnMetadataServerException: The stream was deleted.
            PayloadCodecException: The ledger is written by something else than a stream's writer.
            LedgerClosedException: This reader was closed meanwhile.
            BKException: As `ReadHandle.tail_batches`.
        """
        async with aclosing(self._batches_from(self._position, max_entries)) as batches:
            async for batch in batches:
                self._position = after(batch[-1].position)
                yield batch

    async def _batches_from(self, start: RecordPosition, max_entries: int) -> AsyncGenerator[list[StreamRecord], None]:
        """As `records_batches`, from `start` on, wherever the reader's position is; that stays as it is, since a list
        that is fetched ahead may never be delivered.
        """
        async with aclosing(self._entries(max(start.entry_id, 0), max_entries)) as batches:
            async for batch in batches:
                records = _records_of(batch, start)
                if records:
                    yield records

    def _entries(self, first: int, max_entries: int) -> AsyncGenerator[list[Entry], None]:
        if self._follow:
            return self._handle.tail_batches(first, max_entries)
        return self._handle.read_batches(first, max(self._handle.last_add_confirmed, first - 1), max_entries)

    async def commit(self, position: RecordPosition | None = None) -> None:
        """Commits a position of the cursor, once what is before it is processed.

        Args:
            position: The first record that is not processed; None for all that were delivered.

        Raises:
            IllegalOpException: The reader has no cursor.
            CursorMovedException: Another reader has moved the cursor.
            BKException: As `Cursor.commit`.
        """
        if self._cursor is None:
            raise IllegalOpException(f"the reader of stream {self._name!r} has no cursor to commit")
        await self._cursor.commit(self._position if position is None else position)

    async def close(self) -> None:
        """Ends the reader; the stream and the cursor stay as they are."""
        await self._handle.close()


def _records_of(entries: list[Entry], start: RecordPosition) -> list[StreamRecord]:
    return [
        record
        for entry in entries
        for record in records_of_entry(
            entry.entry_id, entry.payload, start.number if entry.entry_id == start.entry_id else 0
        )
    ]
