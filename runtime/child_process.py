"""A process of this package's own that another one starts, orders about by a pipe, and hears.

The order goes in as one JSON line on standard input, so that no secret stands on a command line; that pipe stays open
for as long as the parent wants the child, and ends with the parent however that ends. What the child says comes as JSON
lines on standard output: first where it serves, or `{"error": …}`. Its log goes where the parent's goes.

States: new → starting → serving → ended. An object is one place for a process: `start` may be called again once the
last one has ended. Not its job: when to start it again (`workers`, the bookie's `gateway_process`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bookgate.ledger.errors import BKException
from bookgate.runtime.logs import log_event

_LOG = logging.getLogger(__name__)

_KILL_AFTER_SECONDS = 10.0
"""Beyond the grace for calls under way."""
_LONGEST_LINE = 16 * 1024 * 1024
_PR_SET_PDEATHSIG = 1


class ChildFailedException(BKException):
    """A child could not start; the message is its own."""


class Pauses:
    """Before a child is started again: they double, up to a bound, until one has served for a while."""

    FIRST_SECONDS, LONGEST_SECONDS = 0.2, 10.0
    SOUND_SECONDS = 60.0

    def __init__(self) -> None:
        self._next = self.FIRST_SECONDS

    def after(self, served_seconds: float) -> float:
        """The pause after one that served so long; 0 where it did not get that far."""
        pause = self.FIRST_SECONDS if served_seconds >= self.SOUND_SECONDS else self._next
        self._next = min(2 * pause, self.LONGEST_SECONDS)
        return pause


class ChildProcess:
    """See the module. `name` is what the log and errors call it, `module` what it runs."""

    def __init__(self, name: str, module: str) -> None:
        self.name = name
        self._module = module
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """Of the last one started."""
        return self._process.pid if self._process is not None else None

    async def start(self, order: bytes, pass_fds: Sequence[int] = ()) -> dict[str, Any]:
        """Returns what it says once it serves. Raises ChildFailedException."""
        try:
            process = await asyncio.create_subprocess_exec(
                # What lies in the working directory is none of it.
                *(sys.executable, "-P", "-m", self._module),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=_LONGEST_LINE,
                pass_fds=pass_fds,
                env=own_environment(),
            )
        except OSError as error:
            raise ChildFailedException(f"{self.name} could not be started: {error.strerror or error}") from error
        self._process = process
        assert process.stdin is not None
        process.stdin.write(order)
        line = await self.read_line()
        try:
            answer: dict[str, Any] = json.loads(line)
        except ValueError:
            raise ChildFailedException(f"{self.name}: it ended with code {await process.wait()}") from None
        if "error" in answer:
            await process.wait()
            raise ChildFailedException(f"{self.name}: {answer['error']}")
        return answer

    async def read_line(self) -> bytes:
        """The next that it says; empty once it has ended."""
        assert self._process is not None
        assert self._process.stdout is not None
        return await self._process.stdout.readline()

    async def ended(self) -> int:
        """Its exit code, once there is one."""
        assert self._process is not None
        return await self._process.wait()

    def let_go(self) -> None:
        """Ends its standard input, by which it knows that it is not wanted any more."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def kill(self) -> None:
        if self._is_there:
            assert self._process is not None
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def stop(self, grace_seconds: float, *, by_signal: bool = True) -> None:
        """Lets it drain, asked by SIGTERM or by the end of its standard input; kills it when it takes too long."""
        process = self._process
        if process is None or not self._is_there:
            return
        if by_signal:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        else:
            self.let_go()
        try:
            async with asyncio.timeout(grace_seconds + _KILL_AFTER_SECONDS):
                await process.wait()
        except TimeoutError:
            log_event(_LOG, "child", logging.ERROR, state="killed", name=self.name, pid=process.pid)
            self.kill()
            await process.wait()

    @property
    def _is_there(self) -> bool:
        return self._process is not None and self._process.returncode is None


def own_environment() -> dict[str, str]:
    """This process's environment, with the folder of these packages first, so that a child imports the same code."""
    own = str(Path(__file__).parents[2])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (own, os.environ.get("PYTHONPATH"))))}


# --- in the child ---


def read_order() -> bytes:
    """The line that says what to do. Byte by byte: what follows is for the event loop."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(sys.stdin.fileno(), 1)
        if not byte:
            break
        line += byte
    return bytes(line)


def tell(what: dict[str, Any]) -> None:
    """Says it to the parent."""
    print(json.dumps(what), flush=True)


def stop_with_parent(stop: asyncio.Event) -> None:
    """Sets `stop` when standard input ends: the parent is gone, or wants no more of this process."""
    loop = asyncio.get_running_loop()

    def readable() -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            loop.remove_reader(sys.stdin.fileno())
            stop.set()

    loop.add_reader(sys.stdin.fileno(), readable)


def die_with_parent() -> None:
    """Has the kernel kill this process when its parent dies, stopped or busy as it may be; where there is that (Linux).

    A parent that died before is noticed by the end of standard input.
    """
    if sys.platform != "linux":
        return
    # A system that forbids memory to be written and run may forbid ctypes.
    with contextlib.suppress(ImportError, OSError, AttributeError, MemoryError):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
