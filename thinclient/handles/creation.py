"""Creating a ledger: sizes that fit each other, bookies that the placement policy chooses, the first metadata."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from bookgate.ledger.errors import IncorrectParameterException, NotEnoughBookiesException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import DigestType, LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.runtime.logs import log_event
from bookgate.thinclient.core.placement import EnsembleRequest
from bookgate.thinclient.handles.context import ClientContext, unscoped

_log = logging.getLogger(__name__)


async def create_ledger(
    context: ClientContext,
    sizes: tuple[int, int, int],
    digest_type: DigestType,
    password: bytes,
    custom_metadata: Mapping[str, bytes] | None,
    ledger_id: LedgerId | None,
) -> LedgerRecord:
    """Creates a ledger of these sizes (ensemble, write quorum, ack quorum); without an id the cluster gives one.

    Raises IncorrectParameterException, NotEnoughBookiesException, LedgerExistException, UnknownOutcomeException.
    """
    ensemble_size, write_quorum_size, ack_quorum_size = sizes
    if not ensemble_size >= write_quorum_size >= ack_quorum_size >= 1:
        raise IncorrectParameterException(
            f"ensemble size {ensemble_size}, write quorum {write_quorum_size} and ack quorum {ack_quorum_size} "
            "don't fit: each must be at least the next, and the last at least 1"
        )
    given = None if ledger_id is None else unscoped(ledger_id)
    request = EnsembleRequest(ensemble_size, write_quorum_size, ack_quorum_size, custom_metadata or {})
    with context.metrics.timed("LEDGER_CREATE"):
        with context.metrics.timed("bookie_watcher_NEW_ENSEMBLE_TIME"):
            ensemble = await _new_ensemble(context, request)
        metadata = LedgerMetadata.new(
            ensemble, write_quorum_size, ack_quorum_size, digest_type, password, custom_metadata
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
