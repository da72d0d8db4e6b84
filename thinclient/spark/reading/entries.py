"""Which entries the Spark source reads, as slices of ledgers; independent of Spark.

On the driver `readable_slices` lists the ledgers once (or looks up the given ids in bulk), keeps those that the options
select, and determines how far each may be read: a closed ledger to its end; an open one to its last add confirmed, read
from the bookies without fencing, or, if the options say so, to where recovery closes it.

A ledger that was requested by id and no longer exists is data loss: an error that names it, or, when `failOnDataLoss`
is false, left out with a warning.

Not its job: reading the entries (`slice_reads`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TYPE_CHECKING

from bookgate.ledger.entry import Entry
from bookgate.ledger.errors import BKException, NoSuchLedgerExistsOnMetadataServerException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.thinclient.handles.context import unlocked
from bookgate.thinclient.spark.commit_protocol import MOST_NAMED, Committed
from bookgate.thinclient.spark.options.read_options import Options, ReadMode
from bookgate.thinclient.spark.reading.plain_ledgers import PlainLedgers
from bookgate.thinclient.spark.reading.planning import (
    Slice,
    TemplateTable,
    check_digest_type,
    has_readable_end,
    is_wanted,
    opened_with,
    readable_record,
    wanted_part,
    wanted_range,
)
from bookgate.thinclient.spark.reading.pushdown import EVERYTHING, Bounds, Interval

if TYPE_CHECKING:
    from bookgate.thinclient.blocking.client import BookKeeper

_log = logging.getLogger(__name__)

_OPENED_AT_ONCE = 16
_ASKED_FOR_AT_ONCE = 4096
_NAMED_AT_MOST = 10


def selected_records(
    client: BookKeeper, options: Options, bounds: Bounds = EVERYTHING, plain: PlainLedgers | None = None
) -> Iterator[list[LedgerRecord]]:
    """The ledgers that the options and the bounds select, in pages, by id; without those that `plain` takes.

    Raises NoSuchLedgerExistsOnMetadataServerException for requested ids that no longer exist (failOnDataLoss).
    """
    scope_id, wanted = options.scope_id, wanted_range(options, bounds)
    if wanted.first > wanted.last or scope_id not in bounds.scope_id:
        return
    pages: Iterator[Sequence[LedgerRecord]]
    if options.ledger_ids is not None:
        pages = _asked_for(client, options, bounds)
    else:
        after, before = listing_ends(scope_id, wanted)
        pages = client.list_ledgers(scope_id=scope_id, start_after=after, end_before=before)
    for page in pages:
        records = _selected(page if plain is None else plain.take(page), options, bounds)
        if records:
            yield records


def _selected(records: Iterable[LedgerRecord], options: Options, bounds: Bounds) -> list[LedgerRecord]:
    return [
        record
        for record in records
        if is_wanted(record, options) and bounds.takes_ledger(options.scope_id, record.ledger_id.low)
    ]


def _asked_for(client: BookKeeper, options: Options, bounds: Bounds) -> Iterator[list[LedgerRecord]]:
    """The ledgers of option `ledgerIds`."""
    scope_id, missing = options.scope_id, list[int]()
    numbers = [each for each in options.ledger_ids or () if bounds.takes_ledger(scope_id, each)]
    for start in range(0, len(numbers), _ASKED_FOR_AT_ONCE):
        records, gone = read_records(client, scope_id, numbers[start : start + _ASKED_FOR_AT_ONCE])
        missing += gone
        yield records
    if missing:
        _ledgers_are_gone(missing, options)


def read_records(client: BookKeeper, scope_id: int, numbers: Sequence[int]) -> tuple[list[LedgerRecord], list[int]]:
    """The records of ledgers of a scope, and the ids that don't exist. Raises any other error."""
    records, gone = [], []
    outcomes = client.ledger_manager.read_many([LedgerId(scope_id, each) for each in numbers]) if numbers else []
    for number, outcome in zip(numbers, outcomes, strict=True):
        if isinstance(outcome, LedgerRecord):
            records.append(outcome)
        elif isinstance(outcome, NoSuchLedgerExistsOnMetadataServerException):
            gone.append(number)
        else:
            raise outcome
    return records, gone


def listing_ends(scope_id: int, wanted: Interval) -> tuple[int | None, int | None]:
    """The exclusive start and end of a listing that covers the wanted ids; None: no limit.

    Wanted ids are compared as signed numbers, but a listing is in unsigned order: 0, 1, …, then the negative ids from
    the least one. A wanted interval with ids of both signs is not contiguous in a listing, unless it contains all ids.
    """
    everything = Interval()
    first = max(0, wanted.first) if scope_id == 0 else wanted.first
    if first < 0 <= wanted.last:
        return None, None
    least, greatest = (everything.first, -1) if first < 0 else (0, everything.last)
    # The least negative id follows the greatest non-negative one.
    after = first - 1 if first > least else everything.last if first < 0 else None
    before = wanted.last + 1 if wanted.last < greatest else everything.first if first >= 0 and scope_id else None
    return after, before


def _ledgers_are_gone(ids: list[int], options: Options) -> None:
    named = ", ".join(str(LedgerId(options.scope_id, ledger_id)) for ledger_id in ids[:_NAMED_AT_MOST])
    more = f" and {len(ids) - _NAMED_AT_MOST} more" if len(ids) > _NAMED_AT_MOST else ""
    if options.fail_on_data_loss:
        raise NoSuchLedgerExistsOnMetadataServerException(
            f"ledgers of option ledgerIds that do not exist: {named}{more}; failOnDataLoss=false leaves them out"
        )
    context = {"lost_ledgers": str(len(ids))}
    _log.warning("left out %d ledgers that do not exist: %s%s", len(ids), named, more, extra={"context": context})


