"""A ledger in the hands of a reader: what may be read, and following a ledger that is still written.

A reader knows a *last add confirmed* (LAC): of a closed ledger its end, else the greatest that metadata, bookies and
entries have told so far. Entries up to it are read (P10); `read_unconfirmed` alone goes further. While a handle
listens, newer metadata replace the older ones. A range that can't be read is tried again by newer metadata.

One ranged read under way is a `read_session`, tailing is `tail`; the rules stand in `core`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import Self

from ledger.entry import Entry
from ledger.errors import (
    BKException,
    IncorrectParameterException,
    LedgerClosedException,
    NoSuchEntryException,
    NoSuchLedgerExistsOnMetadataServerException,
    ReadException,
)
from ledger.ledger_id import NO_ENTRY, LedgerId
from ledger.manager import LedgerRecord
from ledger.metadata import LedgerMetadata
from thinclient.config import ClientConfig
from thinclient.context import ClientContext, LedgerSecrets
from thinclient.core.tailing import LastConfirmedAndEntry
from thinclient.last_confirmed_reads import LongPoll, try_read_last_confirmed
from thinclient.read_session import ReadSession
from thinclient.recovery_driver import read_last_confirmed
from thinclient.tail import Tail


class ReadHandle:
    """A ledger that is read. What lies above `last_add_confirmed` is never returned, but by `read_unconfirmed`."""

    def __init__(
        self,
        context: ClientContext,
        record: LedgerRecord,
        secrets: LedgerSecrets,
        last_add_confirmed: int,
        *,
        asks_metadata: bool = True,
    ) -> None:
        """`asks_metadata`: look for newer metadata when a range can't be read."""
        self._context = context
        self._record = record
        self._secrets = secrets
        self._last_add_confirmed = last_add_confirmed
        self._asks_metadata = asks_metadata
        self._listening = False
        self._deleted = False
        self._closed = False
        self._changed: asyncio.Future[None] | None = None
        self._without_batches: set[str] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def config(self) -> ClientConfig:
        return self._context.config

    @property
    def ledger_id(self) -> LedgerId:
        return self._record.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        return self._record.metadata

    @property
    def record(self) -> LedgerRecord:
        return self._record

    @property
    def last_add_confirmed(self) -> int:
        """The highest entry that may be read as far as this handle knows; -1 for none."""
        return self._last_add_confirmed

    @property
    def is_closed(self) -> bool:
        """The ledger has its final end."""
        return self.metadata.is_closed

    @property
    def length(self) -> int:
        """Payload bytes of a closed ledger, 0 of one that is not closed."""
        return self.metadata.length

    async def listen(self) -> None:
        """Follows the ledger's metadata until `close`: a ledger that gets closed shows its end here."""
        if not self._listening and not self.is_closed:
            self._listening = True
            await self._context.ledger_manager.register_listener(self.ledger_id, self._on_metadata)

    async def close(self) -> None:
        """Ends what the handle keeps up, tailing readers too; the ledger itself is not touched."""
        self._closed = True
        self._tell_changed()
        if self._listening:
            self._listening = False
            await self._context.ledger_manager.unregister_listener(self.ledger_id, self._on_metadata)

    # How far may be read

    async def read_last_confirmed(self) -> int:
        """Asks for the newest last add confirmed: the metadata's of a closed ledger, else the bookies'.

        It is at least that of any entry acknowledged before the call that carried one, so all but the last ones. Raises
        ReadException or TimeoutException when too few bookies answer.
        """
        if not self.is_closed:
            await self.refresh()
        if not self.is_closed:
            with self._context.metrics.timed("READ_LAC"):
                read = await read_last_confirmed(self._context, self._record, self._secrets)
            self._learn(read.result)
        return self._last_add_confirmed

    async def try_read_last_confirmed(self) -> int:
        """The same without metadata, and satisfied by the first bookie that has news: cheaper, and promises nothing.

        Raises LedgerRecoveryException when no bookie gives a valid answer.
        """
        if not self.is_closed:
            await try_read_last_confirmed(
                self._context, self._record, self._secrets, self._last_add_confirmed, self._learn
            )
        return self._last_add_confirmed

    async def read_last_confirmed_and_entry(
        self, entry_id: int, timeout: float | None = None, parallel: bool = False
    ) -> LastConfirmedAndEntry:
        """Waits until `entry_id` may be read, for about `timeout` seconds (`long_poll_timeout`) at each bookie.

        The entry comes along where the bookie that answers holds it; else read it when the LAC has reached it. With
        `parallel` all bookies are asked at once. Raises NoSuchEntryException or NoSuchLedgerExistsException while the
        bookies hold nothing of the ledger, or else their error when none gives a valid answer.
        """
        if entry_id < 0:
            raise IncorrectParameterException(f"entry {entry_id} of ledger {self.ledger_id} can't be waited for")
        if entry_id <= self._last_add_confirmed:
            async with aclosing(self.batches_of(entry_id, entry_id, 1)) as batches:
                (entry,) = await anext(batches)
            return LastConfirmedAndEntry(self._last_add_confirmed, entry)
        if self.is_closed:
            return LastConfirmedAndEntry(self._last_add_confirmed, None)
        poll = self.long_poll(entry_id, parallel, timeout)
        try:
            found = await poll.result
        finally:
            poll.cancel()
        return LastConfirmedAndEntry(
            self._last_add_confirmed, found.entry if entry_id <= self._last_add_confirmed else None
        )

    # Reading

    async def read(self, first: int, last: int) -> AsyncGenerator[Entry, None]:
        """The entries first … last in order, with read-ahead. See `read_batches` for errors."""
        async with aclosing(self.read_batches(first, last)) as batches:
            async for batch in batches:
                for entry in batch:
                    yield entry

    async def read_batches(self, first: int, last: int, max_entries: int = 1000) -> AsyncGenerator[list[Entry], None]:
        """The entries first … last in order, in lists of at most `max_entries`.

        `last` may be first - 1 for an empty range. Raises IncorrectParameterException for a range that is none,
        ReadException beyond `last_add_confirmed`; otherwise the error of an entry that no replica could serve, after
        everything before it was delivered.
        """
        self._check_range(first, last, max_entries)
        if last > self._last_add_confirmed:
            raise ReadException(
                f"entry {last} of ledger {self.ledger_id} can't be read: the last confirmed entry known here is "
                f"{self._last_add_confirmed}"
            )
        async with aclosing(self.batches_of(first, last, max_entries)) as batches:
            async for batch in batches:
                yield batch

    async def read_unconfirmed(self, first: int, last: int) -> AsyncGenerator[Entry, None]:
        """The entries first … last, also above `last_add_confirmed`: those may be missing (NoSuchEntryException), and
        may yet be replaced or never be part of the ledger."""
        async with aclosing(self.read_unconfirmed_batches(first, last)) as batches:
            async for batch in batches:
                for entry in batch:
                    yield entry

    async def read_unconfirmed_batches(
        self, first: int, last: int, max_entries: int = 1000
    ) -> AsyncGenerator[list[Entry], None]:
        """The same in lists of at most `max_entries`."""
        self._check_range(first, last, max_entries)
        async with aclosing(self.batches_of(first, last, max_entries)) as batches:
            async for batch in batches:
                yield batch

    async def read_last_entry(self) -> Entry:
        """The last confirmed entry, asked for anew. Raises NoSuchEntryException where there is none."""
        last = await self.read_last_confirmed()
        if last < 0:
            raise NoSuchEntryException(f"ledger {self.ledger_id} has no confirmed entry")
        async with aclosing(self.batches_of(last, last, 1)) as batches:
            (entry,) = await anext(batches)
        return entry

    # Tailing

    async def tail(
        self, from_entry: int = 0, *, long_poll: bool = True, parallel: bool = False
    ) -> AsyncGenerator[Entry, None]:
        """The entries from `from_entry` on, as they are confirmed, until the ledger is closed. See `tail_batches`."""
        async with aclosing(self.tail_batches(from_entry, long_poll=long_poll, parallel=parallel)) as batches:
            async for batch in batches:
                for entry in batch:
                    yield entry

    async def tail_batches(
        self, from_entry: int = 0, max_entries: int = 1000, *, long_poll: bool = True, parallel: bool = False
    ) -> AsyncGenerator[list[Entry], None]:
        """The same in lists of at most `max_entries`; everything that is readable already comes in large ones.

        An entry is readable once a later entry, an explicit LAC or the ledger's end has told that it is confirmed. With
        `parallel` all bookies are waited at instead of one after the other; without `long_poll` they are asked every
        `tail_poll_interval` seconds.

        Raises NoSuchLedgerExistsOnMetadataServerException when the ledger is deleted, LedgerClosedException when this
        handle is closed meanwhile, and what the bookies said when they have not served the reader for
        `tail_failure_timeout` seconds.
        """
        self._check_range(from_entry, from_entry, max_entries)
        async with aclosing(Tail(self, from_entry, max_entries, long_poll, parallel).batches()) as batches:
            async for batch in batches:
                yield batch

    # For tailing

    async def batches_of(self, first: int, last: int, max_entries: int) -> AsyncGenerator[list[Entry], None]:
        """The entries first … last, without a check against the LAC."""
        while first <= last:
            session = ReadSession(self._context, self._record, self._secrets, first, last, self._without_batches)
            try:
                while batch := await session.next_batch(max_entries):
                    first = batch[-1].entry_id + 1
                    self._learn(session.max_lac)
                    yield batch
                    if session.reader.finished:
                        return
            finally:
                session.close()
            failure = session.reader.failure or ReadException(f"entry {first} of ledger {self.ledger_id} did not come")
            if not await self._moved(session.record, failure):
                raise failure

    def long_poll(self, entry_id: int, parallel: bool, timeout: float | None = None) -> LongPoll:
        """Starts waiting for an entry above the LAC."""
        known = self._last_add_confirmed
        return LongPoll(
            self._context,
            self._record,
            self._secrets,
            entry_id,
            known,
            self._learn,
            timeout=timeout,
            parallel=parallel,
        )

    def changed(self) -> asyncio.Future[None]:
        """Ends with the next change of the metadata, or when the handle is closed. Not to be cancelled."""
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        return self._changed

    def check_readable(self) -> None:
        """Raises if the handle was closed or the ledger deleted."""
        if self._closed:
            raise LedgerClosedException(f"the handle of ledger {self.ledger_id} was closed")
        if self._deleted:
            raise NoSuchLedgerExistsOnMetadataServerException(f"ledger {self.ledger_id} was deleted")

    async def refresh(self) -> None:
        """Reads the metadata anew."""
        self._adopt(await self._context.ledger_manager.read(self.ledger_id))

    async def _moved(self, tried: LedgerRecord, failure: BKException) -> bool:
        """There are newer metadata than those by which a range could not be read."""
        if self._record.version == tried.version and self._asks_metadata:
            try:
                await self.refresh()
            except NoSuchLedgerExistsOnMetadataServerException as gone:
                raise gone from failure
            except BKException:
                return False
        return self._record.version > tried.version

    def _check_range(self, first: int, last: int, max_entries: int) -> None:
        if first < 0 or last < first - 1 or max_entries < 1:
            raise IncorrectParameterException(
                f"entries {first} to {last} of ledger {self.ledger_id}, {max_entries} at a time, are no range to read"
            )

    def _learn(self, lac: int) -> None:
        if self.is_closed:
            return
        if lac > self._last_add_confirmed:
            self._last_add_confirmed = lac
            self._context.metrics.count("LAC_UPDATE_HITS")
        else:
            self._context.metrics.count("LAC_UPDATE_MISSES")

    def _on_metadata(self, _ledger_id: LedgerId, record: LedgerRecord | None) -> None:
        if record is not None:
            self._adopt(record)
            return
        self._deleted = True
        self._tell_changed()

    def _adopt(self, record: LedgerRecord) -> None:
        if record.version <= self._record.version:
            return
        self._record = record
        if record.metadata.is_closed:
            self._last_add_confirmed = record.metadata.last_entry_id
        else:
            self._learn(known_last_entry(record))
        self._tell_changed()

    def _tell_changed(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None and not changed.done():
            changed.set_result(None)


def known_last_entry(record: LedgerRecord) -> int:
    """The last confirmed entry that the metadata alone tells."""
    metadata = record.metadata
    return metadata.last_entry_id if metadata.is_closed else max(NO_ENTRY, metadata.last_fragment.first_entry_id - 1)
