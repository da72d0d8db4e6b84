"""Who created a ledger that is found in place: asked after a create whose answer was lost.

A create writes a random creator token with the metadata, and an equal token in the store means that this very create
was carried out. The token stands in version 0 only: the first change of the metadata drops it. From then on, and in
format versions 1 and 2, which never have it, a ledger that looks like the one asked for may be its creator's or
another's, and only what no change may touch tells another's for certain.

Not its job: reading the ledger, and what is told to the caller.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum, auto

from bookgate.ledger.metadata import CURRENT_FORMAT_VERSION, LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord


class Creator(Enum):
    """Whose create made the ledger."""

    SELF = auto()
    ANOTHER = auto()
    UNKNOWN = auto()


def creator_of(stored: LedgerRecord, wanted: LedgerMetadata) -> Creator:
    """Who created `stored`, as seen by the create that was to write `wanted`, whose token is not 0."""
    if stored.metadata.creator_token:
        return Creator.SELF if stored.metadata.creator_token == wanted.creator_token else Creator.ANOTHER
    alike = comparable if stored.version == 0 else _unchangeable
    return Creator.UNKNOWN if alike(stored.metadata) == alike(wanted) else Creator.ANOTHER


def comparable(metadata: LedgerMetadata) -> LedgerMetadata:
    """What is the same in metadata written and read back."""
    return replace(metadata, creator_token=0, ctime_ms=None, format_version=CURRENT_FORMAT_VERSION)


def _unchangeable(metadata: LedgerMetadata) -> tuple[object, ...]:
    sizes = (metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size)
    return (*sizes, metadata.digest_type, metadata.password)
