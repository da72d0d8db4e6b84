"""Messages of pydantic in plain words; typer's are pydantic's as well."""

from __future__ import annotations

import re

_PARSING = re.compile(r", unable to (?:parse|interpret) .*")


def plain(message: str) -> str:
    """What is wrong with a value, without the terms of the library that found it."""
    shown = message.removeprefix("Value error, ").replace("Input should be", "it should be")
    return _PARSING.sub("", shown).rstrip(".")
