"""Auto-recovery for the console: the switch, the auditor, ledgers that are endangered, under repair or lost, and the
bookies concerned.

A response holds one page of marks, and at most `_SHOWN` items of every other list. Totals come from a listing of all
marks, made in the background and only while someone asks; a listing that takes long is followed by a long pause. Ids of
ledgers and entries are strings, as in `ledger_routes`.

Not its job: changes, which belong to HTTP admin (`bookgate.gateway.http.routes.autorecovery`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from bookgate.gateway.console.paths import CONSOLE
from bookgate.gateway.console.stale_while_refresh import Recent
from bookgate.gateway.http.api import WHOLE, Call, NoBody, Query, Route, get
from bookgate.gateway.http.routes.ledgers import STORE_AWAY
from bookgate.ledger import replication_control as control
from bookgate.ledger.errors import (
    BKException,
    IllegalOpException,
    IncorrectParameterException,
)
from bookgate.ledger.ledger_id import LedgerId, ledger_name
from bookgate.ledger.metadata_store import LedgerManagerFactory, Versioned
from bookgate.ledger.replication_progress import ClusterProgress, Danger, cluster_progress
from bookgate.ledger.replication_store import Mark, RecordKind, ReplicationMetadata
from bookgate.ledger.replication_survey import Survey, missed_bookies, survey
from bookgate.runtime.clock import now_ms

RECOVERY = f"{CONSOLE}/autorecovery"

_MAX_PAGE = 100
_SHOWN = 100
_REST = 10
"""Times as long as a count takes."""


class MarksPageQuery(Query):
    start_after: Annotated[int, Field(ge=0, lt=1 << 128), WHOLE] | None = Field(
        None, description="marks of ledgers behind this id only; with a scope, behind the 128 bits as one number"
    )
    limit: Annotated[int, Field(ge=1, le=_MAX_PAGE), WHOLE] = Field(50, description="of a page")


@dataclass(frozen=True, slots=True)
class Absences:
    """Bookies that auto-recovery misses, or is to empty, with the time since when, in milliseconds since 1970."""

    missed: Mapping[str, int]
    draining: Mapping[str, int]


async def absences(factory: LedgerManagerFactory) -> Absences:
    """Empty if the store does not support auto-recovery. Raises what `ReplicationMetadata.records` raises."""
    try:
        store = factory.replication_metadata
        return Absences(*await asyncio.gather(missed_bookies(store), control.draining_bookies(store)))
    except IllegalOpException:
        return Absences({}, {})


@dataclass(frozen=True, slots=True)
class _Count:
    """The result of listing all marks, with the first ledgers that can't be repaired."""

    survey: Survey
    losses: Sequence[tuple[int, control.Loss]]
    at: float


class RecoveryPanel:
    """See the module. `close` it before the store."""

    def __init__(self, factory: LedgerManagerFactory, clock: Callable[[], float]) -> None:
        self._factory = factory
        self._clock = clock
        self._count = Recent(self._count_all, clock, rest=_REST)

    async def close(self) -> None:
        await self._count.close()

    async def shown(self, query: MarksPageQuery) -> dict[str, Any]:
        try:
            store = self._factory.replication_metadata
            enabled = await store.is_enabled()
        except IllegalOpException as error:
            return {"supported": False, "reason": str(error)}
        counted = await self._count.get()
        holders = await store.lock_holders()
        away = await absences(self._factory)
        told = await cluster_progress(store, now_ms())
        return {
            "supported": True,
            "enabled": enabled,
            "auditor": await store.auditor(),
            "delaySeconds": await store.lost_bookie_delay(),
            "obstacle": await control.obstacle(store),
            "counts": None if counted is None else self._counts(counted),
            "repairs": _repairs_shown(holders, told),
            "repairCount": len(holders),
            "missed": _since(away.missed),
            "draining": _since(away.draining),
            "progress": _progress_shown(told),
            "losses": [_loss_shown(ledger, loss) for ledger, loss in counted.losses] if counted else [],
            **await _marks_shown(store, query, holders),
        }

    async def survey(self) -> Survey | None:
        """The latest count; None before there is one, and for a store without auto-recovery."""
        counted = await self._count.get()
        return None if counted is None else counted.survey

    def _counts(self, counted: _Count) -> dict[str, Any]:
        found = counted.survey
        return {
            "marked": found.marked,
            "lacking": found.lacking,
            "oldestMark": found.oldest_mark_ms,
            "unrecoverable": found.unrecoverable,
            "corrupt": found.corrupt,
            "ageSeconds": round(self._clock() - counted.at, 1),
        }

    async def _count_all(self) -> _Count:
        store = self._factory.replication_metadata
        found = await survey(store)
        records = await store.records(RecordKind.UNRECOVERABLE_LEDGER)
        return _Count(found, control.losses_in(records, _SHOWN), self._clock())


