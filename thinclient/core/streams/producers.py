"""The producers of a stream and their last sequence numbers: what makes appends exactly-once.

A producer numbers its records; the stream takes each number once. The table is part of the stream: entries tell the
numbers of their records, and a snapshot tells them all, so that the next writer knows them (T1).

| event | leads to |
|---|---|
| a record with a number at or below its producer's last one | a duplicate: it is in the stream already |
| any other | the producer's last number |
| a producer beyond the limit | the one that was heard of longest ago is forgotten |

Invariant T1: a table that was folded from the last snapshot on equals the writer's table when it wrote the last entry.

Not its job: entries that are lost (a failed append ends the writer, `appends`).
"""

from __future__ import annotations

from collections.abc import Iterable

from bookgate.ledger.errors import IncorrectParameterException
from bookgate.ledger.stream_entry import PRODUCER_OVERHEAD, ProducerSequence, StreamEntry

MAX_PRODUCERS = 1000
MAX_PRODUCER_BYTES = 128
"""Of a producer's name."""
_MAX_SEQUENCE = (1 << 63) - 1


class ProducerTable:
    """Producers, least recently heard of first."""

    def __init__(self, limit: int = MAX_PRODUCERS) -> None:
        self._limit = limit
        self._last: dict[str, int] = {}

    def last_sequence(self, name: str) -> int | None:
        """The highest number of a producer; None for one that is unknown, or forgotten."""
        return self._last.get(name)

    def is_duplicate(self, name: str, sequence: int) -> bool:
        """Whether the stream has this record already. Raises IncorrectParameterException."""
        if not 0 < len(name.encode()) <= MAX_PRODUCER_BYTES:
            raise IncorrectParameterException(f"producer {name!r}: a name has 1 to {MAX_PRODUCER_BYTES} bytes")
        if isinstance(sequence, bool) or not isinstance(sequence, int) or not 0 <= sequence <= _MAX_SEQUENCE:
            raise IncorrectParameterException(f"sequence {sequence!r} of producer {name!r} is a number from 0 on")
        return sequence <= self._last.get(name, -1)

    def appended(self, name: str, sequence: int) -> None:
        """A record of a producer becomes part of the stream."""
        self._last.pop(name, None)
        self._last[name] = sequence
        if len(self._last) > self._limit:
            del self._last[next(iter(self._last))]

    def snapshot(self) -> tuple[ProducerSequence, ...]:
        """All producers, for an entry."""
        return tuple(ProducerSequence(*each) for each in self._last.items())

    def fold(self, entries: Iterable[StreamEntry]) -> None:
        """Takes what entries tell, in their order, beginning with the last snapshot."""
        for entry in entries:
            for name, sequence in entry.producers:
                self.appended(name, sequence)


def snapshot_bytes(max_entry_bytes: int) -> int:
    """The part of an entry that is kept free for a snapshot."""
    return producers_within(max_entry_bytes) * (MAX_PRODUCER_BYTES + PRODUCER_OVERHEAD)


def producers_within(max_entry_bytes: int) -> int:
    """How many producers a stream remembers whose entries have this size: a tenth of an entry, one at least."""
    return max(1, min(MAX_PRODUCERS, max_entry_bytes // 10 // (MAX_PRODUCER_BYTES + PRODUCER_OVERHEAD)))
