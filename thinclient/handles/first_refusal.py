"""Explains why a bookie rejects the first entries of a newly created ledger.

Nothing is acknowledged yet, and only the writer is expected to know the ledger. If its metadata are still as the writer
knows them, no other client has recovered it, so the bookie holds another ledger with this id: one with another master
key, which somebody created there ahead of the id counter, or a fenced one from before the metadata store was restored.
The application already has the id, so the client can't silently take another one: the error asks the application to
create another ledger. If the bookie rejects the client's authentication, this says nothing about ids, and the
application gets that error unchanged.

The check runs only after a rejection. Not its job: an earlier ledger with the same key that was never fenced, which
bookies can't distinguish from this one.
"""

from __future__ import annotations

import logging

from bookgate.ledger.errors import (
    BKException,
    LedgerFencedException,
    LedgerIdReusedException,
    LedgerIdTakenException,
    NoSuchLedgerExistsOnMetadataServerException,
    NotLetInException,
    UnauthorizedAccessException,
)
from bookgate.ledger.metadata import LedgerState
from bookgate.ledger.metadata_store import LedgerRecord, require_same
from bookgate.runtime.logs import log_event
from bookgate.thinclient.handles.context import ClientContext

_log = logging.getLogger(__name__)

REFUSALS = (UnauthorizedAccessException, LedgerFencedException)


async def explained(context: ClientContext, record: LedgerRecord, error: BKException, *, id_given: bool) -> BKException:
    """The error for the application: a more specific one if only the writer has changed the ledger, else `error`.
    If the ledger is gone, the error says so; another one that has its id by now is left alone.

    Args:
        context: The client's context.
        record: The metadata that the writer knows.
        error: The bookie's error, one of `REFUSALS`.
        id_given: The application chose the id; if the cluster assigned it and the key is rejected, the ledger is
            deleted.
    """
    try:
        stored = await context.ledger_manager.read(record.ledger_id)
        require_same(record, stored)
        if stored.version != record.version or stored.metadata.state is not LedgerState.OPEN:
            return error
        if isinstance(error, LedgerFencedException):
            return _reused(record, error)
        if not id_given:
            await context.ledger_manager.remove_record(record)
            log_event(_log, "empty_ledger_deleted", logging.WARNING, ledger=record.ledger_id, error=error)
    except NoSuchLedgerExistsOnMetadataServerException as gone:
        return gone
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
