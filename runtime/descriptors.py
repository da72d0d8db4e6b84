"""The file descriptors of this process: how many it may open, and that none takes the place of a standard stream."""

from __future__ import annotations

import os

try:
    import resource
except ImportError:  # not a POSIX system
    resource = None  # type: ignore[assignment]

_UNKNOWN = 1024
_OWN = 64
_FIRST_OWN = 3
"""Below are standard input, output and errors."""
_MOST = 1 << 20
"""Upper limit where the system sets none or a higher one: enough for any process, and descriptor tables stay fast."""


def descriptor_limit() -> int:
    """Number of descriptors that the process may open."""
    if resource is None:
        return _UNKNOWN
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if soft == resource.RLIM_INFINITY else min(soft, _MOST)


def gateway_share(limit: int) -> int:
    """Connections that a standalone gateway accepts; the remaining descriptors serve HTTP, the store and files."""
    return max(8, min(10_000, (limit - _OWN) * 3 // 4))


def http_share(limit: int) -> int:
    """HTTP connections that the process accepts."""
    return max(8, min(256, (limit - _OWN) // 8))


def raise_descriptor_limit() -> int:
    """Raises the soft limit to the system's hard limit and returns it. Call it when a server starts."""
    if resource is None:
        return _UNKNOWN
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            return soft
    return descriptor_limit()


def fill_standard_descriptors() -> None:
    """Opens the null device as 0, 1 and 2 where the process was started without them.

    Else a socket or a file gets the number, and with it what libraries and child processes print there; uvloop aborts
    the process where it is to close one of its own below 3.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < _FIRST_OWN:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
