"""Takes a ledger from its writer: the recovery, under its lock, of an open ledger with lost bookies.

The first step, which every writer notices, is a write at the version of the metadata that was examined, in the
transaction that checks the lock: it fails if the writer has replaced the bookie since, or the lock is lost (R6).
Source: docs/protocol/auto-recovery.md#worker. Not its job: whether the ledger may be taken (`worker`, `by_hand`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from bookgate.bookie.replication.repairs.repair import RepairStoppedException, RepairTools
from bookgate.ledger.errors import LockLostException, MetadataVersionException
from bookgate.ledger.metadata import LedgerState
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.replication_store import LedgerLock
from bookgate.ledger.unbounded import check_ordinary
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)


async def take_over(
    tools: RepairTools, lock: LedgerLock, record: LedgerRecord, lost: Sequence[str], password: bytes
) -> LedgerRecord:
    """Fences, recovers and closes the ledger.

    Args:
        tools: The tools of the lock's holder.
        lock: The lock of the ledger.
        record: The metadata that were examined.
        lost: Lost bookies of the last ensemble.
        password: The password for metadata that have none.

    Returns:
        The closed ledger.

    Raises:
        IllegalOpException: The ledger is unbounded: only a client may take it over, with a new term.
        RepairStoppedException: Its metadata have changed since, the lock is lost, or another ledger has the id.
        BKException: The ledger can't be recovered now.
    """
    check_ordinary(record)
    await tools.read_again(record)
    if record.metadata.state is LedgerState.OPEN:
        taken = replace(record.metadata, state=LedgerState.IN_RECOVERY)
        try:
            record = await tools.metadata.write_ledger(lock, taken, record.version)
        except (MetadataVersionException, LockLostException) as error:
            raise RepairStoppedException(str(error)) from error
        log_event(_log, "ledger_taken_from_writer", logging.WARNING, ledger=record.ledger_id, lost=lost)
    known = record.metadata.known_password()
    handle = await tools.client.open_ledger(record.ledger_id, password if known is None else known, recovery=True)
    async with handle:
        return handle.record
