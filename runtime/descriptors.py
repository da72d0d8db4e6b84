"""How many files and sockets this process may have open."""

from __future__ import annotations

try:
    import resource
except ImportError:  # not a POSIX system
    resource = None  # type: ignore[assignment]

_UNKNOWN = 1024
_OWN = 64
_MOST = 1 << 20
"""Where the system sets no limit, or a higher one: as many as anybody needs, and as tables are fast with."""


def descriptor_limit() -> int:
    """Descriptors that the process may have."""
    if resource is None:
        return _UNKNOWN
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if soft == resource.RLIM_INFINITY else min(soft, _MOST)


def gateway_share(limit: int) -> int:
    """Connections that a gateway of its own takes: the rest is for HTTP, the store and files."""
    return max(8, min(10_000, (limit - _OWN) * 3 // 4))


def http_share(limit: int) -> int:
    """Its connections of HTTP."""
    return max(8, min(256, (limit - _OWN) // 8))


def raise_descriptor_limit() -> int:
    """Takes as many as the system's hard limit grants; returns the limit. To be called when a server starts."""
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
