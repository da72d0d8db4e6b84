"""Reads a properties file as Apache BookKeeper does: Java's format, with the lists and references of
commons-configuration.

A value is a list whose parts commas separate; a repeated key adds its parts to those of the earlier lines. Keys with
several values have all parts, other keys the first one (`parts`). `${key}` stands for the first part of that key, or
for all its parts where it is the whole value, and `${key:-default}` for the default where no line has the key.

Not its job: what the machine has to know (`${env:…}`, `${sys:…}`): such references stay, and `has_reference` tells.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", ",": "\\,"}
"""A comma that is part of a value stays escaped, so that it separates nothing."""
_SEPARATOR = re.compile(r"(?<!\\),")
_REFERENCE = re.compile(r"(?<!\$)\$\{([^${}]+)\}")


def parse_properties(text: str) -> dict[str, str]:
    """Parses the format: `=`, `:` or space after a key; `#` and `!` begin comments; `\\` ends a line that continues.

    References stay as they are.
    """
    properties: dict[str, str] = {}
    for line in _logical_lines(text):
        match = re.match(r"((?:\\.|[^\\=:\s])+)\s*[=:]?\s*(.*)", line, re.DOTALL)
        if match:
            name, value = _unescape(match.group(1)), _unescape(match.group(2)).strip()
            properties[name] = f"{properties[name]},{value}" if name in properties else value
    return properties


def parts(value: str) -> list[str]:
    """The parts of a value; there is at least one, which may be empty."""
    return [part.replace("\\,", ",").strip() for part in _SEPARATOR.split(value)]


def with_references_resolved(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties, with each reference replaced that other lines of the file answer."""
    return {name: _resolved(value, properties, (name,)) for name, value in properties.items()}


def has_reference(value: str) -> bool:
    """Whether a reference is left in a value."""
    return "${" in value


def _resolved(value: str, properties: Mapping[str, str], within: tuple[str, ...]) -> str:
    def replaced(match: re.Match[str]) -> str:
        name, has_default, default = match.group(1).partition(":-")
        if name in within:
            return match.group()
        if name not in properties:
            return default if has_default and ":" not in name else match.group()
        meant = _resolved(properties[name], properties, (*within, name))
        return meant if match.group() == value else _SEPARATOR.split(meant)[0].strip()

    return _REFERENCE.sub(replaced, value)


def _logical_lines(text: str) -> Iterator[str]:
    pending = ""
    for raw in text.splitlines():
        line = raw.lstrip()
        if not pending and (not line or line[0] in "#!"):
            continue
        if len(line) - len(line.rstrip("\\")) & 1:
            pending += line[:-1]
            continue
        yield pending + line
        pending = ""
    if pending:
        yield pending


def _unescape(text: str) -> str:
    def replaced(match: re.Match[str]) -> str:
        code = match.group(1)
        return chr(int(code[1:], 16)) if len(code) == 5 else _ESCAPES.get(code, code)

    return re.sub(r"\\(u[0-9A-Fa-f]{4}|.)", replaced, text)
