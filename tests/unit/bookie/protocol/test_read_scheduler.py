"""Reads of a bookie that stops."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest

from bookgate.bookie.protocol.read_scheduler import EntryReads
from bookgate.bookie.statistics import BookieStatistics
from bookgate.ledger.wire.messages import ReadRequest


@pytest.mark.asyncio
async def test_a_read_that_waited_for_its_fence_is_dropped_once_the_reader_has_ended() -> None:
    """It was handed over all the same: an error that nobody caught."""
    storage = Mock()
    storage.ledgers.recent.return_value = None
    reader = ThreadPoolExecutor(1)
    reads = EntryReads(storage, reader, BookieStatistics())
    client = Mock(reads=deque(), reading=False, takes_answers=True)
    reads.close()
    reader.shutdown()
    reads.queue(client, ReadRequest(1, 7, 0), first=True)
    reads.pump(client)
    assert not client.reads
    assert not client.reading
