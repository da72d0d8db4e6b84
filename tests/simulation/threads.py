"""Threads of simulated processes: locks, conditions, events and executors whose waits let the rest of the world run.

They switch at waits only, and where the simulated disk takes time. Waiters are woken in the order they came; which of
several threads that may run goes first is the seed's choice.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast

from greenlet import getcurrent

from bookgate.bookie.system.threads import Condition, Event, Lock, RunningThread, Threads
from tests.simulation.loop import CURRENT, Fiber, Process, WorldLoop

P = ParamSpec("P")
T = TypeVar("T")


class SimulatedLock:
    def __init__(self, loop: WorldLoop) -> None:
        self._loop = loop
        self._held = False
        self._waiters: deque[Fiber] = deque()

    def acquire(self) -> bool:
        while self._held and not self._loop.over:
            self._waiters.append(_current())
            self._loop.suspend()
        self._held = True
        return True

    def release(self) -> None:
        self._held = False
        if self._waiters:
            self._loop.wake(self._waiters.popleft())

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.release()


class SimulatedCondition:
    def __init__(self, loop: WorldLoop, lock: SimulatedLock) -> None:
        self._loop = loop
        self._lock = lock
        self._waiters: deque[Fiber] = deque()

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        fiber = _current()
        self._waiters.append(fiber)
        self._lock.release()
        try:
            heard = self._loop.suspend(timeout)
            if not heard and fiber in self._waiters:
                self._waiters.remove(fiber)
        finally:
            self._lock.acquire()
        return heard

    def notify(self) -> None:
        while self._waiters:
            # One whose time is just up has not heard it: the next one does.
            if self._loop.wake(self._waiters.popleft()):
                return


class SimulatedEvent:
    def __init__(self, loop: WorldLoop) -> None:
        self._loop = loop
        self._set = False
        self._waiters: list[Fiber] = []

    def set(self) -> None:
        self._set = True
        waiters, self._waiters = self._waiters, []
        for fiber in waiters:
            self._loop.wake(fiber)

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            fiber = _current()
            self._waiters.append(fiber)
            if not self._loop.suspend(timeout) and fiber in self._waiters:
                self._waiters.remove(fiber)
        return self._set


class SimulatedThread:
    def __init__(self, loop: WorldLoop, process: Process, run: Callable[[], None], name: str) -> None:
        self._run = run
        self._ended = SimulatedEvent(loop)
        loop.start_fiber(self._main, process).thread = name

    def _main(self) -> None:
        try:
            self._run()
        finally:
            self._ended.set()

    def is_alive(self) -> bool:
        return not self._ended.is_set()

    def join(self) -> None:
        self._ended.wait()


class SimulatedExecutor(Executor):
    """One thread, made with the first job; it ends with `shutdown`."""

    def __init__(self, loop: WorldLoop, process: Process, name: str) -> None:
        self._loop = loop
        self._process = process
        self._name = name
        self._jobs: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._closed = False
        self._ready = SimulatedCondition(loop, SimulatedLock(loop))
        self._thread: SimulatedThread | None = None

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: Future[T] = Future()
        self._jobs.append((future, functools.partial(fn, *args, **kwargs)))
        if self._thread is None:
            self._thread = SimulatedThread(self._loop, self._process, self._work, self._name)
        self._ready.notify()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._closed = True
        self._ready.notify()
        if wait and self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        while True:
            while not self._jobs:
                if self._closed:
                    return
                with self._ready:
                    self._ready.wait()
            run_job(*self._jobs.popleft())


def run_job(future: Future[Any], work: Callable[[], Any]) -> None:
    """One job of an executor, on the thread that calls."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except Exception as error:
        future.set_exception(error)
    else:
        future.set_result(result)


class SimulatedThreads(Threads):
    """The threads of one process."""

    def __init__(self, loop: WorldLoop, process: Process) -> None:
        self._loop = loop
        self._process = process

    def start(self, run: Callable[[], None], name: str) -> RunningThread:
        return SimulatedThread(self._loop, self._process, run, name)

    def lock(self) -> Lock:
        return SimulatedLock(self._loop)

    def condition(self, lock: Lock | None = None) -> Condition:
        return SimulatedCondition(self._loop, cast("SimulatedLock", lock or SimulatedLock(self._loop)))

    def event(self) -> Event:
        return SimulatedEvent(self._loop)

    def executor(self, name: str) -> Executor:
        return SimulatedExecutor(self._loop, self._process, name)

    def monotonic(self) -> float:
        return self._loop.time()

    def wall_clock(self) -> float:
        return self._loop.wall_clock(self._process)


def run_in_executor(loop: WorldLoop, executor: Executor | None, work: Callable[[], T]) -> asyncio.Future[T]:
    """`loop.run_in_executor`: on the executor's thread, or without one on a thread of its own."""
    future: Future[T]
    if executor is not None:
        future = executor.submit(work)
    else:
        future = Future()
        loop.start_fiber(functools.partial(run_job, future, work), CURRENT.get(loop.outside))
    return asyncio.wrap_future(future, loop=loop)


def thread_name() -> str:
    """Of the thread that runs; none where an event loop does."""
    return _current().thread


def _current() -> Fiber:
    return cast("Fiber", getcurrent())
