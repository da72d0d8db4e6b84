"""Skips the truncate entries of an unbounded ledger: entries without payload, which no application has written.

A reader's ids then have gaps, one for each time the ledger was taken over. Source:
docs/protocol/unbounded-ledgers.md#reader-and-retention. Not its job: reading.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from bookgate.ledger.entry import Entry
from bookgate.ledger.entry_columns import EntryColumns


async def written_batches(batches: AsyncGenerator[list[Entry], None]) -> AsyncGenerator[list[Entry], None]:
    """The same lists without truncate entries; empty lists are dropped."""
    async with aclosing(batches):
        async for batch in batches:
            written = batch if all(entry.payload for entry in batch) else [each for each in batch if each.payload]
            if written:
                yield written


async def written_columns(pieces: AsyncGenerator[EntryColumns, None]) -> AsyncGenerator[EntryColumns, None]:
    """The same columns, split where a truncate entry was."""
    async with aclosing(pieces):
        async for columns in pieces:
            start = 0
            while (at := _first_empty(columns, start)) < len(columns):
                if at > start:
                    yield columns[start:at]
                start = at + 1
            if start < len(columns):
                yield columns[start:] if start else columns


def _first_empty(columns: EntryColumns, start: int) -> int:
    """The index of the first entry without payload, or the number of entries."""
    try:
        return columns.sizes.index(0, start)
    except ValueError:
        return len(columns)
