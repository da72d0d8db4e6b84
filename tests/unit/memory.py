"""How much memory something takes: a bound on what is kept shows there, whatever keeps it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def memory_kept() -> Iterator[Callable[[], int]]:
    """Gives how many of the bytes allocated since are still held."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        yield lambda: tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
