"""The event loop in a background thread that carries all blocking clients of a process, and how others wait for it.

The loop exists while somebody has acquired it; what is under way when the last one releases it ends with
ClientClosedException. After a fork the child makes its own, if the parent had not used gRPC yet. Pages of asynchronous
generators are fetched one ahead, so that the hop between threads is paid once a page, while the page before is used.

Any thread may call anything here, but the loop's own thread may wait for nothing: that is refused, since the loop, and
with it every blocking client of the process, would stand still for ever. So it is while the interpreter ends, which
has stopped all other threads by then: what it frees last, such as a generator of the main module, would wait for ever
for the loop, or for a lock of a stopped thread. Not its job: what runs on the loop (`blocking`).
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from concurrent.futures import CancelledError, Future
from contextlib import closing, suppress
from typing import Any, ClassVar, TypeVar

from bookgate.ledger.errors import BKException, ClientClosedException, IllegalOpException
from bookgate.runtime.event_loop import new_event_loop

T = TypeVar("T")

_here = threading.local()
"""`is_loop` in the thread of a loop."""


class LoopThread:
    """The process's event loop for blocking clients, counted by its users."""

    # Reentrant: an iterator that is collected while the lock is held starts its own ending.
    _lock: ClassVar[threading.RLock] = threading.RLock()
    _current: ClassVar[LoopThread | None] = None

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = new_event_loop()
        self._users = 0
        self._thread = threading.Thread(target=self._run, name="bookgate-client", daemon=True)
        self._thread.start()

    @classmethod
    def acquire(cls) -> LoopThread:
        """The running loop, made if there is none in this process. Raises ClientClosedException while that ends."""
        _check_lives()
        with cls._lock:
            if cls._current is None or cls._current.pid != os.getpid():
                cls._current = cls()
            cls._current._users += 1
            return cls._current

    def release(self) -> None:
        """One user less; the last one stops the loop."""
        if self._leave():
            self._thread.join()

    def start_release(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Starts the end of a user, for which nobody waits, and releases the loop after it."""

        async def close_and_release() -> None:
            try:
                await close()
            finally:
                self._leave()

        self.start_end(close_and_release())

    def _leave(self) -> bool:
        """One user less. Whether the loop stops therefore."""
        with self._lock:
            self._users -= 1
            if self._users or self.pid != os.getpid():
                return False
            if type(self)._current is self:
                type(self)._current = None
        self.loop.call_soon_threadsafe(self.loop.stop)
        return True

    @property
    def running(self) -> bool:
        """The loop still takes work."""
        return self.pid == os.getpid() and not self.loop.is_closed() and self._users > 0 and not sys.is_finalizing()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the loop and waits for it; an interrupted wait cancels it.

        Raises as `check_may_wait`.
        """
        try:
            check_may_wait()
        except BKException:
            coroutine.close()
            raise
        return result_of(self.start(coroutine))

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Starts a coroutine on the loop."""
        if self.pid != os.getpid():
            coroutine.close()
            raise ClientClosedException("this client was made before a fork; make another one in this process")
        # The lock is taken only where the loop takes work: a thread that was stopped for good may have it, or one that
        # makes the next loop, and so waits for the lock of a log's handler, which this thread may have.
        if self.running:
            with self._lock:
                if self.running:
                    return asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        coroutine.close()
        raise ClientClosedException("the client is closed")

    def start_end(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Starts the end of something, for which nobody waits; nothing where the loop takes no more work."""
        with suppress(ClientClosedException):
            self.start(coroutine)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        _here.is_loop = True
        try:
            self.loop.run_forever()
        finally:
            self.loop.run_until_complete(_end_tasks())
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()


os.register_at_fork(after_in_child=lambda: setattr(LoopThread, "_lock", threading.RLock()))


async def _end_tasks() -> None:
    """Cancels whatever else runs, so that nobody waits for it in another thread."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _check_lives() -> None:
    """Raises ClientClosedException while the interpreter ends: no other thread does anything any more."""
    if sys.is_finalizing():
        raise ClientClosedException("the process ends, and the event loop of its clients has stopped")


def check_may_wait() -> None:
    """Raises IllegalOpException on the thread of the loop, and ClientClosedException while the interpreter ends: the
    wait would never end.
    """
    _check_lives()
    if getattr(_here, "is_loop", False):
        raise IllegalOpException(
            "a call that waits was made on the event loop's own thread, such as in a done-callback of `append_future`: "
            "the loop could not go on. Start the call with a method that returns a future, or wait in another thread"
        )


def is_abandoned(error: BaseException | None) -> bool:
    """Whether a block ends with the generator that it is in, be it by an error of that end.

    The collector may have ended the generator, in any thread and whatever lock that holds: the event loop may want the
    lock, so nothing may be waited for.
    """
    while error is not None and not isinstance(error, GeneratorExit):
        error = error.__context__
    return error is not None


def result_of(future: Future[T]) -> T:
    """Waits for it. Raises its error, ClientClosedException where the loop ended first, or as `check_may_wait`."""
    try:
        check_may_wait()
        return future.result()
    except CancelledError as error:
        raise ClientClosedException("the client was closed while the call was under way") from error
    except BaseException:
        future.cancel()
        raise


def flat(batches: Generator[list[T], None, None]) -> Generator[T, None, None]:
    """The elements of lists; closing it closes what gives the lists."""
    with closing(batches):
        for batch in batches:
            yield from batch


def iterate(thread: LoopThread, pages: AsyncIterator[T]) -> Generator[T, None, None]:
    """Pages of an asynchronous generator, one fetched ahead."""
    turn = asyncio.Lock()

    async def fetch() -> T | None:
        async with turn:
            return await anext(pages, None)

    async def finish() -> None:
        # A cancelled fetch has to leave the generator before it can be closed.
        async with turn:
            aclose: Callable[[], Awaitable[None]] | None = getattr(pages, "aclose", None)
            if aclose is not None:
                await aclose()

    pending: Future[T | None] = thread.start(fetch())
    try:
        while (page := result_of(pending)) is not None:
            pending = thread.start(fetch())
            yield page
    finally:
        if thread.running:
            pending.cancel()
            thread.start_end(finish())
