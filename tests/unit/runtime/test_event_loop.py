"""uvloop's event loop where it is installed, otherwise asyncio's, whoever asks."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
import uvloop

from bookgate.runtime import event_loop
from bookgate.runtime.event_loop import new_event_loop, run_async, run_server


async def running_loop() -> type[asyncio.AbstractEventLoop]:
    return type(asyncio.get_running_loop())


def test_uvloop_is_used_where_it_is() -> None:
    assert run_async(running_loop()) is uvloop.Loop


def test_without_uvloop_the_loop_is_that_of_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    loop = new_event_loop()
    loop.close()
    assert isinstance(loop, asyncio.BaseEventLoop)
    assert issubclass(run_async(running_loop()), asyncio.BaseEventLoop)


def test_a_server_may_open_as_many_files_as_the_system_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[bool] = []
    monkeypatch.setattr(event_loop, "raise_descriptor_limit", lambda: raised.append(True))
    assert run_server(running_loop()) is uvloop.Loop
    assert raised == [True]


_CLOSINGS = ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"]
_PROCESS = """
import asyncio, os, sys
from bookgate.runtime.event_loop import new_event_loop, run_async
from bookgate.thinclient.blocking.loop_thread import LoopThread

async def serve():
    async with await asyncio.start_server(print, "127.0.0.1", 0) as server:
        assert min(each.fileno() for each in server.sockets) > 2

if sys.argv[1:]:
    sys.modules["uvloop"] = None
run_async(serve())
thread = LoopThread.acquire()
thread.run(serve())
thread.release()
# What this process starts has the three, too.
assert os.system("true <&0 && true >&1 && true >&2") == 0
"""


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
@pytest.mark.parametrize("closed", _CLOSINGS)
def test_a_process_without_standard_streams_runs_and_ends_as_others_do(closed: str, loop: str) -> None:
    """uvloop aborts the process where its own descriptors are among 0, 1 and 2."""
    arguments = [sys.executable, "-c", _PROCESS, *(["without uvloop"] if loop == "asyncio" else [])]
    done = subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", *arguments], capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")


def test_descriptors_are_not_used_up_by_loops() -> None:
    def opened() -> int:
        loop = new_event_loop()
        try:
            with open(__file__) as file:
                return file.fileno()
        finally:
            loop.close()

    assert opened() == opened()
