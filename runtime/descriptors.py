"""Limits on the file descriptors of this process."""

from __future__ import annotations

try:
    import resource
except ImportError:  # not a POSIX system
    resource = None  # type: ignore[assignment]

_UNKNOWN = 1024
_OWN = 64
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
