"""Renders docs/reference/logs.md: every event that is logged, from the calls in the sources."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]

_INTRODUCTION = """# Reference: logs

Generated from the sources by `make reference`. Bookies and gateways log to standard error, one line an event:

```
time=2026-03-01T12:00:00.000Z level=info logger=bookgate.bookie.server event=connection_closed bookie=b1 error="…"
{"time": "2026-03-01T12:00:00.000Z", "level": "info", "logger": "bookgate.bookie.server", "event": "connection_closed"}
```

The first form is `log_format = "text"` (logfmt, which log collectors read), the second `log_format = "json"`;
`log_level` says from which level on. In a bookie every line has its id as `bookie`. Lines of libraries have `message`
in place of `event`. `exception` is a stack trace, escaped so that it stays within the line: it means a bug, and nothing
else has one. What ends a process at its start is `error: …` with `text`, and an event `process_failed` with `json`.

| level | means |
|---|---|
| `critical` | the process ends, or acknowledges nothing more |
| `error` | something is lost, refused or stuck until somebody looks |
| `warning` | it went wrong and is dealt with; many of them want a look |
| `info` | a change of state |
| `debug` | for developers |

The client's events are those of loggers `thinclient.…`; a process that uses the client has its own log and level. What
Spark tasks log is in [spark.md](../spark.md)."""


class LoggedEvent(NamedTuple):
    """`level` is as written in the log, or `by cause` where the code decides."""

    name: str
    level: str
    logger: str
    fields: tuple[str, ...]


def events() -> list[LoggedEvent]:
    """Every call of `log_event` and `log_bug` with its event, ordered by name."""
    found = {event for package in _PACKAGES for event in _of_package(package)}
    return sorted(found)


def _of_package(package: str) -> Iterator[LoggedEvent]:
    for path in sorted((ROOT / package).rglob("*.py")):
        logger = ".".join(("bookgate", *path.relative_to(ROOT).with_suffix("").parts))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _KINDS:
                yield _event(node, node.func.id, logger)


_KINDS = ("log_event", "log_bug")
_PACKAGES = ("bookie", "gateway", "runtime", "thinclient")


def _event(call: ast.Call, kind: str, logger: str) -> LoggedEvent:
    name = ast.literal_eval(call.args[1])
    fields = tuple(keyword.arg for keyword in call.keywords if keyword.arg not in (None, "level"))
    if kind == "log_bug":
        return LoggedEvent(name, "error", logger, (*map(str, fields), "error", "type", "exception"))
    given = [keyword.value for keyword in call.keywords if keyword.arg == "level"] + call.args[2:]
    return LoggedEvent(name, _level(given[0] if given else None), logger, tuple(map(str, fields)))


def _level(node: ast.expr | None) -> str:
    if node is None:
        return "info"
    return node.attr.lower() if isinstance(node, ast.Attribute) else "by cause"


def render() -> str:
    """The whole page."""
    parts = [_INTRODUCTION]
    for package in _PACKAGES:
        rows = [f"## {package}", "", "| event | level | logger | fields |", "|---|---|---|---|"]
        for each in events():
            if each.logger.split(".")[1] == package:
                fields = ", ".join(f"`{field}`" for field in each.fields)
                rows.append(f"| `{each.name}` | {each.level} | `{each.logger}` | {fields} |")
        parts.append("\n".join(rows))
    return "\n\n".join(parts) + "\n"
