"""Errors as Spark shows them: only our message, without our stack frames.

Spark prints the whole traceback of an exception that a Python source raises, after its cause and context. Only the
message helps a user. Therefore the methods that Spark calls are wrapped: an expected error leaves them without frames
and causes, which go to the worker's log at level DEBUG. A programming error keeps its traceback.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import wraps
from inspect import isgeneratorfunction
from typing import ParamSpec, TypeVar, cast

from bookgate.ledger.errors import BKException

_log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

FORESEEN = (BKException, OSError, ValueError)
"""`OptionError` is a ValueError."""


def plain_errors(method: Callable[P, R]) -> Callable[P, R]:
    """Removes frames and causes from expected errors of a function or a generator."""
    if isgeneratorfunction(method):

        @wraps(method)
        def generate(*args: P.args, **kwargs: P.kwargs) -> Iterator[object]:
            try:
                yield from cast(Iterator[object], method(*args, **kwargs))
            except FORESEEN as error:
                raise _plain(error) from None

        return cast(Callable[P, R], generate)

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except FORESEEN as error:
            raise _plain(error) from None

    return call


def _plain(error: Exception) -> Exception:
    _log.debug("told without its traceback", exc_info=error)
    error.__context__ = None
    return error.with_traceback(None)
