"""What a process has started ends with it, also where it is killed and can end nothing itself."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bookgate.runtime.child_process import own_environment

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="guards are for Linux")

_GUARDED = """
from bookgate.bookie.standalone.guard import Guard
child = subprocess.Popen(["sleep", "1000"])
guard = Guard(child.pid)
"""
_SERVER = """
from bookgate.bookie.standalone.local_zookeeper import LocalZooKeeper
with ThreadPoolExecutor(1) as thread:
    server = thread.submit(LocalZooKeeper(sys.argv[1]).start).result()
child = server._process
"""
_STOPPED = "child.send_signal(signal.SIGSTOP)"
_OWNER = """
import signal, subprocess, sys
from concurrent.futures import ThreadPoolExecutor
{begin}
print(child.pid, flush=True)
sys.stdin.read()
"""


def started(begin: str, directory: Path) -> subprocess.Popen[bytes]:
    """A process that starts another, and tells its pid."""
    return subprocess.Popen(
        (sys.executable, "-c", _OWNER.format(begin=begin), str(directory)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=own_environment(),
        start_new_session=True,
    )


def has_ended(pidfd: int, within_seconds: float) -> bool:
    return bool(select.select([pidfd], [], [], within_seconds)[0])


@pytest.mark.parametrize("begin", [_GUARDED, _GUARDED + _STOPPED, _SERVER], ids=["busy", "stopped", "server"])
def test_what_was_started_ends_with_an_owner_that_is_killed(begin: str, tmp_path: Path) -> None:
    with started(begin, tmp_path) as owner:
        assert owner.stdout is not None
        child = os.pidfd_open(int(owner.stdout.readline()))
        try:
            # Nor does it end with the thread that started it.
            assert not has_ended(child, 0)
            owner.kill()
            assert has_ended(child, 10)
        finally:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(child, signal.SIGKILL)
            os.close(child)


def test_it_is_released_at_once_where_the_owner_has_forked(tmp_path: Path) -> None:
    """The fork holds the pipe."""
    begin = (
        _GUARDED + "import os, time\nif not os.fork(): time.sleep(1000)\nchild.kill(); child.wait(); guard.release()"
    )
    with started(begin, tmp_path) as owner:
        assert owner.stdout is not None
        try:
            # It prints behind the release.
            assert select.select([owner.stdout], [], [], 30)[0]
        finally:
            os.killpg(owner.pid, signal.SIGKILL)
