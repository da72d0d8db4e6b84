"""Errors as Spark shows them: our sentence at the end, and none of our frames above it.

Spark prints the traceback of what a Python source raises, whole, and its cause and context before it. A user is helped
by the sentence alone. So what Spark calls is wrapped: an error that was foreseen leaves from there, without the frames
and the causes it came by. The log of the worker has them, at level DEBUG. A fault of the program keeps its traceback.
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
    """Lets foreseen errors of a function or a generator leave without frames and causes."""
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
