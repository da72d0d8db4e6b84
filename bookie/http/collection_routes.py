"""Garbage collection over HTTP: start a run, show its progress, suspend and resume compaction.

Bodies are BookKeeper's (docs/admin.md#paths), some of which have booleans as strings.
"""

from __future__ import annotations

import asyncio
from typing import Any, Self

from pydantic import ConfigDict, Field, model_validator

from bookgate.bookie.collection.garbage_collector import GarbageCollector
from bookgate.bookie.collection.rules import CompactionKind
from bookgate.gateway.http.api import Body, Call, NoBody, NoQuery, Route, change, get
from bookgate.gateway.http.errors import HttpError
from bookgate.ledger.errors import IllegalOpException

_SUSPEND_LEDGERS = "/api/v1/bookie/gc/suspend_ledgers"
_RESUME_LEDGERS = "/api/v1/bookie/gc/resume_ledgers"


class GcBody(Body):
    """Which compaction may run; what is absent may unless it is suspended. `forceLedgers`: ledgers without metadata
    go at once, however many they are."""

    major: bool = Field(False, alias="forceMajor")
    minor: bool = Field(False, alias="forceMinor")
    ledgers: bool = Field(False, alias="forceLedgers")


class _SomeBody(Body):
    """At least one of its keys is given."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("one of its keys must be given")
        return self


class SuspendBody(_SomeBody):
    major: bool = Field(False, alias="suspendMajor")
    minor: bool = Field(False, alias="suspendMinor")


class ResumeBody(_SomeBody):
    major: bool = Field(False, alias="resumeMajor")
    minor: bool = Field(False, alias="resumeMinor")


def gc_routes(collector: GarbageCollector) -> list[Route]:
    async def running(_call: Call[NoQuery, NoBody]) -> Any:
        return {"is_in_force_gc": _text(collector.is_in_force_gc)}

    async def run(call: Call[NoQuery, GcBody]) -> Any:
        body, given = call.body, call.body.model_fields_set
        collector.trigger(
            True,
            body.major if "major" in given else None,
            body.minor if "minor" in given else None,
            ledgers=body.ledgers,
        )
        return "Triggered GC on this bookie."

    async def details(_call: Call[NoQuery, NoBody]) -> Any:
        seen = collector.details()
        one = {
            "forceCompacting": seen.force_compacting,
            "majorCompacting": seen.major_compacting,
            "minorCompacting": seen.minor_compacting,
            "lastMajorCompactionTime": seen.last_major_compaction_ms,
            "lastMinorCompactionTime": seen.last_minor_compaction_ms,
            "lastEntryLocationCompactionTime": seen.last_location_compaction_ms,
            "majorCompactionCounter": seen.major_compactions,
            "minorCompactionCounter": seen.minor_compactions,
            "entryLocationCompactionCounter": seen.location_compactions,
        }
        # One run goes over all directories; there is one answer a storage directory all the same.
        return [one] * collector.store_count

    async def suspended(_call: Call[NoQuery, NoBody]) -> Any:
        return {
            "isMajorGcSuspended": _text(collector.is_suspended(CompactionKind.MAJOR)),
            "isMinorGcSuspended": _text(collector.is_suspended(CompactionKind.MINOR)),
        }

    async def suspend(call: Call[NoQuery, SuspendBody]) -> Any:
        collector.suspend_compaction(major=call.body.major, minor=call.body.minor)
        return f"Suspended {_kinds(call.body)} compaction on this bookie."

    async def resume(call: Call[NoQuery, ResumeBody]) -> Any:
        collector.resume_compaction(major=call.body.major, minor=call.body.minor)
        return f"Resumed {_kinds(call.body)} compaction on this bookie."

    async def ledgers_suspended(_call: Call[NoQuery, NoBody]) -> Any:
        return {"isLedgerCollectionSuspended": _text(await asyncio.to_thread(collector.ledgers_suspended))}

    async def suspend_ledgers(_call: Call[NoQuery, NoBody]) -> Any:
        await asyncio.to_thread(collector.suspend_ledgers)
        return "Suspended the deletion of ledgers on this bookie."

    async def resume_ledgers(_call: Call[NoQuery, NoBody]) -> Any:
        try:
            await asyncio.to_thread(collector.resume_ledgers)
        except IllegalOpException as error:
            raise HttpError(409, str(error)) from None
        return "Resumed the deletion of ledgers on this bookie."

    said = {"type": "string"}
    run_more = {"body": GcBody, "body_required": False, "answer": said}
    suspend_path, resume_path = "/api/v1/bookie/gc/suspend_compaction", "/api/v1/bookie/gc/resume_compaction"
    return [
        get("/api/v1/bookie/gc", "Whether a run that was asked for is under way", running),
        change("PUT", "/api/v1/bookie/gc", "Collect garbage now", run, **run_more),
        get("/api/v1/bookie/gc_details", "What compaction does and did", details, answer={"type": "array"}),
        get(suspend_path, "Which compaction is suspended", suspended),
        change("PUT", suspend_path, "Suspend compaction", suspend, body=SuspendBody, answer=said),
        change("PUT", resume_path, "Resume compaction", resume, body=ResumeBody, answer=said),
        get(_SUSPEND_LEDGERS, "Whether the deletion of ledgers is suspended", ledgers_suspended),
        change("PUT", _SUSPEND_LEDGERS, "Suspend the deletion of ledgers, over restarts", suspend_ledgers, answer=said),
        change(
            "PUT",
            _RESUME_LEDGERS,
            "Resume the deletion of ledgers",
            resume_ledgers,
            answer=said,
            failures={409: "a setting suspends it"},
        ),
    ]


def _kinds(body: SuspendBody | ResumeBody) -> str:
    named = {CompactionKind.MAJOR: body.major, CompactionKind.MINOR: body.minor}
    return " and ".join(kind.value for kind, wanted in named.items() if wanted) or "no"


def _text(value: bool) -> str:
    return "true" if value else "false"
