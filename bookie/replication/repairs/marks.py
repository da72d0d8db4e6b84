"""The end of a mark: it is deleted when its ledger was found whole, together with the records of the ledger; or it
stays, with the record that the ledger is unrecoverable.

Source: docs/protocol/auto-recovery.md#worker.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from bookgate.bookie.replication.copies.answers import in_words
from bookgate.bookie.replication.copies.look import beside_loop
from bookgate.bookie.replication.repairs.repair import Outcome
from bookgate.ledger.errors import MetadataVersionException
from bookgate.ledger.metadata_store import Versioned
from bookgate.ledger.replication_control import given_up_with
from bookgate.ledger.replication_store import Mark, RecordKind, ReplicationMetadata
from bookgate.runtime.clock import now_ms
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)

_IDS_TOLD = 20


async def unmark(metadata: ReplicationMetadata, mark: Mark, corrupt: Versioned[bytes] | None) -> bool:
    """Removes the mark, unless it was made again since (R8), and the records of the ledger.

    Args:
        metadata: The store of auto-recovery.
        mark: The mark before the examination.
        corrupt: The scrub's record before the examination; a newer record stays.

    Returns:
        Whether the mark is removed.
    """
    key = str(mark.value.ledger_id)
    # Before the mark: a record without a mark would stay, since nobody examines the ledger any more.
    await metadata.remove_record(RecordKind.UNRECOVERABLE_LEDGER, key)
    removed = await metadata.delete_mark(mark.value.ledger_id, mark.version)
    if corrupt is not None:
        with suppress(MetadataVersionException):
            await metadata.remove_record(RecordKind.CORRUPT_LEDGER, key, corrupt.version)
    return removed


async def forget_unmarked(metadata: ReplicationMetadata, marked: Collection[int]) -> None:
    """Removes records of unrecoverable ledgers that have no mark any more, since a worker died that removed it, or
    BookKeeper's worker has removed it.

    Args:
        metadata: The store of auto-recovery.
        marked: The ledgers of the last listing of marks; others are looked at, as they may have been marked since.
    """
    for key, stored in (await metadata.records(RecordKind.UNRECOVERABLE_LEDGER)).items():
        if key.isdigit() and int(key) not in marked and await metadata.read_mark(int(key)) is None:
            with suppress(MetadataVersionException):
                await metadata.remove_record(RecordKind.UNRECOVERABLE_LEDGER, key, stored.version)


async def give_up(metadata: ReplicationMetadata, mark: Mark, outcome: Outcome, gone: Sequence[str]) -> None:
    """Records that a ledger can't be repaired, and why.

    Args:
        metadata: The store of auto-recovery.
        mark: The mark of the ledger.
        outcome: The outcome of the repair.
        gone: Bookies of the ledger that are not registered.

    Raises:
        MetadataVersionException: An operator gives the ledger up at the same time.
    """
    ledger_id, findings, metadata_now = mark.value.ledger_id, outcome.findings, outcome.record.metadata
    reason = {
        "entries": len(findings.unrecoverable),
        "first_entries": list(findings.unrecoverable[:_IDS_TOLD]),
        "end_is_lost": findings.end_is_lost,
        "lost_bookies": list(gone),
        "answers": await beside_loop(metadata_now, in_words, metadata_now, outcome.copies),
    }
    await note_unrecoverable(metadata, ledger_id, reason)
    log_event(_log, "ledger_repair", logging.ERROR, state="unrecoverable", ledger=ledger_id, **reason)


async def note_unrecoverable(metadata: ReplicationMetadata, ledger_id: int, reason: Mapping[str, object]) -> None:
    """Writes the record of an unrecoverable ledger; keeps the bookies with which an operator gave it up."""
    former = await metadata.read_record(RecordKind.UNRECOVERABLE_LEDGER, str(ledger_id))
    told = {} if former is None else given_up_with(former.value)
    given_up = {"given_up_with": told} if told else {}
    content = json.dumps({**reason, **given_up, "time_ms": now_ms()}, sort_keys=True).encode()
    version = None if former is None else former.version
    await metadata.write_record(RecordKind.UNRECOVERABLE_LEDGER, str(ledger_id), content, version)
