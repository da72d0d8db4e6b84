"""Decides who created an existing ledger, for a create whose response was lost.

Each create writes a random creator token with the metadata. If the stored metadata has the same token, this very create
was carried out. Only version 0 of the metadata carries the token: the first update drops it. After an update, and
always in format versions 1 and 2, which have no token, a ledger that matches the requested one may have been created by
this caller or by another. Only a difference in a field that no update may change proves that another caller created it.

Not its job: reading the ledger; reporting the outcome to the caller.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum, auto

from bookgate.ledger.metadata import CURRENT_FORMAT_VERSION, OWNER_KEY, LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord


class Creator(Enum):
    """Who created the ledger."""

    SELF = auto()
    ANOTHER = auto()
    UNKNOWN = auto()


def creator_of(stored: LedgerRecord, wanted: LedgerMetadata) -> Creator:
    """Decides who created `stored`, from the view of the create that was to write `wanted` (with a non-zero token)."""
    if stored.metadata.creator_token:
        return Creator.SELF if stored.metadata.creator_token == wanted.creator_token else Creator.ANOTHER
    if stored.version == 0:
        return Creator.UNKNOWN if is_as_written(stored.metadata, wanted) else Creator.ANOTHER
    password = _password_of(stored.metadata, wanted)
    alike = _unchangeable(replace(stored.metadata, password=password)) == _unchangeable(wanted)
    return Creator.UNKNOWN if alike else Creator.ANOTHER


def is_as_written(stored: LedgerMetadata, written: LedgerMetadata) -> bool:
    """Whether what is read back is what was written, but for what a gateway or store adds, keeps or withholds."""
    return _comparable(replace(stored, password=_password_of(stored, written))) == _comparable(written)


def _password_of(stored: LedgerMetadata, written: LedgerMetadata) -> bytes | None:
    """The stored password; one that was withheld is the written one where it may be."""
    check = stored.password_check
    if check is None or written.password is None:
        return stored.password
    matches = written.password_check is not None or check.matches(written.password)
    return written.password if matches else written.password + b"\0"


def _comparable(metadata: LedgerMetadata) -> LedgerMetadata:
    custom = {key: value for key, value in metadata.custom_metadata.items() if key != OWNER_KEY}
    return replace(
        metadata, creator_token=0, ctime_ms=None, custom_metadata=custom, format_version=CURRENT_FORMAT_VERSION
    )


def _unchangeable(metadata: LedgerMetadata) -> tuple[object, ...]:
    sizes = (metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size)
    return (*sizes, metadata.digest_type, metadata.password)
