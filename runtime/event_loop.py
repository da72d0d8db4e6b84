"""Which event loop this product's processes run on: uvloop's where it is installed, otherwise asyncio's own.

uvloop needs about half the time that asyncio's loop takes for the same work. There is none for Windows and for PyPy.

Not its job: Ctrl-C while work runs (`interruption`); the loop in a thread that blocking clients share
(`thinclient.blocking.loop_thread`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from bookgate.runtime.descriptors import fill_standard_descriptors, raise_descriptor_limit

T = TypeVar("T")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A new loop, for a runner or a thread. Whoever asks for it closes it."""
    fill_standard_descriptors()
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """Runs the coroutine on a loop of its own, which is closed afterwards."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


def run_server(main: Coroutine[Any, Any, T]) -> T:
    """Runs a server's coroutine, with as many file descriptors as the system allows."""
    raise_descriptor_limit()
    return run_async(main)
