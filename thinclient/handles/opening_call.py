"""A call that opens a handle: `await` returns the handle, `async with` opens it and closes it with the block.

reader = await bookkeeper.open_ledger(7)
async with bookkeeper.open_ledger(7) as reader: ...
async with await bookkeeper.open_ledger(7) as reader: ...
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager
from functools import wraps
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

Opened = TypeVar("Opened", bound=AbstractAsyncContextManager[Any])
Given = ParamSpec("Given")


class OpeningCall(Coroutine[Any, Any, Opened], AbstractAsyncContextManager[Opened]):
    """The coroutine of such a call, which can also run as a task, and an async context manager of its result."""

    __slots__ = ("_coroutine", "_opened")

    def __init__(self, coroutine: Coroutine[Any, Any, Opened]) -> None:
        self._coroutine = coroutine
        self._opened: Opened | None = None

    def __await__(self) -> Generator[Any, Any, Opened]:
        return self._coroutine.__await__()

    async def __aenter__(self) -> Opened:
        self._opened = await self._coroutine
        await self._opened.__aenter__()
        return self._opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return None if self._opened is None else await self._opened.__aexit__(kind, error, traceback)

    def send(self, value: Any) -> Any:
        """See `collections.abc.Coroutine`."""
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        """See `collections.abc.Coroutine`."""
        return self._coroutine.throw(*error)

    def close(self) -> None:
        """See `collections.abc.Coroutine`."""
        self._coroutine.close()


def opens(call: Callable[Given, Coroutine[Any, Any, Opened]]) -> Callable[Given, OpeningCall[Opened]]:
    """A decorator for coroutine functions that return an async context manager."""

    @wraps(call)
    def opening(*args: Given.args, **kwargs: Given.kwargs) -> OpeningCall[Opened]:
        return OpeningCall(call(*args, **kwargs))

    return opening
