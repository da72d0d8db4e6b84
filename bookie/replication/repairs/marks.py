"""The end of a mark: it is deleted when its ledger was found complete, together with what is recorded of the ledger.

Source: docs/protocol/auto-recovery.md#worker.
"""

from __future__ import annotations

from contextlib import suppress

from bookgate.ledger.errors import MetadataVersionException
from bookgate.ledger.metadata_store import Versioned
from bookgate.ledger.replication_store import Mark, RecordKind, ReplicationMetadata


async def unmark(metadata: ReplicationMetadata, mark: Mark, corrupt: Versioned[bytes] | None) -> bool:
    """Removes the mark unless somebody has made it again since (R8), and the records of the ledger.

    Args:
        metadata: Where they are.
        mark: As it was before the look.
        corrupt: What a scrub had found before the look; what it has found since stays.

    Returns:
        Whether the mark is gone.
    """
    key = str(mark.value.ledger_id)
    removed = await metadata.delete_mark(mark.value.ledger_id, mark.version)
    if corrupt is not None:
        with suppress(MetadataVersionException):
            await metadata.remove_record(RecordKind.CORRUPT_LEDGER, key, corrupt.version)
    await metadata.remove_record(RecordKind.UNRECOVERABLE_LEDGER, key)
    return removed
