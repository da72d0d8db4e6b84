"""Signals while an event loop runs."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar, cast

import pytest

from bookgate.runtime.interruption import run_interruptibly

T = TypeVar("T")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_cancels_the_work_which_cleans_up(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    cleaned_up = []

    async def work() -> None:
        os.kill(os.getpid(), number)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned_up.append(True)

    with asyncio.Runner() as runner, pytest.raises(KeyboardInterrupt):
        run_interruptibly(runner, work())
    assert cleaned_up == [True]
    assert signal.getsignal(number) is before


def test_an_error_after_the_signal_is_the_interruptions_cause() -> None:
    async def work() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            await asyncio.Event().wait()
        finally:
            raise OSError("a connection that was cut")

    with asyncio.Runner() as runner, pytest.raises(KeyboardInterrupt) as caught:
        run_interruptibly(runner, work())
    assert isinstance(caught.value.__cause__, OSError)


def test_without_a_signal_it_is_the_works_own_outcome() -> None:
    async def result() -> int:
        return 7

    async def failure() -> None:
        raise ValueError("its own")

    async def cancellation() -> None:
        raise asyncio.CancelledError

    with asyncio.Runner() as runner:
        assert run_interruptibly(runner, result()) == 7
        with pytest.raises(ValueError, match="its own"):
            run_interruptibly(runner, failure())
        with pytest.raises(asyncio.CancelledError):
            run_interruptibly(runner, cancellation())


class Signalled:
    """A runner. A signal comes when its loop is about to run, or has just ended."""

    def __init__(self, runner: asyncio.Runner, *, before: bool) -> None:
        self.get_loop = runner.get_loop
        self._runner = runner
        self._before = before

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._before:
            os.kill(os.getpid(), signal.SIGTERM)
        result = self._runner.run(work)
        if not self._before:
            os.kill(os.getpid(), signal.SIGTERM)
        return result


@pytest.mark.parametrize("before", [True, False])
def test_a_signal_just_before_or_after_the_work_is_an_interruption_too(before: bool) -> None:
    """The handler of before would raise out of the loop, which says then that it runs for ever."""
    worked = []

    async def work() -> None:
        worked.append(True)

    def of_before(*_: object) -> None:
        raise AssertionError("the handler of before was called")

    restored = signal.signal(signal.SIGTERM, of_before)
    try:
        with asyncio.Runner() as runner, pytest.raises(KeyboardInterrupt):
            run_interruptibly(cast("asyncio.Runner", Signalled(runner, before=before)), work())
        assert signal.getsignal(signal.SIGTERM) is of_before
    finally:
        signal.signal(signal.SIGTERM, restored)
    assert worked == ([] if before else [True])
