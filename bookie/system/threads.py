"""The bookie's interface to threads: what its blocking parts run on, wait on, and tell the time by.

The real one returns Python's own objects, so that it costs nothing once something was created. A simulator passes a
subclass whose threads take turns under its scheduler, and whose clocks are virtual. Locks that are held for a few
operations only, without a file operation or a wait inside, need not come from here: a scheduler of turns never switches
there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from types import TracebackType
from typing import Protocol, cast


class Lock(Protocol):
    """A mutual exclusion, to be used as a context manager."""

    def __enter__(self) -> bool: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class Condition(Protocol):
    """A lock with a place to wait."""

    def __enter__(self) -> bool: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

    def wait(self, timeout: float | None = None) -> bool:
        """Lets go of the lock until `notify`, at most so many seconds; False when that was not heard."""

    def notify(self) -> None: ...


class Event(Protocol):
    """A flag to wait for."""

    def set(self) -> None: ...

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> bool:
        """Whether it is set, after at most so many seconds."""


class RunningThread(Protocol):
    """A thread that was started."""

    def is_alive(self) -> bool: ...

    def join(self) -> None:
        """Waits for its end."""


class Threads:
    """The real ones. Threads are daemons: none keeps a process alive."""

    def start(self, run: Callable[[], None], name: str) -> RunningThread:
        """Runs `run` on a new thread."""
        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread

    def lock(self) -> Lock:
        return threading.Lock()

    def condition(self, lock: Lock | None = None) -> Condition:
        """A condition over a lock from here, or over one of its own."""
        return threading.Condition(cast("threading.Lock", lock or threading.Lock()))

    def event(self) -> Event:
        return threading.Event()

    def executor(self, name: str) -> Executor:
        """Runs what it is given in order, on one thread."""
        return ThreadPoolExecutor(1, thread_name_prefix=name)

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()

    def wall_clock(self) -> float:
        """Seconds since 1970."""
        return time.time()


REAL_THREADS = Threads()
