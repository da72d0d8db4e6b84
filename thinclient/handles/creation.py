"""Creating a ledger: bookies that the placement policy chooses, the first metadata."""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from bookgate.ledger.bookie_info import Features, features_for
from bookgate.ledger.errors import IllegalOpException, LedgerExistException, NotEnoughBookiesException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.terms import FragmentCaps
from bookgate.ledger.unbounded import create_unbounded
from bookgate.runtime.logs import log_event
from bookgate.thinclient.bookies.pool import V3
from bookgate.thinclient.core.placement import EnsembleRequest
from bookgate.thinclient.handles.context import ClientContext, check_protocol
from bookgate.thinclient.handles.ledger_options import LedgerOptions

_log = logging.getLogger(__name__)

_ID_ATTEMPTS = 8
"""Ids that the client makes before it gives up: one that exists already is no chance, but a source that repeats."""


async def create_ledger(
    context: ClientContext, options: LedgerOptions, unbounded: FragmentCaps | None = None
) -> LedgerRecord:
    """Creates a ledger, or with the largest size of its fragments an unbounded one; the cluster gives a missing id.

    Raises NotEnoughBookiesException, LedgerExistException, UnknownOutcomeException, IllegalOpException.
    """
    if options.deferred_sync and context.config.wire_protocol != V3:
        raise IllegalOpException("deferred sync is not part of protocol v2; create the ledger by a client of v3")
    given = options.given_id if not options.makes_id else _new_id(options)
    if given is not None:
        check_protocol(given, context.config)
    needs = features_for(scoped=given is not None and given.scope_id != 0, unbounded=unbounded is not None)
    sizes = (options.ensemble_size, options.write_quorum_size, options.ack_quorum_size)
    with context.metrics.timed("LEDGER_CREATE"):
        with context.metrics.timed("bookie_watcher_NEW_ENSEMBLE_TIME"):
            ensemble = await _new_ensemble(context, EnsembleRequest(*sizes, options.custom_metadata or {}), needs)
        metadata = LedgerMetadata.new(
            ensemble,
            options.write_quorum_size,
            options.ack_quorum_size,
            options.digest_type,
            options.password,
            options.custom_metadata,
        )
        if unbounded is not None:
            metadata = create_unbounded(metadata, unbounded)
        record = await _create(context, options, given, metadata)
    log_event(_log, "ledger_created", ledger=record.ledger_id, ensemble=",".join(ensemble))
    return record


async def _create(
    context: ClientContext, options: LedgerOptions, ledger_id: LedgerId | None, metadata: LedgerMetadata
) -> LedgerRecord:
    """An id that the client has made, and that exists already, is replaced by another one."""
    for _ in range(_ID_ATTEMPTS):
        try:
            return await context.ledger_manager.create(ledger_id, metadata)
        except LedgerExistException as error:
            if not options.makes_id:
                raise
            taken = error
            ledger_id = _new_id(options)
    raise taken


def _new_id(options: LedgerOptions) -> LedgerId:
    if options.uuid_version == 7:
        return LedgerId.time_ordered(time.time_ns() // 1_000_000)
    made = LedgerId.random()
    return made if options.uuid_version == 4 else LedgerId(options.scope_id, made.low)


async def _new_ensemble(context: ClientContext, request: EnsembleRequest, needs: Features) -> list[str]:
    """With opportunistic striping a smaller ensemble will do, if it holds a write quorum."""
    while True:
        try:
            return await context.placement.new_ensemble(request, needs=needs)
        except NotEnoughBookiesException:
            if not context.config.opportunistic_striping or request.ensemble_size <= request.write_quorum_size:
                raise
            request = replace(request, ensemble_size=request.ensemble_size - 1)
