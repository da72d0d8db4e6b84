"""Removes former names from a TOML file of settings: lines with renamed settings change, all others stay as they are.

The file is changed as text, because a parser would lose comments. The result is therefore parsed and compared with what
it should be; anything that is not one key per line (inline tables, quoted keys) is left to the operator.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping

from pydantic import BaseModel

from bookgate.ledger.errors import IncorrectParameterException
from bookgate.runtime.settings import renamed_keys, tables_of, with_present_names

_TABLE = re.compile(r"\s*\[\s*(?P<table>[\w.-]+)\s*\]")
_KEY = re.compile(r"(?P<before>\s*(?:(?P<table>[\w-]+)\s*\.\s*)?)(?P<key>[\w-]+)(?P<equals>\s*=\s*)(?P<value>[^\s#]*)")


def migrate_toml(text: str, settings: type[BaseModel]) -> str:
    """Returns the file with present names. Raises IncorrectParameterException for a change that must be made by
    hand.
    """
    try:
        wanted, former = with_present_names(settings, tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise IncorrectParameterException(f"the file can't be read: {error}") from error
    doubled = [str(each) for each in former if each.doubled]
    if doubled:
        raise IncorrectParameterException("; ".join(doubled))
    written = _rewritten(text, settings)
    if not _says(written, wanted):
        by_hand = "; ".join(map(str, former))
        raise IncorrectParameterException(f"these lines are too unusual to be rewritten, do it by hand: {by_hand}")
    return written


def _says(text: str, wanted: Mapping[str, object]) -> bool:
    try:
        return tomllib.loads(text) == wanted
    except tomllib.TOMLDecodeError:
        return False


def _rewritten(text: str, settings: type[BaseModel]) -> str:
    inside: str | None = None
    lines = []
    for line in text.splitlines(keepends=True):
        if header := _TABLE.match(line):
            inside = header["table"]
        lines.append(_line(line, settings, inside))
    return "".join(lines)


def _line(line: str, settings: type[BaseModel], inside: str | None) -> str:
    found = _KEY.match(line)
    if found is None or (inside and found["table"]):
        return line
    table = inside or found["table"]
    owner = tables_of(settings).get(table) if table else settings
    renamed = renamed_keys(owner).get(found["key"]) if owner else None
    if renamed is None:
        return line
    value = found["value"] if renamed.per_unit == 1 else json.dumps(renamed.convert(found["value"]))
    return f"{found['before']}{renamed.key}{found['equals']}{value}{line[found.end() :]}"
