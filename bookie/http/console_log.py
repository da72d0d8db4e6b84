"""The latest lines of the bookie's log for the console.

A page of another bookie shows them too, through that bookie's own route (`console_peers`). Not its job: keeping the
lines (`bookgate.runtime.logs`).
"""

from __future__ import annotations

import logging
from typing import Annotated, Any

from pydantic import Field

from bookgate.gateway.console.paths import CONSOLE
from bookgate.gateway.http.access import Need
from bookgate.gateway.http.api import WHOLE, Call, NoBody, Query, Route, get
from bookgate.runtime.logs import KEPT_LINES, LogLevel, recent_lines

LOG = f"{CONSOLE}/log"
LOG_ANSWER = {
    "type": "object",
    "required": ["lines"],
    "properties": {
        "lines": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["level", "text"],
                "properties": {"level": {"type": "string"}, "text": {"type": "string"}},
            },
        }
    },
}


class LogQuery(Query):
    level: LogLevel = Field("info", description="lines of this level and above")
    limit: Annotated[int, Field(ge=1, le=KEPT_LINES), WHOLE] = Field(200, description="the latest so many")


def console_log_route() -> Route:
    async def log(call: Call[LogQuery, NoBody]) -> Any:
        lowest = logging.getLevelNamesMapping()[call.query.level.upper()]
        lines = [line for line in recent_lines() if line.level >= lowest][-call.query.limit :]
        return {"lines": [{"level": logging.getLevelName(line.level).lower(), "text": line.text} for line in lines]}

    return get(LOG, "The latest lines of its log", log, query=LogQuery, answer=LOG_ANSWER, need=Need.CONTENT)
