"""Reads one bookie's copies of a ledger: to compare replicas, or to see what a sick bookie still has."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import replace

from bookgate.ledger.entry import Entry
from bookgate.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.quorum import write_set
from bookgate.thinclient.client import BookKeeper


async def batches_of_bookie(
    client: BookKeeper, record: LedgerRecord, password: bytes, bookie_id: str, first: int, last: int
) -> AsyncGenerator[list[Entry], None]:
    """Reads those entries from first to last that the ledger's quorums assign to this bookie, from it alone.

    Digests are checked. Raises the bookie's error for an entry that it should have and does not, after all entries
    before it were delivered.
    """
    async with client.open_record(closed_record_on(record, bookie_id, last), password) as reader:
        for start, end in ranges_of_bookie(record.metadata, bookie_id, first, last):
            async with aclosing(reader.read_batches(start, end)) as batches:
                async for batch in batches:
                    yield batch


def record_on(record: LedgerRecord, bookie_id: str) -> LedgerRecord:
    """The ledger as if this bookie alone held it."""
    alone = replace(
        record.metadata,
        ensemble_size=1,
        write_quorum_size=1,
        ack_quorum_size=1,
        fragments=(Fragment(0, (bookie_id,)),),
    )
    return replace(record, metadata=alone)


def closed_record_on(record: LedgerRecord, bookie_id: str, last: int) -> LedgerRecord:
    """The ledger as if this bookie alone held it, and it ended at `last`: of one that is not closed nothing is read."""
    alone = record_on(record, bookie_id)
    closed = replace(alone.metadata, state=LedgerState.CLOSED, last_entry_id=last, length=0)
    return replace(alone, metadata=closed)


def ranges_of_bookie(metadata: LedgerMetadata, bookie_id: str, first: int, last: int) -> Iterator[tuple[int, int]]:
    """The runs of entries from first to last whose write sets contain this bookie, in order, bounds included."""
    start: int | None = None
    for entry_id in range(first, last + 1):
        ensemble = metadata.fragment_at(entry_id).ensemble
        indexes = write_set(entry_id, metadata.ensemble_size, metadata.write_quorum_size)
        if bookie_id in ensemble and ensemble.index(bookie_id) in indexes:
            start = entry_id if start is None else start
        elif start is not None:
            yield start, entry_id - 1
            start = None
    if start is not None:
        yield start, last
