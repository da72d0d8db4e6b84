"""Copies entries of one ledger to a bookie: reads them like any reader, and stores the packets unchanged.

Entries are read in pieces, several concurrently, each with few enough entries to hold about 256 KiB. An entry that was
read has a matching digest; the same packet is stored byte for byte, with the last add confirmed of its writer (R1).
Source: docs/protocol/auto-recovery.md#copying.

Not its job: choosing entries, whether the metadata may name the bookie afterwards (`repair`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from pyroaring import BitMap64

from bookgate.bookie.replication.copies.answer_times import Asked
from bookgate.bookie.replication.copies.bookies import Bookies, all_of
from bookgate.bookie.replication.copies.budget import WorkerBudget, cost_of
from bookgate.bookie.replication.copies.fragments import pieces_of
from bookgate.ledger.entry import Entry
from bookgate.ledger.errors import BKException, ReadException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.thinclient.handles.context import LedgerSecrets

_PIECES_AT_ONCE = 8
_PIECE_BYTES = 256 * 1024
"""A bookie reads a piece at once, and adds wait meanwhile: with pieces of 1 MiB, the p99 of adds during a repair was
twice that without one."""
_PIECE_ENTRIES = 256
_GROUP_COST = 128 * 1024
_WAITING_STEP_SECONDS = 1.0
"""Longest sleep of a group that waits for the budget."""


class SourceFailedException(ReadException):
    """An entry can't be read now. The target has not failed, and keeps the copies that it has received."""


@dataclass(slots=True)
class Copied:
    """The copies stored so far, by one repair or by all repairs of a process."""

    entries: int = 0
    bytes: int = 0
    of_all: Copied | None = None
    """The total to which these are also added."""

    def add(self, entries: int, size: int) -> None:
        """Counts stored copies; `size` is in bytes."""
        self.entries += entries
        self.bytes += size
        if self.of_all is not None:
            self.of_all.add(entries, size)


class Source(Protocol):
    """Reads one ledger."""

    @property
    def ledger_id(self) -> LedgerId: ...

    @property
    def metadata(self) -> LedgerMetadata: ...

    def read_batches(self, first: int, last: int, /) -> AsyncGenerator[Sequence[Entry]]:
        """Yields entries in order. Raises BKException if an entry can't be read."""
        ...


class Copier:
    """Copies entries within the process's budget."""

    def __init__(self, bookies: Bookies, budget: WorkerBudget, copied: Copied) -> None:
        """`copied` counts the stored copies."""
        self._bookies = bookies
        self._budget = budget
        self._copied = copied
        self._loop = asyncio.get_running_loop()

    async def copy(
        self,
        handle: Source,
        secrets: LedgerSecrets,
        ids: BitMap64,
        sources: Sequence[str],
        target: str,
        proceed: Callable[[], Awaitable[None]],
        *,
        last_copies: bool = False,
    ) -> None:
        """Stores the entries durably on `target`.

        Args:
            handle: Reads the ledger.
            secrets: The secrets of the ledger.
            ids: The entries, which belong to complete fragments.
            sources: The bookies from which `handle` reads; not empty. Reads are charged to them in equal parts.
            target: The bookie that stores the copies.
            proceed: Awaited before each piece and each group; raises if the repair must end. Groups in progress are
                then completed, and no new ones begun.
            last_copies: Some of the entries have only the copy that is read.

        Raises:
            TargetRefusesException: The bookie does not accept copies of this ledger.
            SourceFailedException: An entry can't be read now.
            BKException: An entry can't be stored now.
        """
        room, stopped = asyncio.Semaphore(_PIECES_AT_ONCE), list[BKException]()

        async def may_go_on() -> bool:
            try:
                if not stopped:
                    await proceed()
            except BKException as error:
                # Not raised here: this would cancel concurrent groups.
                stopped.append(error)
            return not stopped

        async def copy_piece(first: int, last: int) -> None:
            async with room:
                if not await may_go_on():
                    return
                async with aclosing(_read(handle, first, last)) as batches:
                    async for batch in batches:
                        for group in groups_of(batch):
                            if not await self._wait_for(group, sources, target, may_go_on, last_copies=last_copies):
                                return
                            await self._store(handle.ledger_id, group, secrets, target)

        pieces = pieces_of(ids, entries_a_piece(handle.metadata))
        while some := list(islice(pieces, 4 * _PIECES_AT_ONCE)):
            await all_of(copy_piece(first, last) for first, last in some)
            if stopped:
                raise stopped[0]

    async def _wait_for(
        self,
        group: Sequence[Entry],
        sources: Sequence[str],
        target: str,
        may_go_on: Callable[[], Awaitable[bool]],
        *,
        last_copies: bool,
    ) -> bool:
        """Waits until the budget permits the group; False if the repair must end."""
        cost = cost_of(len(entry.payload) for entry in group)
        read_from = [source for source in sources if source != target] or sources
        sizes = {**dict.fromkeys(read_from, cost / len(read_from)), target: cost}
        return await wait_for(self._budget, sizes, may_go_on, last_copies=last_copies)

    async def _store(self, ledger_id: LedgerId, group: Sequence[Entry], secrets: LedgerSecrets, target: str) -> None:
        sent_at = self._loop.time()
        try:
            stored = await self._bookies.add_copies(target, ledger_id.number, group, secrets)
        except BKException as error:
            self._budget.failed(target, error, self._loop.time())
            raise
        now = self._loop.time()
        self._budget.answered(target, Asked.STORE, stored, now - sent_at, now)
        self._copied.add(len(group), stored)


async def wait_for(
    budget: WorkerBudget,
    sizes: Mapping[str, float],
    may_go_on: Callable[[], Awaitable[bool]],
    *,
    last_copies: bool = False,
) -> bool:
    """Takes bytes, by bookie, and waits until they may be used; False if the repair must end.

    It waits in short steps: meanwhile the repair may have to end, or the rate may be raised.
    """
    loop = asyncio.get_running_loop()
    wait = budget.take(sizes, loop.time(), last_copies=last_copies)
    while True:
        step = min(wait, _WAITING_STEP_SECONDS)
        if step > 0:
            await asyncio.sleep(step)
        if not await may_go_on():
            return False
        wait = min(wait - step, budget.backlog(sizes, loop.time()))
        if wait <= 0:
            return True


async def _read(handle: Source, first: int, last: int) -> AsyncGenerator[Sequence[Entry]]:
    try:
        async with aclosing(handle.read_batches(first, last)) as batches:
            async for batch in batches:
                yield batch
    except BKException as error:
        raise SourceFailedException(str(error), bookies=error.bookies) from error


def groups_of(entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    """Divides entries into groups that are sent at once, small enough by their cost to cause no burst."""
    start = cost = 0
    for position, entry in enumerate(entries):
        more = cost_of((len(entry.payload),))
        if cost and cost + more > _GROUP_COST:
            yield entries[start:position]
            start, cost = position, 0
        cost += more
    if start < len(entries):
        yield entries[start:]


def entries_a_piece(metadata: LedgerMetadata) -> int:
    """The number of entries in a piece, estimated from the metadata."""
    # Metadata may tell a length of a ledger without entries.
    if not metadata.is_closed or metadata.length <= 0 or metadata.last_entry_id < 0:
        return _PIECE_ENTRIES // 8
    average = max(1, metadata.length // (metadata.last_entry_id + 1))
    return max(1, min(_PIECE_ENTRIES, _PIECE_BYTES // average))
