"""Which entries the Spark source reads, without Spark: the slices of ledgers that there are.

On the driver `readable_slices` lists the ledgers once (or asks for those that are named by id, in bulk), keeps what the
options select, and finds out how far each may be read: a closed ledger to its end, an open one to its last add
confirmed, asked of the bookies without fencing, or, when the options say so, to where recovery closes it.

A ledger that was asked for by its id and is gone is data loss: an error that names it, or left out with a warning when
`failOnDataLoss` is false.

Not its job: reading the entries (`slice_reads`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from bookgate.ledger.entry import Entry
from bookgate.ledger.errors import BKException, NoSuchLedgerExistsOnMetadataServerException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.thinclient.handles.context import unlocked
from bookgate.thinclient.spark.commit_protocol import Committed
from bookgate.thinclient.spark.options.read_options import Options, ReadMode
from bookgate.thinclient.spark.reading.planning import (
    Slice,
    TemplateTable,
    check_digest_type,
    is_wanted,
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


def selected_records(client: BookKeeper, options: Options, bounds: Bounds = EVERYTHING) -> Iterator[list[LedgerRecord]]:
    """The ledgers that the options select and the bounds leave, in pages, by id.

    Raises NoSuchLedgerExistsOnMetadataServerException for ids that were asked for and are gone (failOnDataLoss).
    """
    scope_id, wanted = options.scope_id, wanted_range(options, bounds)
    if wanted.first > wanted.last or scope_id not in bounds.scope_id:
        return
    if options.ledger_ids is not None:
        pages = _asked_for(client, options, bounds)
    else:
        after, before = listing_ends(scope_id, wanted)
        pages = client.list_ledgers(scope_id=scope_id, start_after=after, end_before=before)
    for page in pages:
        records = _selected(page, options, bounds)
        if records:
            yield records


def _selected(records: Iterable[LedgerRecord], options: Options, bounds: Bounds) -> list[LedgerRecord]:
    return [
        record
        for record in records
        if is_wanted(record, options) and bounds.takes_ledger(options.scope_id, record.ledger_id.low)
    ]


def _asked_for(client: BookKeeper, options: Options, bounds: Bounds) -> Iterator[list[LedgerRecord]]:
    """The ledgers of option ledgerIds."""
    scope_id, missing = options.scope_id, list[int]()
    numbers = [each for each in options.ledger_ids or () if bounds.takes_ledger(scope_id, each)]
    for start in range(0, len(numbers), _ASKED_FOR_AT_ONCE):
        records, gone = read_records(client, scope_id, numbers[start : start + _ASKED_FOR_AT_ONCE])
        missing += gone
        yield records
    if missing:
        _ledgers_are_gone(missing, options)


def read_records(client: BookKeeper, scope_id: int, numbers: Sequence[int]) -> tuple[list[LedgerRecord], list[int]]:
    """The records of ledgers of a scope, and those that don't exist. Raises what keeps others from being read."""
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
    """The id after which a listing begins and that before which it ends; None for all that the scope has.

    What is wanted compares ids with their sign, and a listing is in the order of their bits: 0, 1, …, then the negative
    ones from the least. Ids of both signs that are wanted together are not one run of it, unless they are all.
    """
    everything = Interval()
    first = max(0, wanted.first) if scope_id == 0 else wanted.first
    if first < 0 <= wanted.last:
        return None, None
    least, greatest = (everything.first, -1) if first < 0 else (0, everything.last)
    # The least negative id comes right after the greatest of the others.
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
    """What is to be read, ordered by ledger id.

    Raises UnauthorizedAccessException and DigestMatchException before any bookie is asked.
    """
    found, unfinished = list[Slice](), list[LedgerRecord]()
    shapes = TemplateTable(with_ledger_columns=options.include_ledger_metadata)
    passwords = Passwords(client, options)
    for page in _committed(client, options, bounds):
        for record in page:
            record = passwords.check(record)
            check_digest_type(record, options.digest_type)
            if record.metadata.is_closed:
                found += _wanted(shapes.slice_of(record), options, bounds)
            else:
                unfinished.append(record)
    with ThreadPoolExecutor(_OPENED_AT_ONCE) as pool:
        for snapshot in pool.map(lambda record: readable_snapshot(client, record, options), unfinished):
            found += _wanted(shapes.slice_of(snapshot), options, bounds)
    return sorted(found, key=lambda piece: piece.ledger_id)


def _committed(client: BookKeeper, options: Options, bounds: Bounds) -> Iterator[list[LedgerRecord]]:
    """The selected records without ledgers of sinks that are not committed; see `spark.commit_protocol`."""
    if options.include_uncommitted:
        yield from selected_records(client, options, bounds)
        return
    seen = Committed()
    for page in selected_records(client, options, bounds):
        seen.show(page)
        leads, _ = read_records(client, options.scope_id, seen.unknown_leads(page))
        seen.show(leads)
        yield seen.take(page)
    listed = wanted_range(options, bounds)
    records, _ = read_records(client, options.scope_id, [each for each in seen.not_taken() if each in listed])
    yield _selected(records, options, bounds)


def _wanted(whole: Slice, options: Options, bounds: Bounds) -> tuple[Slice, ...]:
    part = wanted_part(whole, options, bounds)
    return () if part is None else (part,)


class Passwords:
    """Has the client look at the password of each ledger, once for all ledgers with the same one."""

    def __init__(self, client: BookKeeper, options: Options) -> None:
        self._client = client
        self._options = options
        self._right: set[tuple[bytes | None, bytes]] = set()

    def check(self, record: LedgerRecord) -> LedgerRecord:
        """The record with its password, where that was withheld. Raises UnauthorizedAccessException."""
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
        if handle.is_closed or last < 0:
            return readable_record(handle.record)
        return readable_record(handle.record, last, length_at(handle.read(last, last)))


def length_at(entries: Iterator[Entry]) -> int:
    """The ledger's length as its last entry tells it; 0 when it can't be read, for the plan needs no more than that."""
    try:
        return max((entry.ledger_length for entry in entries), default=0)
    except BKException:
        return 0
