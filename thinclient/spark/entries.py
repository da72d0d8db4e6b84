"""Reading ledgers for the Spark source, without Spark: which slices there are, and their entries in order.

On the driver `readable_slices` lists the ledgers once (or asks for those that are named by id, in bulk), keeps what the
options select, and finds out how far each may be read: a closed ledger to its end, an open one to its last add
confirmed, asked of the bookies without fencing, or, when the options say so, to where recovery closes it. On an
executor `task_entries` reads slices from the bookies, small ones some ahead, and `slice_entries` reads one; the gateway
is asked only when the bookies in the slice fail, since the ledger may have moved meanwhile.

Data loss: a ledger that was asked for and is gone, or an entry that no bookie of the newest metadata holds. It is an
error that names ledger and range, or is skipped and counted when `failOnDataLoss` is false.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger.entry import Entry
from ledger.entry_columns import EntryColumns
from ledger.errors import (
    BKException,
    ClientClosedException,
    DigestMatchException,
    NoSuchEntryException,
    NoSuchLedgerExistsException,
    NoSuchLedgerExistsOnMetadataServerException,
    UnauthorizedAccessException,
)
from ledger.ledger_id import LedgerId
from ledger.manager import LedgerRecord
from thinclient.spark.options import Options, ReadMode
from thinclient.spark.planning import (
    Shapes,
    Slice,
    check_digest_type,
    is_wanted,
    readable_record,
    wanted_part,
    wanted_range,
)
from thinclient.spark.pushdown import EVERYTHING, Bounds, Interval
from thinclient.spark.sink_protocol import Committed

if TYPE_CHECKING:
    from thinclient.blocking import BookKeeper

_log = logging.getLogger(__name__)

_OPENED_AT_ONCE = 16
_ASKED_FOR_AT_ONCE = 4096
_NAMED_AT_MOST = 10
_SLICES_AT_ONCE = 8
_SMALL_BYTES = 1024 * 1024
_SMALL_ENTRIES = 1000
"""A slice that is no larger may be read ahead, and is then in memory as a whole."""
_LOST = (NoSuchEntryException, NoSuchLedgerExistsException)
_FINAL = (*_LOST, ClientClosedException, DigestMatchException, UnauthorizedAccessException)
"""What another try would not mend: every replica was asked already."""
FIRST_PAUSE_SECONDS = 0.2


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
        if is_wanted(record, options) and bounds.takes_ledger(options.scope_id, record.ledger_id.ledger_id)
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
    shapes, passwords = Shapes(), Passwords(client, options)
    for page in _committed(client, options, bounds):
        for record in page:
            passwords.check(record)
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
    """The selected records without ledgers of sinks that are not committed; see `sink_protocol`."""
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
        self._given = options.password
        self._right: set[bytes | None] = set()

    def check(self, record: LedgerRecord) -> None:
        """Raises UnauthorizedAccessException."""
        stored = record.metadata.password
        if stored not in self._right:
            self._client.open_record(record, password=self._given).close()
            self._right.add(stored)


def readable_snapshot(client: BookKeeper, record: LedgerRecord, options: Options) -> LedgerRecord:
    """A ledger that is not closed, as far as it may be read now."""
    recover = options.read_mode is ReadMode.RECOVER
    with client.open_ledger(record.ledger_id, password=options.password, recovery=recover) as handle:
        last = handle.last_add_confirmed
        if handle.is_closed or last < 0:
            return readable_record(handle.record)
        return readable_record(handle.record, last, length_at(handle.read(last, last)))


def length_at(entries: Iterator[Entry]) -> int:
    """The ledger's length as its last entry tells it; 0 when it can't be read, for the plan needs no more than that."""
    try:
        return max((entry.length for entry in entries), default=0)
    except BKException:
        return 0


@dataclass(slots=True)
class Losses:
    """Entries of one task that were skipped. Told in the log, by range and in the end in sum.

    The log is the one place that a task has to say something other than rows. Each line carries numbers in its
    `context` (`ledger_id`, `first`, `last`; `lost_entries`), which Spark's `python_worker_logs()` has as columns.
    """

    entries: int = 0

    def skip(self, piece: Slice, first: int, last: int, error: BKException) -> None:
        """Counts entries as lost."""
        self.entries += last - first + 1
        context = {"ledger_id": str(piece.ledger_id), "first": str(first), "last": str(last)}
        _log.warning(
            "skipped entries %d to %d of ledger %s: %s",
            first,
            last,
            piece.ledger_id,
            error,
            extra={"context": context},
        )

    def report(self) -> None:
        """At the end of the task."""
        if self.entries:
            _log.warning(
                "%d entries were lost and skipped (failOnDataLoss is false)",
                self.entries,
                extra={"context": {"lost_entries": str(self.entries)}},
            )


def task_entries(
    client: BookKeeper, slices: Sequence[Slice], options: Options, losses: Losses
) -> Iterator[tuple[LedgerId, Sequence[Entry]]]:
    """The entries of slices, in the order of these, in columns with their ledger.

    Of small slices some are read ahead, side by side: what each costs is the way to its bookies. Where that fails the
    slice is read as any other, by `slice_entries`, once its turn has come.
    """
    ahead: deque[tuple[Slice, Future[list[EntryColumns] | None] | None]] = deque()
    pool = ThreadPoolExecutor(_SLICES_AT_ONCE)
    try:
        for piece in slices:
            is_small = piece.size <= _SMALL_BYTES and piece.entries <= _SMALL_ENTRIES
            reads_ahead = is_small and len(slices) > 1
            ahead.append((piece, pool.submit(_whole, client, piece, options) if reads_ahead else None))
            if len(ahead) > _SLICES_AT_ONCE:
                yield from _taken(client, *ahead.popleft(), options, losses)
        while ahead:
            yield from _taken(client, *ahead.popleft(), options, losses)
    finally:
        pool.shutdown(cancel_futures=True)


def _whole(client: BookKeeper, piece: Slice, options: Options) -> list[EntryColumns] | None:
    """All of a slice; None when it can't be had just so."""
    try:
        with client.open_record(piece.record, password=options.password) as handle:
            return list(handle.read_columns(piece.first_entry_id, piece.last_entry_id))
    except BKException:
        return None


