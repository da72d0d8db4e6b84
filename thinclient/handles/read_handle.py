"""A ledger in the hands of a reader: what may be read, and following a ledger that is still written.

Entries up to the last add confirmed that the reader knows (`ledger_view`) are read (P10); `read_unconfirmed` alone goes
further. One ranged read under way is a `range_read`, tailing is `tail`; the rules stand in `core`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import Self

from bookgate.ledger.entry import Entry
from bookgate.ledger.entry_columns import EntryColumns
from bookgate.ledger.errors import IncorrectParameterException, NoSuchEntryException, ReadException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.thinclient.core.tailing import LastConfirmedAndEntry
from bookgate.thinclient.handles.ledger_view import LedgerView
from bookgate.thinclient.handles.tail import Tail


class ReadHandle:
    """A ledger that is read. What lies above `last_add_confirmed` is never returned, but by `read_unconfirmed`."""

    def __init__(self, view: LedgerView) -> None:
        """Made by `BookKeeper`."""
        self._view = view

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def ledger_id(self) -> LedgerId:
        return self._view.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        return self._view.record.metadata

    @property
    def record(self) -> LedgerRecord:
        return self._view.record

    @property
    def last_add_confirmed(self) -> int:
        """The highest entry that may be read as far as this handle knows; -1 for none."""
        return self._view.last_add_confirmed

    @property
    def is_closed(self) -> bool:
        """The ledger has its final end."""
        return self._view.is_closed

    @property
    def length(self) -> int:
        """Payload bytes of a closed ledger, 0 of one that is not closed."""
        return self.metadata.length

    async def close(self) -> None:
        """Ends what the handle keeps up, tailing readers too; the ledger itself is not touched."""
        await self._view.close()

    # How far may be read

    async def read_last_confirmed(self) -> int:
        """Asks for the newest last add confirmed: the metadata's of a closed ledger, else the bookies'.

        It is at least that of any entry acknowledged before the call that carried one, so all but the last ones. Raises
        ReadException or TimeoutException when too few bookies answer.
        """
        return await self._view.read_last_confirmed()

    async def try_read_last_confirmed(self) -> int:
        """The same without metadata, and satisfied by the first bookie that has news: cheaper, and promises nothing.

        Raises LedgerRecoveryException when no bookie gives a valid answer.
        """
        return await self._view.try_read_last_confirmed()

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
        if entry_id <= self.last_add_confirmed:
            async with aclosing(self._view.batches_of(entry_id, entry_id, 1)) as batches:
                (entry,) = await anext(batches)
            return LastConfirmedAndEntry(self.last_add_confirmed, entry)
        if self.is_closed:
            return LastConfirmedAndEntry(self.last_add_confirmed, None)
        poll = self._view.long_poll(entry_id, parallel, timeout)
        try:
            found = await poll.result
        finally:
            poll.cancel()
        return LastConfirmedAndEntry(
            self.last_add_confirmed, found.entry if entry_id <= self.last_add_confirmed else None
        )

    # Reading

    async def read(self, first: int, last: int) -> AsyncGenerator[Entry, None]:
        """The entries first … last in order, with read-ahead. See `read_batches` for errors."""
        async with aclosing(self.read_batches(first, last)) as batches:
            async for batch in batches:
                for entry in batch:
                    yield entry

    def read_batches(self, first: int, last: int, max_entries: int = 1000) -> AsyncGenerator[list[Entry], None]:
        """The entries first … last in order, in lists of at most `max_entries`.

        `last` may be first - 1 for an empty range. Raises IncorrectParameterException for a range that is none,
        ReadException beyond `last_add_confirmed`; otherwise the error of an entry that no replica could serve, after
        everything before it was delivered.
        """
        return self._view.batches_of(first, last, max_entries, self._check_confirmed)

    def read_columns(self, first: int, last: int, max_entries: int = 16384) -> AsyncGenerator[EntryColumns, None]:
        """The entries first … last in order, in columns of at most `max_entries`: for who makes tables of them.

        In the pieces in which they came from the bookies, without a Python object an entry. See `read_batches` for
        errors.
        """
        return self._view.columns_of(first, last, max_entries, self._check_confirmed)

    async def read_unconfirmed(self, first: int, last: int) -> AsyncGenerator[Entry, None]:
        """The entries first … last, also above `last_add_confirmed`: those may be missing (NoSuchEntryException), and
        may yet be replaced or never be part of the ledger."""
        async with aclosing(self.read_unconfirmed_batches(first, last)) as batches:
            async for batch in batches:
                for entry in batch:
                    yield entry

    def read_unconfirmed_batches(
        self, first: int, last: int, max_entries: int = 1000
    ) -> AsyncGenerator[list[Entry], None]:
        """The same in lists of at most `max_entries`."""
        return self._view.batches_of(first, last, max_entries, self._check_range)

    async def read_last_entry(self) -> Entry:
        """The last confirmed entry, asked for anew. Raises NoSuchEntryException where there is none."""
        last = await self.read_last_confirmed()
        if last < 0:
            raise NoSuchEntryException(f"ledger {self.ledger_id} has no confirmed entry")
        async with aclosing(self._view.batches_of(last, last, 1)) as batches:
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
        async with aclosing(Tail(self._view, from_entry, max_entries, long_poll, parallel).batches()) as batches:
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
