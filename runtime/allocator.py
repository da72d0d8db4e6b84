"""Has the allocator of the C library keep what is freed, in processes that go through buffers of megabytes.

glibc gives large buffers back to the system when several of them are freed, and the next ones are mapped and zeroed
again, page by page: a fifth of the CPU of a Spark task that reads ledgers.

Not its job: other C libraries, which lack the call, and a process whose environment has a say in this: it stays as its
owner wants it.
"""

from __future__ import annotations

import ctypes
import os

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Parameters of `mallopt`, from glibc's malloc.h."""
_LARGEST_BUFFER = 32 << 20
"""The largest buffer that is taken from what was freed before; glibc allows no more."""
_KEPT_BYTES = 128 << 20
_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")


def keep_freed_buffers() -> None:
    """Up to 128 MiB of freed memory stay with this process. A second call changes nothing."""
    if any(name in os.environ for name in _VARIABLES):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return
    mallopt(_M_MMAP_THRESHOLD, _LARGEST_BUFFER)
    mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
