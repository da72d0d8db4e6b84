"""A client whose every call and outcome goes into a history: the same in a simulation and over real processes.

Errors of BookKeeper are outcomes and recorded as such; every other error is a bug of the client and raised.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Any

from bookgate import BookKeeper
from bookgate.ledger.digest import digest_for, ledger_master_key
from bookgate.ledger.entry import Entry, encode_entry
from bookgate.ledger.errors import (
    BKException,
    LedgerIdTakenException,
    NoSuchLedgerExistsOnMetadataServerException,
)
from bookgate.ledger.ledger_id import NO_ENTRY, LedgerId
from bookgate.ledger.metadata import DigestType
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.wire.messages import HIGH_PRIORITY, LAST_ENTRY, AddRequest, Operation, ReadRequest
from bookgate.thinclient.handles.advanced_write_handle import AdvancedWriteHandle
from bookgate.thinclient.handles.base_write_handle import BaseWriteHandle
from bookgate.thinclient.handles.read_handle import ReadHandle
from bookgate.thinclient.handles.write_handle import WriteHandle
from tests.history import events
from tests.history.contents import content, payload_of, text_of
from tests.history.events import MetadataSeen
from tests.history.recorder import Recorder
from tests.history.violations import OutOfOrder
from tests.unit.thinclient.inside import pool_of

Run = Callable[[Coroutine[Any, Any, None]], Awaitable[None]]

PASSWORD = b"planted-password of ledgers of a history!"
_TAG = "history"
_WRONG_KEY = ledger_master_key(b"not that password")
_DIGEST = digest_for(DigestType.CRC32C, b"not that password")
_NEAR = 500
"""Entry ids that a writer gets to: what is far off is no ordinary add, and refused for that."""
_INTRUSION_SECONDS = 5.0


def metadata_seen(at: float, client: str, record: LedgerRecord) -> MetadataSeen:
    metadata = record.metadata
    return MetadataSeen(
        at,
        client,
        str(record.ledger_id.number),
        record.version,
        metadata.state.name,
        (metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size),
        tuple((fragment.first_entry_id, fragment.ensemble) for fragment in metadata.fragments),
        metadata.last_entry_id,
        metadata.length,
        metadata.custom_metadata.get(_TAG, b"").decode(),
    )


class RecordingClient:
    """`name` is unique in the run, also among clients that crashed."""

    def __init__(self, name: str, client: BookKeeper, recorder: Recorder) -> None:
        self.name = name
        self.client = client
        self.recorder = recorder
        self.run: Run = _run_here
        """Runs work where this client lives, and returns when it is done or the client is no more."""
        self._created = 0

    async def create(
        self,
        sizes: tuple[int, int, int],
        *,
        advanced: bool = False,
        deferred_sync: bool = False,
        guaranteed: bool = False,
        ledger_id: LedgerId | None = None,
    ) -> RecordingWriter | None:
        """None when it failed; a ledger nobody knows of may be left then."""
        self._created += 1
        tag = f"{self.name}-{self._created}"
        make = self.client.create_advanced_ledger if advanced else self.client.create_ledger
        try:
            handle = await make(
                *sizes,
                password=PASSWORD,
                custom_metadata={_TAG: tag.encode()},
                ledger_id=ledger_id,
                deferred_sync=deferred_sync,
                guaranteed_write_quorum=guaranteed,
            )
        except BKException:
            return None
        ledger = str(handle.ledger_id.number)
        now = self.recorder.now
        self.recorder.add(events.LedgerCreated(now, self.name, ledger, sizes, tag, advanced, deferred_sync, guaranteed))
        self.saw(handle.record)
        return RecordingWriter(self, handle, ledger)

    def saw(self, record: LedgerRecord) -> None:
        self.recorder.add(metadata_seen(self.recorder.now, self.name, record))

    async def look(self, ledger: str) -> LedgerRecord | None:
        """The ledger's record; None when it can't be had or is gone."""
        try:
            record = await self.client.read_record(LedgerId.of_number(int(ledger)))
        except NoSuchLedgerExistsOnMetadataServerException:
            self.recorder.add(events.MetadataRemoved(self.recorder.now, self.name, ledger))
            return None
        except BKException:
            return None
        self.saw(record)
        return record

    async def recover(self, ledger: str) -> RecordingReader | None:
        recorder = self.recorder
        recorder.add(events.RecoveryAsked(recorder.now, self.name, ledger))
        try:
            handle = await self.client.open_ledger(LedgerId.of_number(int(ledger)), PASSWORD, recovery=True)
        except BKException as error:
            recorder.add(events.RecoveryFailed(recorder.now, self.name, ledger, _text(error)))
            return None
        metadata = handle.metadata
        recorder.add(events.Recovered(recorder.now, self.name, ledger, metadata.last_entry_id, metadata.length))
        self.saw(handle.record)
        return RecordingReader(self, handle, ledger)

    async def open(self, ledger: str) -> RecordingReader | None:
        """To read, without recovery."""
        try:
            handle = await self.client.open_ledger(LedgerId.of_number(int(ledger)), PASSWORD)
        except BKException:
            return None
        self.saw(handle.record)
        reader = RecordingReader(self, handle, ledger)
        reader.show_lac()
        return reader

    async def intrude(self, ledger: str, bookie: str, rng: random.Random) -> None:
        """Asks a bookie that holds entries of the ledger for what needs its key, with another one."""
        pool, number = pool_of(self.client), int(ledger)
        txn_id = pool.next_txn_id()
        request: AddRequest | ReadRequest
        if rng.random() < 0.5:
            request = ReadRequest(txn_id, number, LAST_ENTRY, fence=True, master_key=_WRONG_KEY)
        else:
            roll = rng.random()
            entry_id = 1 + int(roll * _NEAR)
            body = encode_entry(_DIGEST, number, entry_id, NO_ENTRY, len(_WRONG_KEY), _WRONG_KEY)
            request = AddRequest(txn_id, number, entry_id, _WRONG_KEY, body)
            if roll < 0.5:
                # As recoveries send theirs, which the bookie serves on a fast path of their own.
                request = request._replace(recovery=True, priority=HIGH_PRIORITY)
        operation = Operation.READ_ENTRY if isinstance(request, ReadRequest) else Operation.ADD_ENTRY
        with suppress(BKException):
            await pool.request(bookie, operation, request, _INTRUSION_SECONDS)

    async def delete(self, ledger: str) -> None:
        self.recorder.add(events.DeleteAsked(self.recorder.now, self.name, ledger))
        try:
            await self.client.delete_ledger(LedgerId.of_number(int(ledger)))
        except BKException:
            return


async def _run_here(work: Coroutine[Any, Any, None]) -> None:
    await work


class RecordingWriter:
    """The writer of one ledger."""

    def __init__(self, owner: RecordingClient, handle: BaseWriteHandle, ledger: str) -> None:
        self._owner = owner
        self._recorder = owner.recorder
        self.handle = handle
        self.ledger = ledger
        self.appended = 0
        self.ended = False
        """An append failed: there will be no other."""

    def begin(self, size: int, entry_id: int = -1) -> asyncio.Future[int] | None:
        """Appends without waiting for room; `entry_id` for advanced ledgers. None when it was refused at once."""
        recorder, number = self._recorder, self.appended
        self.appended += 1
        text = content(self._owner.name, self.ledger, number, size)
        recorder.add(events.AppendAsked(recorder.now, self._owner.name, self.ledger, number, text, entry_id))
        try:
            if isinstance(self.handle, AdvancedWriteHandle):
                future = self.handle.append_nowait(entry_id, payload_of(text))
            else:
                assert isinstance(self.handle, WriteHandle)
                future = self.handle.append_nowait(payload_of(text))
        except BKException as error:
            self._failed(number, error)
            return None
        future.add_done_callback(partial(self._settled, number))
        return future

    async def append(self, sizes: Sequence[int], entry_ids: Sequence[int] = ()) -> bool:
        """Appends several at once and waits for all; True when all were acknowledged."""
        ids = entry_ids or [-1] * len(sizes)
        begun = [self.begin(size, entry_id) for size, entry_id in zip(sizes, ids, strict=True)]
        futures = [future for future in begun if future is not None]
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, BKException):
                raise outcome
        self.show_lac()
        return len(futures) == len(begun) and not any(isinstance(outcome, BKException) for outcome in outcomes)

    def _settled(self, number: int, future: asyncio.Future[int]) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is not None:
            self._failed(number, error)
            return
        now = self._recorder.now
        self._recorder.add(events.AppendAcknowledged(now, self._owner.name, self.ledger, number, future.result()))

    def _failed(self, number: int, error: BaseException) -> None:
        self.ended = True
        now = self._recorder.now
        self._recorder.add(events.AppendFailed(now, self._owner.name, self.ledger, number, _text(error)))
        if isinstance(error, LedgerIdTakenException):
            # The client has deleted it: nothing was in it.
            self._recorder.add(events.DeleteAsked(now, self._owner.name, self.ledger))

    def show_lac(self) -> None:
        lac = self.handle.last_add_confirmed
        self._recorder.add(events.WriterLac(self._recorder.now, self._owner.name, self.ledger, lac))

    async def force(self) -> bool:
        try:
            await self.handle.force()
        except BKException:
            return False
        lac = self.handle.last_add_confirmed
        self._recorder.add(events.Forced(self._recorder.now, self._owner.name, self.ledger, lac))
        return True

    async def close(self) -> bool:
        recorder, name = self._recorder, self._owner.name
        recorder.add(events.CloseAsked(recorder.now, name, self.ledger))
        try:
            await self.handle.close()
        except BKException as error:
            recorder.add(events.CloseFailed(recorder.now, name, self.ledger, _text(error)))
            return False
        metadata = self.handle.metadata
        recorder.add(events.Closed(recorder.now, name, self.ledger, metadata.last_entry_id, metadata.length))
        self._owner.saw(self.handle.record)
        return True


class RecordingReader:
    """One open ledger."""

    def __init__(self, owner: RecordingClient, handle: ReadHandle, ledger: str) -> None:
        self._owner = owner
        self._recorder = owner.recorder
        self.handle = handle
        self.ledger = ledger

    async def read(self, first: int, last: int, *, confirmed: bool = True) -> bool:
        """False when it failed; what was delivered before is recorded all the same."""
        read = self.handle.read_batches if confirmed else self.handle.read_unconfirmed_batches
        wanted, asked_at = first, self._recorder.now
        try:
            async with aclosing(read(first, last)) as batches:
                async for batch in batches:
                    wanted = self._delivered(batch, wanted, confirmed)
        except BKException as error:
            name, now = self._owner.name, self._recorder.now
            failed = events.ReadFailed(now, name, self.ledger, wanted, last, _text(error), confirmed, asked_at)
            self._recorder.add(failed)
            return False
        return True

    async def read_whole(self) -> bool:
        """Everything up to the last add confirmed that the handle knows."""
        last = self.handle.last_add_confirmed
        return last < 0 or await self.read(0, last)

    def _delivered(self, batch: Sequence[Entry], wanted: int, confirmed: bool) -> int:
        """Records a batch that has to begin with entry `wanted`; the entry wanted next. Raises OutOfOrder."""
        contents = tuple(text_of(bytes(entry.payload)) for entry in batch)
        lac, first = self.handle.last_add_confirmed, batch[0].entry_id
        name, now = self._owner.name, self._recorder.now
        read = events.ReadDone(now, name, self.ledger, first, contents, lac, confirmed)
        self._recorder.add(read)
        ids = [entry.entry_id for entry in batch]
        if ids != list(range(wanted, wanted + len(batch))):
            raise OutOfOrder(f"ledger {self.ledger}: entries {ids} were delivered where {wanted} was due", read)
        return wanted + len(batch)

    async def look_further(self) -> None:
        """Asks for the newest last add confirmed."""
        try:
            await self.handle.read_last_confirmed()
        except BKException:
            return
        self.show_lac()

    def show_lac(self) -> None:
        lac = self.handle.last_add_confirmed
        self._recorder.add(events.LacRead(self._recorder.now, self._owner.name, self.ledger, lac))

    async def tail(self, from_entry: int, *, long_poll: bool = True, parallel: bool = False) -> bool:
        """Follows the ledger to its end. False when that failed."""
        try:
            async with aclosing(self._tail(from_entry, long_poll, parallel)) as batches:
                async for batch in batches:
                    from_entry = self._delivered(batch, from_entry, True)
        except BKException:
            return False
        return True

    def _tail(self, from_entry: int, long_poll: bool, parallel: bool) -> AsyncGenerator[list[Entry], None]:
        return self.handle.tail_batches(from_entry, long_poll=long_poll, parallel=parallel)

    async def close(self) -> None:
        await self.handle.close()
        self._owner.saw(self.handle.record)


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
