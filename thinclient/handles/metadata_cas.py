"""Changes a ledger's metadata by compare-and-set; after a conflict reads them again and repeats the decision.

A transform is a pure function of the current metadata: it returns the new value, or None if there is nothing (left) to
do, or raises if the change is no longer allowed. Source: docs/protocol/metadata.md#ledger-states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from bookgate.ledger.errors import IncorrectParameterException, MetadataVersionException, UnknownOutcomeException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bookgate.ledger.metadata_store import LedgerManager, LedgerRecord, require_same
from bookgate.thinclient.core.ensemble_change import with_fragments
from bookgate.thinclient.gateways.retry_policy import DEFAULT_RETRIES, RetryPolicy

Transform = Callable[[LedgerMetadata], LedgerMetadata | None]


async def update(
    manager: LedgerManager, record: LedgerRecord, transform: Transform, retries: RetryPolicy = DEFAULT_RETRIES
) -> LedgerRecord:
    """Applies `transform` to the newest metadata, starting from the given record; returns what is stored afterwards.

    Raises the errors of `transform` and the manager; MetadataVersionException if the ledger changes at every attempt,
    UnknownOutcomeException if responses are lost again and again, NoSuchLedgerExistsOnMetadataServerException if the
    ledger was deleted, even if another one was created with its id.
    """
    unknown = 0
    for _ in range(retries.metadata_conflict_attempts):
        changed = transform(record.metadata)
        if changed is None:
            return record
        try:
            return await manager.write_to(record, changed)
        except (MetadataVersionException, UnknownOutcomeException) as error:
            unknown += isinstance(error, UnknownOutcomeException)
            # Each attempt has taken several timeouts of a metadata call.
            if unknown >= retries.metadata_unknown_outcomes:
                raise
            # Whoever won, even if it was this very write: the transform decides on the metadata stored now.
            now = await manager.read(record.ledger_id)
            require_same(record, now)
            record = now
    raise MetadataVersionException(
        f"metadata of ledger {record.ledger_id} was changed by others "
        f"{retries.metadata_conflict_attempts} times in a row"
    )


async def change_custom_metadata(
    manager: LedgerManager,
    ledger_id: LedgerId,
    changes: Mapping[str, bytes | None],
    expected_version: int | None,
    retries: RetryPolicy,
) -> LedgerRecord:
    """Changes a ledger's custom metadata, in one version of it or, with None, in whichever is the newest.

    Raises IncorrectParameterException for a value that is no bytes, MetadataVersionException for another version than
    the expected one, and the manager's errors.
    """
    transform = changed_custom_metadata(changes)
    found = await manager.read(ledger_id)
    if expected_version is None:
        return await update(manager, found, transform, retries)
    changed = transform(found.metadata)
    if found.version != expected_version:
        raise MetadataVersionException(
            f"ledger {found.ledger_id} has version {found.version} and not {expected_version}"
        )
    return found if changed is None else await manager.write_to(found, changed)


def changed_custom_metadata(changes: Mapping[str, bytes | None]) -> Transform:
    """Sets custom metadata by name, and removes names whose new value is None. Raises IncorrectParameterException."""
    for name, value in changes.items():
        if not isinstance(name, str) or not isinstance(value, bytes | None):
            raise IncorrectParameterException(
                f"changes has names that are text and values that are bytes or None, not {name!r}: {value!r}"
            )

    def transform(metadata: LedgerMetadata) -> LedgerMetadata | None:
        merged: dict[str, bytes | None] = {**metadata.custom_metadata, **changes}
        custom = {name: value for name, value in merged.items() if value is not None}
        return None if custom == metadata.custom_metadata else replace(metadata, custom_metadata=custom)

    return transform


def begin_recovery(metadata: LedgerMetadata) -> LedgerMetadata | None:
    """OPEN → IN_RECOVERY; other states stay."""
    return metadata.begin_recovery() if metadata.state is LedgerState.OPEN else None


def end_recovery(last_entry_id: int, length: int, fragments: Sequence[Fragment] = ()) -> Transform:
    """IN_RECOVERY → CLOSED, with the recovery's fragments; a ledger that someone else has closed stays as it is."""

    def transform(metadata: LedgerMetadata) -> LedgerMetadata | None:
        if metadata.state is not LedgerState.IN_RECOVERY:
            return None
        return with_fragments(metadata, fragments).close(last_entry_id, length)

    return transform


def close_by_writer(ledger_id: LedgerId, last_entry_id: int, length: int) -> Transform:
    """The writer's close: also from IN_RECOVERY, since recovery finds at least the writer's LAC.

    Raises MetadataVersionException if the ledger was closed with another end than the writer's.
    """

    def transform(metadata: LedgerMetadata) -> LedgerMetadata | None:
        if not metadata.is_closed:
            return metadata.close(last_entry_id, length)
        if (metadata.last_entry_id, metadata.length) == (last_entry_id, length):
            return None
        raise MetadataVersionException(
            f"ledger {ledger_id} was closed by another client at entry {metadata.last_entry_id} "
            f"({metadata.length} bytes); this writer has entry {last_entry_id} ({length} bytes)"
        )

    return transform
