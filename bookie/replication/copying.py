"""Copies entries of one ledger to a bookie: reads them as any reader would, and stores them as they were written.

Entries are read in pieces, some side by side, each piece with few enough entries to hold about a mebibyte. An entry
that was read has a digest that matches; what is stored is the same packet byte for byte, so its last add confirmed is
that of its writer (R1). Source: docs/protocol/auto-recovery.md#copying.

Not its job: which entries, whether the metadata may name the bookie afterwards (`repair`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from itertools import islice

from pyroaring import BitMap64

from bookgate.bookie.replication.bookies import Bookies, all_of
from bookgate.bookie.replication.budget import ByteBudget
from bookgate.ledger.entry import Entry
from bookgate.ledger.errors import BKException, TooManyRequestsException
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.thinclient.handles.context import LedgerSecrets
from bookgate.thinclient.handles.read_handle import ReadHandle

_PIECES_AT_ONCE = 8
_PIECE_BYTES = 1024 * 1024
_PIECE_ENTRIES = 256


@dataclass(slots=True)
class Copied:
    """What was done so far."""

    entries: int = 0
    bytes: int = 0


class Copier:
    """Copies within the process's budget."""

    def __init__(self, bookies: Bookies, budget: ByteBudget, copied: Copied) -> None:
        """`copied` counts what was stored."""
        self._bookies = bookies
        self._budget = budget
        self._copied = copied
        self._loop = asyncio.get_running_loop()

    async def copy(
        self,
        handle: ReadHandle,
        secrets: LedgerSecrets,
        ids: BitMap64,
        target: str,
        proceed: Callable[[], Awaitable[None]],
    ) -> None:
        """Stores the entries durably on `target`.

        Args:
            handle: Reads the ledger.
            secrets: The ledger's.
            ids: Of complete fragments.
            target: A bookie id.
            proceed: Awaited before each piece; raises where the repair has to end.

        Raises:
            TargetRefusesException: The bookie takes no copies of this ledger.
            BKException: An entry can't be read or stored now.
        """
        room = asyncio.Semaphore(_PIECES_AT_ONCE)

        async def copy_piece(first: int, last: int) -> None:
            async with room:
                await proceed()
                async with aclosing(handle.read_batches(first, last)) as batches:
                    async for batch in batches:
                        await all_of(self._store(entry, secrets, target) for entry in batch)

        pieces = pieces_of(ids, entries_a_piece(handle.metadata))
        while some := list(islice(pieces, 4 * _PIECES_AT_ONCE)):
            await all_of(copy_piece(first, last) for first, last in some)

    async def _store(self, entry: Entry, secrets: LedgerSecrets, target: str) -> None:
        wait = self._budget.take(2 * len(entry.payload), self._loop.time())
        if wait > 0:
            await asyncio.sleep(wait)
        try:
            size = await self._bookies.add_copy(target, entry, secrets)
        except BKException as error:
            if isinstance(error, TooManyRequestsException):
                self._budget.overloaded(self._loop.time())
            raise
        # Not in one statement with the await: others count meanwhile.
        self._copied.entries += 1
        self._copied.bytes += size


def entries_a_piece(metadata: LedgerMetadata) -> int:
    """How many entries hold about a mebibyte, as far as the metadata tell."""
    if not metadata.is_closed or metadata.length <= 0:
        return _PIECE_ENTRIES // 8
    average = max(1, metadata.length // (metadata.last_entry_id + 1))
    return max(1, min(_PIECE_ENTRIES, _PIECE_BYTES // average))


def pieces_of(ids: BitMap64, most: int) -> Iterator[tuple[int, int]]:
    """Runs of consecutive ids, first and last of each, of at most so many ids."""
    first: int | None = None
    last = -1
    for entry_id in ids:
        if first is not None and entry_id == last + 1 and entry_id - first < most:
            last = entry_id
            continue
        if first is not None:
            yield first, last
        first = last = entry_id
    if first is not None:
        yield first, last
