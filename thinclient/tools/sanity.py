"""Checks that a bookie, or a cluster, works: writes a ledger, reads it back and deletes it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from bookgate.ledger.errors import BKException
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.thinclient.client import BookKeeper

_ABOUT = {"application": b"bookgate.sanity"}
_BATCH = 100


async def is_sane(client: BookKeeper, bookie_id: str, entries: int = 10) -> bool:
    """Writes a ledger of its own to one bookie, reads it back and deletes it. Raises BKException."""
    manager = client.ledger_manager
    record = await manager.create(None, LedgerMetadata.new((bookie_id,), 1, 1, custom_metadata=_ABOUT))
    try:
        ledger_id = record.ledger_id.low
        payloads = [_payload(number) for number in range(entries)]
        async with await client.reopen_empty_ledger(ledger_id) as writer:
            for payload in payloads:
                await writer.append(payload)
        reader = await client.open_ledger(ledger_id)
        found = [bytes(entry.payload) async for entry in reader.read(0, reader.last_add_confirmed)]
        # Another bookie may have replaced this one after a failure.
        own = all(fragment.ensemble == (bookie_id,) for fragment in reader.metadata.fragments)
        await reader.close()
        return own and found == payloads
    finally:
        with suppress(BKException):
            await manager.remove(record.ledger_id)


async def simple_test(
    client: BookKeeper, quorums: tuple[int, int, int], entries: int, done: Callable[[int], None]
) -> tuple[int, bool]:
    """Writes, reads back and deletes a ledger on bookies chosen by the cluster.

    Args:
        client: The client.
        quorums: Ensemble size, write quorum and ack quorum.
        entries: Number of entries.
        done: Called with the number of entries written and then read; twice `entries` at the end.

    Returns:
        The ledger's id, and whether all entries came back.

    Raises:
        BKException: An operation failed; the ledger is deleted nevertheless.
    """
    writer = await client.create_ledger(*quorums, custom_metadata=_ABOUT)
    ledger_id = writer.ledger_id.low
    try:
        async with writer:
            for number in range(entries):
                await writer.append(_payload(number))
                done(number + 1)
        read = 0
        async with await client.open_ledger(ledger_id) as reader:
            async for batch in reader.read_batches(0, reader.last_add_confirmed, _BATCH):
                if any(bytes(entry.payload) != _payload(entry.entry_id) for entry in batch):
                    return ledger_id, False
                read += len(batch)
                done(entries + read)
        return ledger_id, read == entries
    finally:
        with suppress(BKException):
            await client.delete_ledger(ledger_id)


def _payload(number: int) -> bytes:
    return f"entry-{number}".encode()
