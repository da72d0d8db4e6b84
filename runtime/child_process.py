"""A child process that runs a module of this package, receives an order through a pipe, and reports back.

The order is one JSON line on standard input, so no secret appears on a command line. That pipe stays open as long as
the parent needs the child, and closes when the parent ends for whatever reason. The child reports JSON lines on
standard output: first the address on which it serves, or `{"error": …}`. Its log goes to the parent's standard error.

States: new → starting → serving → ended. One object represents one slot for a child: `start` may be called again once
the previous child has ended. Not its job: deciding when to restart it (`workers`, the bookie's `gateway_process`).
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
"""Seconds after the grace period for calls in progress."""
_LONGEST_LINE = 16 * 1024 * 1024
_PR_SET_PDEATHSIG = 1


class ChildFailedException(BKException):
    """A child could not start; the message comes from the child."""


class Pauses:
    """Pauses before a child is restarted: they double up to a limit, and reset once a child has served for a while."""

    FIRST_SECONDS, LONGEST_SECONDS = 0.2, 10.0
    SOUND_SECONDS = 60.0

    def __init__(self) -> None:
        self._next = self.FIRST_SECONDS

    def after(self, served_seconds: float) -> float:
        """The pause after a child that served for `served_seconds`; 0 if it never served."""
        pause = self.FIRST_SECONDS if served_seconds >= self.SOUND_SECONDS else self._next
        self._next = min(2 * pause, self.LONGEST_SECONDS)
        return pause


class ChildProcess:
    """A child process; see the module. `name` identifies it in log and errors; `module` is what it runs."""

    def __init__(self, name: str, module: str) -> None:
        self.name = name
        self._module = module
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the most recently started child."""
        return self._process.pid if self._process is not None else None

    async def start(self, order: bytes, pass_fds: Sequence[int] = ()) -> dict[str, Any]:
        """Starts the child and returns its first report, once it serves. Raises ChildFailedException."""
        try:
            process = await asyncio.create_subprocess_exec(
                *python_command(self._module),
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
        """The next line the child reports; empty once it has ended."""
        assert self._process is not None
        assert self._process.stdout is not None
        return await self._process.stdout.readline()

    async def ended(self) -> int:
        """Waits for the child to end and returns its exit code."""
        assert self._process is not None
        return await self._process.wait()

    def let_go(self) -> None:
        """Closes the child's standard input, which asks it to stop."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def kill(self) -> None:
        if self._is_there:
            assert self._process is not None
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def stop(self, grace_seconds: float, *, by_signal: bool = True) -> None:
        """Asks the child to drain and stop, by SIGTERM or by closing its standard input; kills it after the grace
        period.
        """
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


def python_command(module: str, *arguments: str) -> list[str]:
    """The command of a child that runs a module of these packages, in `own_environment`.

    It imports nothing from the working directory, where somebody else may have put a module of any name.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def own_environment() -> dict[str, str]:
    """This process's environment, with the folder of these packages first, so that a child imports the same code."""
    own = str(Path(__file__).parents[2])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (own, os.environ.get("PYTHONPATH"))))}


# --- in the child ---


def read_order() -> bytes:
    """Reads the order line. It reads byte by byte, because what follows belongs to the event loop."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(sys.stdin.fileno(), 1)
        if not byte:
            break
        line += byte
    return bytes(line)


def report_to_parent(what: dict[str, Any]) -> None:
    """Reports to the parent."""
    print(json.dumps(what), flush=True)


def stop_with_parent(stop: asyncio.Event) -> None:
    """Sets `stop` when standard input closes: the parent is gone or asks this process to stop."""
    loop = asyncio.get_running_loop()

    def readable() -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            loop.remove_reader(sys.stdin.fileno())
            stop.set()

    loop.add_reader(sys.stdin.fileno(), readable)


def die_with_parent() -> None:
    """Makes the kernel kill this process when its parent dies, even if this process is stopped or busy (Linux only).

    If the parent died before this call, the end of standard input reveals it.
    """
    if sys.platform != "linux":
        return
    # A system that forbids writable and executable memory may forbid ctypes.
    with contextlib.suppress(ImportError, OSError, AttributeError, MemoryError):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
