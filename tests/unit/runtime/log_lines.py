"""Takes the lines of a log apart, and fails for what is none."""

from __future__ import annotations

import json
import re

_PAIR = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|[^\s"=]+)(?: |$)')

Line = dict[str, object]


def parsed(text: str) -> list[Line]:
    """Every line, from either form. Raises ValueError for one that is of neither."""
    return [_parsed(line) for line in text.splitlines()]


def _parsed(line: str) -> Line:
    fields: Line = json.loads(line) if line.startswith("{") else _of_text(line)
    if not fields.keys() >= {"time", "level", "logger"} or not fields.keys() & {"event", "message"}:
        raise ValueError(f"a field is missing: {line}")
    return fields


def _of_text(line: str) -> Line:
    fields: Line = {}
    end = 0
    while end < len(line):
        match = _PAIR.match(line, end)
        if match is None:
            raise ValueError(f"no line of a log: {line}")
        value = match.group(2)
        fields[match.group(1)] = json.loads(value) if value.startswith('"') else value
        end = match.end()
    return fields
