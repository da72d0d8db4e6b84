"""What is wrong with settings: unknown keys, values out of range, and keys that don't fit together; all at once.

pydantic stops at rules over several keys while a single value is wrong. So the wrong values are told first and left
out for a second look, which finds the contradictions among the rest.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from bookgate.bookie.tools.configuration.schema import BOOKIE, CLIENT, GATEWAY, PARTS, Given, Part, gather, is_secret
from bookgate.runtime.settings import ContradictionError, from_arguments_only, unknown_key, unknown_variables

_PLACEHOLDERS = {"metadata_uri": "sqlite:///unknown"}
_MISSING = "missing"
_OWN_OF_BOOKIE = {"metadata_uri": "metadata_uri", "host": "host", "gateway_port": "port"}
"""Settings of the bookie that its hosted gateway takes over, by the gateway's names."""


@dataclass(frozen=True, slots=True)
class Problem:
    """`key` is empty for a rule over several keys, which the message names; `source` for what nobody has set."""

    key: str
    message: str
    source: str = ""

    def __str__(self) -> str:
        where = f" ({self.source})" if self.source else ""
        return f"{self.key}{where}: {self.message}" if self.key else self.message


def problems_of(part: Part, given: Mapping[str, Given]) -> list[Problem]:
    """Everything that is wrong, in the order in which it is set. The environment is asked for unknown variables."""
    problems = (_unknown_variables(part) if part.own_prefix else []) + value_problems(part, given)
    if part is BOOKIE:
        problems += _of_hosted_gateway(given) + _of_own_client(given)
    return problems


def _unknown_variables(part: Part) -> list[Problem]:
    return [Problem(*line.split(": ", 1)) for line in unknown_variables(os.environ, part.prefix, part.fields)]


def part_of(content: Mapping[str, Any]) -> Part:
    """The part that a file is probably for: the one that knows most of its keys, and has least against it."""
    given = {key: Given(value, "file") for key, value in content.items()}

    def strangeness(part: Part) -> tuple[int, int]:
        return sum(key not in part.fields for key in content), len(value_problems(part, given))

    return min(PARTS.values(), key=strangeness)


def value_problems(part: Part, given: Mapping[str, Given]) -> list[Problem]:
    """The same of these values alone: without the environment and the hosted gateway."""
    problems = [
        Problem(key, unknown_key(key, part.fields), each.source)
        for key, each in given.items()
        if key not in part.fields
    ]
    values = {key: each.value for key, each in given.items() if key in part.fields}
    first = _errors(part, values)
    wrong = {str(error["loc"][0]) for error in first if error["loc"]}
    problems += [problem for error in first for problem in _told(error, given)]
    if wrong:
        known = {key: value for key, value in _PLACEHOLDERS.items() if key in part.fields}
        rest = {**known, **{key: value for key, value in values.items() if key not in wrong}}
        contradictions = [problem for error in _errors(part, rest) for problem in _told(error, given)]
        # One that names a key left out may come from leaving it out.
        problems += [each for each in contradictions if not wrong & set(_words(each.message))]
    return problems


def _of_hosted_gateway(given: Mapping[str, Given]) -> list[Problem]:
    nested = gather(GATEWAY, {}, options=_table(given, "gateway"))
    for own, name in _OWN_OF_BOOKIE.items():
        nested.pop(name, None)
        if own in given:
            nested[name] = given[own]
    own_keys = {*_OWN_OF_BOOKIE.values()}
    nested.setdefault("metadata_uri", Given(_PLACEHOLDERS["metadata_uri"], ""))
    problems = [each for each in value_problems(GATEWAY, nested) if each.key not in own_keys]
    return _unknown_variables(GATEWAY) + _of_table("gateway", problems)


def _of_own_client(given: Mapping[str, Given]) -> list[Problem]:
    return _of_table("client", value_problems(CLIENT, _table(given, "client")))


def _table(given: Mapping[str, Given], name: str) -> dict[str, Given]:
    """What a table of the settings holds; nothing where it is no table, which is a problem of its own."""
    table = given.get(name)
    if table is None or not isinstance(table.value, Mapping):
        return {}
    return {key: Given(value, table.source) for key, value in table.value.items()}


def _of_table(name: str, problems: Iterable[Problem]) -> list[Problem]:
    return [Problem(f"{name}.{each.key}" if each.key else name, each.message, each.source) for each in problems]


def _errors(part: Part, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    try:
        from_arguments_only(part.settings)(**values)
    except ValidationError as error:
        return [dict(each) for each in error.errors()]
    return []


def _told(error: Mapping[str, Any], given: Mapping[str, Given]) -> Iterator[Problem]:
    key = ".".join(map(str, error["loc"]))
    if not key:
        cause = error.get("ctx", {}).get("error")
        messages = cause.problems if isinstance(cause, ContradictionError) else (str(error["msg"]),)
        yield from (Problem("", message) for message in messages)
        return
    if error["type"] == _MISSING:
        yield Problem(key, "it must be set and is not")
        return
    message = str(error["msg"]).removeprefix("Value error, ")
    top = str(error["loc"][0])
    got = "" if is_secret(top) or error["type"] == "value_error" else f"; it is {error.get('input')!r}"
    yield Problem(key, f"{message}{got}", given[top].source if top in given else "")


def _words(message: str) -> list[str]:
    return "".join(character if character.isalnum() or character == "_" else " " for character in message).split()
