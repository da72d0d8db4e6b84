"""The slot of one instance: its process now, what it told last, and its restarts.

States: *starting* (also again, after a pause) → *serving*, *read-only* or *unregistered*, as the bookie tells → *ended*
→ starting. `run` goes round until it is cancelled; a process that ends unasked, or does not start, is started again
after a pause that doubles with each short life. `renew` ends the process in good order, and `run` starts the next one
without a pause.
"""

from __future__ import annotations

import asyncio
import enum
import json
import logging
from collections.abc import Mapping
from typing import Any

from bookgate.runtime.child_process import ChildFailedException, ChildProcess, Pauses
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)


class State(enum.StrEnum):
    """What an instance does; see the module."""

    STARTING = "starting"
    SERVING = "serving"
    READ_ONLY = "read-only"
    UNREGISTERED = "unregistered"
    ENDED = "ended"


_STATES = {1: State.SERVING, 0: State.READ_ONLY}


class Slot:
    """See the module. `order` is what the process is told, `grace_seconds` how long it may take to stop."""

    def __init__(self, number: int, order: bytes, grace_seconds: float) -> None:
        self.number = number
        self.state = State.STARTING
        self.addresses: Mapping[str, str | None] = {}
        """Of the process that served last: `bookie_id`, `bookie`, `gateway`, `http`."""
        self.restarts = 0
        """Processes after the first one, those that did not start included, those of `renew` not."""
        self.error: str | None = None
        """Why there is no process that serves; None while there is one."""
        self._order = order
        self._grace_seconds = grace_seconds
        self._child = ChildProcess(f"instance {number}", "bookgate.bookie.instances.instance")
        self._renewing = False
        self._tried = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """Of the process that was started last."""
        return self._child.pid

    @property
    def serves(self) -> bool:
        """Whether it can be read."""
        return self.state in (State.SERVING, State.READ_ONLY)

    async def run(self) -> None:
        """Keeps a process running; cancelled, it leaves the process to `stop`."""
        # One that failed may have left its process.
        await self._child.stop(self._grace_seconds)
        pauses, clock = Pauses(), asyncio.get_running_loop().time
        while True:
            self._renewing, self.state = False, State.STARTING
            began = clock()
            served_seconds = 0.0
            if await self._began():
                began = clock()
                await self._follow()
                served_seconds = clock() - began
                self._ended(await self._child.ended())
            if self._renewing:
                continue
            self.restarts += 1
            pause = pauses.after(served_seconds)
            log_event(
                _log,
                "instance",
                logging.ERROR,
                state="ended",
                instance=self.number,
                reason=self.error,
                pause_seconds=pause,
            )
            await asyncio.sleep(pause)

    async def tried(self) -> bool:
        """Waits until the present start has succeeded or failed; whether it serves."""
        await self._tried.wait()
        return self.error is None

    async def renew(self) -> bool:
        """Ends the process and waits for the next one; whether that serves."""
        self._renewing = True
        self._tried.clear()
        log_event(_log, "instance", state="renewing", instance=self.number, pid=self.pid)
        await self._child.stop(self._grace_seconds)
        return await self.tried()

    async def stop(self) -> None:
        """Ends the process in good order, and kills it if that takes too long."""
        await self._child.stop(self._grace_seconds)

    async def _began(self) -> bool:
        try:
            answer = await self._child.start(self._order)
        except ChildFailedException as error:
            self.state, self.error = State.ENDED, str(error)
            return False
        else:
            self.addresses = {key: answer[key] for key in ("bookie_id", "bookie", "gateway", "http")}
            self.error = None
            self._told(answer)
            log_event(
                _log,
                "instance",
                state="serving",
                instance=self.number,
                pid=self.pid,
                bookie=self.addresses["bookie_id"],
                address=self.addresses["bookie"],
            )
            return True
        finally:
            self._tried.set()

    async def _follow(self) -> None:
        """Keeps what the process tells; returns when it has ended."""
        while line := await self._child.read_line():
            before = self.state
            self._told(json.loads(line))
            if self.state is not before:
                log_event(_log, "instance", state=self.state, instance=self.number)

    def _told(self, report: Mapping[str, Any]) -> None:
        if "error" in report:
            self.error = f"instance {self.number}: {report['error']}"
        else:
            self.state = _STATES.get(report["status"], State.UNREGISTERED)

    def _ended(self, code: int) -> None:
        self.state = State.ENDED
        self.error = self.error or f"instance {self.number}: it ended with code {code}"