def auto_recovery_route(view: RecoveryPanel) -> Route:
    async def auto_recovery(call: Call[MarksPageQuery, NoBody]) -> Any:
        return await view.shown(call.query)

    return get(
        RECOVERY,
        "Auto-recovery: its state, a page of marked ledgers, repairs, bookies, and what is lost",
        auto_recovery,
        query=MarksPageQuery,
        answer={
            "type": "object",
            "required": ["supported"],
            "properties": {
                "supported": {"type": "boolean"},
                "marks": {"type": "array", "items": {"type": "object", "required": ["ledgerId", "missing"]}},
                "next": {"type": ["string", "null"]},
            },
        },
        failures=STORE_AWAY,
    )


async def repair_of(factory: LedgerManagerFactory, ledger_id: LedgerId) -> dict[str, Any] | None:
    """What the marks say of one ledger; None if it needs no repair, or takes no part in auto-recovery."""
    try:
        number = ledger_id.number
        store = factory.replication_metadata
        mark = await store.read_mark(number)
        if mark is None:
            return None
        record = await store.read_record(RecordKind.UNRECOVERABLE_LEDGER, str(number))
        corrupt = await store.read_record(RecordKind.CORRUPT_LEDGER, str(number))
    except (IllegalOpException, IncorrectParameterException):
        return None
    except BKException as error:
        return {"problem": str(error)}
    return {
        "missing": list(mark.value.replicas),
        "damaged": mark.value.damaged is not None,
        "corruptAt": _corrupt_at(corrupt),
        "since": mark.value.ctime_ms,
        "loss": None if record is None else _loss_shown(number, control.loss_of(record.value)),
    }


async def repairs_of(factory: LedgerManagerFactory, scope_id: int, ids: Sequence[int]) -> dict[int, dict[str, Any]]:
    """What is wrong with those ledgers of a page (ascending) that are marked, by one listing of the marks from the
    first of them to the last. Empty where that can't be told: the page shows its ledgers all the same.
    """
    try:
        numbers = {LedgerId(scope_id, each).number: each for each in ids}
        if not numbers:
            return {}
        store = factory.replication_metadata
        marks = await _marks_between(store, min(numbers), max(numbers), len(numbers))
        shown = await _wrong(store, [mark for mark in marks if mark.value.ledger_id in numbers])
    except BKException:
        return {}
    return {numbers[number]: wrong for number, wrong in shown.items()}


async def _marks_between(store: ReplicationMetadata, first: int, last: int, expected: int) -> list[Mark]:
    found: list[Mark] = []
    async with aclosing(store.marks(first - 1 if first else None, expected + 1)) as pages:  # type: ignore[type-var]
        async for page in pages:
            found += [mark for mark in page if mark.value.ledger_id <= last]
            if page[-1].value.ledger_id >= last:
                break
    return found


async def _wrong(store: ReplicationMetadata, marks: Sequence[Mark]) -> dict[int, dict[str, Any]]:
    """What is wrong with each of the marked ledgers."""
    if not marks:
        return {}
    kind = RecordKind.UNRECOVERABLE_LEDGER
    lost = await asyncio.gather(*(store.read_record(kind, str(mark.value.ledger_id)) for mark in marks))
    corrupt = await store.records(RecordKind.CORRUPT_LEDGER)
    return {
        mark.value.ledger_id: {
            "missing": list(mark.value.replicas),
            "unrecoverable": record is not None,
            "damaged": mark.value.damaged is not None,
            "corruptAt": _corrupt_at(corrupt.get(str(mark.value.ledger_id))),
        }
        for mark, record in zip(marks, lost, strict=True)
    }


