"""Marks ledgers for auto-recovery after an audit: one mark per ledger, with the bookies that lack good copies of it.

A place of a ledger (a bookie of a fragment) lacks good copies if the bookie itself said that it has no such entry, or
if what it sent is damaged: its digest is wrong, or the disk can't be read. A worker relies on the ids that bookies
list, so damaged copies are recorded before the ledger is marked, as by a scrub; it reads these again. Unknown states
(unreachable, busy, unauthorized) never count, nor do copies of wrong length, whose digests are right.

An audit takes long, so every ledger is read once more before it is marked, by metadata that the gateway has caught up
with. A place is left out if the ledger is gone;
if another bookie has taken the place; if the fragment may still be extended, since only complete ones are repaired
(R7); or if the bookie is not registered at present: whether it is lost is for the auditor to decide, after the delay
(R13). A wrong mark costs nothing: the worker asks the bookies itself (R10).

Marks are stored even if auto-recovery is disabled or does not run, and then wait; the result says so.

Not its job: finding lacking copies (`audit`), repairs (auto-recovery).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from bookgate.ledger.corrupt_copies import Ranges, note_corrupt
from bookgate.ledger.errors import (
    BKException,
    IllegalOpException,
    MetadataFormatException,
    NoSuchLedgerExistsOnMetadataServerException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import BookieSet, LedgerManagerFactory
from bookgate.ledger.replication_control import obstacle
from bookgate.thinclient.blocking.loop_thread import LoopThread
from bookgate.thinclient.gateways.discovery import may_lack_revision
from bookgate.thinclient.metadata_source import metadata_factory
from bookgate.thinclient.spark.jobs.copies import Fault
from bookgate.thinclient.spark.options.read_options import Table, parse_options
from bookgate.thinclient.spark.worker_client import client_config

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_LOOKED_UP_AT_ONCE = 1000
_MARKS_AT_ONCE = 32

_GONE = (NoSuchLedgerExistsOnMetadataServerException, MetadataFormatException)
"""Errors after which nothing is known of a ledger's bookies."""


Place = tuple[int, str]
"""A fragment's first entry, and a bookie of it."""


@dataclass(frozen=True, slots=True)
class Lack:
    """A ledger that lacks good copies, and where it lacks them."""

    ledger_id: LedgerId
    places: frozenset[Place]
    corrupt: Mapping[Place, Ranges] = field(default_factory=dict)
    """Of these places those with damaged copies: first and last entries of ranges."""


@dataclass(slots=True)
class Marking:
    """The counts of what was done with the ledgers that lack copies. Mutable."""

    marked: int = 0
    left: int = 0
    """Ledgers left unmarked: deleted, damaged or changed meanwhile, still written where copies are lacking, or with
    bookies that are no longer registered.
    """
    obstacle: str | None = None
    """Why nothing is repaired now, and what to do about it; None: nothing is in the way."""
    failure: BKException | None = None
    """The error that kept the remaining ledgers from being marked."""


def bookies_to_mark(lack: Lack, metadata: LedgerMetadata, registered: Collection[str]) -> list[str]:
    """The bookies that a mark should name, by the newest metadata; if empty, the ledger must not be marked."""
    return sorted({bookie_id for _, bookie_id in _still_due(lack.places, metadata)}.intersection(registered))


def corrupt_to_record(lack: Lack, metadata: LedgerMetadata, bookie_ids: Collection[str]) -> dict[str, Ranges]:
    """What of the damage is to be recorded for these bookies, by the newest metadata."""
    found: dict[str, Ranges] = {}
    for place in _still_due(lack.corrupt, metadata):
        if place[1] in bookie_ids:
            found[place[1]] = [*found.get(place[1], ()), *lack.corrupt[place]]
    return found


def _still_due(places: Iterable[Place], metadata: LedgerMetadata) -> list[Place]:
    ensembles = {fragment.first_entry_id: fragment.ensemble for fragment in metadata.complete_fragments}
    return [(start, bookie_id) for start, bookie_id in places if bookie_id in ensembles.get(start, ())]


def require_auto_recovery(options: Mapping[str, str]) -> None:
    """Raises IllegalOpException if the metadata store of these gateways has no auto-recovery."""
    with _metadata(options) as (thread, factory):
        try:
            thread.run(factory.replication_metadata.is_enabled())
        except IllegalOpException as error:
            raise IllegalOpException(
                f"nothing can be marked in this cluster: {error}; run the audit without --mark"
            ) from error


