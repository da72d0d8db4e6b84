"""How far repairs are, for people: what the workers of a cluster tell of themselves, and what it amounts to.

A worker that has something to do writes a record of its own every few seconds: what it has copied and how fast, which
ledgers it works on, and what is endangered, which it knows from its listing of the marks and counts on from there.
Whoever asks reads these records, whose number is that of the processes, and lists nothing. All workers see the same
marks: of what is endangered one of them is taken at its word. The record goes when there is nothing to do, and one that
is not renewed, since its process was killed, counts no more.

Workers of BookKeeper tell nothing. Source: docs/protocol/auto-recovery.md#progress.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from bookgate.ledger.ledger_id import number_in_json
from bookgate.ledger.replication_store import RecordKind, ReplicationMetadata

KEY_PREFIX = "worker."
"""Of the records of workers, among those of the kind PROGRESS."""
RENEWED_SECONDS = 30.0
"""A worker writes its record so often at least, while it has something to tell."""
_STALE_MS = 120_000
"""A record that is so old is that of a process that is gone."""
_SAME_LISTING_MS = 60_000
"""Of the listings that are at most so much older than the newest, that of the worker counts which has counted longest:
it has seen more of what was done."""


class Danger(enum.Enum):
    """The classes of marked ledgers, by the copies that the worst entry has left by the mark; the worst first."""

    UNRECOVERABLE = "unrecoverable"
    """Entries have no copy left, as a repair has found."""
    LAST_COPY = "last_copy"
    """One copy, or none."""
    BELOW_ACK_QUORUM = "below_ack_quorum"
    """Fewer than an acknowledgement took."""
    BELOW_WRITE_QUORUM = "below_write_quorum"
    """Fewer than there are to be."""
    MOVING = "moving"
    """All of them; the ledger leaves a bookie that is to be emptied."""
    MISPLACED = "misplaced"
    """All of them, where the placement policy would not have them."""
    UNKNOWN = "unknown"
    """Not read yet, deleted, or with damaged metadata."""


@dataclass(frozen=True, slots=True)
class Amount:
    """Ledgers, and what is to be copied of them, as far as their metadata tell: at most so much."""

    ledgers: int = 0
    entries: int = 0
    bytes: int = 0
    """Of ledgers that are closed; others do not tell their length."""

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.ledgers + other.ledgers, self.entries + other.entries, self.bytes + other.bytes)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.ledgers - other.ledgers, self.entries - other.entries, self.bytes - other.bytes)


A_LEDGER = Amount(1)
"""Of which nothing else is known."""


@dataclass(frozen=True, slots=True)
class Moving:
    """A ledger under repair."""

    ledger_id: int
    since_ms: int
    entries: int
    """Copies of those due that are there, also such as a repair of before has stored."""
    bytes: int
    due_entries: int
    """Copies that are to be stored, at most."""
    due_bytes: int
    holder: str = ""
    """The worker."""


@dataclass(frozen=True, slots=True)
class OfBookie:
    """What marks say of one bookie."""

    bookie_id: str
    ledgers_left: int
    """Marked ledgers that name it and can be repaired."""
    ledgers_done: int
    """Such as need it no more, since the count began."""
    seconds_left: float | None


@dataclass(frozen=True, slots=True)
class Endangered:
    """What is marked, as one worker sees it."""

    began_ms: int
    """Since when this worker counts."""
    listed_ms: int
    """When it last listed all marks."""
    classes: Mapping[Danger, Amount] = field(default_factory=dict)
    """Without classes that have no ledger."""
    bookies: Sequence[OfBookie] = ()
    """Those with the most ledgers; not more than a few dozen."""
    oldest: tuple[int, int] | None = None
    """Of those that lack copies and can be repaired the ledger marked first, and since when, in milliseconds."""
    ledgers_a_minute: float | None = None
    seconds_left: float | None = None
    """By the ledgers."""


@dataclass(frozen=True, slots=True)
class WorkerProgress:
    """The record of one worker."""

    holder: str
    time_ms: int
    entries: int
    """Copies stored since its start."""
    bytes: int
    entries_a_second: float
    bytes_a_second: float
    moving: Sequence[Moving]
    endangered: Endangered | None


def encode(progress: WorkerProgress) -> bytes:
    """The record, as JSON."""
    told = asdict(progress)
    for each in told["moving"]:
        del each["holder"]
    if progress.endangered is not None:
        classes = {danger.value: asdict(amount) for danger, amount in progress.endangered.classes.items()}
        told["endangered"]["classes"] = classes
    return json.dumps(told, sort_keys=True).encode()


def decode(record: bytes) -> WorkerProgress | None:
    """None for what can't be read, such as a later version's."""
    try:
        told: dict[str, Any] = json.loads(record)
        moving = [Moving(**each, holder=str(told["holder"])) for each in told.pop("moving")]
        seen = told.pop("endangered")
        return WorkerProgress(**told, moving=moving, endangered=None if seen is None else _endangered(seen))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _endangered(told: dict[str, Any]) -> Endangered:
    classes = {Danger(name): Amount(**amount) for name, amount in told.pop("classes").items()}
    bookies = [OfBookie(**each) for each in told.pop("bookies")]
    oldest = told.pop("oldest")
    return Endangered(**told, classes=classes, bookies=bookies, oldest=None if oldest is None else (*oldest,))


@dataclass(frozen=True, slots=True)
class ClusterProgress:
    """What the workers of a cluster tell together."""

    workers: int
    """That have something to do."""
    moving: Sequence[Moving]
    """Ledgers under repair, in ascending order."""
    entries_a_second: float
    """Copies stored, by all."""
    bytes_a_second: float
    endangered: Endangered | None
    """None: no worker has told, since nothing is marked, auto-recovery is disabled, or all are BookKeeper's."""

    @property
    def left(self) -> Amount:
        """What is left to be copied of ledgers that can be repaired, at most."""
        if self.endangered is None:
            return Amount()
        classes = self.endangered.classes
        due = sum((amount for danger, amount in classes.items() if danger is not Danger.UNRECOVERABLE), Amount())
        done = Amount(0, sum(each.entries for each in self.moving), sum(each.bytes for each in self.moving))
        left = due - done
        return replace(left, entries=max(0, left.entries), bytes=max(0, left.bytes))

    @property
    def seconds_left(self) -> float | None:
        """Until all is repaired that can be, by the bytes or by the ledgers, whatever takes longer; None: unknown."""
        if self.endangered is None:
            return None
        left, rate = self.left.bytes, self.bytes_a_second
        by_bytes = left / rate if left and rate else None
        return max((each for each in (by_bytes, self.endangered.seconds_left) if each is not None), default=None)


