"""Opens existing ledgers: for reading, with recovery, or to start writing an empty one.

Opening for reading does not disturb the writer: bookies are asked for the LAC without fencing. Recovery fences the
ledger, finds its end and closes it (`recovery`). Writing an existing ledger requires that no bookie holds an entry, and
sets a mark in its custom metadata by compare-and-set: of several clients that try, one succeeds. An unbounded ledger is
not recovered but taken over by its next writer.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from dataclasses import replace

from bookgate.ledger.errors import BKException, IllegalOpException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerState
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.unbounded import check_ordinary, terms_of
from bookgate.runtime.logs import log_event
from bookgate.thinclient.handles.context import ClientContext, LedgerSecrets, secrets_of, unlocked
from bookgate.thinclient.handles.guaranteed_write_handle import writer_of
from bookgate.thinclient.handles.ledger_view import LedgerView
from bookgate.thinclient.handles.read_handle import ReadHandle
from bookgate.thinclient.handles.recovery import read_last_confirmed, recover
from bookgate.thinclient.handles.unbounded import taking_over
from bookgate.thinclient.handles.unbounded.write_handle import UnboundedWriteHandle
from bookgate.thinclient.handles.write_handle import WriteHandle

_log = logging.getLogger(__name__)

_LEDGERS_AT_ONCE = 256
"""Ledgers whose last add confirmed is read concurrently."""

_WRITER_KEY = "bookgate.writer"
"""Custom metadata of a ledger that a second handle writes: a random name of that handle."""


async def open_ledger(context: ClientContext, ledger_id: LedgerId, password: bytes, recovery: bool) -> ReadHandle:
    """Opens a ledger for reading, with `recovery` after recovering it. Raises as `BookKeeper.open_ledger`."""
    record = await context.ledger_manager.read(ledger_id)
    record = unlocked(record, password, context.config)
    secrets = secrets_of(record, password, context.config)
    if recovery and not record.metadata.is_closed:
        check_ordinary(record)
        record = await _recover(context, record, secrets)
    if record.metadata.is_closed:
        return ReadHandle(LedgerView(context, record, secrets, record.metadata.last_entry_id))
    read = await read_last_confirmed(context, record, secrets)
    view = LedgerView(context, record, secrets, read.result)
    await view.listen()
    return ReadHandle(view)


async def _recover(context: ClientContext, record: LedgerRecord, secrets: LedgerSecrets) -> LedgerRecord:
    log_event(_log, "recovery_began", ledger=record.ledger_id, state=record.metadata.state.name)
    try:
        with context.metrics.timed("LEDGER_RECOVER"):
            record = await recover(context, record, secrets)
    except BKException as error:
        log_event(_log, "recovery_failed", logging.WARNING, ledger=record.ledger_id, error=error)
        raise
    last, length = record.metadata.last_entry_id, record.metadata.length
    log_event(_log, "ledger_recovered", ledger=record.ledger_id, last_entry=last, length=length)
    return record


async def last_adds_confirmed(
    context: ClientContext, records: Sequence[LedgerRecord], password: bytes
) -> list[int | BKException]:
    """The current LAC of each ledger, in the order of the records; the exception for each ledger that failed.

    Raises UnauthorizedAccessException.
    """
    all_secrets = [secrets_of(record, password, context.config) for record in records]
    room = asyncio.Semaphore(_LEDGERS_AT_ONCE)

    async def ask(record: LedgerRecord, secrets: LedgerSecrets) -> int | BKException:
        if record.metadata.is_closed:
            return record.metadata.last_entry_id
        async with room:
            try:
                return (await read_last_confirmed(context, record, secrets)).result
            except BKException as error:
                return error

    return await asyncio.gather(*map(ask, records, all_secrets))


async def take_over(
    context: ClientContext,
    ledger_id: LedgerId,
    password: bytes,
    rng: random.Random,
    max_fragment_seconds: float | None,
) -> UnboundedWriteHandle:
    """Takes over an unbounded ledger with its next term; returns the writer. Raises as `BookKeeper.take_over`."""
    record = await context.ledger_manager.read(ledger_id)
    terms_of(record.metadata)
    record = unlocked(record, password, context.config)
    secrets = secrets_of(record, password, context.config)
    record, found = await taking_over.take_over(context, record, secrets, rng)
    return UnboundedWriteHandle(
        context,
        record,
        secrets,
        last_entry_id=found.truncate_entry_id,
        length=found.length,
        max_fragment_seconds=max_fragment_seconds,
    )


async def reopen_empty_ledger(
    context: ClientContext, ledger_id: LedgerId, password: bytes, rng: random.Random
) -> WriteHandle:
    """Returns a writer for an OPEN ledger without entries. Raises IllegalOpException if this is not possible."""
    record = await context.ledger_manager.read(ledger_id)
    check_ordinary(record)
    record = unlocked(record, password, context.config)
    secrets = secrets_of(record, password, context.config)
    await _check_never_written(context, record, secrets)
    claimed = {**record.metadata.custom_metadata, _WRITER_KEY: rng.randbytes(8).hex().encode()}
    changed = replace(record.metadata, custom_metadata=claimed)
    record = await context.ledger_manager.write_to(record, changed)
    return writer_of(context, record, secrets)


async def _check_never_written(context: ClientContext, record: LedgerRecord, secrets: LedgerSecrets) -> None:
    """Raises IllegalOpException unless the ledger is OPEN and enough bookies report that they hold no entry of it."""
    what = f"ledger {record.ledger_id} can't be written"
    rule = "A ledger is written once, by one writer; create another one"
    metadata = record.metadata
    if metadata.password is None:
        raise IllegalOpException(f"{what}: its metadata are of an old format, which holds no mark. {rule}")
    if metadata.state is not LedgerState.OPEN:
        raise IllegalOpException(f"{what}: it is {metadata.state.name}. {rule}")
    if _WRITER_KEY in metadata.custom_metadata:
        raise IllegalOpException(f"{what}: another writer has taken it up. {rule}")
    read = await read_last_confirmed(context, record, secrets)
    if read.bookies_with_entries or read.result >= 0 or len(metadata.fragments) > 1:
        raise IllegalOpException(f"{what}: it has entries already. {rule}")
