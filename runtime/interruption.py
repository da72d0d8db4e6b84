"""Ctrl-C and SIGTERM while an event loop runs: they cancel the work, which then cleans up.

An exception raised by a signal handler may surface inside a callback of the loop or of gRPC, which are not prepared for
it. While the loop runs, the signals therefore cancel its work instead, and KeyboardInterrupt is raised once the work
has ended.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

T = TypeVar("T")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_interruptibly(runner: asyncio.Runner, work: Coroutine[Any, Any, T]) -> T:
    """Runs the work and restores the signal handlers.

    Raises:
        KeyboardInterrupt: A signal came, and the work has ended. If the work ended with an error, it is the cause:
            parts that are cancelled together may report each other's end as a failure.
    """
    if threading.current_thread() is not threading.main_thread():
        return runner.run(work)
    loop = runner.get_loop()
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    interrupted = False

    def note(*_: object) -> None:
        nonlocal interrupted
        interrupted = True

    async def guarded() -> T:
        task = asyncio.current_task()

        def interrupt() -> None:
            note()
            if task is not None:
                task.cancel()

        for number in _SIGNALS:
            loop.add_signal_handler(number, interrupt)
        try:
            if interrupted:
                work.close()
                raise asyncio.CancelledError
            return await work
        finally:
            _take_from_loop(loop, dict.fromkeys(_SIGNALS, note))

    try:
        # Also while the loop starts and ends, an exception from a handler would leave it in an undefined state.
        for number in _SIGNALS:
            signal.signal(number, note)
        result = runner.run(guarded())
    except (asyncio.CancelledError, Exception) as error:
        if interrupted:
            raise KeyboardInterrupt from error
        raise
    finally:
        _take_from_loop(loop, handlers)
    if interrupted:
        raise KeyboardInterrupt
    return result


def _take_from_loop(loop: asyncio.AbstractEventLoop, handlers: Mapping[signal.Signals, Any]) -> None:
    """Replaces the loop's handlers. Removing them would set the default ones, which no signal may meet in between."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        for number, handler in handlers.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
