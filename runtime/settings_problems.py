"""The problems of settings: unknown keys, values out of range, and contradicting keys; all at once.

pydantic does not check rules over several keys while a single value is wrong. So wrong values are reported first and
removed for a second validation, which finds the contradictions among the rest.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError
from pydantic_settings import BaseSettings

from bookgate.runtime.settings import (
    ContradictionError,
    misspelt_variables,
    only_arguments,
    secret_keys,
    unknown_key,
    unknown_variables,
)
from bookgate.runtime.wording import plain

OPTION: Final = "option"
"""The source of what a command's options set."""
_MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Given:
    """A value and its source: the file's name, the variable's name, `option`, or nothing for an argument."""

    value: Any
    source: str = ""

    @property
    def precedes_environment(self) -> bool:
        """Whether the environment yields to this value: to options and arguments it does, to a file it does not."""
        return self.source in ("", OPTION)


@dataclass(frozen=True, slots=True)
class Problem:
    """`key` is empty for a rule over several keys, which the message names; `source` is empty if nobody set the
    value.
    """

    key: str
    message: str
    source: str = ""

    def __str__(self) -> str:
        where = f" ({self.source})" if self.source else ""
        return f"{self.key}{where}: {self.message}" if self.key else self.message


def unknown_variable_problems(settings: type[BaseSettings]) -> list[Problem]:
    """Environment variables that look like one of these settings and match none."""
    prefix = settings.model_config["env_prefix"]
    of_others = getattr(settings, "VARIABLES_OF_OTHERS", None)
    if of_others is None:
        found = unknown_variables(os.environ, prefix, settings)
    else:
        found = misspelt_variables(os.environ, prefix, settings, of_others)
    return [Problem(name, message) for name, message in found]


def value_problems(settings: type[BaseSettings], given: Mapping[str, Given]) -> list[Problem]:
    """The problems of these values alone, in the order of the settings."""
    fields = settings.model_fields
    problems = [
        Problem(key, unknown_key(key, settings), each.source) for key, each in given.items() if key not in fields
    ]
    values = {key: each.value for key, each in given.items() if key in fields}
    first = _errors(settings, values)
    wrong = {str(error["loc"][0]) for error in first if error["loc"]}
    problems += [problem for error in first for problem in _told(settings, error, given)]
    if wrong:
        known = {key: "unknown" for key, field in fields.items() if field.is_required()}
        rest = {**known, **{key: value for key, value in values.items() if key not in wrong}}
        contradictions = [problem for error in _errors(settings, rest) for problem in _told(settings, error, given)]
        # A contradiction that names a removed key may come from its removal.
        problems += [each for each in contradictions if not wrong & set(_words(each.message))]
    return problems


def _errors(settings: type[BaseSettings], values: Mapping[str, Any]) -> list[dict[str, Any]]:
    try:
        with only_arguments():
            settings(**values)
    except ValidationError as error:
        return [dict(each) for each in error.errors()]
    return []


def _told(settings: type[BaseSettings], error: Mapping[str, Any], given: Mapping[str, Given]) -> Iterator[Problem]:
    key = ".".join(map(str, error["loc"]))
    if not key:
        cause = error.get("ctx", {}).get("error")
        messages = cause.problems if isinstance(cause, ContradictionError) else (str(error["msg"]),)
        yield from (Problem("", message) for message in messages)
        return
    if error["type"] == _MISSING:
        option, variable = key.replace("_", "-"), settings.model_config["env_prefix"] + key.upper()
        hint = f"give --{option}, {variable} or the key in the configuration file"
        yield Problem(key, f"it must be set and is not; {hint}")
        return
    top = str(error["loc"][0])
    # The value may be a secret, also if a rule of ours rejected it, whose message is sufficient.
    masked = top in secret_keys(settings) or error["type"] == "value_error"
    got = "" if masked else f"; it is {error.get('input')!r}"
    yield Problem(key, f"{plain(str(error['msg']))}{got}", given[top].source if top in given else "")


def _words(message: str) -> list[str]:
    return "".join(character if character.isalnum() or character == "_" else " " for character in message).split()