def _taken(
    client: BookKeeper,
    piece: Slice,
    read: Future[list[EntryColumns] | None] | None,
    options: Options,
    losses: Losses,
) -> Iterator[tuple[LedgerId, Sequence[Entry]]]:
    """A slice whose turn has come; `read` is that ahead, if there was one."""
    batches = None if read is None else read.result()
    for batch in slice_entries(client, piece, options, losses) if batches is None else batches:
        yield piece.ledger_id, batch


def slice_entries(
    client: BookKeeper, piece: Slice, options: Options, losses: Losses, pause: Callable[[float], None] = time.sleep
) -> Iterator[Sequence[Entry]]:
    """The entries of a slice in order, in columns.

    What can't be read is tried again by newer metadata if there are any, else after a `pause` (in seconds, twice as
    long each time), `numRetries` times without an entry read in between.
    Raises the client's error, with ledger and range added to its message.
    """
    progress, failures, failed_at = _Progress(piece.first_entry_id), 0, -1
    while True:
        try:
            fresh = yield from _read(client, piece, progress, options, losses)
            if fresh is None:
                return
        except BKException as error:
            fresh = _moved(client, piece, options)
            if fresh is None:
                failures = failures + 1 if progress.next == failed_at else 1
                failed_at = progress.next
                if isinstance(error, _FINAL) or failures > options.num_retries:
                    raise _told(error, piece, progress.next) from error
                _log.warning("entries from %d of ledger %s: %s; tried again", failed_at, piece.ledger_id, error)
                pause(FIRST_PAUSE_SECONDS * 2 ** (failures - 1))
        piece = fresh or piece


@dataclass(slots=True)
class _Progress:
    """The next entry that was neither handed over nor skipped."""

    next: int

    def follow(self, batches: Iterable[Sequence[Entry]]) -> Iterator[Sequence[Entry]]:
        for batch in batches:
            self.next += len(batch)
            yield batch


def _told(error: BKException, piece: Slice, first: int) -> BKException:
    """The same error with ledger and range, and with the way out where there is one."""
    hint = "; failOnDataLoss=false skips what is lost" if isinstance(error, _LOST) else ""
    return type(error)(
        f"entries {first} to {piece.last_entry_id} of ledger {piece.ledger_id} can't be read: {error}{hint}"
    )


def _moved(client: BookKeeper, piece: Slice, options: Options) -> Slice | None:
    """The slice by newer metadata; None when there is none, the ledger is gone, or nobody can tell."""
    try:
        return _newer(client, piece, options)
    except BKException:
        return None


def _newer(client: BookKeeper, piece: Slice, options: Options) -> Slice | None:
    """The slice by newer metadata, if there are any. Raises NoSuchLedgerExistsOnMetadataServerException and others."""
    record = client.read_record(piece.ledger_id)
    if record.version <= piece.version:
        return None
    client.open_record(record, password=options.password).close()
    fresh = Shapes().slice_of(readable_record(record, piece.end, piece.length))
    return fresh._replace(first_entry_id=piece.first_entry_id, last_entry_id=piece.last_entry_id, size=piece.size)


def _read(
    client: BookKeeper, piece: Slice, progress: _Progress, options: Options, losses: Losses
) -> Generator[Sequence[Entry], None, Slice | None]:
    """The entries that are next; returns the slice by newer metadata where the rest has to be read by those.

    To skip losses, a range that fails is halved until the lost entry stands alone. Bookies answer the same for what is
    lost and for what is no longer theirs: so nothing is skipped before the gateway has said that there are no newer
    metadata, or no ledger.
    """
    with client.open_record(piece.record, password=options.password) as handle:
        ranges = [(progress.next, piece.last_entry_id)]
        has_asked = False
        while ranges:
            start, last = ranges.pop()
            try:
                yield from progress.follow(handle.read_columns(start, last))
            except _LOST as error:
                if options.fail_on_data_loss:
                    raise
                start = progress.next
                if start == last or not has_asked:
                    has_asked = True
                    try:
                        fresh = _newer(client, piece, options)
                    except NoSuchLedgerExistsOnMetadataServerException:
                        losses.skip(piece, start, piece.last_entry_id, error)
                        return None
                    if fresh is not None:
                        return fresh
                if start < last:
                    middle = (start + last) // 2
                    ranges += [(middle + 1, last), (start, middle)]
                else:
                    losses.skip(piece, start, last, error)
                    progress.next = last + 1
    return None
