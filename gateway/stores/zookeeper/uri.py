"""Parses `zk[+manager]://host1:port1;host2:port2/ledgers-root`, with BookKeeper's separators `;` and `,`.

Source: docs/protocol/metadata.md#zookeeper-tree. No I/O.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from bookgate.ledger.errors import IncorrectParameterException

DEFAULT_ZOOKEEPER_PORT = 2181

_ZK_MANAGERS = {
    "flat": "flat",
    "hierarchical": "hierarchical",
    "longhierarchical": "longhierarchical",
    "longlonghierarchical": "longlonghierarchical",
    "ms": None,
    "null": None,
}


@dataclass(frozen=True, slots=True)
class ZooKeeperUri:
    """Servers as `host:port`, the ledgers root, and the ledger manager (None: the one in LAYOUT)."""

    servers: tuple[str, ...]
    ledgers_root: str
    manager: str | None


def parse_zookeeper(uri: str) -> ZooKeeperUri:
    """Parses a URI. Raises IncorrectParameterException, which names the wrong part."""
    match = re.fullmatch(r"zk(?:\+([A-Za-z]+))?://([^/]*)(/.*)?", uri)
    if not match:
        raise IncorrectParameterException(
            f"metadata URI {uri!r} is not of the form zk+hierarchical://host1:2181;host2:2181/ledgers"
        )
    manager, authority, path = match.groups()
    if manager is not None and manager.lower() not in _ZK_MANAGERS:
        raise IncorrectParameterException(
            f"metadata URI {uri!r} names the unknown ledger manager {manager!r}; known are {', '.join(_ZK_MANAGERS)}"
        )
    servers = tuple(_server(uri, part) for part in re.split("[;,]", authority))
    return ZooKeeperUri(servers, _ledgers_root(uri, path), _ZK_MANAGERS[manager.lower()] if manager else None)


def _server(uri: str, text: str) -> str:
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.%]+\]|[^\s:\[\]@]+)(?::(\d{1,5}))?", text)
    port = int(match.group(2) or DEFAULT_ZOOKEEPER_PORT) if match else 0
    if not match or not 0 < port < 65536:
        raise IncorrectParameterException(f"metadata URI {uri!r}: {text!r} is not host:port")
    return f"{match.group(1)}:{port}"


def _ledgers_root(uri: str, path: str | None) -> str:
    root = (path or "").rstrip("/")
    if not root or "//" in root or any(part in (".", "..") for part in root.split("/")):
        raise IncorrectParameterException(
            f"metadata URI {uri!r} must end with the path of the ledgers root, by default /ledgers"
        )
    return root
