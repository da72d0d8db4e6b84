"""Identifies a process, so that another process of the machine can see that it has ended.

The identity is boot id, process-id namespace, process id and start time, all from /proc. Without /proc it is empty, and
nothing is concluded from it. The boot id is there for earlier versions that share the file, and is not compared: it
tells neither that the machine was booted, since containers may have one of their own, nor, after a boot, that a process
lives. A process from before the boot has ended as others have: its process id is another process's, or nobody's.
"""

from __future__ import annotations

import os
from pathlib import Path

from bookgate.runtime.process_exists import process_exists

_PROC = Path("/proc")


def identity_of(pid: int) -> str:
    """The identity of a process of this namespace; empty if it can't be determined."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        namespace = str((_PROC / "self/ns/pid").readlink())
        return f"{boot} {namespace} {pid} {_start_time(pid)}"
    except OSError:
        return ""


def surely_dead(identity: str) -> bool:
    """True only if the process ran on this machine, in this namespace, and has ended."""
    mine = identity_of(os.getpid())
    parts = identity.split(" ")
    if not mine or len(parts) != 4 or parts[1] != mine.split(" ")[1]:
        return False
    try:
        return _start_time(int(parts[2])) != parts[3]
    except FileNotFoundError:
        # A /proc that hides processes lacks living ones of others.
        return not process_exists(int(parts[2]))
    except (OSError, ValueError):
        return False


def _start_time(pid: int) -> str:
    """Field 22 of the stat file: ticks since boot. A zombie has ended: its start time counts as none."""
    fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return "ended" if fields[0] in "ZX" else fields[19]
