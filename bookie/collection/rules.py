"""Rules of garbage collection: ledgers missing in the metadata, entry logs without a live ledger, logs to compact.

Ledgers. A pass begins with a snapshot of the local ledger ids, and only then reads the metadata, as ascending ranges. A
client creates metadata before it adds the first entry, so an id that is in the snapshot and not in the listing was
deleted. This holds only for a listing read to its end mark: `LedgerComparison` returns its candidates from `finish`,
after which nothing can follow, and a range that does not ascend ends the comparison for good (M5, F13). A failed pass
has no candidates.

Entry logs. `EntryLogUsage` records how many bytes each ledger has in a complete log; the share of existing ledgers is
the log's usage. A log with none may be removed; one with little may be compacted. `CompactionSchedule` says when: a
major compaction takes everything below the higher threshold and comes first, a minor one takes logs that are nearly
empty.

Invariant: S2. Source: docs/protocol/storage.md#garbage-collection. Not its job: listing, deleting, copying, the clock.
"""

from __future__ import annotations

import enum
from array import array
from bisect import bisect_left
from collections.abc import Container, Iterable, Mapping, MutableSequence, Sequence
from dataclasses import dataclass

from bookgate.ledger.ledger_id import id_array

USAGE_BUCKETS = 10


class IncompleteListingException(Exception):
    """The listing can't be complete or correct, so no conclusion may be drawn from it."""


class LedgerComparison:
    """One pass over the metadata of one scope. `local` has the numbers found on this bookie before the listing began.

    All numbers are ascending.
    """

    def __init__(self, local: Sequence[int]) -> None:
        self._local = local
        self._next = 0
        self._last = -1
        self._missing: MutableSequence[int] = array("q") if isinstance(local, array) else []
        self._over = False

    def add_range(self, ids: Sequence[int]) -> None:
        """Adds the next ids in the metadata. Raises IncompleteListingException, and again at every later call."""
        self._require_listing()
        if not ids:
            return
        last = self._last
        for ledger_id in ids:
            if ledger_id <= last:
                self._over = True
                raise IncompleteListingException(
                    f"the metadata lists ledger {ledger_id} after ledger {last}; the listing is not in order"
                )
            last = ledger_id
        self._compare(ids)
        self._last = last

    def _compare(self, ids: Sequence[int]) -> None:
        end = bisect_left(self._local, ids[-1] + 1, self._next)
        if end > self._next:
            present = set(ids)
            self._missing.extend(number for number in self._local[self._next : end] if number not in present)
        self._next = end

    def finish(self) -> Sequence[int]:
        """Ends the listing: returns the local ids missing in it, ascending. Raises IncompleteListingException."""
        self._require_listing()
        self._over = True
        self._missing.extend(self._local[self._next :])
        return self._missing

    def _require_listing(self) -> None:
        if self._over:
            raise IncompleteListingException("the listing has ended; a new pass needs a new comparison")


class SortedIds:
    """Membership in ascending ids, without the memory of a set. Supports `in` only."""

    def __init__(self, ids: Sequence[int], scoped: Iterable[int] = ()) -> None:
        self._ids = ids
        self._scoped = frozenset(scoped)

    def __contains__(self, number: object) -> bool:
        if not isinstance(number, int):
            return False
        if number in self._scoped:
            return True
        place = bisect_left(self._ids, number)
        return place < len(self._ids) and self._ids[place] == number


class EntryLogUsage:
    """How many bytes each ledger has in a complete entry log, including length fields, as in the ledgers map.

    `has_map` says that the figures come from the log's own map. Those of a scan may lack damaged records.
    """

    __slots__ = ("_bytes", "_ledgers", "has_map", "log_id", "remaining", "total")

    def __init__(self, log_id: int, total: int, bytes_by_ledger: Mapping[int, int], *, has_map: bool) -> None:
        self.log_id = log_id
        self.total = total
        self.has_map = has_map
        # Two arrays: with many ledgers in many logs, dictionaries would need ten times the memory.
        self._ledgers = id_array(bytes_by_ledger)
        self._bytes = array("q", bytes_by_ledger.values())
        self.remaining = sum(self._bytes)

    def keep(self, existing: Container[int]) -> None:
        """Drops ledgers that are not among `existing`."""
        kept = [index for index, ledger_id in enumerate(self._ledgers) if ledger_id in existing]
        if len(kept) == len(self._ledgers):
            return
        self._ledgers = id_array([self._ledgers[index] for index in kept])
        self._bytes = array("q", (self._bytes[index] for index in kept))
        self.remaining = sum(self._bytes)

    def correct(self, live: Mapping[int, int]) -> None:
        """Sets the bytes of these ledgers; without any the ledger is dropped."""
        corrected = {number: live.get(number, size) for number, size in self.bytes_by_ledger.items()}
        kept = {number: size for number, size in corrected.items() if size > 0}
        self._ledgers, self._bytes = id_array(kept), array("q", kept.values())
        self.remaining = sum(self._bytes)

    @property
    def is_empty(self) -> bool:
        return not self._ledgers

    @property
    def ledgers(self) -> Sequence[int]:
        return self._ledgers

    @property
    def bytes_by_ledger(self) -> dict[int, int]:
        """Bytes of each ledger."""
        return dict(zip(self._ledgers, self._bytes, strict=True))

    @property
    def usage(self) -> float:
        """The part of the log that belongs to existing ledgers, 0 to 1."""
        return self.usage_of(0)

    def usage_of(self, target_bytes: int) -> float:
        """The usage if the log had at least `target_bytes`."""
        total = max(self.total, target_bytes)
        return min(1.0, self.remaining / total) if total > 0 else 0.0


