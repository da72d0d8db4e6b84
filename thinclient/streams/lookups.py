"""Finds entries of a stream: the last with records, the first since a time, the first within a size, a snapshot.

Each is a few reads, whatever the length of the stream: times and lengths only grow, so a search halves it
(`core.streams.search`). Not its job: reading records for applications (`reader`).
"""

from __future__ import annotations

import logging
from contextlib import aclosing

from bookgate.ledger.entry import Entry
from bookgate.ledger.stream_entry import StreamEntry, decode_stream_entry
from bookgate.runtime.logs import log_event
from bookgate.thinclient.core.streams.producers import ProducerTable, producers_within
from bookgate.thinclient.core.streams.search import FirstAtOrAfter
from bookgate.thinclient.handles.read_handle import ReadHandle

_log = logging.getLogger(__name__)

_LOOK_BACK = 100
"""Entries that are read at once in search of the last one with records."""


async def first_with_records(reader: ReadHandle, first: int, last: int) -> Entry | None:
    """The first entry with records in a range; None if there is none."""
    step = 4
    while first <= last:
        end = min(last, first + step - 1)
        async with aclosing(reader.read_batches(first, end)) as batches:
            async for batch in batches:
                for entry in batch:
                    if decode_stream_entry(entry.payload).records:
                        return entry
        first, step = end + 1, step * 4
    return None


async def first_since(reader: ReadHandle, time_ms: int) -> int:
    """The first entry appended at this time or later; the one after the last if there is none."""
    search = FirstAtOrAfter(reader.first_entry_id, reader.last_add_confirmed, time_ms)
    while (range_ := search.next()) is not None:
        entry = await first_with_records(reader, *range_)
        if entry is None:
            search.tell(None)
        else:
            search.tell(entry.entry_id, decode_stream_entry(entry.payload).append_time_ms)
    return search.found


async def first_within(reader: ReadHandle, max_bytes: int) -> int:
    """The entry from which on the stream has so many payload bytes, or one entry more."""
    first, last = reader.first_entry_id, reader.last_add_confirmed
    if last < first:
        return first
    end = (await reader.read_last_entry()).ledger_length
    search = FirstAtOrAfter(first, last, end - max_bytes)
    while (range_ := search.next()) is not None:
        entry = await first_with_records(reader, *range_)
        search.tell(*((None,) if entry is None else (entry.entry_id, entry.ledger_length)))
    return search.found


async def producers_of(reader: ReadHandle, last: int, max_entry_bytes: int) -> tuple[ProducerTable, int]:
    """The producers of a stream up to entry `last`, and the time of its last record (0 for none).

    Raises PayloadCodecException for a ledger that is no stream, and as `ReadHandle.read_batches`.
    """
    table = ProducerTable(producers_within(max_entry_bytes))
    found = await last_with_records(reader, last)
    if found is None:
        return table, 0
    entry_id, entry = found
    snapshot = snapshot_of(entry_id, entry)
    start = max(snapshot, reader.first_entry_id)
    if start > snapshot:
        log_event(_log, "stream_snapshot_trimmed", logging.WARNING, ledger=reader.ledger_id, snapshot=snapshot)
    async with aclosing(reader.read_batches(start, entry_id)) as batches:
        async for batch in batches:
            table.fold(decode_stream_entry(each.payload) for each in batch)
    return table, entry.append_time_ms


async def last_with_records(reader: ReadHandle, last: int) -> tuple[int, StreamEntry] | None:
    """The last entry with records, and its id; None if no entry that can be read has any."""
    first = reader.first_entry_id
    while last >= first:
        start = max(first, last - _LOOK_BACK + 1)
        found: tuple[int, StreamEntry] | None = None
        async with aclosing(reader.read_batches(start, last)) as batches:
            async for batch in batches:
                for each in batch:
                    entry = decode_stream_entry(each.payload)
                    if entry.since_snapshot is not None:
                        found = each.entry_id, entry
        if found is not None:
            return found
        last = start - 1
    return None


def snapshot_of(entry_id: int, entry: StreamEntry) -> int:
    """The last snapshot at or below an entry with records."""
    assert entry.since_snapshot is not None, "only the opening entry of a term knows of no snapshot"
    return entry_id - entry.since_snapshot


async def length_before(reader: ReadHandle, entry_id: int) -> int:
    """Payload bytes of all entries below one, deleted ones included; of one after the last: of all."""
    first, last = reader.first_entry_id, reader.last_add_confirmed
    start = max(first, entry_id - 4)
    async with aclosing(reader.read_batches(start, entry_id - 1)) as batches:
        lengths = [entry.ledger_length async for batch in batches for entry in batch]
    if lengths or entry_id > first:
        return lengths[-1] if lengths else 0
    entry = await first_with_records(reader, first, last)
    return 0 if entry is None else entry.ledger_length - len(entry.payload)
