"""How an address is written: the one rule for whatever shows, announces or connects to `host:port`.

Not its job: bookie ids. One that was not configured is host and port without brackets, which a bookie id may not have
(docs/protocol/metadata.md#registration).
"""

from __future__ import annotations


def address_of(host: str, port: int) -> str:
    """`host:port`; an IPv6 host is enclosed in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_and_port(address: str) -> tuple[str, int]:
    """The parts of `host:port`, an IPv6 host without its brackets. Raises ValueError for a port that is no number."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
