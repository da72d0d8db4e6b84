"""State of the bookie over HTTP: its mode, whether it is ready, its disks; and the operator's read-only switch.

Paths and bodies are BookKeeper's (operations page, section 4): a wrong verb is answered with 404, as there. A body that
does not say what to do is refused with 400, where Apache BookKeeper would take it for "writable".
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from bookie.core.bookie_mode import BookieMode, ModeRefusedException
from bookie.core.disk_space import DirectoryUsage

_VERBS = ["GET", "HEAD", "PUT", "POST", "DELETE", "PATCH"]


@dataclass(frozen=True)
class StateView:
    """The bookie's mode, the operator's switch (which answers with the mode that follows), and its disks together."""

    mode: BookieMode
    set_read_only: Callable[[bool], Awaitable[bool]]
    usage: Callable[[], DirectoryUsage]


def state_routes(view: StateView) -> list[Route]:
    mode = view.mode

    async def state(_request: Request) -> Response:
        return JSONResponse(
            {
                "running": mode.running,
                "readOnly": mode.read_only,
                "shuttingDown": mode.shutting_down,
                "availableForHighPriorityWrites": mode.running and mode.takes_high_priority,
            }
        )

    async def is_ready(_request: Request) -> Response:
        if mode.running and not mode.shutting_down:
            return PlainTextResponse("OK")
        return PlainTextResponse("the bookie is not ready to serve", status_code=503)

    async def info(_request: Request) -> Response:
        usage = view.usage()
        return JSONResponse({"freeSpace": usage.free_bytes, "totalSpace": usage.total_bytes})

    async def read_only(request: Request) -> Response:
        if request.method in ("GET", "HEAD"):
            return JSONResponse({"readOnly": mode.read_only})
        if request.method != "PUT":
            return PlainTextResponse("Not found method. Should be GET or PUT method", status_code=404)
        wanted = _wanted_read_only(await request.body())
        if wanted is None:
            return PlainTextResponse('the body must be {"readOnly": true} or {"readOnly": false}', status_code=400)
        try:
            return JSONResponse({"readOnly": await view.set_read_only(wanted)})
        except ModeRefusedException as error:
            return PlainTextResponse(str(error), status_code=400)

    return [
        Route("/api/v1/bookie/state", state),
        Route("/api/v1/bookie/state/readonly", read_only, methods=_VERBS),
        Route("/api/v1/bookie/is_ready", is_ready),
        Route("/api/v1/bookie/info", info),
    ]


def _wanted_read_only(body: bytes) -> bool | None:
    try:
        content = json.loads(body)
    except ValueError:
        return None
    wanted = content.get("readOnly") if isinstance(content, dict) else None
    return wanted if isinstance(wanted, bool) else None
