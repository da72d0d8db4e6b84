"""The event loop of a simulated world: virtual time, and one queue of work for each process and each thread.

It is built on detangle's `SimLoop`, which gives timers, virtual time, tasks, and the refusal of real I/O. Where that
fell short, with the case:

* Lanes. `SimLoop` lets every task run in any order. In a real process one loop runs what is ready in the order in
  which it became so, and code may rely on that: a bookie's `flush` comes after the answers it is for. Only processes
  and threads race. So there is one lane for a process and one for each of its threads.
* Threads. `run_in_executor` runs a job in one step, so a job that waits for a lock that another one holds stands still
  for ever; and the bookie's journal is a thread with a condition variable. Here a thread is a greenlet (`Fiber`).
  A step of a process runs in one, too: it may have to wait for a lock while other processes go on.
* Crashes. `SimNetwork.crash` cancels tasks, which runs their `finally` blocks: a process that is killed runs nothing
  any more. Here its lanes just end. For that every handle knows its process, by a context variable.
* Network. Transports know no `BufferedProtocol` (`get_buffer`, `buffer_updated`), which both ends of the entry protocol
  are; no full write buffers (`pause_writing`); no `create_server(sock=…)`; no cut in one direction. See `network`.
* Speed. Every step sorts the lanes, and every decision and every task is kept for ever: a seed with 100,000 steps
  spent more time there than in the product. A step passes few calls here, for that reason: handles and timers are made,
  queued and run in one function each.

A world is single-threaded, and everything of it runs in fibers. The one that carries handles picks the next lane, so
that most steps need no switch; where it is another fiber's turn, or a handle waits in the middle, it switches to the
*hub*, the greenlet that called `run_until_complete`. When several lanes are ready the seed chooses.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from heapq import heappop, heappush
from typing import Any, TypeVar, cast

from detangle import SimLoop
from greenlet import GreenletExit, getcurrent, greenlet

T = TypeVar("T")

EPOCH = 1_700_000_000.0
"""What right clocks show when a world begins."""
STEPS_WITHOUT_TIME = 100_000
"""Steps at one instant after which a world counts as going round in circles."""


class WorldStuckError(AssertionError):
    """Nothing is left that could happen, or things happen without end while no time passes."""


class Process:
    """One process: its handles run one after the other, its threads beside them."""

    def __init__(self, loop: WorldLoop, name: str, host: str) -> None:
        self.name = name
        self.host = host
        self.alive = True
        self.paused = False
        self.lanes: list[Lane] = []
        self.main = Lane(loop, self)
        self.context = contextvars.Context()
        """Whatever runs in a copy of it belongs to this process."""
        self.context.run(CURRENT.set, self)
        self.loop = loop
        self.on_end: list[Callable[[], None]] = []
        """Called when the process has ended, however; not within it."""

    def __repr__(self) -> str:
        return f"<Process {self.name} on {self.host}>"

    def pause(self) -> None:
        """As SIGSTOP does: nothing of it runs until `resume`. What reaches it waits."""
        self.paused = True
        for lane in self.lanes:
            lane.update()

    def resume(self) -> None:
        self.paused = False
        for lane in self.lanes:
            lane.update()

    def keep_busy(self, seconds: float) -> None:
        """Its event loop computes something for so long. Its threads go on, and what reaches its sockets waits."""
        self._busier(1)
        self.loop.call_later(seconds, self._busier, -1, context=self.loop.outside.context)

    def _busier(self, by: int) -> None:
        self.main.busy += by
        self.main.update()

    def end(self) -> None:
        """It is gone, with all its threads; nothing of it runs again, not even a `finally`."""
        if not self.alive:
            return
        self.alive = False
        self.loop.bury(self)
        callbacks, self.on_end = self.on_end, []
        for callback in callbacks:
            callback()


class Lane:
    """What waits to run, in order: handles of a process, or the one fiber of a thread."""

    __slots__ = ("_loop", "blocked", "busy", "process", "queue")

    def __init__(self, loop: WorldLoop, process: Process) -> None:
        self._loop = loop
        self.process = process
        self.queue: deque[asyncio.Handle | Fiber] = deque()
        self.blocked = False
        """Whether a handle of a process waits in the middle, so that no other of it may run."""
        self.busy = 0
        """How many things that are not simulated the event loop of a process has to do before."""
        process.lanes.append(self)

    def put(self, item: asyncio.Handle | Fiber) -> None:
        queue = self.queue
        queue.append(item)
        if len(queue) == 1 and not self.blocked and not self.busy:
            process = self.process
            if process.alive and not process.paused:
                self._loop.ready[self] = None

    def update(self) -> None:
        """Puts the lane among those that may run, or takes it from there."""
        process = self.process
        if self.queue and not self.blocked and not self.busy and process.alive and not process.paused:
            self._loop.ready[self] = None
        else:
            self._loop.ready.pop(self, None)


class Fiber(greenlet):
    """What code runs in: a thread, or (`carries`) one handle after the other, of whatever process."""

    def __init__(self, run: Callable[..., object], hub: greenlet, lane: Lane | None, *, carries: bool) -> None:
        super().__init__(run, hub)
        self.lane = cast("Lane", lane)
        self.carries = carries
        self.waits = 0
        """Number of its waits, negative while it does not wait."""
        self.woken = False
        self.thread = ""
        """The name of the thread that it is, if it has one."""


class _Handle(asyncio.Handle):
    """asyncio's own, made in one call; it is run by the loop."""

    __slots__ = ()
    _args: tuple[Any, ...]
    _callback: Callable[..., object]
    _cancelled: bool
    _context: contextvars.Context
    _repr: str | None
    _source_traceback: None

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], loop: WorldLoop, context: contextvars.Context
    ) -> None:
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context = context
        self._cancelled = False
        self._repr = self._source_traceback = None


