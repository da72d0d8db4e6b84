"""Reads what is to be copied of an unbounded ledger: entries of its complete fragments, one by one.

Such an entry is on its whole write set, and is confirmed. Its bookies may not know that it is confirmed, because this
is shown by later entries, which may be on other bookies. So each request has the confirmed entry id that the reader
knows (field `lastAddConfirmed`). Any bookie that should hold the entry may serve it; if one fails, the next is tried.
Source: docs/protocol/unbounded-ledgers.md#auto-recovery.

Not its job: choosing entries, storing them (`copying`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Sequence

from bookgate.bookie.replication.copies.bookies import Bookies
from bookgate.bookie.replication.copies.fragments import CompleteFragment
from bookgate.ledger.entry import Entry
from bookgate.ledger.errors import BKException, ReadException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.thinclient.handles.context import LedgerSecrets

_READS_AT_ONCE = 8

Heard = Callable[[str, int, float, BKException | None, float], None]
"""Called for each response: the bookie, payload bytes, seconds, the error if it failed, and the time."""


class ConfirmedEntries:
    """Reads one fragment, with the interface of a read handle."""

    def __init__(
        self,
        bookies: Bookies,
        record: LedgerRecord,
        fragment: CompleteFragment,
        sources: Collection[str],
        secrets: LedgerSecrets,
        heard: Heard,
    ) -> None:
        """`sources` are the bookies to read from: those that have responded with their entries."""
        self._bookies = bookies
        self._record = record
        self._fragment = fragment
        self._sources = sources
        self._secrets = secrets
        self._heard = heard

    @property
    def ledger_id(self) -> LedgerId:
        return self._record.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        return self._record.metadata

    async def read_batches(self, first: int, last: int) -> AsyncGenerator[Sequence[Entry]]:
        """Yields entries of the fragment in order.

        Raises:
            BKException: No bookie has a good copy of one of them.
        """
        for start in range(first, last + 1, _READS_AT_ONCE):
            some = range(start, min(last + 1, start + _READS_AT_ONCE))
            yield await asyncio.gather(*map(self._entry, some))

    async def _entry(self, entry_id: int) -> Entry:
        failure: BKException = ReadException(f"no bookie has said that it holds entry {entry_id} of {self.ledger_id}")
        for bookie_id in self._fragment.write_set(entry_id):
            if bookie_id not in self._sources:
                continue
            try:
                return await self._at(bookie_id, entry_id)
            except BKException as error:
                failure = error
        raise failure

    async def _at(self, bookie_id: str, entry_id: int) -> Entry:
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            entry = await self._bookies.entry(bookie_id, self.ledger_id.number, entry_id, self._secrets)
        except BKException as error:
            self._heard(bookie_id, 0, clock() - began, error, clock())
            raise
        self._heard(bookie_id, len(entry.payload), clock() - began, None, clock())
        return entry
