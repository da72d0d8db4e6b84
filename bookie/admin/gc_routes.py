"""Garbage collection over HTTP: ask for a run, see what it does, suspend and resume compaction.

Paths and bodies are BookKeeper's (operations page, section 4), with its habit of truth values as strings in some of
them. A body that is not the JSON object it should be is refused with 400.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from bookie.core.garbage_collection import CompactionKind
from bookie.garbage_collector import GarbageCollector

_VERBS = ["GET", "HEAD", "PUT", "POST", "DELETE", "PATCH"]
_GET = ("GET", "HEAD")


def gc_routes(collector: GarbageCollector) -> list[Route]:
    async def gc(request: Request) -> Response:
        if request.method in _GET:
            return JSONResponse({"is_in_force_gc": _text(collector.is_in_force_gc)})
        if request.method != "PUT":
            return PlainTextResponse("Not found method. Should be PUT or GET method", status_code=405)
        flags = await _flags(request, "forceMajor", "forceMinor")
        if flags is None:
            return _refused("forceMajor", "forceMinor")
        collector.trigger(True, flags.get("forceMajor"), flags.get("forceMinor"))
        return JSONResponse("Triggered GC on this bookie.")

    async def details(request: Request) -> Response:
        if request.method not in _GET:
            return PlainTextResponse("Not found method. Should be GET method", status_code=404)
        seen = collector.details()
        one = {
            "forceCompacting": seen.force_compacting,
            "majorCompacting": seen.major_compacting,
            "minorCompacting": seen.minor_compacting,
            "lastMajorCompactionTime": seen.last_major_compaction_ms,
            "lastMinorCompactionTime": seen.last_minor_compaction_ms,
            "lastEntryLocationCompactionTime": 0,
            "majorCompactionCounter": seen.major_compactions,
            "minorCompactionCounter": seen.minor_compactions,
            "entryLocationCompactionCounter": 0,
        }
        # One run goes over all directories; there is one answer a storage directory all the same.
        return JSONResponse([one] * collector.store_count)

    async def suspend(request: Request) -> Response:
        if request.method in _GET:
            return JSONResponse(
                {
                    "isMajorGcSuspended": _text(collector.is_suspended(CompactionKind.MAJOR)),
                    "isMinorGcSuspended": _text(collector.is_suspended(CompactionKind.MINOR)),
                }
            )
        if request.method != "PUT":
            return PlainTextResponse("Not found method. Should be GET or PUT method", status_code=404)
        flags = await _flags(request, "suspendMajor", "suspendMinor")
        if not flags:
            return _refused("suspendMajor", "suspendMinor")
        collector.suspend_compaction(major=flags.get("suspendMajor", False), minor=flags.get("suspendMinor", False))
        return JSONResponse(f"Suspended {_kinds(flags, 'suspend')} compaction on this bookie.")

    async def resume(request: Request) -> Response:
        if request.method != "PUT":
            return PlainTextResponse("Not found method. Should be PUT method", status_code=404)
        flags = await _flags(request, "resumeMajor", "resumeMinor")
        if not flags:
            return _refused("resumeMajor", "resumeMinor")
        collector.resume_compaction(major=flags.get("resumeMajor", False), minor=flags.get("resumeMinor", False))
        return JSONResponse(f"Resumed {_kinds(flags, 'resume')} compaction on this bookie.")

    return [
        Route("/api/v1/bookie/gc", gc, methods=_VERBS),
        Route("/api/v1/bookie/gc_details", details, methods=_VERBS),
        Route("/api/v1/bookie/gc/suspend_compaction", suspend, methods=_VERBS),
        Route("/api/v1/bookie/gc/resume_compaction", resume, methods=_VERBS),
    ]


async def _flags(request: Request, *names: str) -> Mapping[str, bool] | None:
    """The truth values of these names in the body, which may be empty; None for a body that is something else."""
    body = await request.body()
    if not body.strip():
        return {}
    try:
        content = json.loads(body)
    except ValueError:
        return None
    if not isinstance(content, dict):
        return None
    found = {name: content[name] for name in names if name in content}
    return found if all(isinstance(value, bool) for value in found.values()) else None


def _refused(major: str, minor: str) -> Response:
    return PlainTextResponse(f'the body must be JSON with "{major}" or "{minor}", true or false', status_code=400)


def _kinds(flags: Mapping[str, bool], verb: str) -> str:
    kinds = [
        kind.value for kind in (CompactionKind.MAJOR, CompactionKind.MINOR) if flags.get(verb + kind.value.title())
    ]
    return " and ".join(kinds) or "no"


def _text(value: bool) -> str:
    return "true" if value else "false"
