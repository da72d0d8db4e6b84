"""The order in which a worker takes marked ledgers, and when it tries failed ones again. Pure.

The ledgers with the fewest copies left come first; among equals those with fewer copies than the ack quorum, then the
newest, since old ones are more likely to expire. A ledger that has waited long counts as having one copy less. A failed
ledger, whatever the reason, waits twice as long each time; an unrecoverable one waits until its mark or its metadata
change, or a bookie returns.

Source: docs/protocol/auto-recovery.md#order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import NamedTuple

from bookgate.ledger.metadata_codec import encode
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.replication_progress import A_LEDGER, Amount, Danger

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 5.0, 300.0
_AGEING_SECONDS = 600.0
"""Seconds of waiting after which a ledger counts as having one copy less."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A marked ledger that may be repaired."""

    ledger_id: int
    mark_version: int
    copies_left: int
    """Copies left of its most endangered entry."""
    below_ack_quorum: bool = False
    """Whether these are fewer than the ack quorum."""
    danger: Danger = Danger.UNKNOWN
    """The class of danger in reports."""
    due: Amount = A_LEDGER
    """The maximum amount to be copied."""


class GivenUp(NamedTuple):
    """What tells whether a ledger is still as it was given up, without its metadata, which may be large."""

    version: int
    incarnation: int | None
    digest: bytes

    @classmethod
    def of(cls, record: LedgerRecord) -> GivenUp:
        metadata = replace(record.metadata, password_check=None)  # each answer has another one
        return cls(record.version, record.incarnation, sha256(encode(metadata)).digest())

    def is_still(self, record: LedgerRecord) -> bool:
        """Whether nothing has changed. A ledger that was created with the id since may have the same version; where an
        older gateway does not tell the incarnation, the metadata alone show it.
        """
        unknown = None in (self.incarnation, record.incarnation)
        return GivenUp.of(replace(record, incarnation=self.incarnation) if unknown else record) == self


@dataclass(slots=True)
class _Waiting:
    mark_version: int
    until: float | None
    """The time until which the ledger waits; None: until something changes."""
    failures: int
    bookies: frozenset[str] = frozenset()
    """Bookies whose return ends the waiting."""
    given_up_at: GivenUp | None = None
    """The ledger as it was given up; None for a failed or postponed one."""


class RepairQueue:
    """See the module. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._first_seen: dict[int, float] = {}
        self._waiting: dict[int, _Waiting] = {}

    def keep_only(self, marked: Collection[int]) -> None:
        """Forgets every ledger that is not marked any more."""
        for known in (self._first_seen, self._waiting):
            for ledger_id in [each for each in known if each not in marked]:
                del known[ledger_id]

    def is_due(self, ledger_id: int, mark_version: int, now: float) -> bool:
        """Whether a ledger may be tried now; a mark that was made again ends its waiting."""
        self._first_seen.setdefault(ledger_id, now)
        waiting = self._waiting.get(ledger_id)
        if waiting is None:
            return True
        if waiting.until is None:
            return waiting.mark_version != mark_version
        return now >= waiting.until

    def given_up_at(self, ledger_id: int) -> GivenUp | None:
        """The ledger as it was given up; None unless it waits for a change."""
        waiting = self._waiting.get(ledger_id)
        return None if waiting is None else waiting.given_up_at

    def is_given_up(self, ledger_id: int) -> bool:
        """Whether a ledger waits for a change without a time limit."""
        return self.given_up_at(ledger_id) is not None

    def order(self, candidates: Iterable[Candidate], now: float) -> list[Candidate]:
        """The candidates, most urgent first."""

        def urgency(each: Candidate) -> tuple[int, bool, int]:
            aged = int((now - self._first_seen.get(each.ledger_id, now)) / _AGEING_SECONDS)
            return each.copies_left - aged, not each.below_ack_quorum, -each.ledger_id

        return sorted(candidates, key=urgency)

    def failures(self, ledger_id: int) -> int:
        """Number of failures of a ledger since its last success."""
        waiting = self._waiting.get(ledger_id)
        return 0 if waiting is None else waiting.failures

    def next_due(self) -> float | None:
        """The earliest time at which a waiting ledger may be tried again."""
        return min((each.until for each in self._waiting.values() if each.until is not None), default=None)

    # Outcomes

    def failed(self, ledger_id: int, mark_version: int, now: float, elsewhere: int = 0) -> float:
        """A repair has failed; returns the seconds of waiting. `elsewhere` counts failures including other
        processes.
        """
        failures = 1 + max(elsewhere, self.failures(ledger_id))
        pause = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(failures - 1, 16))
        self._waiting[ledger_id] = _Waiting(mark_version, now + pause, failures)
        return pause

    def postponed(self, ledger_id: int, mark_version: int, until: float) -> None:
        """The ledger is to be tried at a given time, without having failed."""
        before = self._waiting.get(ledger_id)
        self._waiting[ledger_id] = _Waiting(mark_version, until, 0 if before is None else before.failures)

    def unrecoverable(self, record: LedgerRecord, mark_version: int, bookies: Iterable[str]) -> None:
        """The ledger waits for a new mark, for other metadata, or for the return of any of these bookies."""
        given_up = GivenUp.of(record)
        self._waiting[record.ledger_id.number] = _Waiting(mark_version, None, 0, frozenset(bookies), given_up)

    def done(self, ledger_id: int) -> None:
        """The ledger needs no further repair."""
        self._waiting.pop(ledger_id, None)
        self._first_seen.pop(ledger_id, None)

    def returned(self, bookies: Iterable[str]) -> None:
        """Bookies have returned: ledgers that wait for them are due."""
        came = frozenset(bookies)
        for ledger_id in [each for each, waiting in self._waiting.items() if came & waiting.bookies]:
            del self._waiting[ledger_id]
