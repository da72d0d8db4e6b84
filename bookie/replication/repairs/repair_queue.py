"""Which marked ledger a worker takes next, and when again one that could not be repaired. Pure.

The ledgers with the fewest copies left come first; of equals those with fewer than an acknowledgement took, then the
newest, since old ones are more likely to expire. One that has waited for long goes as one with a copy less. A ledger
that failed, for whatever reason, waits twice as long each time; one that is unrecoverable waits until something has
changed: its mark, or a bookie that came back.

Source: docs/protocol/auto-recovery.md#order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from bookgate.ledger.replication_progress import A_LEDGER, Amount, Danger

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 5.0, 300.0
_AGEING_SECONDS = 600.0
"""After so long a ledger goes as one with a copy less."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A marked ledger that may be repaired."""

    ledger_id: int
    mark_version: int
    copies_left: int
    """Of its worst entry."""
    below_ack_quorum: bool = False
    """Fewer than an acknowledgement took."""
    danger: Danger = Danger.UNKNOWN
    """The class that people are told of."""
    due: Amount = A_LEDGER
    """What is to be copied, at most."""


@dataclass(slots=True)
class _Waiting:
    mark_version: int
    until: float | None
    """None: until something changes."""
    failures: int
    bookies: frozenset[str] = frozenset()
    """Whose return ends the waiting."""


class RepairQueue:
    """Times are seconds of one clock."""

    def __init__(self) -> None:
        self._first_seen: dict[int, float] = {}
        self._waiting: dict[int, _Waiting] = {}

    def keep_only(self, marked: Collection[int]) -> None:
        """Forgets every ledger that is not marked any more."""
        for known in (self._first_seen, self._waiting):
            for ledger_id in [each for each in known if each not in marked]:
                del known[ledger_id]

    def is_due(self, ledger_id: int, mark_version: int, now: float) -> bool:
        """Whether a ledger may be tried now; a mark that was made again is looked at anew."""
        self._first_seen.setdefault(ledger_id, now)
        waiting = self._waiting.get(ledger_id)
        if waiting is None:
            return True
        if waiting.until is None:
            return waiting.mark_version != mark_version
        return now >= waiting.until

    def is_given_up(self, ledger_id: int) -> bool:
        """Whether a ledger waits for a change, however long that takes."""
        waiting = self._waiting.get(ledger_id)
        return waiting is not None and waiting.until is None

    def order(self, candidates: Iterable[Candidate], now: float) -> list[Candidate]:
        """The next ones first."""

        def urgency(each: Candidate) -> tuple[int, bool, int]:
            aged = int((now - self._first_seen.get(each.ledger_id, now)) / _AGEING_SECONDS)
            return each.copies_left - aged, not each.below_ack_quorum, -each.ledger_id

        return sorted(candidates, key=urgency)

    def failures(self, ledger_id: int) -> int:
        """How often a ledger has failed since it last went well."""
        waiting = self._waiting.get(ledger_id)
        return 0 if waiting is None else waiting.failures

    def next_due(self) -> float | None:
        """When the first of those that wait for a time may be tried again."""
        return min((each.until for each in self._waiting.values() if each.until is not None), default=None)

    # What has become of one

    def failed(self, ledger_id: int, mark_version: int, now: float, elsewhere: int = 0) -> float:
        """Returns for how many seconds it waits. It had failed `elsewhere` so many times, in other processes too."""
        failures = 1 + max(elsewhere, self.failures(ledger_id))
        pause = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(failures - 1, 16))
        self._waiting[ledger_id] = _Waiting(mark_version, now + pause, failures)
        return pause

    def postponed(self, ledger_id: int, mark_version: int, until: float) -> None:
        """It is tried at a time that was set, without having failed."""
        before = self._waiting.get(ledger_id)
        self._waiting[ledger_id] = _Waiting(mark_version, until, 0 if before is None else before.failures)

    def unrecoverable(self, ledger_id: int, mark_version: int, bookies: Iterable[str]) -> None:
        """It waits for a new mark, or for the return of any of these bookies."""
        self._waiting[ledger_id] = _Waiting(mark_version, None, 0, frozenset(bookies))

    def done(self, ledger_id: int) -> None:
        """It needs nothing any more."""
        self._waiting.pop(ledger_id, None)
        self._first_seen.pop(ledger_id, None)

    def returned(self, bookies: Iterable[str]) -> None:
        """Bookies have come back: what waits for them is due."""
        came = frozenset(bookies)
        for ledger_id in [each for each, waiting in self._waiting.items() if came & waiting.bookies]:
            del self._waiting[ledger_id]
