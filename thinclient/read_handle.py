"""A ledger in the hands of a reader: what may be read, and following a ledger that is still written.

One ranged read under way is a `read_session`; the rules stand in `core`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

from ledger.entry import Entry
from ledger.errors import (
    IncorrectParameterException,
    ReadException,
)
from ledger.ledger_id import NO_ENTRY, LedgerId
from ledger.manager import LedgerRecord
from ledger.metadata import LedgerMetadata
from thinclient.context import ClientContext, LedgerSecrets
from thinclient.read_session import ReadSession
from thinclient.recovery_driver import read_last_confirmed


class ReadHandle:
    """A ledger that is read. What lies above `last_add_confirmed` is never returned."""

    def __init__(
        self, context: ClientContext, record: LedgerRecord, secrets: LedgerSecrets, last_add_confirmed: int
    ) -> None:
        self._context = context
        self._record = record
        self._secrets = secrets
        self._last_add_confirmed = last_add_confirmed
        self._listening = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

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
        """Ends what the handle keeps up; the ledger itself is not touched."""
        if self._listening:
            self._listening = False
            await self._context.ledger_manager.unregister_listener(self.ledger_id, self._on_metadata)

    async def read_last_confirmed(self) -> int:
        """Asks for the newest last add confirmed: the metadata's of a closed ledger, else the bookies'."""
        if not self.is_closed:
            self._adopt(await self._context.ledger_manager.read(self.ledger_id))
        if not self.is_closed:
            read = await read_last_confirmed(self._context, self._record, self._secrets)
            self._last_add_confirmed = max(self._last_add_confirmed, read.result)
        return self._last_add_confirmed

    async def read(self, first: int, last: int) -> AsyncIterator[Entry]:
        """The entries first … last in order, with read-ahead. See `read_batches` for errors."""
        async for batch in self.read_batches(first, last):
            for entry in batch:
                yield entry

    async def read_batches(self, first: int, last: int, max_entries: int = 1000) -> AsyncIterator[list[Entry]]:
        """The entries first … last in order, in lists of at most `max_entries`.

        `last` may be first - 1 for an empty range. Raises IncorrectParameterException for a range that is none,
        ReadException beyond `last_add_confirmed`; otherwise the error of an entry that no replica could serve, after
        everything before it was delivered.
        """
        self._check_range(first, last, max_entries)
        session = ReadSession(self._context, self._record, self._secrets, first, last)
        while not session.reader.finished:
            batch = await session.next_batch(max_entries)
            if batch:
                yield batch
            elif session.reader.failure is not None:
                raise session.reader.failure

    def _check_range(self, first: int, last: int, max_entries: int) -> None:
        if first < 0 or last < first - 1 or max_entries < 1:
            raise IncorrectParameterException(
                f"entries {first} to {last} of ledger {self.ledger_id}, {max_entries} at a time, are no range to read"
            )
        if last > self._last_add_confirmed:
            raise ReadException(
                f"entry {last} of ledger {self.ledger_id} can't be read: the last confirmed entry known here is "
                f"{self._last_add_confirmed}"
            )

    def _on_metadata(self, _ledger_id: LedgerId, record: LedgerRecord | None) -> None:
        if record is not None:
            self._adopt(record)

    def _adopt(self, record: LedgerRecord) -> None:
        if record.version > self._record.version:
            self._record = record
            if record.metadata.is_closed:
                self._last_add_confirmed = record.metadata.last_entry_id


def known_last_entry(record: LedgerRecord) -> int:
    """The last confirmed entry that the metadata alone tells."""
    metadata = record.metadata
    return metadata.last_entry_id if metadata.is_closed else max(NO_ENTRY, metadata.last_fragment.first_entry_id - 1)
