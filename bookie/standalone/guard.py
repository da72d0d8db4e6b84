"""Ends a process once its owner has ended, however that happened: for programs that can't watch a pipe themselves.

The guard is a process of its own. Its standard input is a pipe that the owner holds open; at the end of that it kills
what it guards. It goes by a pidfd, which never means another process as a pid may, so it is for Linux only; elsewhere
nothing is guarded.

Not by the kernel's signal at the death of a parent (`runtime.child_process`), which comes at the end of the thread that
started the process: an owner that starts it in one thread of many would lose it before its time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys


class Guard:
    """Guards the child `pid` of this process until `release`."""

    def __init__(self, pid: int) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        if sys.platform != "linux":
            return
        # A kernel or a container may lack pidfds.
        with contextlib.suppress(OSError):
            watched = os.pidfd_open(pid)
            try:
                self._process = subprocess.Popen(
                    # By its path and isolated: it starts in milliseconds, and imports nothing of these packages.
                    (sys.executable, "-I", "-S", __file__, str(watched)),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(watched,),
                    # A signal to all processes of the terminal must not end it before the owner.
                    start_new_session=True,
                )
            finally:
                os.close(watched)

    def release(self) -> None:
        """Ends the guard; the child must have ended. The pipe may stay open in a process that the owner has forked."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


def main() -> None:
    assert sys.platform == "linux", "there is no guard elsewhere"
    while os.read(sys.stdin.fileno(), 4096):
        pass
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(int(sys.argv[1]), signal.SIGKILL)


if __name__ == "__main__":
    main()