async def cluster_progress(store: ReplicationMetadata, now_ms: int) -> ClusterProgress:
    """Reads what the workers tell. Raises what `ReplicationMetadata.records` raises."""
    records = await store.records(RecordKind.PROGRESS)
    told = [decode(record.value) for key, record in records.items() if key.startswith(KEY_PREFIX)]
    return together([each for each in told if each is not None], now_ms)


def together(workers: Sequence[WorkerProgress], now_ms: int) -> ClusterProgress:
    """What the workers tell together, at a time in milliseconds since 1970."""
    fresh = [each for each in workers if now_ms - each.time_ms < _STALE_MS]
    seen = [each.endangered for each in fresh if each.endangered is not None]
    newest = max((each.listed_ms for each in seen), default=0)
    recent = [each for each in seen if each.listed_ms >= newest - _SAME_LISTING_MS]
    return ClusterProgress(
        workers=len(fresh),
        moving=sorted((each for worker in fresh for each in worker.moving), key=lambda each: each.ledger_id),
        entries_a_second=sum(each.entries_a_second for each in fresh),
        bytes_a_second=sum(each.bytes_a_second for each in fresh),
        endangered=min(recent, key=lambda each: each.began_ms, default=None),
    )


async def forget_the_gone(store: ReplicationMetadata, now_ms: int) -> None:
    """Removes the records of workers whose processes are gone for long, and such as tell no time.

    A worker that lives writes its own again soon. Raises what the store raises.
    """
    for key, record in (await store.records(RecordKind.PROGRESS)).items():
        if not key.startswith(KEY_PREFIX):
            continue
        written_ms = _time_of(record.value)
        if written_ms is None or now_ms - written_ms > 10 * _STALE_MS:
            await store.remove_record(RecordKind.PROGRESS, key)


def _time_of(record: bytes) -> int | None:
    """When a record was written, be it a later version's; None: it is damaged."""
    try:
        return int(json.loads(record)["time_ms"])
    except (ValueError, TypeError, KeyError):
        return None


def facts_of(progress: ClusterProgress) -> dict[str, object]:
    """The same for programs: what commands and HTTP answer with."""
    seen = progress.endangered
    return {
        "workers": progress.workers,
        "classes": [
            {"class": danger.value, **asdict(seen.classes[danger])} for danger in Danger if danger in seen.classes
        ]
        if seen is not None
        else [],
        "bookies": [] if seen is None else [asdict(each) for each in seen.bookies],
        "repairing": [{**asdict(each), "ledger_id": number_in_json(each.ledger_id)} for each in progress.moving],
        "ledgers_left": progress.left.ledgers,
        "entries_left": progress.left.entries,
        "bytes_left": progress.left.bytes,
        "entries_a_second": round(progress.entries_a_second, 1),
        "bytes_a_second": round(progress.bytes_a_second),
        "ledgers_a_minute": None if seen is None or seen.ledgers_a_minute is None else round(seen.ledgers_a_minute, 1),
        "seconds_left": None if progress.seconds_left is None else round(progress.seconds_left),
    }
