"""Warns of objects that were not closed, with the line that created them (like aiohttp and the standard library).

Python shows a ResourceWarning with `-X dev` or `-W default::ResourceWarning`, and pytest always. A client is reported
to the exception handler of its event loop too, which logs it in every run. Handles are not: a program that fails leaves
many of them at once, and one line for their client says enough.
"""

from __future__ import annotations

import asyncio
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


def report_unclosed(what: str, place: str, loop: asyncio.AbstractEventLoop) -> None:
    """For `__del__`: reports to the loop that an object was not closed, while the loop lives. Never raises."""
    try:
        if not loop.is_closed():
            loop.call_exception_handler({"message": f"unclosed {what}, made at {place}"})
    except Exception:
        return