class _Timer(asyncio.TimerHandle):
    """As `_Handle`."""

    __slots__ = ()
    _args: tuple[Any, ...]
    _callback: Callable[..., object]
    _cancelled: bool
    _context: contextvars.Context
    _repr: str | None
    _scheduled: bool
    _source_traceback: None

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: WorldLoop,
        context: contextvars.Context,
    ) -> None:
        self._when = when
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context = context
        self._cancelled = False
        self._scheduled = True
        self._repr = self._source_traceback = None

    def cancel(self) -> None:
        if self._cancelled:
            return
        self._loop._timer_handle_cancelled(self)
        self._cancelled = True
        self._callback = self._args = None  # type: ignore[assignment]


class _Wake(_Timer):
    """A timer that ends the wait of a fiber."""

    __slots__ = ("fiber", "wait")
    fiber: Fiber
    wait: int


CURRENT: contextvars.ContextVar[Process] = contextvars.ContextVar("simulated process")


class WorldLoop(SimLoop):
    """See the module."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng
        self.ready: dict[Lane, None] = {}
        self._carriers: list[Fiber] = []
        self.fibers: list[Fiber] = []
        """All that were made and may be alive."""
        self._remains: list[object] = []
        self._instant_steps = 0
        self.over = False
        self.failure: BaseException | None = None
        """Ends the run at the next step."""
        self.clocks_ahead: dict[str, float] = {}
        """Seconds by which a host's clock is ahead, or where negative behind."""
        self.after_step: Callable[[], None] | None = None
        self._hub = getcurrent()
        self._awaited: asyncio.Future[Any]
        self._next: Fiber | None = None
        """Whose turn it is when the hub is switched to; None: whoever finds out."""
        self._handed_over = False
        """Whether a carrier has ended its step before it switched to the hub."""
        self.outside = Process(self, "world", "world")
        """Where everything runs that belongs to no simulated process."""

    # Steps

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        if context is None:
            context = contextvars.copy_context()
        handle = _Handle(callback, args, self, context)
        if self._abandoned:
            handle._cancelled = True
            return handle
        process = context.get(CURRENT, self.outside)
        if process.alive:
            process.main.put(handle)
        return handle

    def call_at_exact(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = _Timer(when, callback, args, self, contextvars.copy_context() if context is None else context)
        if self._abandoned:
            timer._cancelled = True
        else:
            self._seq += 1
            heappush(self._timers, (when, self._seq, timer))
        return timer

    call_at = call_at_exact

    def _advance_time(self) -> bool:
        """To the next timer, if there is any."""
        timers = self._timers
        while timers:
            when, _, handle = timers[0]
            if not handle._cancelled:
                if when > self._now:
                    self._now = when
                self._collect_due_timers()
                return True
            heappop(timers)
            handle._scheduled = False  # type: ignore[attr-defined]
            self._cancelled_timers -= 1
        return False

    def _collect_due_timers(self) -> None:
        timers, now, outside = self._timers, self._now, self.outside
        handle: Any  # a _Timer
        while timers and timers[0][0] <= now:
            handle = heappop(timers)[2]
            handle._scheduled = False
            if handle._cancelled:
                self._cancelled_timers -= 1
            elif handle.__class__ is _Wake:
                self._wake(handle.fiber, handle.wait, False)
            else:
                process = handle._context.get(CURRENT, outside)
                if process.alive:
                    process.main.put(handle)

    def _run_handles(self, carrier: Fiber) -> Fiber | None:
        """Runs what may run, in `carrier`, until it is another fiber's turn, or the run is over: None."""
        ready, random, over = self.ready, self._rng.random, self._awaited.done
        item: Any  # a Fiber or a _Handle
        while not over():
            timers = self._timers
            if timers and timers[0][0] <= self._now:
                self._collect_due_timers()
            if not ready:
                self._instant_steps = 0
                if not self._advance_time():
                    raise WorldStuckError(f"at {self._now:.6f} s nothing is left that could happen; {self._waiting()}")
                continue
            lane = next(iter(ready)) if len(ready) == 1 else list(ready)[int(random() * len(ready))]
            queue = lane.queue
            item = queue.popleft()
            if not queue:
                del ready[lane]
            if item.__class__ is Fiber:
                return item
            if item._cancelled:
                continue
            carrier.lane = lane
            try:
                item._context.run(item._callback, *item._args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                message = f"Exception in callback {item!r}"
                self.call_exception_handler({"message": message, "exception": error, "handle": item})
            del item
            # As `_stepped` does, which would be a call more a step.
            self.steps += 1
            self._instant_steps += 1
            if self._instant_steps > STEPS_WITHOUT_TIME or self.after_step is not None or self.failure is not None:
                self._look_at_step(lane)
        return None

    def _stepped(self, lane: Lane) -> None:
        self.steps += 1
        self._instant_steps += 1
        self._look_at_step(lane)

    def _look_at_step(self, lane: Lane) -> None:
        if self._instant_steps > STEPS_WITHOUT_TIME:
            raise WorldStuckError(f"{STEPS_WITHOUT_TIME} steps at {self._now:.6f} s; the last was in {lane.process}")
        if self.after_step is not None:
            self.after_step()
        if self.failure is not None:
            raise self.failure

    def _new_carrier(self) -> Fiber:
        def carry() -> None:
            while True:
                self._next = self._run_handles(fiber)
                self._handed_over = True
                self._carriers.append(fiber)
                hub.switch()

        hub = self._hub
        fiber = Fiber(carry, hub, None, carries=True)
        self.fibers.append(fiber)
        return fiber

    def _switch(self) -> None:
        """To the fiber whose turn it is, or to a carrier that finds out; returns when neither goes on."""
        fiber, self._next = self._next, None
        if fiber is None:
            fiber = self._carriers.pop() if self._carriers else self._new_carrier()
        self._handed_over = False
        fiber.switch()
        if not self._handed_over:  # it waits in the middle of a step, or has ended
            self._stepped(fiber.lane)

    def wall_clock(self, process: Process | None = None) -> float:
        """What the clock shows on the host of a process, by default of the one that calls."""
        host = (process or CURRENT.get(self.outside)).host
        return EPOCH + self._now + self.clocks_ahead.get(host, 0.0)

    def hold_up(self, seconds: float) -> None:
        """The step under way takes so long: nothing else runs meanwhile, and timers are late."""
        self._now += seconds

    # Waiting

    def suspend(self, seconds: float | None = None) -> bool:
        """Lets others run until `wake`, or so many seconds have passed: False then. For fibers."""
        fiber = getcurrent()
        if not isinstance(fiber, Fiber) or self.over:
            raise GreenletExit
        fiber.waits = wait = abs(fiber.waits) + 1
        fiber.woken = False
        if seconds is not None:
            timer = _Wake(self._now + seconds, _nothing, (), self, self.outside.context)
            timer.fiber, timer.wait = fiber, wait
            self._seq += 1
            heappush(self._timers, (self._now + seconds, self._seq, timer))
        lane = fiber.lane
        if not fiber.carries:
            self._hub.switch()
        else:
            task = asyncio.current_task(self)
            lane.blocked = True
            lane.update()
            if task is not None:
                asyncio.tasks._leave_task(self, task)
            self._hub.switch()
            if task is not None:
                asyncio.tasks._enter_task(self, task)
        if self.over:
            raise GreenletExit
        return fiber.woken

    def wake(self, fiber: Fiber) -> bool:
        """Ends its wait; False when it does not wait."""
        return self._wake(fiber, fiber.waits, True)

    def _wake(self, fiber: Fiber, wait: int, woken: bool) -> bool:
        if wait < 0 or fiber.waits != wait:
            return False
        fiber.waits = -wait
        fiber.woken = woken
        lane = fiber.lane
        if lane.process.alive:
            lane.blocked = False
            lane.queue.appendleft(fiber)
            lane.update()
        return True

    def die_here(self) -> None:
        """For code of a process that has just ended: does not return."""
        while True:
            self.suspend()

    def bury(self, process: Process) -> None:
        """Keeps what is left of a process: what nobody holds any more would be closed, and run to its end."""
        self._remains.append(asyncio.all_tasks(self))
        for lane in process.lanes:
            self._remains.append(list(lane.queue))
            lane.queue.clear()
            lane.update()

    def start_fiber(self, run: Callable[[], None], process: Process) -> Fiber:
        """A thread of a process."""
        fiber = Fiber(run, self._hub, Lane(self, process), carries=False)
        fiber.gr_context = process.context.copy()
        self.fibers.append(fiber)
        fiber.lane.put(fiber)
        return fiber

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        if threading.get_ident() != self._thread_id and self._running:
            raise RuntimeError(f"a real thread calls {callback} in a simulated world")
        return self.call_soon(callback, *args, context=context)

    # Tasks and the run

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
        **_more: Any,
    ) -> asyncio.Task[T]:
        self._check_closed()
        self._lane_counter += 1
        return asyncio.Task(coro, loop=self, name=name or f"task {self._lane_counter}", context=context)

    def run_until_complete(self, future: Any) -> Any:
        self._check_closed()
        self._check_running()
        self._hub = getcurrent()
        self._awaited = future
        self._enter_running()
        try:
            while not future.done():
                self._switch()
        finally:
            self._exit_running()
        return future.result()

    def _waiting(self) -> str:
        tasks = sorted(asyncio.all_tasks(self), key=lambda task: task.get_name())
        return "these wait: " + ", ".join(f"{task.get_name()} {task.get_stack(limit=1)}" for task in tasks)

    def shut_down(self) -> None:
        """Ends every fiber. Nothing of the world runs afterwards."""
        self.over = True
        self.abandon()
        pending = self._left(set())
        for fiber in self.fibers:
            if not fiber.dead:
                fiber.throw(GreenletExit)
        ended: set[asyncio.Task[Any]] = set()
        while pending:
            for task in pending:
                # It may still want to wait, or answer its caller with an error; a group of tasks does so for its own.
                with contextlib.suppress(Exception, BaseExceptionGroup):
                    task.get_coro().close()
            ended.update(pending)
            # What ends may have begun tasks in turn, such as one that closes a handle.
            pending = self._left(ended)
        self._remains.clear()
        self.fibers.clear()
        self._carriers.clear()
        self.ready.clear()
        self.close()

    def _left(self, ended: set[asyncio.Task[Any]]) -> list[asyncio.Task[Any]]:
        """Tasks that have not come to their end, in a certain order, but those of `ended`; nobody is warned of them."""
        left = sorted(asyncio.all_tasks(self) - ended, key=lambda task: task.get_name())
        for task in left:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        return left

    def _note_acquire(self, primitive: Any) -> None:
        return

    def _note_release(self, primitive: Any) -> None:
        return


def _nothing() -> None:
    return
