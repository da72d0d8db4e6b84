"""The nodes of a cluster other than its ledgers, and the contents of LAYOUT. No I/O.

LAYOUT has two lines without a final newline: the format version, then `<factory class>:<manager version>`; format
version 1 has a short manager name instead of the class. Source: docs/protocol/metadata.md#zookeeper-tree,
docs/protocol/metadata.md#layout.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from bookgate.ledger.errors import IncorrectParameterException

LAYOUT_FORMAT_VERSION = 2
MANAGER_VERSION = 1
_PACKAGE = "org.apache.bookkeeper.meta."

FACTORY_CLASSES = {
    "flat": f"{_PACKAGE}FlatLedgerManagerFactory",
    "hierarchical": f"{_PACKAGE}HierarchicalLedgerManagerFactory",
    "legacyhierarchical": f"{_PACKAGE}LegacyHierarchicalLedgerManagerFactory",
    "longhierarchical": f"{_PACKAGE}LongHierarchicalLedgerManagerFactory",
    # In no release of BookKeeper: its bookies reject a cluster with this layout.
    "longlonghierarchical": f"{_PACKAGE}LongLongHierarchicalLedgerManagerFactory",
}
DEFAULT_MANAGER = "hierarchical"


@dataclass(frozen=True, slots=True)
class ClusterPaths:
    """Paths below one ledgers root."""

    root: str

    @property
    def layout(self) -> str:
        return f"{self.root}/LAYOUT"

    @property
    def instance_id(self) -> str:
        return f"{self.root}/INSTANCEID"

    @property
    def available(self) -> str:
        return f"{self.root}/available"

    @property
    def read_only(self) -> str:
        return f"{self.root}/available/readonly"

    @property
    def cookies(self) -> str:
        return f"{self.root}/cookies"

    def writable_bookie(self, bookie_id: str) -> str:
        return f"{self.available}/{bookie_id}"

    def read_only_bookie(self, bookie_id: str) -> str:
        return f"{self.read_only}/{bookie_id}"

    def cookie(self, bookie_id: str) -> str:
        return f"{self.cookies}/{bookie_id}"


def cluster_nodes(paths: ClusterPaths, manager: str) -> list[tuple[str, bytes]]:
    """The nodes of a fresh cluster, parents first, with a new instance id."""
    return [
        (paths.root, b""),
        (paths.available, b""),
        (paths.read_only, b""),
        (paths.instance_id, str(uuid.uuid4()).encode()),
        (paths.layout, encode_layout(manager)),
    ]


def encode_layout(manager: str) -> bytes:
    """LAYOUT of a fresh cluster."""
    return f"{LAYOUT_FORMAT_VERSION}\n{FACTORY_CLASSES[manager]}:{MANAGER_VERSION}".encode()


def manager_of_layout(content: bytes, configured: str | None, path: str) -> str:
    """The ledger manager that LAYOUT names."""
    stored = _stored_manager(content, path)
    if configured is not None and configured != stored:
        raise IncorrectParameterException(
            f"{path} says that this cluster has the ledger manager {stored!r}, the metadata URI says {configured!r}; "
            f"use zk+{stored}:// or zk://"
        )
    return stored


def _stored_manager(content: bytes, path: str) -> str:
    lines = content.decode(errors="replace").split("\n")
    parts = lines[1].split(":") if len(lines) > 1 else []
    if lines[0] not in ("1", "2") or len(parts) != 2:
        raise IncorrectParameterException(f"{path} holds {content[:120]!r}, which is no ledger layout")
    name, version = parts
    if version.strip() != str(MANAGER_VERSION):
        raise IncorrectParameterException(f"{path} has ledger manager version {version}; known is {MANAGER_VERSION}")
    names = {"flat": "flat", "hierarchical": "hierarchical"}
    if lines[0] == "2":
        names = {factory_class: manager for manager, factory_class in FACTORY_CLASSES.items()}
    if name not in names:
        raise IncorrectParameterException(f"{path} names the ledger manager {name}, which is not known here")
    return names[name]
