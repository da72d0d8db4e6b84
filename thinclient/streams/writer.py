"""The writer of a stream: gathers records into entries, and appends each record of a producer once.

| event | leads to |
|---|---|
| a record arrives and there is no batch | a new batch, and a timer of `linger` |
| the batch is full, the timer ends, `flush`, `close` | the batch becomes an entry and is appended |
| the append is acknowledged | its records are acknowledged |
| an append fails, or another writer takes over | the writer has ended: all calls raise the reason |

The beginning has four steps: the ledger is taken over; opening entries are appended until what was found is readable;
the last snapshot of producers and what follows it are read (`begin_term`); the first entry with records is a snapshot.

Not its job: what is in an entry (`core.streams.appends`), deleting (`retention`). Source:
docs/protocol/streams.md#writers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterable, Callable, Iterable
from types import TracebackType
from typing import Self

from bookgate.ledger.errors import IncorrectParameterException, LedgerClosedException, LedgerRecoveryException
from bookgate.ledger.payload_codec import RecordPosition
from bookgate.ledger.stream_entry import OPENING, StreamEntry, encode_stream_entry
from bookgate.runtime.logs import log_event
from bookgate.runtime.shared_tasks import shared_task
from bookgate.runtime.unclosed import made_at, warn_unclosed
from bookgate.thinclient.core.streams.appends import Offer, StreamAppends
from bookgate.thinclient.handles.read_handle import ReadHandle
from bookgate.thinclient.handles.unbounded.write_handle import UnboundedWriteHandle
from bookgate.thinclient.streams.lookups import producers_of

_log = logging.getLogger(__name__)

Payload = bytes | bytearray | memoryview
_OPENINGS_A_BOOKIE = 4
"""Opening entries for each bookie of the ensemble before a writer gives up; twice as many as it can take."""
_ENTRIES_AHEAD = 64
"""Entries that one call of `append_all` has under way before it waits."""


class StreamWriter:
    """The writer of a stream, until another one begins. Use it as an async context manager, or call `close`."""

    def __init__(self, name: str, handle: UnboundedWriteHandle, appends: StreamAppends, linger_seconds: float) -> None:
        """Called by `Stream.writer`."""
        self._name = name
        self._handle = handle
        self._appends = appends
        self._linger = linger_seconds
        self._loop = asyncio.get_running_loop()
        self._futures: list[asyncio.Future[RecordPosition]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._under_way: dict[asyncio.Task[None], None] = {}
        """Appends of entries, in the order in which they were sent."""
        self._last: asyncio.Future[RecordPosition] | None = None
        self._error: BaseException | None = None
        self._closing: asyncio.Task[None] | None = None
        self._at_close: list[Callable[[], object]] = []
        self.made_at = made_at()
        """The line of the application that opened the writer, for the warning that it was not closed."""

    def __repr__(self) -> str:
        state = "ended" if self._error else "closed" if self._closing else "open"
        return f"<StreamWriter of {self._name!r}, {state}, term {self.term}>"

    def __del__(self) -> None:
        if getattr(self, "_closing", self) is None:
            warn_unclosed(repr(self), self.made_at, self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
        else:
            await self._handle._close_after_error(self.close)

    @property
    def name(self) -> str:
        """The name of the stream."""
        return self._name

    @property
    def term(self) -> int:
        """The term in which it writes; each writer of a stream has a higher one than the writer before it."""
        return self._handle.term

    @property
    def last_add_confirmed(self) -> int:
        """The last entry that is acknowledged."""
        return self._handle.last_add_confirmed

    def last_sequence(self, producer: str) -> int | None:
        """The highest sequence number of a producer, of any writer; None if the stream has none of it.

        A source that begins again goes on after it. A stream remembers its last 1,000 producers.
        """
        return self._appends.last_sequence(producer)

    async def append(
        self, record: Payload, *, producer: str = "", sequence: int | None = None
    ) -> RecordPosition | None:
        """Appends a record. Concurrent calls share entries, in the order of the calls.

        Args:
            record: The record's bytes; may be empty.
            producer: A name of the record's source, for exactly-once appends.
            sequence: The record's number at its source, higher than of the record before it. A number at or below one
                that the stream has of this producer is not appended again, also by another writer.

        Returns:
            The position of the record once it is acknowledged; None if the stream has it already.

        Raises:
            TermSupersededException: Another writer has begun.
            IncorrectParameterException: The record is too large, or no bytes; the sequence has no producer.
            LedgerClosedException: The writer was closed.
            BKException: The error that has ended the writer. Open another one and append the record again.
        """
        future = self._begin(record, producer, sequence)
        if future is not None:
            # Duplicates of this record wait for the future as well, so a caller that gives up must not cancel it.
            return await asyncio.shield(future)
        await self._settled()
        return None

    async def append_all(
        self,
        records: Iterable[Payload] | AsyncIterable[Payload],
        *,
        producer: str = "",
        first_sequence: int | None = None,
    ) -> RecordPosition | None:
        """Appends many records, pipelined.

        Args:
            records: The records, as an iterable or an async iterable.
            producer: A name of the records' source, for exactly-once appends.
            first_sequence: The number of the first record; the others follow it one by one.

        Returns:
            The position of the last record that was not there already, once all are acknowledged; None for none.

        Raises:
            BKException: As `append`. Records before the failed one may be in the stream.
        """
        last: asyncio.Future[RecordPosition] | None = None
        number = first_sequence
        async for record in _asynchronous(records):
            begun = self._begin(record, producer, number)
            last = begun or last
            number = None if number is None else number + 1
            await self._all_but(_ENTRIES_AHEAD - 1)
        await self.flush()
        self._check()
        return await last if last is not None else None

    async def flush(self) -> None:
        """Sends the current batch and waits until all records so far are acknowledged or have failed."""
        self._send()
        # Once: producers beside this one may always have something under way.
        if self._under_way:
            await asyncio.wait(tuple(self._under_way))

    async def _all_but(self, ahead: int) -> None:
        """Waits for the entries that are under way now, but for the last ones; others that come do not prolong it."""
        if len(self._under_way) > ahead:
            # Entries end in the order in which they were sent.
            await asyncio.wait((tuple(self._under_way)[-ahead - 1],))

    async def close(self) -> None:
        """Waits for all records and ends the writer; the stream stays open for the next one.

        Nothing is appended from the call on. A call that is cancelled does not stop it; others wait for the same end.
        """
        if self._closing is None:
            self._closing = shared_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        for stop in self._at_close:
            stop()
        await self.flush()
        await self._handle.release()

    def on_close(self, stop: Callable[[], object]) -> None:
        """`stop` is called when the writer is closed."""
        self._at_close.append(stop)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error.with_traceback(None)

    def _begin(self, record: Payload, producer: str, sequence: int | None) -> asyncio.Future[RecordPosition] | None:
        """The record's future; None for a duplicate."""
        self._check()
        if self._closing is not None:
            raise LedgerClosedException(f"the writer of stream {self._name!r} is closed")
        if not isinstance(record, bytes | bytearray | memoryview):
            raise IncorrectParameterException(f"record is bytes, not {type(record).__name__}: encode it")
        data = bytes(record)
        offered = self._appends.offer(data, producer, sequence)
        if offered is Offer.FULL:
            self._send()
            offered = self._appends.offer(data, producer, sequence)
        if offered is Offer.DUPLICATE:
            return None
        future: asyncio.Future[RecordPosition] = self._loop.create_future()
        self._futures.append(future)
        self._last = future
        if self._appends.is_full:
            self._send()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._linger, self._send)
        return future

    async def _settled(self) -> None:
        """Waits for what is under way: the record that a duplicate repeats may not be acknowledged yet."""
        if self._last is not None:
            await asyncio.wait((self._last,))
        self._check()

    def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._appends.count or self._error is not None:
            return
        entry = self._appends.take(time.time_ns() // 1_000_000)
        # Tasks start in the order of their creation, and enter the window of appends in this order.
        task = self._loop.create_task(self._append(entry, self._futures))
        self._futures = []
        self._under_way[task] = None
        task.add_done_callback(self._under_way.pop)

    async def _append(self, entry: StreamEntry, futures: list[asyncio.Future[RecordPosition]]) -> None:
        try:
            self._check()
            entry_id = await self._handle.append(encode_stream_entry(entry))
        except BaseException as error:
            self._end(error, futures)
            if not isinstance(error, Exception):
                raise
            return
        for number, future in enumerate(futures):
            if not future.done():
                future.set_result(RecordPosition(entry_id, number))

    def _end(self, error: BaseException, futures: list[asyncio.Future[RecordPosition]]) -> None:
        """Numbers of the failed records count as appended here, so this writer must take nothing more."""
        told = error if isinstance(error, Exception) else LedgerClosedException("the append was cancelled")
        if self._error is None:
            self._error = told
            log_event(_log, "stream_writer_ended", logging.INFO, stream=self._name, error=told)
        waiting, self._futures = [*futures, *self._futures], []
        for future in waiting:
            if not future.done():
                future.set_exception(told)
                future.exception()  # a caller that was cancelled does not take it


async def _asynchronous(records: Iterable[Payload] | AsyncIterable[Payload]) -> AsyncIterable[Payload]:
    if isinstance(records, AsyncIterable):
        async for record in records:
            yield record
        return
    for record in records:
        yield record


async def begin_term(handle: UnboundedWriteHandle, reader: ReadHandle, batch_bytes: int) -> StreamAppends:
    """Appends opening entries until what the terms before have left is readable, and reads what a writer must know.

    A bookie shows an entry only once later ones have told it that it is confirmed; where entries are striped over many
    bookies that takes some.

    Raises:
        LedgerRecoveryException: The bookies do not show the last entries.
        BKException: An append or a read failed.
    """
    last = handle.last_add_confirmed
    opening = encode_stream_entry(OPENING)
    for _ in range(_OPENINGS_A_BOOKIE * handle.metadata.ensemble_size):
        await handle.append(opening)
        if await reader.read_last_confirmed() >= last:
            break
    else:
        raise LedgerRecoveryException(
            f"the bookies of {handle.ledger_id} do not show entry {last}, which the writer before has left; try again"
        )
    table, last_time = await producers_of(reader, last, handle.max_entry_bytes)
    return StreamAppends(table, last_time, batch_bytes, handle.max_entry_bytes)
