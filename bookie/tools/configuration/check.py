"""What is wrong with settings: unknown keys, values out of range, and keys that don't fit together; all at once.

pydantic stops at rules over several keys while a single value is wrong. So the wrong values are told first and left
out for a second look, which finds the contradictions among the rest.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from pydantic import ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from bookgate.bookie.tools.configuration.schema import BOOKIE, GATEWAY, PARTS, Given, Part, gather, is_secret
from bookgate.runtime.settings import ContradictionError, unknown_key, unknown_variables

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
        problems += _of_hosted_gateway(given)
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
    table = given.get("gateway")
    content = table.value if table else {}
    if not isinstance(content, Mapping):
        return []
    source = table.source if table else ""
    nested = gather(GATEWAY, {}, options={key: Given(value, source) for key, value in content.items()})
    for own, name in _OWN_OF_BOOKIE.items():
        nested.pop(name, None)
        if own in given:
            nested[name] = given[own]
    own_keys = {*_OWN_OF_BOOKIE.values()}
    nested.setdefault("metadata_uri", Given(_PLACEHOLDERS["metadata_uri"], ""))
    return _unknown_variables(GATEWAY) + [
        Problem(f"gateway.{each.key}" if each.key else "gateway", each.message, each.source)
        for each in value_problems(GATEWAY, nested)
        if each.key not in own_keys
    ]


def _errors(part: Part, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    try:
        _without_other_sources(part.settings)(**values)
    except ValidationError as error:
        return [dict(each) for each in error.errors()]
    return []


def _without_other_sources(settings: type[BaseSettings]) -> type[BaseSettings]:
    """The same settings from nothing but arguments: the other sources have been gathered already."""

    def only_arguments(
        _class: type[BaseSettings],
        /,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        **_others: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)

    own = {"settings_customise_sources": classmethod(only_arguments), "__module__": settings.__module__}
    return cast("type[BaseSettings]", type(settings.__name__, (settings,), own))


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
