"""Commands that tests start by a fork are what a start would have made: real processes, and this process's children."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
from pathlib import Path

import pytest

from bookgate.bookie.standalone.cluster import BookieProcess
from tests.command_server import Order
from tests.forked_commands import COMMAND, FORKS, ROOT

pytestmark = pytest.mark.skipif(not FORKS, reason="commands are started, not forked")

PATIENCE_SECONDS = 60
_SERVER = "tests.command_server"


def test_a_forked_bookie_is_a_process_of_its_own_and_a_child(own_bookie: BookieProcess) -> None:
    process = own_bookie.process
    assert process is not None
    assert _SERVER in _words(process.pid), "it was forked"
    assert _parent(process.pid) == os.getpid()
    assert os.getsid(process.pid) == process.pid
    process.kill()
    assert process.wait(PATIENCE_SECONDS) == -signal.SIGKILL


def test_a_forked_bookie_ends_with_its_input(own_bookie: BookieProcess) -> None:
    process = own_bookie.process
    assert process is not None
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(PATIENCE_SECONDS) == 0


def _words(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.asyncio
async def test_asyncio_hears_how_a_forked_command_ends() -> None:
    process = await asyncio.create_subprocess_exec(*COMMAND, "--no-such-option", stderr=subprocess.PIPE)
    _, said = await asyncio.wait_for(process.communicate(), PATIENCE_SECONDS)
    assert process.returncode == 2
    assert b"--no-such-option" in said


def test_output_and_error_are_the_commands() -> None:
    shown = subprocess.run([*COMMAND, "--version"], capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.startswith("bookgate ")


def test_what_an_order_gives_a_process(tmp_path: Path) -> None:
    reads, writes = os.pipe()
    limits = [(resource.RLIMIT_NOFILE, 77, 77)]
    order = Order([], {"ONLY": "this"}, str(tmp_path), 0o027, limits, new_session=True)
    child = os.fork()
    if child == 0:
        try:
            order.become()
            umask = os.umask(0)
            now = (dict(os.environ), os.getcwd(), umask, resource.getrlimit(resource.RLIMIT_NOFILE), os.getsid(0))
            os.write(writes, repr(now).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    told = os.read(reads, 4096).decode()
    assert told == repr(({"ONLY": "this"}, str(tmp_path), 0o027, (77, 77), child))
    os.close(reads)
    os.close(writes)


@pytest.mark.parametrize("other", [{"env": {**os.environ, "PYTHONPATH": "/nowhere"}}, {"preexec_fn": os.getpid}])
def test_what_a_fork_can_not_give_is_started(other: dict[str, object]) -> None:
    command = [*COMMAND, "bookie", "--help"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, **other) as process:  # type: ignore[call-overload]
        assert _SERVER not in _words(process.pid)
        assert process.wait(PATIENCE_SECONDS) == 0
