"""Lets tests start `python -m bookgate …` in a few hundredths of a second: forked, where a start would import it all.

While `forked_commands` holds, each start of this form goes to a `command_server`, whoever starts it: `subprocess`,
asyncio, or the product itself (a cluster's bookies). The process is real, and a child of this one: it is waited for,
signalled and killed as any other. A start that asks for what a fork can't give (another environment for Python, other
files, a function before it begins) is left as it is. With BOOKGATE_TESTS_FORK=0 each start is.

Not its job: bookies that tests run without a command (`tests.integration.bookie.forked_bookie`).
"""

from __future__ import annotations

import ctypes
import inspect
import json
import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from bookgate.runtime.child_process import python_command
from tests.command_server import Order

ROOT = Path(__file__).parents[1]
COMMAND = [sys.executable, "-m", "bookgate"]
_COMMANDS = (COMMAND, python_command("bookgate"))
"""As tests start commands, and as the product does."""
_PR_SET_CHILD_SUBREAPER = 36
_LIMITS = (resource.RLIMIT_NOFILE, resource.RLIMIT_AS, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE)
_FREE_TO_DIFFER = ("BOOKGATE_", "PYTEST_", "SPARK_", "PYSPARK_", "HOME", "PATH", "TMPDIR", "XDG_")
"""What of the environment nothing reads before a command begins."""


class _CommandServer:
    """One `command_server`, started when it is first asked."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._asker: socket.socket | None = None
        self._environment = dict(os.environ)

    def can_start(self, environment: dict[str, str]) -> bool:
        """Whether what the server imported is what a process with this environment would import."""
        if set(environment.get("PYTHONPATH", "").split(os.pathsep)) - {"", str(ROOT)}:
            return False
        differing = {name for name, _ in environment.items() ^ self._environment.items()} - {"PYTHONPATH"}
        return all(name.startswith(_FREE_TO_DIFFER) for name in differing)

    def start(self, order: Order, files: tuple[int, int, int]) -> int:
        """Returns the process id of a child of this process."""
        with self._lock:
            asker = self._require()
            told = os.memfd_create("order")
            try:
                os.write(told, json.dumps(asdict(order)).encode())
                os.lseek(told, 0, os.SEEK_SET)
                _adopt(orphans=True)
                socket.send_fds(asker, [b"!"], [told, *files])
                pid = asker.recv(20)
                assert pid, "the command server has ended; its error is on standard error"
                return int(pid)
            finally:
                # Nobody but a forked command: what a test leaves behind is not this process's.
                _adopt(orphans=False)
                os.close(told)

    def _require(self) -> socket.socket:
        if self._asker is not None:
            return self._asker
        self._asker, theirs = socket.socketpair()
        command = [sys.executable, "-m", "tests.command_server", str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=self._environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        return self._asker

    def stop(self) -> None:
        """When none of its processes is needed any more."""
        if self._asker is not None and self._process is not None:
            self._asker.close()
            self._process.wait()


def _adopt(*, orphans: bool) -> None:
    """Whether what loses its parent below this process becomes this process's child."""
    assert ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(orphans), 0, 0, 0) == 0


_execute = subprocess.Popen._execute_child  # type: ignore[attr-defined]
_parameters = inspect.signature(_execute)
_ORDINARY = {
    "executable": None,
    "preexec_fn": None,
    "close_fds": True,
    "pass_fds": (),
    "shell": False,
    "restore_signals": True,
    "gid": None,
    "gids": None,
    "uid": None,
    "umask": -1,
    "process_group": -1,
}


FORKS = sys.platform == "linux" and os.environ.get("BOOKGATE_TESTS_FORK") != "0"


@contextmanager
def forked_commands() -> Iterator[None]:
    """Within it commands are forked."""
    if not FORKS:
        yield
        return
    server = _CommandServer()

    def execute(popen: subprocess.Popen[Any], *arguments: Any) -> None:
        asked = _parameters.bind(popen, *arguments).arguments
        if not _forks(server, asked):
            _execute(popen, *arguments)
            return
        files = tuple(
            own if given == -1 else given
            for own, given in enumerate((asked["p2cread"], asked["c2pwrite"], asked["errwrite"]))
        )
        popen.pid = server.start(_order(asked), files)  # type: ignore[arg-type]
        popen._child_created = True  # type: ignore[attr-defined]
        popen._close_pipe_fds(  # type: ignore[attr-defined]
            *(asked[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite"))
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess.Popen, "_execute_child", execute)
        try:
            yield
        finally:
            server.stop()


def _forks(server: _CommandServer, asked: dict[str, Any]) -> bool:
    command = asked["args"]
    if not isinstance(command, list | tuple) or not any(_begins_with(command, begin) for begin in _COMMANDS):
        return False
    if any(asked[name] != ordinary for name, ordinary in _ORDINARY.items()):
        return False
    return server.can_start(_environment(asked))


def _begins_with(command: Sequence[Any], begin: Sequence[str]) -> bool:
    return list(command[: len(begin)]) == list(begin)


def _environment(asked: dict[str, Any]) -> dict[str, str]:
    return dict(os.environ if asked["env"] is None else asked["env"])


def _order(asked: dict[str, Any]) -> Order:
    return Order(
        [os.fspath(argument) for argument in asked["args"][asked["args"].index("bookgate") + 1 :]],
        _environment(asked),
        os.fspath(asked["cwd"] or os.getcwd()),
        _umask(),
        [(which, *resource.getrlimit(which)) for which in _LIMITS],
        asked["start_new_session"],
    )


def _umask() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("Umask:")[2].split()[0], 8)
