"""A thread that runs operations on the SQLite file one after the other, those that keep a lease before all others.

As many changes may wait as a gateway allows calls to its store, each with a commit of its own. A renewal behind them
could come after the end of its lease. Operations of the same kind keep their order.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")

_Waiting = deque[tuple["Future[Any]", Callable[[], Any]]]


class StoreThread:
    """See the module. `submit` may be called from any thread."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._lock = threading.Lock()
        """Of the queues and of `_running`."""
        self._leases: _Waiting = deque()
        self._others: _Waiting = deque()
        self._running = False

    def submit(self, operation: Callable[[], T], *, keeps_lease: bool = False) -> Future[T]:
        """The operation's outcome. One that is cancelled while it waits does not run.

        Raises RuntimeError where the thread can't be started; then the operation does not run.
        """
        outcome: Future[T] = Future()
        with self._lock:
            if not self._running:
                # Before the operation waits: if it raises, nothing is left behind that nobody would run.
                self._thread.submit(self._run)
                self._running = True
            (self._leases if keeps_lease else self._others).append((outcome, operation))
        return outcome

    def submit_last(self, operation: Callable[[], None]) -> Future[None]:
        """The end of all that the thread has to do. One that can't be started has had nothing to do."""
        try:
            return self.submit(operation)
        except RuntimeError:
            nothing: Future[None] = Future()
            nothing.set_result(None)
            return nothing

    def shutdown(self) -> None:
        """Ends the thread after everything that waits; does not wait for it."""
        self._thread.shutdown(wait=False)

    def _run(self) -> None:
        while (waiting := self._next()) is not None:
            _perform(*waiting)

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        with self._lock:
            waiting = self._leases or self._others
            self._running = bool(waiting)
            return waiting.popleft() if waiting else None


def _perform(outcome: Future[T], operation: Callable[[], T]) -> None:
    if not outcome.set_running_or_notify_cancel():
        return
    try:
        result = operation()
    except BaseException as error:
        outcome.set_exception(error)
    else:
        outcome.set_result(result)