def mark_lacking(found: DataFrame, options: Mapping[str, str]) -> Marking:
    """Marks each ledger that lacks copies, from this process.

    Args:
        found: The result of an audit.
        options: The options of that audit.

    Returns:
        The counts. If the metadata store fails, marking stops and `failure` has the error; the call may be repeated.
    """
    marking = Marking()
    remaining = lacks(found)
    with _metadata(options) as (thread, factory):
        try:
            while page := list(islice(remaining, _LOOKED_UP_AT_ONCE)):
                thread.run(mark_page(factory, page, marking))
            marking.obstacle = thread.run(obstacle(factory.replication_metadata))
        except BKException as error:
            marking.failure = error
    return marking


def lacks(found: DataFrame) -> Iterator[Lack]:
    """The ledgers of an audit that lack good copies. The driver holds one partition of them at a time."""
    from pyspark.sql import functions as F  # noqa: N812

    damaged = F.expr(f"filter(ranges, each -> each.fault = '{Fault.CORRUPT.value}')").alias("damaged")
    places = found.where("missing > 0 OR corrupt > 0").groupBy("scope_id", "ledger_id")
    listed = places.agg(F.collect_list(F.struct("fragment", "bookie_id", damaged)).alias("places"))
    for row in listed.toLocalIterator():
        damage = {
            (place.fragment, place.bookie_id): [(each.first_entry_id, each.last_entry_id) for each in place.damaged]
            for place in row.places
        }
        corrupt = {place: ranges for place, ranges in damage.items() if ranges}
        yield Lack(LedgerId(row.scope_id, row.ledger_id), frozenset(damage), corrupt)


async def mark_page(factory: LedgerManagerFactory, page: Sequence[Lack], marking: Marking) -> None:
    """Marks some ledgers and adds the outcomes to `marking`. Raises BKException after marking as many as it can."""
    with may_lack_revision():
        await factory.catch_up(None)
    bookies = await factory.service_discovery.bookies(BookieSet.ALL)
    registered = {bookie.bookie_id for bookie in bookies if bookie.registered}
    records = await factory.ledger_manager.read_many([lack.ledger_id for lack in page])
    room, now_ms = asyncio.Semaphore(_MARKS_AT_ONCE), time.time_ns() // 1_000_000

    async def mark(ledger_id: LedgerId, replicas: Sequence[str], corrupt: Mapping[str, Ranges]) -> None:
        async with room:
            if corrupt:  # first: whoever reads the mark reads the record next
                await note_corrupt(factory.replication_metadata, ledger_id.number, corrupt, now_ms)
            await factory.replication_metadata.mark(ledger_id.number, replicas, now_ms)
        marking.marked += 1

    due: list[tuple[LedgerId, list[str], dict[str, Ranges]]] = []
    for lack, record in zip(page, records, strict=True):
        if isinstance(record, BKException) and not isinstance(record, _GONE):
            raise record
        replicas = [] if isinstance(record, BKException) else bookies_to_mark(lack, record.metadata, registered)
        if replicas and not isinstance(record, BKException):
            due.append((lack.ledger_id, replicas, corrupt_to_record(lack, record.metadata, replicas)))
        else:
            marking.left += 1
    outcomes = await asyncio.gather(*(mark(*each) for each in due), return_exceptions=True)
    for outcome in outcomes:
        if outcome is not None:
            raise outcome


@contextmanager
def _metadata(options: Mapping[str, str]) -> Iterator[tuple[LoopThread, LedgerManagerFactory]]:
    """The metadata store behind the gateways of the options, and the thread that its calls run on."""
    parsed = parse_options({**options, "table": Table.COPIES.value})
    config = client_config(parsed.client_settings)
    thread = LoopThread.acquire()

    async def connect() -> LedgerManagerFactory:
        factory = metadata_factory(parsed.gateways, config)
        try:
            await factory.initialize()
        except BaseException:
            await factory.close()
            raise
        return factory

    try:
        factory = thread.run(connect())
        try:
            yield thread, factory
        finally:
            thread.run(factory.close())
    finally:
        thread.release()
