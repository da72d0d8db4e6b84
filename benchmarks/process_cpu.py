"""CPU time of processes from /proc: the figure that stays steady where rates follow whatever else the machine does."""

from __future__ import annotations

from pathlib import Path

_PROC = Path("/proc")


def cpu_microseconds(pid: int) -> float:
    """CPU that all threads of a process have taken so far; its children's is not in it."""
    total = 0
    for task in (_PROC / str(pid) / "task").iterdir():
        try:
            total += int((task / "schedstat").read_text().split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread has ended meanwhile
    return total / 1000
