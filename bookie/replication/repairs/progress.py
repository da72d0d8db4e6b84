"""The progress of repairs as one worker knows it: from its listings of the marks, and from its own repairs.

A listing has the marked ledgers and their bookies. The number of copies left and the amount to be copied are known from
the worker's queue (`marked_ledgers`), so this module reads nothing. Between two listings, ledgers that this worker
completes are subtracted; those of other workers show at the next listing, at most 30 seconds later.

Not its job: publishing it (`progress_record`), the progress of all workers together (`ledger.replication_progress`).
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bookgate.bookie.replication.copies.copying import Copied
from bookgate.bookie.replication.repairs.repair import LedgerRepair
from bookgate.bookie.replication.repairs.repair_queue import Candidate
from bookgate.ledger.replication_progress import A_LEDGER, Amount, Danger, Endangered, Moving, OfBookie, WorkerProgress
from bookgate.ledger.replication_store import Mark
from bookgate.runtime.estimates import Progress, Rate

_BOOKIES_TOLD = 50
"""Maximum number of bookies in a report, those with the most ledgers: a cluster may have lost any number over time."""
_COPYING_WINDOW_SECONDS = 60.0
_LACKING = (Danger.LAST_COPY, Danger.BELOW_ACK_QUORUM, Danger.BELOW_WRITE_QUORUM, Danger.UNKNOWN)


@dataclass(frozen=True, slots=True)
class _Marked:
    danger: Danger
    due: Amount
    replicas: tuple[str, ...]


class RepairProgress:
    """The progress of one worker."""

    def __init__(self, holder: str, copied: Copied) -> None:
        """`copied` counts the copies that the worker has stored."""
        self._holder = holder
        self._copied = copied
        self._marked: dict[int, _Marked] = {}
        self._classes: dict[Danger, Amount] = {}
        self._bookies: Counter[str] = Counter()
        """By bookie, the number of marked ledgers that name it and can be repaired."""
        self._by_age: list[tuple[int, int]] = []
        """A heap of times and ids, which may include completed ledgers."""
        self._repairs: dict[int, tuple[LedgerRepair, int]] = {}
        self._listed_ms: int | None = None
        self._began_ms = 0
        self._ledgers_gone = Progress()
        self._gone_by_bookie: dict[str, Progress] = {}
        self._entry_rate, self._byte_rate = Rate(_COPYING_WINDOW_SECONDS), Rate(_COPYING_WINDOW_SECONDS)

    # Events of the worker

    def listed(
        self,
        marks: Sequence[Mark],
        known: Callable[[int], Candidate | None],
        is_given_up: Callable[[int], bool],
        now_ms: int,
    ) -> None:
        """Records all marks.

        Args:
            marks: The marks of a complete listing.
            known: Returns the known state of a ledger, if any.
            is_given_up: Whether a ledger was found unrecoverable.
            now_ms: The current time, in milliseconds since 1970.
        """
        before, self._marked = self._marked, {}
        self._classes.clear()
        self._bookies.clear()
        self._by_age = []
        for mark in marks:
            ledger_id = mark.value.ledger_id
            candidate, former = known(ledger_id), before.get(ledger_id)
            if candidate is not None:
                danger, due = candidate.danger, candidate.due
            else:
                danger, due = (Danger.UNKNOWN, A_LEDGER) if former is None else (former.danger, former.due)
            if is_given_up(ledger_id):
                danger = Danger.UNRECOVERABLE
            self._put(ledger_id, _Marked(danger, due, mark.value.replicas))
            if mark.value.ctime_ms is not None and mark.value.replicas:
                self._by_age.append((mark.value.ctime_ms, ledger_id))
        heapq.heapify(self._by_age)
        self._began_ms = self._began_ms or now_ms
        self._listed_ms = now_ms

    def began(self, ledger_id: int, repair: LedgerRepair, now_ms: int) -> None:
        """The repair of a ledger has begun."""
        _, since_ms = self._repairs.get(ledger_id, (repair, now_ms))
        self._repairs[ledger_id] = repair, since_ms

    def ended(self, ledger_id: int) -> None:
        """The repair has ended, whatever its outcome."""
        self._repairs.pop(ledger_id, None)

    def unmarked(self, ledger_id: int) -> None:
        """The ledger's mark was removed."""
        self._take(ledger_id)

    def given_up(self, ledger_id: int) -> None:
        """The ledger was found unrecoverable."""
        marked = self._take(ledger_id)
        if marked is not None:
            self._put(ledger_id, _Marked(Danger.UNRECOVERABLE, marked.due, marked.replicas))

    def _put(self, ledger_id: int, marked: _Marked) -> None:
        self._marked[ledger_id] = marked
        self._classes[marked.danger] = self._classes.get(marked.danger, Amount()) + marked.due
        if marked.danger is not Danger.UNRECOVERABLE:
            self._bookies.update(marked.replicas)

    def _take(self, ledger_id: int) -> _Marked | None:
        marked = self._marked.pop(ledger_id, None)
        if marked is None:
            return None
        self._classes[marked.danger] -= marked.due
        if marked.danger is not Danger.UNRECOVERABLE:
            self._bookies.subtract(marked.replicas)
        return marked

    # Reports

    @property
    def classes(self) -> Mapping[Danger, Amount] | None:
        """The amount that is marked, by class of danger; None before the first listing."""
        return None if self._listed_ms is None else {each: self._classes.get(each, Amount()) for each in Danger}

    @property
    def bookies(self) -> Mapping[str, int]:
        """The number of repairable marked ledgers by bookie, only for the bookies with the most."""
        return {name: count for name, count in self._bookies.most_common(_BOOKIES_TOLD) if count > 0}

    def told(self, now: float, now_ms: int) -> WorkerProgress | None:
        """The current report; None if there is nothing to do.

        Args:
            now: Seconds of the loop's clock.
            now_ms: The current time, in milliseconds since 1970.
        """
        entries_a_second = self._entry_rate.take(self._copied.entries, now)
        bytes_a_second = self._byte_rate.take(self._copied.bytes, now)
        if not self._marked and not self._repairs:
            self._began_ms = 0
            self._ledgers_gone, self._gone_by_bookie = Progress(), {}
            return None
        return WorkerProgress(
            holder=self._holder,
            time_ms=now_ms,
            entries=self._copied.entries,
            bytes=self._copied.bytes,
            entries_a_second=entries_a_second,
            bytes_a_second=bytes_a_second,
            moving=[self._moving(ledger_id) for ledger_id in sorted(self._repairs)],
            endangered=self._endangered(now),
        )

    def _moving(self, ledger_id: int) -> Moving:
        repair, since_ms = self._repairs[ledger_id]
        due_entries, due_bytes = repair.due
        if not due_entries and ledger_id in self._marked:
            due = self._marked[ledger_id].due
            due_entries, due_bytes = due.entries, due.bytes
        return Moving(ledger_id, since_ms, *repair.done, due_entries, due_bytes, self._holder)

    def _endangered(self, now: float) -> Endangered | None:
        if self._listed_ms is None:
            return None
        unrecoverable = self._classes.get(Danger.UNRECOVERABLE, Amount()).ledgers
        of_all = self._ledgers_gone.take(len(self._marked) - unrecoverable, now)
        return Endangered(
            began_ms=self._began_ms,
            listed_ms=self._listed_ms,
            classes={danger: amount for danger, amount in self._classes.items() if amount.ledgers},
            bookies=self._of_bookies(now),
            oldest=self._oldest(),
            ledgers_a_minute=of_all.a_minute,
            seconds_left=of_all.seconds_left,
        )

    def _of_bookies(self, now: float) -> list[OfBookie]:
        left = self.bookies
        for gone in self._gone_by_bookie.keys() - left.keys():
            del self._gone_by_bookie[gone]
        told = []
        for bookie_id, count in left.items():
            estimate = self._gone_by_bookie.setdefault(bookie_id, Progress()).take(count, now)
            told.append(OfBookie(bookie_id, count, estimate.total - count, estimate.seconds_left))
        return told

    def _oldest(self) -> tuple[int, int] | None:
        while self._by_age:
            since_ms, ledger_id = self._by_age[0]
            marked = self._marked.get(ledger_id)
            if marked is not None and marked.danger in _LACKING:
                return ledger_id, since_ms
            heapq.heappop(self._by_age)
        return None