def readable_slices(client: BookKeeper, options: Options, bounds: Bounds = EVERYTHING) -> list[Slice]:
    """The slices to read, ordered by ledger id.

    Raises UnauthorizedAccessException and DigestMatchException before any request to a bookie.
    """
    whole, unfinished = list[Slice](), list[LedgerRecord]()
    shapes = TemplateTable(with_ledger_columns=options.include_ledger_metadata)
    passwords = Passwords(client, options)
    plain = PlainLedgers(options, bounds, lambda record: shapes.shape_of(passwords.opened(record)))
    for page in _committed(client, options, bounds, plain):
        for record in map(passwords.opened, (each for each in page if has_readable_end(each, options))):
            if record.metadata.is_closed:
                whole.append(shapes.slice_of(record))
            else:
                unfinished.append(record)
    whole += map(shapes.slice_of, _snapshots(client, unfinished, options))
    whole += plain.slices
    found = [part for each in whole if (part := wanted_part(each, options, bounds)) is not None]
    return sorted(found, key=lambda piece: piece.ledger_id)


def _snapshots(client: BookKeeper, records: Sequence[LedgerRecord], options: Options) -> list[LedgerRecord]:
    """Ledgers that are not closed, as far as they may be read now. One that was deleted since it was listed is as one
    that was deleted before.
    """

    def snapshot(record: LedgerRecord) -> LedgerRecord | None:
        try:
            return readable_snapshot(client, record, options)
        except NoSuchLedgerExistsOnMetadataServerException:
            return None

    with ThreadPoolExecutor(_OPENED_AT_ONCE) as pool:
        found = list(pool.map(snapshot, records))
    gone = [record.ledger_id.low for record, seen in zip(records, found, strict=True) if seen is None]
    if gone and options.ledger_ids is not None:
        _ledgers_are_gone(gone, options)
    return [seen for seen in found if seen is not None]


def _committed(
    client: BookKeeper, options: Options, bounds: Bounds, plain: PlainLedgers
) -> Iterator[list[LedgerRecord]]:
    """The selected records that are not plain, without uncommitted ledgers of sinks; see `spark.commit_protocol`."""
    if options.include_uncommitted:
        yield from selected_records(client, options, bounds, plain)
        return
    seen = Committed()
    for page in selected_records(client, options, bounds, plain):
        seen.show(page)
        leads, _ = read_records(client, options.scope_id, seen.unknown_leads(page))
        seen.show(leads)
        yield seen.take(page)
    for page in _not_taken(client, options, bounds, seen):
        yield _selected(seen.take_named(page), options, bounds)


def _not_taken(client: BookKeeper, options: Options, bounds: Bounds, seen: Committed) -> Iterator[list[LedgerRecord]]:
    """The ledgers that committed leads name and that the listing has not shown as committed."""
    scope_id, wanted = options.scope_id, wanted_range(options, bounds)
    selected: Iterable[int] | None = bounds.ledger_ids if options.ledger_ids is None else options.ledger_ids
    if selected is None and seen.count_not_taken(wanted.first, wanted.last) > MOST_NAMED:
        # Marks may name any ids, whoever made them; those that exist are as many as the listing had.
        after, before = listing_ends(scope_id, wanted)
        selected = chain.from_iterable(client.ledger_manager.ledger_ranges(scope_id, after, before))
    named = seen.not_taken(selected, wanted.first, wanted.last)
    for start in range(0, len(named), _ASKED_FOR_AT_ONCE):
        records, _ = read_records(client, scope_id, named[start : start + _ASKED_FOR_AT_ONCE])
        yield records


class Passwords:
    """Checks password and digest type of each ledger, with the client once for all ledgers with the same password."""

    def __init__(self, client: BookKeeper, options: Options) -> None:
        self._client = client
        self._options = options
        self._right: set[tuple[bytes | None, bytes]] = set()

    def opened(self, record: LedgerRecord) -> LedgerRecord:
        """The record as a task opens it. Raises UnauthorizedAccessException, DigestMatchException."""
        record = opened_with(self._check(record), self._options.password_of(record))
        check_digest_type(record, self._options.digest_type)
        return record

    def _check(self, record: LedgerRecord) -> LedgerRecord:
        """The record, with its password if the metadata withheld it. Raises UnauthorizedAccessException."""
        given = self._options.password_of(record)
        record = unlocked(record, given, self._client.config)
        stored = record.metadata.password
        if (stored, given) not in self._right:
            self._client.open_record(record, password=given).close()
            self._right.add((stored, given))
        return record


def readable_snapshot(client: BookKeeper, record: LedgerRecord, options: Options) -> LedgerRecord:
    """A ledger that is not closed, as far as it may be read now."""
    recover = options.read_mode is ReadMode.RECOVER
    with client.open_ledger(record.ledger_id, password=options.password_of(record), recovery=recover) as handle:
        last = handle.last_add_confirmed
        seen = opened_with(handle.record, options.password_of(record))
        if handle.is_closed or last < 0:
            return readable_record(seen)
        return readable_record(seen, last, length_at(handle.read(last, last)))


def length_at(entries: Iterator[Entry]) -> int:
    """The ledger's length in bytes as its last entry carries it; 0 if that can't be read, which is good enough to plan
    with.
    """
    try:
        return max((entry.ledger_length for entry in entries), default=0)
    except BKException:
        return 0
