"""A call that opens something: awaited it gives the thing, in `async with` it is opened and closed with the block.

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
    """The coroutine of such a call, which tasks take as well, and a context manager of what it gives."""

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
        """As of any coroutine."""
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        """As of any coroutine."""
        return self._coroutine.throw(*error)

    def close(self) -> None:
        """As of any coroutine."""
        self._coroutine.close()


def opens(call: Callable[Given, Coroutine[Any, Any, Opened]]) -> Callable[Given, OpeningCall[Opened]]:
    """For coroutine functions that give an asynchronous context manager."""

    @wraps(call)
    def opening(*args: Given.args, **kwargs: Given.kwargs) -> OpeningCall[Opened]:
        return OpeningCall(call(*args, **kwargs))

    return opening
