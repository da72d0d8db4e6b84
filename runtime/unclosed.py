"""Warns of objects that were not closed, with the line that created them (like aiohttp and the standard library).

Python shows a ResourceWarning with `-X dev` or `-W default::ResourceWarning`, and pytest always.
"""

from __future__ import annotations

import sys
import warnings

_OWN = "bookgate."
_BETWEEN = (_OWN, "asyncio", "contextlib", "functools", "concurrent", "threading")


def made_at() -> str:
    """`file:line` of the nearest caller outside this software and asyncio."""
    frame = sys._getframe(1)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if not name.startswith(_BETWEEN):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        if frame.f_back is None:
            break
        frame = frame.f_back
    return "an unknown place"


def warn_unclosed(what: str, place: str, thing: object) -> None:
    """For `__del__`: warns that an object was not closed. Never raises."""
    try:
        warnings.warn(f"{what} was not closed; it was made at {place}", ResourceWarning, stacklevel=3, source=thing)
    except Exception:
        return
