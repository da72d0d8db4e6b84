"""The parked long polls of a bookie: which request waits for the LAC of which ledger.

A waiter is parked with the LAC it knows (P) and a deadline. It leaves exactly once, at the first of these events: the
ledger's LAC passes P, the ledger is fenced or deleted, the deadline passes, its owner is gone. A LAC that grows to P or
less leaves it parked (Apache BookKeeper's bookie forgets it then, and responds only at the deadline: F8). The end of
the wait is not a failure: the caller responds with the state at that time. The number of waiters per owner is bounded,
and none is dropped without being returned to the caller, except those of an owner that is gone (F7).

Time is an argument, in the unit that the caller uses for deadlines. Source: docs/protocol/wire.md#long-polls. Not its
job: the response, loading the LAC from disk, timers (`long_polls`).
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection
from typing import Generic, TypeVar

Owner = TypeVar("Owner")
Token = TypeVar("Token")

_SLACK = 32


class Waiter(Generic[Owner, Token]):
    """One parked request."""

    __slots__ = ("deadline", "ledger_id", "owner", "parked", "previous_lac", "token")

    def __init__(self, owner: Owner, token: Token, ledger_id: int, previous_lac: int, deadline: float) -> None:
        self.owner = owner
        self.token = token
        self.ledger_id = ledger_id
        self.previous_lac = previous_lac
        self.deadline = deadline
        self.parked = True


class _Queue(Generic[Owner, Token]):
    """Waiters ordered by a number, lowest first. Waiters that have left are skipped, and removed when they are many."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Waiter[Owner, Token]]] = []
        self._numbers = itertools.count()
        self.parked = 0

    def push(self, key: float, waiter: Waiter[Owner, Token]) -> None:
        heapq.heappush(self._heap, (key, next(self._numbers), waiter))
        self.parked += 1

    def lowest(self) -> float | None:
        """The key of the first waiter; None without waiters."""
        while self._heap and not self._heap[0][2].parked:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def up_to(self, limit: float) -> list[Waiter[Owner, Token]]:
        """The waiters with a key of at most the limit, in ascending order. They leave this heap, but not the count."""
        found = []
        while self._heap and self._heap[0][0] <= limit:
            waiter = heapq.heappop(self._heap)[2]
            if waiter.parked:
                found.append(waiter)
        return found

    def everyone(self) -> list[Waiter[Owner, Token]]:
        return [entry[2] for entry in sorted(self._heap) if entry[2].parked]

    def left(self) -> None:
        """One of the waiters is no longer parked."""
        self.parked -= 1
        assert self.parked >= 0, "a waiter leaves once"
        if len(self._heap) > 2 * self.parked + _SLACK:
            self._heap = [entry for entry in self._heap if entry[2].parked]
            heapq.heapify(self._heap)


class LacWaiters(Generic[Owner, Token]):
    """The waiters of one bookie. At most `limit` of one owner."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._ledgers: dict[int, _Queue[Owner, Token]] = {}
        self.ledgers: Collection[int] = self._ledgers.keys()
        """A live view of the ledgers with waiters."""
        self._deadlines: _Queue[Owner, Token] = _Queue()
        self._owners: dict[Owner, set[Waiter[Owner, Token]]] = {}

    def __len__(self) -> int:
        return self._deadlines.parked

    def has_room(self, owner: Owner) -> bool:
        """Whether the owner may park one more request."""
        return len(self._owners.get(owner, ())) < self._limit

    def next_deadline(self) -> float | None:
        return self._deadlines.lowest()

    def park(self, waiter: Waiter[Owner, Token]) -> None:
        """Parks a new waiter of an owner below its limit."""
        self._ledgers.setdefault(waiter.ledger_id, _Queue()).push(waiter.previous_lac, waiter)
        self._deadlines.push(waiter.deadline, waiter)
        self._owners.setdefault(waiter.owner, set()).add(waiter)

    def lac_is(self, ledger_id: int, lac: int) -> list[Waiter[Owner, Token]]:
        """The waiters that this LAC has passed; they are no longer parked."""
        queue = self._ledgers.get(ledger_id)
        return self._leave(queue.up_to(lac - 1)) if queue else []

    def wake(self, ledger_id: int) -> list[Waiter[Owner, Token]]:
        """All waiters of a ledger that was fenced or deleted."""
        queue = self._ledgers.get(ledger_id)
        return self._leave(queue.everyone()) if queue else []

    def expire(self, now: float) -> list[Waiter[Owner, Token]]:
        """The waiters whose deadline is `now` or before."""
        return self._leave(self._deadlines.up_to(now))

    def forget(self, owner: Owner) -> None:
        """Drops the waiters of an owner that is gone."""
        self._leave(list(self._owners.get(owner, ())))

    def _leave(self, waiters: list[Waiter[Owner, Token]]) -> list[Waiter[Owner, Token]]:
        for waiter in waiters:
            waiter.parked = False
            self._deadlines.left()
            queue = self._ledgers[waiter.ledger_id]
            queue.left()
            if not queue.parked:
                del self._ledgers[waiter.ledger_id]
            own = self._owners[waiter.owner]
            own.discard(waiter)
            if not own:
                del self._owners[waiter.owner]
        return waiters
