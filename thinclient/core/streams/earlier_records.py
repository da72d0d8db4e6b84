"""Finds the records that a producer's earlier attempt left in a stream, by reading it backwards. Pure.

A task of Spark that is repeated has the same records, perhaps in another order: which ones the stream has already is
told by their content, and how many by the producer's sequence numbers. Each entry tells the number of its producer
after its last record, so that two entries that follow each other tell how many records between them are the producer's.

| event | leads to |
|---|---|
| an entry with a number of the producer at or above `first` | it is kept |
| one with a number below, or a snapshot without the producer | the search is complete |
| any other entry | nothing |

Invariant T7: what was found are as many records as the numbers tell, or the search fails.

Not its job: reading the entries, and what is done with the records (`thinclient.spark.records.record_writes`).
"""

from __future__ import annotations

import hashlib
from collections import Counter

from bookgate.ledger.errors import UnexpectedConditionException
from bookgate.ledger.stream_entry import StreamEntry

_DIGEST_BYTES = 16


def record_digest(record: bytes) -> bytes:
    """What stands for a record of any size."""
    return hashlib.blake2b(record, digest_size=_DIGEST_BYTES).digest()


class EarlierRecords:
    """See the module. Only for a producer whose records share no entry with those of another one."""

    def __init__(self, producer: str, first: int, last: int) -> None:
        """
        Args:
            producer: The producer.
            first: The sequence number of the first record that is looked for.
            last: The producer's last number in the stream.
        """
        self._producer = producer
        self._first = first
        self._last = last
        self._kept: list[tuple[int, list[bytes]]] = []
        self.is_complete = last < first
        """Whether older entries have nothing more to tell."""

    def take(self, entry: StreamEntry) -> None:
        """An entry of the stream; each is older than the one before."""
        number = dict(entry.producers).get(self._producer)
        if number is None:
            # A snapshot names all producers.
            self.is_complete = entry.since_snapshot == 0
        elif number < self._first:
            self.is_complete = True
        else:
            self._kept.append((number, [record_digest(record) for record in entry.records]))

    def found(self) -> Counter[bytes]:
        """The digests of the records, each as often as it is there.

        Raises:
            UnexpectedConditionException: The entries do not have the records that the numbers tell.
        """
        found: Counter[bytes] = Counter()
        before = self._first - 1
        for number, digests in reversed(self._kept):
            # A snapshot of another writer repeats the number.
            if number == before:
                continue
            if number - before != len(digests):
                break
            found.update(digests)
            before = number
        if before != self._last:
            raise UnexpectedConditionException(
                f"producer {self._producer!r} has appended records {self._first} to {self._last}, and the stream does "
                f"not show them from {before + 1} on: they were deleted, or something else appends under this name"
            )
        return found
