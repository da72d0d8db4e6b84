"""State of the bookie over HTTP: its mode, whether it is ready, its disks; and the operator's read-only switch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from bookie.core.bookie_mode import BookieMode, ModeRefusedException
from bookie.core.disk_space import DirectoryUsage
from gateway.admin.api import TEXT, AnyQuery, Body, Call, NoBody, NoQuery, Row, change, get
from gateway.admin.refused import AdminException


@dataclass(frozen=True)
class StateView:
    """The bookie's mode, the operator's switch (which answers with the mode that follows), and its disks together."""

    mode: BookieMode
    set_read_only: Callable[[bool], Awaitable[bool]]
    usage: Callable[[], DirectoryUsage]


class ReadOnlyBody(Body):
    read_only: bool = Field(alias="readOnly")


def state_rows(view: StateView) -> list[Row]:
    mode = view.mode

    async def state(_call: Call[NoQuery, NoBody]) -> Any:
        return {
            "running": mode.running,
            "readOnly": mode.read_only,
            "shuttingDown": mode.shutting_down,
            "availableForHighPriorityWrites": mode.running and mode.takes_high_priority,
        }

    async def is_ready(_call: Call[AnyQuery, NoBody]) -> str:
        if mode.running and not mode.shutting_down:
            return "OK"
        raise AdminException(503, "the bookie is not ready to serve: it starts or stops")

    async def info(_call: Call[NoQuery, NoBody]) -> Any:
        usage = view.usage()
        return {"freeSpace": usage.free_bytes, "totalSpace": usage.total_bytes}

    async def read_only(_call: Call[NoQuery, NoBody]) -> Any:
        return {"readOnly": mode.read_only}

    async def set_read_only(call: Call[NoQuery, ReadOnlyBody]) -> Any:
        try:
            return {"readOnly": await view.set_read_only(call.body.read_only)}
        except ModeRefusedException as error:
            raise AdminException(400, str(error)) from None

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
            failures={503: "it does not serve"},
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
