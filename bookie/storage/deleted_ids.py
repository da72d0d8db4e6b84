"""Ids of ledgers that were deleted here, as long as the journal may have records of them.

A ledger that gets such an id is made anew: a record in the journal says so before its first one, or else a replay
would take both for one ledger (D1). Once no journal file has a record of the deleted ledger, its id is forgotten. So
memory is bounded by the journal files that are kept, however many ledgers come and go.

Ids are kept in generations: those of the deletions between two calls of `forget`, with the last file that may have
records of them. An id whose deletion is not known to be durable stays: after a crash the index may have the deleted
ledger.

Not its job: who deletes, and the record itself (`ledger_table`, `writer`), which files are kept (`checkpoint`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from threading import Lock

from bookgate.ledger.ledger_numbers import LedgerNumbers


class DeletedIds:
    """See the module. Any thread. A ledger belongs to journal `number mod journals`."""

    def __init__(self, journals: int = 1) -> None:
        self._lock = Lock()
        self._not_durable = LedgerNumbers()
        self._newest = [LedgerNumbers() for _ in range(journals)]
        self._older: list[deque[tuple[int, LedgerNumbers]]] = [deque() for _ in range(journals)]
        """By journal; each generation with the last file that may have records, ascending."""

    def add(self, number: int) -> None:
        """Takes note of a deletion that may not be durable yet."""
        with self._lock:
            self._not_durable.add(number)

    def durable(self) -> None:
        """All deletions up to now are durable."""
        with self._lock:
            for number in self._not_durable:
                self._newest[number % len(self._newest)].add(number)
            self._not_durable.clear()

    def discard(self, number: int) -> None:
        with self._lock:
            for generation in self._generations(number):
                generation.discard(number)

    def __contains__(self, number: int) -> bool:
        with self._lock:
            return any(number in generation for generation in self._generations(number))

    def __len__(self) -> int:
        with self._lock:
            older = sum(len(numbers) for generations in self._older for _, numbers in generations)
            return older + sum(map(len, self._newest)) + len(self._not_durable)

    def forget(self, journal: int, first_file: int, last_file: int) -> None:
        """Forgets ledgers whose records are gone. Not during a deletion.

        Args:
            journal: Whose files are meant.
            first_file: The lowest id of a file that is kept, also after a loss of power.
            last_file: The highest id of a file that may get a record of what was deleted up to now.
        """
        with self._lock:
            generations = self._older[journal]
            newest, self._newest[journal] = self._newest[journal], LedgerNumbers()
            if generations and generations[-1][0] >= last_file:
                generations[-1][1].update(newest)
            elif newest:
                generations.append((last_file, newest))
            while generations and generations[0][0] < first_file:
                generations.popleft()

    def _generations(self, number: int) -> Iterator[LedgerNumbers]:
        journal = number % len(self._newest)
        yield self._not_durable
        yield self._newest[journal]
        yield from (numbers for _, numbers in self._older[journal])
