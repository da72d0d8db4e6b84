"""Creating a ledger: bookies that the placement policy chooses, the first metadata."""

from __future__ import annotations

import logging
from dataclasses import replace

from bookgate.ledger.errors import IllegalOpException, NotEnoughBookiesException
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.runtime.logs import log_event
from bookgate.thinclient.bookies.pool import V3
from bookgate.thinclient.core.placement import EnsembleRequest
from bookgate.thinclient.handles.context import ClientContext, unscoped
from bookgate.thinclient.handles.ledger_options import LedgerOptions

_log = logging.getLogger(__name__)


async def create_ledger(context: ClientContext, options: LedgerOptions) -> LedgerRecord:
    """Creates a ledger; without an id the cluster gives one.

    Raises NotEnoughBookiesException, LedgerExistException, UnknownOutcomeException, IllegalOpException.
    """
    if options.deferred_sync and context.config.wire_protocol != V3:
        raise IllegalOpException("deferred sync is not part of protocol v2; create the ledger by a client of v3")
    given = None if options.given_id is None else unscoped(options.given_id)
    sizes = (options.ensemble_size, options.write_quorum_size, options.ack_quorum_size)
    with context.metrics.timed("LEDGER_CREATE"):
        with context.metrics.timed("bookie_watcher_NEW_ENSEMBLE_TIME"):
            ensemble = await _new_ensemble(context, EnsembleRequest(*sizes, options.custom_metadata or {}))
        metadata = LedgerMetadata.new(
            ensemble,
            options.write_quorum_size,
            options.ack_quorum_size,
            options.digest_type,
            options.password,
            options.custom_metadata,
        )
        record = await context.ledger_manager.create(given, metadata)
    log_event(_log, "ledger_created", ledger=record.ledger_id, ensemble=",".join(ensemble))
    return record


async def _new_ensemble(context: ClientContext, request: EnsembleRequest) -> list[str]:
    """With opportunistic striping a smaller ensemble will do, if it holds a write quorum."""
    while True:
        try:
            return await context.placement.new_ensemble(request)
        except NotEnoughBookiesException:
            if not context.config.opportunistic_striping or request.ensemble_size <= request.write_quorum_size:
                raise
            request = replace(request, ensemble_size=request.ensemble_size - 1)
