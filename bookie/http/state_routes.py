"""The bookie's state over HTTP: its mode, its readiness, its disks; and the operator's read-only switch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from bookgate.bookie.disks.rules import DirectoryUsage
from bookgate.bookie.mode.mode import BookieMode, ModeRefusedException
from bookgate.gateway.http.api import TEXT, AnyQuery, Body, Call, NoBody, NoQuery, Route, change, get
from bookgate.gateway.http.errors import HttpError


@dataclass(frozen=True)
class StateView:
    """The bookie's mode, the operator's switch (which answers with the mode that follows), its disks together, and
    whether the metadata store has its registration (None: it does not say)."""

    mode: BookieMode
    set_read_only: Callable[[bool], Awaitable[bool]]
    usage: Callable[[], DirectoryUsage]
    registered: Callable[[], bool | None]


class ReadOnlyBody(Body):
    read_only: bool = Field(alias="readOnly")


def state_routes(view: StateView) -> list[Route]:
    mode = view.mode

    async def state(_call: Call[NoQuery, NoBody]) -> Any:
        return {
            "running": mode.running,
            "readOnly": mode.read_only,
            "shuttingDown": mode.shutting_down,
            "availableForHighPriorityWrites": mode.running and mode.takes_high_priority,
            "registered": view.registered(),
        }

    async def is_ready(_call: Call[AnyQuery, NoBody]) -> str:
        if not mode.running or mode.shutting_down:
            raise HttpError(503, "the bookie is not ready to serve: it starts or stops")
        # A store that does not answer says nothing of it, and entries are served all the same.
        if view.registered() is False:
            raise HttpError(503, "clients do not find the bookie: the metadata store has lost its registration")
        return "OK"

    async def info(_call: Call[NoQuery, NoBody]) -> Any:
        usage = view.usage()
        return {"freeSpace": usage.free_bytes, "totalSpace": usage.total_bytes}

    async def read_only(_call: Call[NoQuery, NoBody]) -> Any:
        return {"readOnly": mode.read_only}

    async def set_read_only(call: Call[NoQuery, ReadOnlyBody]) -> Any:
        try:
            return {"readOnly": await view.set_read_only(call.body.read_only)}
        except ModeRefusedException as error:
            raise HttpError(400, str(error)) from None

    return [
        get("/api/v1/bookie/state", "Mode of the bookie", state, answer=_object("running", "readOnly", "shuttingDown")),
        get("/api/v1/bookie/state/readonly", "Whether it is read-only", read_only, answer=_object("readOnly")),
        change(
            "PUT",
            "/api/v1/bookie/state/readonly",
            "Make it read-only, or writable",
            set_read_only,
            body=ReadOnlyBody,
            answer=_object("readOnly"),
        ),
        get(
            "/api/v1/bookie/is_ready",
            "Whether it serves",
            is_ready,
            query=AnyQuery,
            answer=None,
            media_type=TEXT,
            failures={503: "it does not serve, or is not registered"},
        ),
        get(
            "/api/v1/bookie/info",
            "Room on its ledger disks, bytes",
            info,
            answer={"type": "object", "required": ["freeSpace", "totalSpace"]},
        ),
    ]


def _object(*flags: str) -> dict[str, Any]:
    return {"type": "object", "required": list(flags), "properties": {flag: {"type": "boolean"} for flag in flags}}