async def _marks_shown(store: ReplicationMetadata, query: MarksPageQuery, holders: Mapping[int, str]) -> dict[str, Any]:
    marks, next_after = await _page(store, query)
    wrong = await _wrong(store, marks)
    shown = [
        {
            "ledgerId": ledger_name(mark.value.ledger_id),
            "since": mark.value.ctime_ms,
            "holder": holders.get(mark.value.ledger_id),
            **wrong[mark.value.ledger_id],
        }
        for mark in marks
    ]
    return {"marks": shown, "next": next_after}


async def _page(store: ReplicationMetadata, query: MarksPageQuery) -> tuple[Sequence[Mark], str | None]:
    """A page of marks, and the id after which the next one begins."""
    found: list[Mark] = []
    # One more than the page holds, for whether there is a next page.
    async with aclosing(store.marks(query.start_after, query.limit + 1)) as pages:  # type: ignore[type-var]
        async for page in pages:
            found.extend(page)
            if len(found) > query.limit:
                return found[: query.limit], str(found[query.limit - 1].value.ledger_id)
    return found, None


def _repairs_shown(holders: Mapping[int, str], told: ClusterProgress) -> list[dict[str, Any]]:
    """Locked ledgers, with what the workers tell of them; others' workers tell nothing."""
    moving = {each.ledger_id: each for each in told.moving}
    shown = []
    for ledger_id in sorted(holders)[:_SHOWN]:
        repair = moving.get(ledger_id)
        facts = (
            {}
            if repair is None
            else {
                "since": repair.since_ms,
                "entries": repair.entries,
                "bytes": repair.bytes,
                "dueEntries": repair.due_entries,
                "dueBytes": repair.due_bytes,
            }
        )
        shown.append({"ledgerId": ledger_name(ledger_id), "holder": holders[ledger_id], **facts})
    return shown


def _progress_shown(told: ClusterProgress) -> dict[str, Any] | None:
    """None where no worker tells anything."""
    seen = told.endangered
    if seen is None:
        return None
    return {
        "classes": [
            {"class": danger.value, "ledgers": amount.ledgers, "entries": amount.entries, "bytes": amount.bytes}
            for danger, amount in ((each, seen.classes.get(each)) for each in Danger)
            if amount is not None
        ],
        "bookies": [
            {
                "bookie": each.bookie_id,
                "left": each.ledgers_left,
                "done": each.ledgers_done,
                "secondsLeft": each.seconds_left,
            }
            for each in seen.bookies
        ],
        "oldest": None if seen.oldest is None else {"ledgerId": ledger_name(seen.oldest[0]), "since": seen.oldest[1]},
        "left": {"ledgers": told.left.ledgers, "entries": told.left.entries, "bytes": told.left.bytes},
        "bytesASecond": told.bytes_a_second,
        "entriesASecond": told.entries_a_second,
        "ledgersAMinute": seen.ledgers_a_minute,
        "secondsLeft": told.seconds_left,
    }


def _corrupt_at(record: Versioned[bytes] | None) -> list[str]:
    """The bookies on which a scrub found damaged copies."""
    return [] if record is None else sorted(control.corrupt_copies_of(record.value))


def _since(bookies: Mapping[str, int]) -> list[dict[str, Any]]:
    return [{"bookie": name, "since": bookies[name] or None} for name in sorted(bookies)[:_SHOWN]]


def _loss_shown(ledger_id: int, loss: control.Loss) -> dict[str, Any]:
    return {
        "ledgerId": ledger_name(ledger_id),
        "entries": loss.entries,
        "firstEntries": [str(entry) for entry in loss.first_entries],
        "endIsLost": loss.end_is_lost,
        "lostBookies": list(loss.lost_bookies),
        "givenUpWith": list(loss.given_up_with),
        "answers": [{"bookie": bookie_id, "answer": answer} for bookie_id, answer in loss.answers.items()],
        "since": loss.time_ms or None,
    }
