"""The reader of a ledger: the entries that may be read, and following a ledger that is still being written.

It reads entries up to the last add confirmed that it knows (`ledger_view`, P10); only `read_unconfirmed` goes further.
One ranged read in progress is a `range_read`, tailing is in `tail`; `core` defines the rules.

In an unbounded ledger it reads from the watermark on, and skips truncate entries (`truncate_entries`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import Self

from bookgate.ledger.entry import Entry
from bookgate.ledger.entry_columns import EntryColumns
from bookgate.ledger.errors import (
    IllegalOpException,
    IncorrectParameterException,
    NoSuchEntryException,
    ReadException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.payload_codec import Codec, Record, codec_of, records_of
from bookgate.ledger.unbounded import deleted_before
from bookgate.thinclient.core.tailing import LastConfirmedAndEntry
from bookgate.thinclient.handles.ledger_view import LedgerView
from bookgate.thinclient.handles.tail import Tail
from bookgate.thinclient.handles.truncate_entries import written_batches, written_columns


class ReadHandle:
    """A reader of one ledger. Only `read_unconfirmed` returns entries above `last_add_confirmed`."""

    def __init__(self, view: LedgerView) -> None:
        """Called by `BookKeeper`."""
        self._view = view

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        metadata = self.metadata
        size = f", {metadata.length} bytes" if metadata.is_closed else ""
        return (
            f"<{type(self).__name__} of ledger {self.ledger_id}, {metadata.state.name.lower().replace('_', ' ')}, "
            f"last add confirmed {self.last_add_confirmed}{size}>"
        )

    @property
    def ledger_id(self) -> LedgerId:
        """The id of the ledger."""
        return self._view.ledger_id

    @property
    def scope_id(self) -> int:
        """The upper 64 bits of the ledger's id, signed; 0 for a ledger without a scope."""
        return self.ledger_id.scope_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger metadata, as last read by this handle."""
        return self._view.record.metadata

    @property
    def record(self) -> LedgerRecord:
        """The ledger metadata with its version, as last read by this handle."""
        return self._view.record

    @property
    def first_entry_id(self) -> int:
        """The first entry that may be read: 0, or the first that no trim of an unbounded ledger has deleted."""
        return deleted_before(self.metadata)

    @property
    def last_add_confirmed(self) -> int:
        """The LAC that this handle knows: the highest entry id that may be read; -1 for none."""
        return self._view.last_add_confirmed

    @property
    def is_closed(self) -> bool:
        """Whether the ledger is closed, so that its end is final."""
        return self._view.is_closed

    @property
    def length(self) -> int:
        """Payload bytes of a closed ledger; 0 if it is not closed."""
        return self.metadata.length

    async def close(self) -> None:
        """Ends the handle's background work and its tailing readers; the ledger itself is not changed."""
        await self._view.close()

    # The LAC

    async def read_last_confirmed(self) -> int:
        """Reads the latest LAC: from the metadata of a closed ledger, otherwise from the bookies.

        Returns:
            The LAC. It is never lower than the LAC carried by any entry acknowledged before the call; the last few
            acknowledged entries may therefore not be covered yet.

        Raises:
            ReadException: Too few bookies responded.
            TimeoutException: Too few bookies responded in time.
        """
        return await self._view.read_last_confirmed()

    async def try_read_last_confirmed(self) -> int:
        """Reads a newer LAC without metadata, from the first bookie that has one: cheaper, but without a guarantee.

        Returns:
            The LAC that this handle now knows.

        Raises:
            LedgerRecoveryException: No bookie gave a valid response.
        """
        return await self._view.try_read_last_confirmed()

    async def read_last_confirmed_and_entry(
        self, entry_id: int, timeout: float | None = None, parallel: bool = False
    ) -> LastConfirmedAndEntry:
        """Waits until `entry_id` may be read (long poll).

        Args:
            entry_id: The entry to wait for.
            timeout: Seconds to wait at each bookie, approximately; None uses `long_poll_timeout_seconds`.
            parallel: Asks all bookies at once instead of one after the other.

        Returns:
            The LAC, and the entry if the responding bookie held it. If not, read it once the LAC has reached it.

        Raises:
            NoSuchEntryException: The bookies hold no such entry yet.
            NoSuchLedgerExistsException: The bookies hold nothing of the ledger yet.
            BKException: No bookie gave a valid response; the retained one of their errors.
        """
        if entry_id < 0:
            raise IncorrectParameterException(f"entry {entry_id} of ledger {self.ledger_id} can't be waited for")
        if entry_id <= self.last_add_confirmed:
            return LastConfirmedAndEntry(self.last_add_confirmed, await self._entry(entry_id))
        if self.is_closed:
            return LastConfirmedAndEntry(self.last_add_confirmed, None)
        poll = self._view.long_poll(entry_id, parallel, timeout)
        try:
            found = await poll.result
        finally:
            poll.cancel()
        entry = found.entry if entry_id <= self.last_add_confirmed else None
        return LastConfirmedAndEntry(self.last_add_confirmed, self._written(entry))

    # Reading

    async def read(self, first: int, last: int) -> AsyncGenerator[Entry, None]:
        """Yields the entries first … last in order, with read-ahead. Raises as `read_batches`."""
        async with aclosing(self.read_batches(first, last)) as batches:
            async for batch in batches:
                for entry in batch:
                    yield entry

    def read_batches(self, first: int, last: int, max_entries: int = 1000) -> AsyncGenerator[list[Entry], None]:
        """Yields the entries first … last in order, in lists.

        Args:
            first: First entry id.
            last: Last entry id, included; first - 1 for an empty range.
            max_entries: Maximum entries per list.

        Raises:
            IncorrectParameterException: The range is invalid.
            ReadException: The range goes beyond `last_add_confirmed`.
            LedgerTrimmedException: A trim has deleted entry `first` of an unbounded ledger.
            BKException: No replica could serve an entry; raised after all entries before it were delivered.
        """
        batches = self._view.batches_of(first, last, max_entries, self._check_confirmed)
        return written_batches(batches) if self.metadata.is_unbounded else batches

    def read_columns(self, first: int, last: int, max_entries: int = 16384) -> AsyncGenerator[EntryColumns, None]:
        """Yields the entries first … last in order as columns of at most `max_entries`, for building tables.

        The columns have the sizes in which the entries arrived from the bookies, and no Python object is created per
        entry. Raises as `read_batches`.
        """
        columns = self._view.columns_of(first, last, max_entries, self._check_confirmed)
        return written_columns(columns) if self.metadata.is_unbounded else columns

    async def read_unconfirmed(self, first: int, last: int) -> AsyncGenerator[Entry, None]:
        """Yields the entries first … last, including those above `last_add_confirmed`.

        An entry above it may be missing (NoSuchEntryException), may still be replaced, and may never become part of the
        ledger. Raises IllegalOpException for an unbounded ledger, whose bookies show no such entries.
        """
        async with aclosing(self.read_unconfirmed_batches(first, last)) as batches:
            async for batch in batches:
                for entry in batch:
                    yield entry

    def read_unconfirmed_batches(
        self, first: int, last: int, max_entries: int = 1000
    ) -> AsyncGenerator[list[Entry], None]:
        """Like `read_unconfirmed`, in lists of at most `max_entries`."""
        if self.metadata.is_unbounded:
            raise IllegalOpException(f"ledger {self.ledger_id} is unbounded: what is not confirmed can't be read")
        return self._view.batches_of(first, last, max_entries, self._check_range)

    async def read_records(self, first: int, last: int) -> AsyncGenerator[Record, None]:
        """Yields the records of the entries first … last in order. Raises as `read_records_batches`."""
        async with aclosing(self.read_records_batches(first, last)) as batches:
            async for batch in batches:
                for record in batch:
                    yield record

    async def read_records_batches(
        self, first: int, last: int, max_entries: int = 1000
    ) -> AsyncGenerator[list[Record], None]:
        """Yields the records of the entries first … last in order, in the lists of `read_batches`.

        In a ledger without a codec (`bookgate.codec` in its custom metadata) each entry is one record.

        Raises:
            PayloadCodecException: This version does not support the codec, or an entry is not encoded with it.
            IllegalOpException: The library for its compression is not installed.
            BKException: As `read_batches`.
        """
        async with aclosing(self.read_batches(first, last, max_entries)) as batches:
            async for batch in batches:
                yield records_of(self._codec(), batch)

    async def tail_records(self, from_entry: int = 0) -> AsyncGenerator[Record, None]:
        """Yields records from entry `from_entry` on as they are confirmed. See `tail_batches`."""
        async with aclosing(self.tail_records_batches(from_entry)) as batches:
            async for batch in batches:
                for record in batch:
                    yield record

    async def tail_records_batches(
        self, from_entry: int = 0, max_entries: int = 1000
    ) -> AsyncGenerator[list[Record], None]:
        """Yields lists of records as they are confirmed. Raises as `tail_batches` and `read_records_batches`."""
        async with aclosing(self.tail_batches(from_entry, max_entries)) as batches:
            async for batch in batches:
                yield records_of(self._codec(), batch)

    def _codec(self) -> Codec:
        return codec_of(self.metadata.custom_metadata)

    async def read_last_entry(self) -> Entry:
        """Reads the latest LAC, then the entry there.

        Raises:
            NoSuchEntryException: No entry is confirmed.
        """
        last = await self.read_last_confirmed()
        if last < 0:
            raise NoSuchEntryException(f"ledger {self.ledger_id} has no confirmed entry")
        for entry_id in range(last, self.first_entry_id - 1, -1):
            if entry := await self._entry(entry_id):
                return entry
        raise NoSuchEntryException(f"ledger {self.ledger_id} has no confirmed entry that no trim has deleted")

    async def _entry(self, entry_id: int) -> Entry | None:
        """A confirmed entry; None for a truncate entry."""
        async with aclosing(self._view.batches_of(entry_id, entry_id, 1)) as batches:
            (entry,) = await anext(batches)
        return self._written(entry)

    def _written(self, entry: Entry | None) -> Entry | None:
        return None if entry is not None and not entry.payload and self.metadata.is_unbounded else entry

    # Tailing

    async def tail(
        self, from_entry: int = 0, *, long_poll: bool = True, parallel: bool = False
    ) -> AsyncGenerator[Entry, None]:
        """Yields the entries from `from_entry` on as they are confirmed, until the ledger is closed. See
        `tail_batches`.
        """
        async with aclosing(self.tail_batches(from_entry, long_poll=long_poll, parallel=parallel)) as batches:
            async for batch in batches:
                for entry in batch:
                    yield entry

    async def tail_batches(
        self, from_entry: int = 0, max_entries: int = 1000, *, long_poll: bool = True, parallel: bool = False
    ) -> AsyncGenerator[list[Entry], None]:
        """Yields lists of entries from `from_entry` on as they are confirmed, until the ledger is closed.

        An entry becomes readable once a later entry, an explicit LAC or the ledger's end shows that it is confirmed.
        Entries that are readable already arrive in large lists.

        Args:
            from_entry: First entry id.
            max_entries: Maximum entries per list.
            long_poll: True waits at the bookies for news; False asks them every `tail_poll_interval_seconds`.
            parallel: Waits at all bookies at once instead of one after the other.

        Raises:
            NoSuchLedgerExistsOnMetadataServerException: The ledger was deleted.
            LedgerTrimmedException: A trim has deleted the next entry of an unbounded ledger.
            LedgerClosedException: This handle was closed meanwhile.
            BKException: The bookies have not served this reader for `tail_failure_timeout_seconds`; their error.
        """
        self._check_range(from_entry, from_entry, max_entries)
        entries = Tail(self._view, from_entry, max_entries, long_poll, parallel).batches()
        async with aclosing(written_batches(entries) if self.metadata.is_unbounded else entries) as batches:
            async for batch in batches:
                yield batch

    def _check_confirmed(self, first: int, last: int, max_entries: int) -> None:
        self._check_range(first, last, max_entries)
        if last > self.last_add_confirmed:
            raise ReadException(
                f"entry {last} of ledger {self.ledger_id} can't be read: the last confirmed entry known here is "
                f"{self.last_add_confirmed}"
            )

    def _check_range(self, first: int, last: int, max_entries: int) -> None:
        if first < 0 or last < first - 1 or max_entries < 1:
            raise IncorrectParameterException(
                f"entries {first} to {last} of ledger {self.ledger_id}, {max_entries} at a time, are no range to read"
            )
