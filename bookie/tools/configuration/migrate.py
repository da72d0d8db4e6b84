"""Converts a properties file of Apache BookKeeper to TOML: known keys are converted, every other one is reported."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from bookgate.bookie.tools.configuration.bookkeeper_keys import (
    CLIENT_KEYS,
    SERVER_KEYS,
    NoCounterpart,
    To,
    Value,
    Without,
    with_placement_policy,
)
from bookgate.bookie.tools.configuration.schema import PARTS
from bookgate.runtime.settings import nearest_key
from bookgate.runtime.settings_problems import Given, value_problems

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_SECRET = re.compile(r"passw|secret|token", re.IGNORECASE)


def parse_properties(text: str) -> dict[str, str]:
    """Parses Java's properties format: `=`, `:` or space after a key; `#` and `!` begin comments; `\\` ends a line that
    continues.
    """
    properties = {}
    for line in _logical_lines(text):
        match = re.match(r"((?:\\.|[^\\=:\s])+)\s*[=:]?\s*(.*)", line, re.DOTALL)
        if match:
            properties[_unescape(match.group(1))] = _unescape(match.group(2)).strip()
    return properties


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


def migrate_properties(text: str, target: str = "bookie") -> str:
    """Converts properties to the TOML for `target`, "bookie" or "client"; keys of the other part become comments."""
    properties = with_placement_policy(parse_properties(text))
    own, other = (SERVER_KEYS, CLIENT_KEYS) if target == "bookie" else (CLIENT_KEYS, SERVER_KEYS)
    other_name = "client" if target == "bookie" else "bookie"
    taken: dict[str, str] = {}
    values: dict[str, Any] = {}
    lines: list[str] = []
    foreign: list[str] = []
    for name, text_value in properties.items():
        if name in own:
            lines += _lines(name, text_value, own[name], properties, taken, values)
        elif name in other:
            foreign += [
                f"# {each.removeprefix('# ')}" for each in _lines(name, text_value, other[name], properties, {}, {})
            ]
        else:
            lines.append(_unknown(name, text_value, {**own, **other}))
    head = [f"# Settings of the {target}, from a properties file of Apache BookKeeper."]
    given = {key: Given(value, "") for key, value in values.items()}
    head += [f"# To do: {problem}" for problem in value_problems(PARTS[target].settings, given)]
    if foreign:
        foreign = ["", f"# Settings of the {other_name}, for a file of its own:", *foreign]
    return "\n".join([*head, "", *lines, *foreign]) + "\n"


def _lines(
    name: str,
    text: str,
    meaning: To | Without,
    properties: Mapping[str, str],
    taken: dict[str, str],
    values: dict[str, Any],
) -> list[str]:
    """The lines for one key; records in `taken` the property of each key, and its value in `values`."""
    if isinstance(meaning, Without):
        return [f"# {name} = {_shown(name, text)}: not taken over: {meaning.why}"]
    if not text:
        return [f"# {name}: empty, so the default stands"]
    if meaning.key in taken:
        return [f"# {name} = {_shown(name, text)}: not taken over: {taken[meaning.key]} has set {meaning.key}"]
    try:
        value = meaning.convert(text, properties)
    except NoCounterpart as problem:
        return [f"# {name} = {_shown(name, text)}: not taken over: {problem}"]
    except ValueError:
        return [f"# {name} = {_shown(name, text)}: not taken over: this is not a number"]
    taken[meaning.key] = name
    values[meaning.key] = value
    note = [f"# {name} = {_shown(name, text)}: {meaning.note}"] if meaning.note else []
    return [*note, f"{meaning.key} = {_toml(value)}"]


def _unknown(name: str, text: str, known: Mapping[str, object]) -> str:
    meant = nearest_key(name, known)
    hint = f"; did you mean {meant}?" if meant else ""
    return f"# {name} = {_shown(name, text)}: not taken over: no known key of BookKeeper{hint}"


def _shown(name: str, text: str) -> str:
    return "********" if _SECRET.search(name) else " ".join(text.split())


def _toml(value: Value) -> str:
    # JSON's forms of these values are also TOML's.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
