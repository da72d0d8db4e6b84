"""Gathers the records of one writer into entries: a record is a duplicate, fits the batch, or needs the next one.

| event | leads to |
|---|---|
| a record that a producer has appended before | `DUPLICATE` |
| a record that does not fit the batch | `FULL`: the batch is taken, then the record is offered again |
| any other | `ADDED`: it is in the batch |
| a batch is taken | an entry; the next batch is empty |

Invariants. T2: times of entries never fall, also not from one writer to the next. T3: the first entry with records of a
term is a snapshot, and one in `SNAPSHOT_INTERVAL` after it, so that a reader of the tail finds the table (T1).

Not its job: sending entries, and timers (`thinclient.streams.writer`). An entry that was not appended must end the
writer: its producers' numbers count already.
"""

from __future__ import annotations

from enum import Enum, auto

from bookgate.ledger.errors import IncorrectParameterException
from bookgate.ledger.stream_entry import (
    ENTRY_OVERHEAD,
    PRODUCER_OVERHEAD,
    RECORD_OVERHEAD,
    ProducerSequence,
    StreamEntry,
)
from bookgate.thinclient.core.streams.producers import ProducerTable, snapshot_bytes

SNAPSHOT_INTERVAL = 1000
"""Entries from one snapshot to the next: what the next writer reads, at most."""


class Offer(Enum):
    """What became of a record."""

    ADDED = auto()
    FULL = auto()
    DUPLICATE = auto()


class StreamAppends:
    """The open batch of a writer, and what its next entry tells beside records."""

    def __init__(
        self,
        producers: ProducerTable,
        last_time_ms: int,
        batch_bytes: int,
        max_entry_bytes: int,
        snapshot_interval: int = SNAPSHOT_INTERVAL,
    ) -> None:
        """
        Args:
            producers: As the stream has them.
            last_time_ms: Of the stream's last entry.
            batch_bytes: Payload bytes that fill a batch.
            max_entry_bytes: The largest payload of an entry.
            snapshot_interval: Entries from one snapshot to the next.
        """
        self._producers = producers
        self._last_time = last_time_ms
        self._batch_bytes = batch_bytes
        self._room = max_entry_bytes - snapshot_bytes(max_entry_bytes) - ENTRY_OVERHEAD
        self._interval = self._since_snapshot = snapshot_interval
        self._records: list[bytes] = []
        self._changed: dict[str, int] = {}
        self._size = 0

    @property
    def count(self) -> int:
        """Records in the batch."""
        return len(self._records)

    @property
    def is_full(self) -> bool:
        """Whether the batch should be taken now."""
        return self._size >= self._batch_bytes

    @property
    def max_record_bytes(self) -> int:
        """The largest record."""
        return self._room - RECORD_OVERHEAD - PRODUCER_OVERHEAD - 128

    def last_sequence(self, producer: str) -> int | None:
        """The highest number of a producer, of the records in the batch too."""
        return self._producers.last_sequence(producer)

    def offer(self, record: bytes, producer: str = "", sequence: int | None = None) -> Offer:
        """Adds a record to the batch if it is new and fits.

        Raises:
            IncorrectParameterException: The record is too large; a producer without a sequence number, or the reverse.
        """
        if len(record) > self.max_record_bytes:
            raise IncorrectParameterException(
                f"a record of this stream has at most {self.max_record_bytes} bytes, not {len(record)}"
            )
        if (sequence is None) != (not producer):
            raise IncorrectParameterException("producer and sequence are given together, or neither")
        if sequence is not None and self._producers.is_duplicate(producer, sequence):
            return Offer.DUPLICATE
        size = len(record) + RECORD_OVERHEAD
        if producer and producer not in self._changed:
            size += len(producer.encode()) + PRODUCER_OVERHEAD
        if self._records and self._size + size > self._room:
            return Offer.FULL
        if sequence is not None:
            self._producers.appended(producer, sequence)
            # In the order in which the table has them, which is the order in which it forgets.
            self._changed.pop(producer, None)
            self._changed[producer] = sequence
        self._records.append(record)
        self._size += size
        return Offer.ADDED

    def take(self, now_ms: int) -> StreamEntry:
        """The entry of the batch's records; the next batch begins."""
        self._last_time = max(self._last_time, now_ms)
        self._since_snapshot += 1
        if self._since_snapshot >= self._interval:
            self._since_snapshot = 0
        producers = (
            tuple(ProducerSequence(*each) for each in self._changed.items())
            if self._since_snapshot
            else self._producers.snapshot()
        )
        entry = StreamEntry(self._last_time, self._since_snapshot, tuple(self._records), producers)
        self._records, self._changed, self._size = [], {}, 0
        return entry
