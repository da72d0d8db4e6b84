"""A process that has imported every command of bookgate, and forks for each start that it is asked for.

A start of `python -m bookgate` spends nearly all of its time importing modules, and the suite starts hundreds. What the
server forks is a process of its own: it has its pid, arguments, environment and files, and ends as the command ends.

One message a start arrives on the socket: the order as JSON in a file, and the files that become standard input, output
and error. The answer is the process id. The process is then a child of whoever asked, not of the server: the server
forks twice, and the asker adopts what loses its parent meanwhile (`forked_commands`). It runs only once it is adopted.

Not its job: to decide which starts come here (`forked_commands`).
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import importlib.metadata
import json
import os
import resource
import runpy
import signal
import socket
import sys
import threading
import traceback
from dataclasses import dataclass
from typing import NoReturn

_SERVERS = ("bookgate.bookie.server", "bookgate.gateway.server")
"""What commands import once they run."""

FILES = 4
"""The order, and the three files of the process."""


@dataclass(frozen=True)
class Order:
    """What a process is to be."""

    arguments: list[str]
    """Behind `python -m bookgate`."""
    environment: dict[str, str]
    directory: str
    umask: int
    limits: list[tuple[int, int, int]]
    """Resource, soft and hard limit."""
    new_session: bool

    def become(self) -> None:
        """Gives the calling process all of it but its files."""
        if self.new_session:
            os.setsid()
        os.environ.clear()
        os.environ.update(self.environment)
        os.chdir(self.directory)
        os.umask(self.umask)
        for which, soft, hard in self.limits:
            resource.setrlimit(which, (soft, hard))
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _import_commands() -> None:
    for module in _SERVERS:
        importlib.import_module(module)
    for entry_point in importlib.metadata.entry_points(group="bookgate.commands"):
        entry_point.load()


def _wait_for_order(asker: socket.socket) -> Order | None:
    """Forks for each order. Returns the order in the forked process, and None in the server once nobody asks."""
    while True:
        message, files, _, _ = socket.recv_fds(asker, 1, FILES)
        if not message:
            return None
        begin, began = os.pipe()
        pid_of_it, tells_pid = os.pipe()
        between = os.fork()
        if between == 0:
            child = os.fork()
            if child:
                os.write(tells_pid, str(child).encode())
                os._exit(0)
            os.close(began)
            os.close(tells_pid)
            os.close(pid_of_it)
            asker.close()
            return _ordered(files, begin)
        os.waitpid(between, 0)
        pid = os.read(pid_of_it, 20)
        os.write(began, b"!")
        for file in (*files, begin, began, pid_of_it, tells_pid):
            os.close(file)
        asker.sendall(pid)


def _ordered(files: list[int], begin: int) -> Order:
    """In the forked process: takes the files, and waits until it is adopted."""
    os.read(begin, 1)
    os.close(begin)
    with open(files[0]) as told:
        order = Order(**json.load(told))
    for number, file in enumerate(files[1:]):
        os.dup2(file, number)
    for file in files[1:]:
        os.close(file)
    return order


def _open_standard_files() -> None:
    """As an interpreter does at its start: the server's own objects were made for the server's files."""
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False, buffering=1 if os.isatty(1) else -1)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False, errors="backslashreplace", buffering=1)  # noqa: SIM115


def _run() -> NoReturn:
    """Runs the command and ends as an interpreter does, but for taking every imported module apart."""
    code: int | str | None = 0
    try:
        runpy.run_module("bookgate", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for file in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            file.flush()
    os._exit(code or 0)


def main() -> None:
    """Serves until its asker is gone; in a process that it forked, runs the command."""
    asker = socket.socket(fileno=int(sys.argv[1]))
    # Of the terminal's; who asks decides when the server ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _import_commands()
    assert threading.active_count() == 1, "only the forking thread is there in a forked process"
    gc.collect()
    gc.freeze()
    order = _wait_for_order(asker)
    if order is None:
        return
    order.become()
    _open_standard_files()
    sys.argv = ["bookgate", *order.arguments]
    _run()


if __name__ == "__main__":
    main()
