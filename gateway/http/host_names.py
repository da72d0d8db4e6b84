"""Host names accepted by HTTP: a request's `Host` header must be one of them. Pure.

A page in a browser can have its own name point to this server's address, and then shares the origin of the server's
responses (DNS rebinding). Under a name that is not the server's it receives nothing. Addresses are always accepted,
because no page can have one as its name. A name is also accepted by its beginning, as resolvers with search lists do:
`bookie-0.bookie` for `bookie-0.bookie.bookgate.svc`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection

ANY = "*"


def name_of(host: str) -> str | None:
    """The name in a `Host` header, without its port; None for one that is not well formed."""
    if host.startswith("["):
        name, bracket, port = host[1:].partition("]")
        return name if bracket and _is_address(name) and (not port or port.startswith(":")) else None
    return host.partition(":")[0].lower().rstrip(".")


def is_own_name(host: str) -> bool:
    """Whether it is an address, `localhost`, or nothing."""
    name = name_of(host)
    return name is not None and (name in ("", "localhost") or _is_address(name))


def is_known_name(host: str, known: Collection[str]) -> bool:
    """Whether the header names this server."""
    if ANY in known or is_own_name(host):
        return True
    name = name_of(host)
    if name is None:
        return False
    return any(each == name or each.startswith(name + ".") for each in map(_normal, known))


def _normal(name: str) -> str:
    return name.lower().rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
