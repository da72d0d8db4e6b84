"""Generates the reference page of all settings, docs/reference/configuration.md, from their definitions."""

from __future__ import annotations

import enum
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from bookgate.bookie.tools.configuration.schema import PARTS, Part, default_of
from bookgate.runtime.settings import renamed_keys

_INTRODUCTION = """# Reference: configuration

Generated from the definitions by `make reference` (`bookgate config show --markdown`). Each part reads a TOML file
(`--config`), then the environment, then options; the later one wins. How to check a file, and how to come from
BookKeeper's own: [operations.md](../operations.md#configuration).

Former names of keys are accepted wherever the present ones are, with a warning; `bookgate config migrate` takes them
out of a file. A key that carries another unit now is converted.

Keys in `_mb` (MiB) are sizes of a bookie's files and caches; all other sizes are in `_bytes`. `ledger_directory` and
`journal_directory` name one directory, whose path may contain a comma; their plurals take several, and text is split
at commas there."""

_TITLES = {
    "bookie": """## Bookie

`bookgate bookie`. The table `[gateway]` of its file is for the gateway that it hosts, `[client]` for what it does as a
client of its cluster.""",
    "gateway": "## Gateway\n\n`bookgate gateway`, and the gateway that a bookie hosts.",
    "client": "## Client\n\nEvery command that reads or writes ledgers, and `bookgate.ClientConfig`.",
}
_NAMES = {
    int: "integer",
    float: "number",
    bool: "boolean",
    str: "text",
    Path: "path",
    SecretStr: "secret",
    dict: "table",
}
_LIMITS = (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below"), ("multiple_of", "a multiple of"))


def render() -> str:
    """The whole page."""
    parts = [f"{_TITLES[part.name]}\n\n{_table(part)}" for part in PARTS.values()]
    return "\n\n".join([_INTRODUCTION, *parts]) + "\n"


def _table(part: Part) -> str:
    rows = ["| key | environment | type | default | meaning |", "|---|---|---|---|---|"]
    former = {to.key: name for name, to in renamed_keys(part.settings).items()}
    for key, field in part.fields.items():
        formerly = f" (formerly `{former[key]}`)" if key in former else ""
        cells = (
            f"`{key}`",
            f"`{part.prefix}{key.upper()}`",
            _type(field),
            _default(field),
            f"{field.description}{formerly}",
        )
        rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(rows)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "must be set"
    value = default_of(field)
    if value is None or value in ((), {}, ""):
        return ""
    shown = value.value if isinstance(value, enum.Enum) else value
    return f"`{str(shown).lower() if isinstance(shown, bool) else shown}`"


def _type(field: FieldInfo) -> str:
    limits = [
        f"{words} {getattr(each, name)}"
        for each in field.metadata
        for name, words in _LIMITS
        if getattr(each, name, None) is not None
    ]
    return ", ".join([_named(field.annotation), *limits])


def _named(annotation: Any) -> str:
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join(_named(each) for each in get_args(annotation) if each is not type(None))
    if origin is Literal:
        return " or ".join(f"`{each}`" for each in get_args(annotation))
    if origin is tuple:
        return "list of paths"
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return " or ".join(_values(annotation))
    return _NAMES.get(origin or annotation, str(annotation))


def _values(kinds: type[enum.Enum]) -> Iterator[str]:
    return (f"`{kind.value}`" for kind in kinds)
