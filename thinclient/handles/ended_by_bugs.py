"""Ends a recovery or a take-over in which the product has failed by an exception that nobody foresaw.

Its steps run in sinks, by connections that other ledgers use as well, in timers, and in tasks that nobody awaits. An
exception that leaves a sink ends the connection, and of none of them the application hears: it would wait for ever
(P12, F12). So each step is `ended_by_bugs`, and each task begun by `_start`: the exception is logged as the bug that it
is, and ends the run with LedgerRecoveryException. The ledger stays IN_RECOVERY, and it can be tried again.

Not its job: what is foreseen, as failing bookies, forged packets and metadata that others change (the cores).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Generic, TypeVar, TypeVarTuple

from bookgate.ledger.errors import LedgerRecoveryException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.runtime.logs import log_bug

_log = logging.getLogger(__name__)

T = TypeVar("T")
RunT = TypeVar("RunT", bound="EndedByBugs[Any]")
Ts = TypeVarTuple("Ts")


class EndedByBugs(Generic[T]):
    """Base class of what runs until `_result` is there."""

    def __init__(self, ledger_id: LedgerId) -> None:
        self._ledger_id = ledger_id
        self._loop = asyncio.get_running_loop()
        self._result: asyncio.Future[T] = self._loop.create_future()

    def end_with_bug(self, error: Exception) -> None:
        """Ends the run with an error that nobody foresaw, unless it has ended."""
        log_bug(_log, "recovery_step_failed", error, ledger=self._ledger_id)
        if self._result.done():
            return
        failure = LedgerRecoveryException(
            f"ledger {self._ledger_id} can't be recovered or taken over, by a fault of this client: "
            f"{type(error).__name__}: {error}. It stays IN_RECOVERY",
            ledger_id=self._ledger_id,
        )
        failure.__cause__ = error
        self._result.set_exception(failure)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Runs a step beside the others."""
        return self._loop.create_task(self._guarded(work))

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:
            self.end_with_bug(error)


def ended_by_bugs(step: Callable[[RunT, *Ts], None]) -> Callable[[RunT, *Ts], None]:
    """Makes an exception that leaves the step end the run."""

    @wraps(step)
    def guarded(run: RunT, *args: *Ts) -> None:
        try:
            step(run, *args)
        except Exception as error:
            run.end_with_bug(error)

    return guarded