def usage_bucket(usage: float) -> int:
    """The tenth that a usage falls into, 0 to 9."""
    return min(USAGE_BUCKETS - 1, int(usage * USAGE_BUCKETS))


def logs_to_compact(logs: Iterable[EntryLogUsage], threshold: float, target_bytes: int = 0) -> list[EntryLogUsage]:
    """The logs below the threshold, grouped by tenths with the emptiest first: they free the most for the least
    copying.

    With `target_bytes` small logs are merged as well, however much of them is in use.
    """
    chosen = [(log.usage_of(target_bytes), log) for log in logs]
    chosen = [(usage, log) for usage, log in chosen if usage < threshold]
    return [log for _, log in sorted(chosen, key=lambda each: (usage_bucket(each[0]), each[1].log_id))]


class CompactionKind(enum.Enum):
    """MINOR compacts nearly empty logs, MAJOR all logs below the higher threshold."""

    MINOR = "minor"
    MAJOR = "major"


@dataclass(frozen=True, slots=True)
class CompactionRule:
    """When one kind of compaction runs, and on which logs. Off unless threshold and interval are above 0."""

    threshold: float
    interval_seconds: float
    max_seconds: float = 0.0
    """Seconds after which no further log is begun; 0 or less: no limit."""

    @property
    def enabled(self) -> bool:
        return self.threshold > 0 and self.interval_seconds > 0


@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    """`forced_always`: a requested compaction runs although its interval is 0."""

    minor: CompactionRule
    major: CompactionRule
    forced_always: bool = False

    def rule(self, kind: CompactionKind) -> CompactionRule:
        return self.minor if kind is CompactionKind.MINOR else self.major

    def problem(self, gc_wait_seconds: float) -> str | None:
        """The problem with the policy; None if there is none."""
        for name, rule in (("minor", self.minor), ("major", self.major)):
            if rule.threshold > 1:
                return f"{name}_compaction_threshold is {rule.threshold}; it is a part of a log and can't exceed 1"
            if rule.enabled and rule.interval_seconds < gc_wait_seconds:
                return f"{name}_compaction_interval_seconds is below gc_wait_seconds; no run comes that often"
        if not (self.minor.enabled and self.major.enabled):
            return None
        if self.minor.interval_seconds >= self.major.interval_seconds:
            return "minor_compaction_interval_seconds must be below major_compaction_interval_seconds"
        if self.minor.threshold >= self.major.threshold:
            return "minor_compaction_threshold must be below major_compaction_threshold"
        return None


@dataclass(frozen=True, slots=True)
class Trigger:
    """A request for a run. `major` and `minor` None: unless suspended."""

    force: bool = False
    major: bool | None = None
    minor: bool | None = None
    ledgers: bool = False

    def merged(self, other: Trigger) -> Trigger:
        """Both requests as one; the later one, `other`, wins where they differ."""
        return Trigger(
            self.force or other.force,
            self.major if other.major is None else other.major,
            self.minor if other.minor is None else other.minor,
            self.ledgers or other.ledgers,
        )


class CompactionSchedule:
    """Which compaction is due, and which are suspended. Times are seconds of one clock.

    Each party that suspends compaction (an administrator, a full directory) must resume it before it runs again.
    """

    def __init__(self, policy: CompactionPolicy, now: float) -> None:
        self._policy = policy
        self._last = dict.fromkeys(CompactionKind, now)
        self._suspenders: dict[CompactionKind, set[str]] = {kind: set() for kind in CompactionKind}

    def suspend(self, kind: CompactionKind, who: str) -> None:
        self._suspenders[kind].add(who)

    def resume(self, kind: CompactionKind, who: str) -> None:
        self._suspenders[kind].discard(who)

    def is_suspended(self, kind: CompactionKind) -> bool:
        return bool(self._suspenders[kind])

    def due(self, now: float, trigger: Trigger) -> CompactionKind | None:
        """At most one compaction per run, the major one first."""
        if self._is_due(CompactionKind.MAJOR, now, trigger.force, trigger.major):
            return CompactionKind.MAJOR
        if self._is_due(CompactionKind.MINOR, now, trigger.force, trigger.minor):
            return CompactionKind.MINOR
        return None

    def _is_due(self, kind: CompactionKind, now: float, force: bool, wanted: bool | None) -> bool:
        rule = self._policy.rule(kind)
        if not (rule.enabled or (force and self._policy.forced_always and rule.threshold > 0)):
            return False
        allowed = not self.is_suspended(kind) if wanted is None else wanted
        return allowed and (force or now - self._last[kind] > rule.interval_seconds)

    def done(self, kind: CompactionKind, now: float) -> None:
        """A compaction has ended. A major one counts as a minor one as well."""
        self._last[kind] = now
        if kind is CompactionKind.MAJOR:
            self._last[CompactionKind.MINOR] = now
