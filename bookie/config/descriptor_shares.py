"""Divides a bookie's file descriptors, so that clients' connections never leave storage without any.

Storage gets what it requests, up to half; a fixed part is for the process itself (listening sockets, the metadata
store, the event loop, connections accepted but not yet counted). The rest is for connections to the ports.
"""

from __future__ import annotations

from typing import NamedTuple

_OWN = 64
_MOST_HTTP = 256
_MOST_GATEWAY = 10_000
_LEAST = 8


class DescriptorShares(NamedTuple):
    """Numbers of file descriptors."""

    open_logs: int
    """Entry logs kept open for reading, per store."""
    entry: int
    gateway: int
    http: int


def share_out(limit: int, files: int, open_logs: int, logs_kept: int = 1) -> DescriptorShares:
    """Divides the descriptors of a process.

    Args:
        limit: Descriptors that the process may have open.
        files: Those that storage needs besides the entry logs kept open for reading.
        open_logs: Entry logs to keep open for reading, in each of `logs_kept` stores.
        logs_kept: Number of stores.
    """
    half = max(0, limit - _OWN) // 2
    storage = min(files + open_logs * logs_kept, max(half, files + logs_kept))
    rest = max(0, limit - _OWN - storage)
    http = max(_LEAST, min(rest // 8, _MOST_HTTP))
    gateway = max(_LEAST, min(rest // 4, _MOST_GATEWAY))
    return DescriptorShares(
        open_logs=max(1, min(open_logs, (storage - files) // logs_kept)),
        entry=max(_LEAST, rest - http - gateway),
        gateway=gateway,
        http=http,
    )
