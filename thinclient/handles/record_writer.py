"""Combines small records into entries: a batch is sent when it is full, or when its first record has waited `linger`.

A record is acknowledged with its entry. Batches are appended in the order of the records, pipelined like all appends.

| event | leads to |
|---|---|
| a record arrives and there is no batch | a new batch, and a timer of `linger` |
| the batch holds `batch_bytes`, the timer ends, `flush`, `close` | the batch is encoded and appended |
| the append is acknowledged, or fails | its records are acknowledged, or fail |

Not its job: the bytes (`ledger.payload_codec`).
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from bookgate.ledger.errors import IncorrectParameterException, LedgerClosedException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.payload_codec import Codec, RecordPosition, codec_of, encode_records
from bookgate.thinclient.handles.write_handle import WriteHandle


class RecordWriter:
    """The one writer of a ledger of records. Use it as an async context manager, or call `close`."""

    def __init__(self, handle: WriteHandle, *, linger_seconds: float, batch_bytes: int) -> None:
        """Called by `BookKeeper.create_record_ledger`."""
        if linger_seconds < 0 or batch_bytes < 1:
            raise IncorrectParameterException(
                f"linger_seconds ({linger_seconds}) is 0 or more, batch_bytes ({batch_bytes}) 1 or more"
            )
        self._handle = handle
        self._codec: Codec = codec_of(handle.metadata.custom_metadata)
        self._linger = linger_seconds
        self._batch_bytes = batch_bytes
        self._loop = asyncio.get_running_loop()
        self._records: list[bytes] = []
        self._futures: list[asyncio.Future[RecordPosition]] = []
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None
        self._appends: set[asyncio.Task[None]] = set()
        self._closed = False

    def __repr__(self) -> str:
        return f"<RecordWriter of {self._codec.value}, {self._handle!r}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
            return
        await self._handle._close_after_error(self.close)

    @property
    def ledger_id(self) -> LedgerId:
        """The id of the ledger."""
        return self._handle.ledger_id

    @property
    def handle(self) -> WriteHandle:
        """The writer of the ledger's entries."""
        return self._handle

    async def append(self, record: bytes) -> RecordPosition:
        """Appends a record. Concurrent calls share entries, in the order of the calls.

        Args:
            record: The record's bytes; may be empty.

        Returns:
            The position of the record, once its entry is acknowledged.

        Raises:
            IncorrectParameterException: The record is not bytes, or larger than an entry may be.
            LedgerClosedException: The writer was closed.
            BKException: As `WriteHandle.append`.
        """
        return await self.append_nowait(record)

    def append_nowait(self, record: bytes) -> asyncio.Future[RecordPosition]:
        """Appends a record without waiting; the caller limits outstanding records. The future returns the position."""
        if self._closed:
            raise LedgerClosedException(f"the writer of ledger {self.ledger_id} is closed")
        if not isinstance(record, bytes | bytearray | memoryview):
            raise IncorrectParameterException(f"record is bytes, not {type(record).__name__}: encode it")
        future: asyncio.Future[RecordPosition] = self._loop.create_future()
        self._records.append(bytes(record))
        self._futures.append(future)
        self._size += len(record)
        if self._size >= self._batch_bytes:
            self._send()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._linger, self._send)
        return future

    async def flush(self) -> None:
        """Sends the current batch and waits until all records so far are acknowledged or have failed."""
        self._send()
        if self._appends:  # not again for those that come meanwhile: under steady load there are always some
            await asyncio.wait(set(self._appends))

    async def close(self) -> None:
        """Waits for all records, then closes the ledger. Raises as `WriteHandle.close`."""
        self._closed = True
        await self.flush()
        await self._handle.close()

    def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._records:
            return
        # Tasks start in the order of their creation, and enter the window of appends in this order.
        task = self._loop.create_task(self._append(self._records, self._futures))
        self._records, self._futures, self._size = [], [], 0
        self._appends.add(task)
        task.add_done_callback(self._appends.discard)

    async def _append(self, records: list[bytes], futures: list[asyncio.Future[RecordPosition]]) -> None:
        try:
            entry_id = await self._handle.append(encode_records(self._codec, records))
        except BaseException as error:
            # Callers that wait for a record get the error; nobody waits for this task.
            _fail(futures, error if isinstance(error, Exception) else LedgerClosedException("the append was cancelled"))
            if not isinstance(error, Exception):
                raise
            return
        for number, future in enumerate(futures):
            if not future.done():
                future.set_result(RecordPosition(entry_id, number))


def _fail(futures: list[asyncio.Future[RecordPosition]], error: Exception) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error)
