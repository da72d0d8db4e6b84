"""Load that runs in processes of its own, so that measured clients don't share an interpreter with the measurer.

A load module calls `serve` with its operations; each operation takes and returns what JSON can say. The measurer holds
a `LoadProcess`; `call_all` runs one operation in several of them at the same time.
"""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

Operation = Callable[..., Any]


class LoadProcess:
    """One process that runs a load module."""

    def __init__(self, module: str, *arguments: str) -> None:
        command = [sys.executable, "-m", module, *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def rss_bytes(self) -> int:
        return rss_bytes(self._process.pid)

    def begin(self, operation: str, **arguments: Any) -> None:
        """Starts an operation; `finish` waits for it."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([operation, arguments]) + "\n")
        self._process.stdin.flush()

    def finish(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a load process has ended early, with code {self._process.wait()}")
        return json.loads(line)

    def call(self, operation: str, **arguments: Any) -> Any:
        self.begin(operation, **arguments)
        return self.finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def call_all(processes: Sequence[LoadProcess], operation: str, **arguments: Any) -> list[Any]:
    """Runs an operation in all processes at once."""
    for process in processes:
        process.begin(operation, **arguments)
    return [process.finish() for process in processes]


def rss_bytes(pid: int | str) -> int:
    """Resident memory of a process, by its number or `self`."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"process {pid} has no resident memory")


def commands() -> tuple[str, dict[str, Any]] | None:
    """The next operation asked for; None at the end."""
    line = sys.stdin.readline()
    if not line:
        return None
    operation, arguments = json.loads(line)
    return operation, arguments


def answer(result: Any) -> None:
    print(json.dumps(result), flush=True)


def serve(load: object) -> None:
    """Carries out operations with the methods of a blocking load object."""
    while (command := commands()) is not None:
        answer(getattr(load, command[0])(**command[1]))


async def serve_async(load: object, next_command: Callable[[], Awaitable[tuple[str, dict[str, Any]] | None]]) -> None:
    """The same for asynchronous methods; plain ones are allowed."""
    while (command := await next_command()) is not None:
        result = getattr(load, command[0])(**command[1])
        answer(await result if inspect.isawaitable(result) else result)
