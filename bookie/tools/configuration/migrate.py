"""Converts a properties file of Apache BookKeeper to TOML: known keys are converted, every other one is reported."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from bookgate.bookie.tools.configuration.bookkeeper_keys import (
    CLIENT_KEYS,
    SERVER_KEYS,
    NoCounterpart,
    To,
    Value,
    Without,
    with_placement_policy,
)
from bookgate.bookie.tools.configuration.properties_file import (
    has_reference,
    parse_properties,
    parts,
    with_references_resolved,
)
from bookgate.bookie.tools.configuration.schema import PARTS
from bookgate.runtime.settings import nearest_key
from bookgate.runtime.settings_problems import Given, value_problems

_SECRET = re.compile(r"passw|secret|token", re.IGNORECASE)
_MISSPELT = 0.87
"""Of 1: a letter or two are wrong. BookKeeper has many keys that resemble each other and mean something else."""


@dataclass(slots=True)
class _Migration:
    """What the keys of one part become: settings, each with its value and its origin, and what is left to do."""

    properties: Mapping[str, str]
    values: dict[str, Value] = field(default_factory=dict)
    taken: dict[str, str] = field(default_factory=dict)
    to_do: list[str] = field(default_factory=list)

    def lines(self, name: str, stated: str, meaning: To | Without) -> Iterator[str]:
        """The lines for one key; `stated` is its value as the file has it."""
        shown = f"# {name} = {_shown(name, stated)}"
        if isinstance(meaning, Without):
            yield f"{shown}: not taken over: {meaning.why}"
            return
        if not self.properties[name]:
            yield f"# {name}: empty, so the default stands"
            return
        try:
            value = self._converted(name, meaning)
        except NoCounterpart as problem:
            yield f"{shown}: not taken over: {problem}"
        except (ValueError, OverflowError):
            yield f"{shown}: not taken over: this is not a number"
        else:
            if meaning.note:
                yield f"{shown}: {meaning.note}"
            if not meaning.several and len(parts(self.properties[name])) > 1:
                yield f"{shown}: BookKeeper takes the first of several values"
            yield f"{meaning.key} = {_toml(value)}"
            self.taken[meaning.key], self.values[meaning.key] = name, value
        if meaning.also:
            yield from self.lines(name, stated, meaning.also)

    def _converted(self, name: str, meaning: To) -> Value:
        text = self.properties[name] if meaning.several else parts(self.properties[name])[0]
        if has_reference(text):
            self._leave_reference(name, meaning)
        if meaning.key in self.taken:
            raise NoCounterpart(f"{self.taken[meaning.key]} has set {meaning.key}")
        value = meaning.convert(text, self.properties)
        if has_reference(str(value)):
            self._leave_reference(name, meaning)
        return value

    def _leave_reference(self, name: str, meaning: To) -> None:
        self.to_do.append(f"{meaning.key}: set it; {name} has a reference, ${{…}}, that this file does not answer")
        raise NoCounterpart("this file does not say what the reference, ${…}, stands for")


def migrate_properties(text: str, target: str = "bookie") -> str:
    """Converts properties to the TOML for `target`, "bookie" or "client"; keys of the other part become comments."""
    stated = with_placement_policy(parse_properties(text))
    properties = with_references_resolved(stated)
    own, other = (SERVER_KEYS, CLIENT_KEYS) if target == "bookie" else (CLIENT_KEYS, SERVER_KEYS)
    other_name = "client" if target == "bookie" else "bookie"
    ours, theirs = _Migration(properties), _Migration(properties)
    lines: list[str] = []
    foreign: list[str] = []
    for name, value in stated.items():
        if name in own:
            lines += ours.lines(name, value, own[name])
        elif name in other:
            foreign += [f"# {each.removeprefix('# ')}" for each in theirs.lines(name, value, other[name])]
        else:
            lines.append(_unknown(name, value, {**own, **other}))
    head = [f"# Settings of the {target}, from a properties file of Apache BookKeeper."]
    given = {key: Given(each) for key, each in ours.values.items()}
    to_do = [*ours.to_do, *map(str, value_problems(PARTS[target].settings, given))]
    head += [f"# To do: {each}" for each in to_do]
    if foreign:
        foreign = ["", f"# Settings of the {other_name}, for a file of its own:", *foreign]
    return "\n".join([*head, "", *lines, *foreign]) + "\n"


def _unknown(name: str, text: str, known: Mapping[str, object]) -> str:
    meant = nearest_key(name, known, _MISSPELT)
    hint = f"; did you mean {meant}?" if meant else ""
    return f"# {name} = {_shown(name, text)}: not taken over: there is no counterpart here{hint}"


def _shown(name: str, text: str) -> str:
    return "********" if _SECRET.search(name) else " ".join(text.split())


def _toml(value: Value) -> str:
    # JSON's forms of these values are also TOML's.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
