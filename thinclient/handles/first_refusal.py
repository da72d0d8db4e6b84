"""What it means when a bookie refuses the first entries of a ledger that was created just now.

Nothing was acknowledged yet, and nobody but its writer is expected to know the ledger. If its metadata are still as the
writer knows them, no other client has recovered it, and the bookie holds another ledger of this id: of another key,
which somebody made there ahead of the id counter, or one fenced, from before the metadata store was put back. The
application has the id already, so that another one can't be taken in silence: it is told to create another ledger.
A bookie that refuses how the client authenticates says nothing of ids, and the application hears just that.

Asked for after the refusal only; a ledger that is not refused costs nothing. Not its job: an earlier ledger of the same
key that was never fenced, which bookies can't tell from this one.
"""

from __future__ import annotations

import logging

from bookgate.ledger.errors import (
    BKException,
    LedgerFencedException,
    LedgerIdReusedException,
    LedgerIdTakenException,
    NotLetInException,
    UnauthorizedAccessException,
)
from bookgate.ledger.metadata import LedgerState
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.runtime.logs import log_event
from bookgate.thinclient.handles.context import ClientContext

_log = logging.getLogger(__name__)

REFUSALS = (UnauthorizedAccessException, LedgerFencedException)


async def explained(context: ClientContext, record: LedgerRecord, error: BKException, *, id_given: bool) -> BKException:
    """The error for the application: a more telling one if the ledger is still its writer's alone, else `error`.

    Args:
        record: What the writer knows of the ledger.
        error: The bookie's refusal, one of `REFUSALS`.
        id_given: The application chose the id; a ledger whose id the cluster gave is deleted if its key is refused.
    """
    try:
        stored = await context.ledger_manager.read(record.ledger_id)
        if stored.version != record.version or stored.metadata.state is not LedgerState.OPEN:
            return error
        if isinstance(error, LedgerFencedException):
            return _reused(record, error)
        if not id_given:
            await context.ledger_manager.remove(record.ledger_id, record.version)
            log_event(_log, "empty_ledger_deleted", logging.WARNING, ledger=record.ledger_id, error=error)
    except BKException:
        return error
    return error if isinstance(error, NotLetInException) else _taken(record, error, id_given)


def _reused(record: LedgerRecord, error: BKException) -> BKException:
    return LedgerIdReusedException(
        f"{error}, though nobody has recovered this new ledger: bookies hold an earlier ledger of its id. Nothing was "
        "stored or deleted. If the metadata store was put back to an older state, have ids go on above those in use "
        "(bookgate cluster advance-ids), and create another ledger",
        ledger_id=record.ledger_id,
    )


def _taken(record: LedgerRecord, error: BKException, id_given: bool) -> BKException:
    fate = "" if id_given else " (this one was deleted, it held nothing)"
    return LedgerIdTakenException(
        f"{error}: the bookie has a ledger of this id with another key, or does not let this client in (auth_provider, "
        f"bookie_tls). If it lets it in elsewhere, create another ledger{fate}",
        ledger_id=record.ledger_id,
    )
