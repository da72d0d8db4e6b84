"""Reads the entries of slices from the bookies, in order, on an executor.

`task_entries` reads slices, some small ones ahead of their turn, and `slice_entries` reads one. The gateway is asked
only when the bookies in the slice fail, since the ledger may have moved meanwhile.

Data loss is an entry that no bookie in the newest metadata holds. It is an error that names ledger and range, or, when
`failOnDataLoss` is false, skipped and counted. Every other entry is returned once, whatever fails in between.

Not its job: choosing the slices (`entries`).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bookgate.ledger.entry import Entry
from bookgate.ledger.entry_columns import EntryColumns
from bookgate.ledger.errors import (
    BKException,
    ClientClosedException,
    DigestMatchException,
    LedgerTrimmedException,
    NoSuchEntryException,
    NoSuchLedgerExistsException,
    NoSuchLedgerExistsOnMetadataServerException,
    UnauthorizedAccessException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.thinclient.spark.options.read_options import Options
from bookgate.thinclient.spark.reading.planning import Slice, TemplateTable, opened_with, readable_record
from bookgate.thinclient.spark.worker_client import catch_up

if TYPE_CHECKING:
    from bookgate.thinclient.blocking.client import BookKeeper, ReadHandle

_log = logging.getLogger(__name__)

_SLICES_AT_ONCE = 8
_SMALL_BYTES = 1024 * 1024
_SMALL_ENTRIES = 1000
"""Entries up to which a slice may be read ahead; it is then in memory as a whole."""
_MOST_AHEAD_BYTES = 4 * _SMALL_BYTES
"""Payload bytes after which such a slice is not read ahead after all: its size was an estimate by its metadata, which
may say anything.
"""
_LOST = (NoSuchEntryException, NoSuchLedgerExistsException)
_FINAL = (*_LOST, ClientClosedException, DigestMatchException, UnauthorizedAccessException)
"""Errors that a retry would not mend, because every replica was asked already."""
FIRST_PAUSE_SECONDS = 0.2


@dataclass(slots=True)
class Losses:
    """Counts the entries of one task that were skipped, and logs them: each range, and their sum at the end.

    The log is the only place where a task can report something other than rows. Each line carries numbers in its
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
        """Logs the sum, at the end of the task."""
        if self.entries:
            _log.warning(
                "%d entries were lost and skipped (failOnDataLoss is false)",
                self.entries,
                extra={"context": {"lost_entries": str(self.entries)}},
            )


def task_entries(
    client: BookKeeper, slices: Sequence[Slice], options: Options, losses: Losses
) -> Iterator[tuple[LedgerId, Sequence[Entry]]]:
    """The entries of slices, in their order, column-wise with their ledger.

    Some small slices are read ahead concurrently, because their cost is the round trips to their bookies. If reading
    ahead fails, the slice is read by `slice_entries` when its turn comes.
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
        # The collector may end an abandoned read on the thread of the client's event loop, for which its reads wait.
        pool.shutdown(wait=False, cancel_futures=True)


def _whole(client: BookKeeper, piece: Slice, options: Options) -> list[EntryColumns] | None:
    """All entries of a slice; None if they can't be read at the first try, or are too large for the memory together."""
    found, size = list[EntryColumns](), 0
    try:
        with client.open_record(piece.record, password=options.password_of(piece.record)) as handle:
            for columns in handle.read_columns(piece.first_entry_id, piece.last_entry_id):
                found.append(columns)
                size += sum(columns.sizes)
                if size > _MOST_AHEAD_BYTES:
                    return None
    except BKException:
        return None
    return found


def _taken(
    client: BookKeeper,
    piece: Slice,
    read: Future[list[EntryColumns] | None] | None,
    options: Options,
    losses: Losses,
) -> Iterator[tuple[LedgerId, Sequence[Entry]]]:
    """The entries of the slice whose turn it is; `read` is its read-ahead, if any."""
    batches = None if read is None else read.result()
    for batch in slice_entries(client, piece, options, losses) if batches is None else batches:
        yield piece.ledger_id, batch


def slice_entries(
    client: BookKeeper, piece: Slice, options: Options, losses: Losses, pause: Callable[[float], None] = time.sleep
) -> Iterator[Sequence[Entry]]:
    """The entries of a slice in order, column-wise.

    After a failure the read continues with newer metadata if there are any, else it is repeated after a pause, at most
    `numRetries` times without progress in between.

    Args:
        client: The client to read with.
        piece: The slice.
        options: The source's options.
        losses: Counts the entries that are skipped.
        pause: Called with seconds, which double each time.

    Raises:
        BKException: The client's error, with ledger and range added to its message.
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
                    raise _told(error, piece, progress.first_open) from error
                _log.warning("entries from %d of ledger %s: %s; tried again", failed_at, piece.ledger_id, error)
                pause(FIRST_PAUSE_SECONDS * 2 ** (failures - 1))
        if fresh is not None:
            piece = fresh
            progress.go_back()


@dataclass(slots=True)
class _Progress:
    """How far a slice is read. Entries that no bookie has are not lost before it is asked for newer metadata."""

    next: int
    """The entry to read next."""
    missing: tuple[int, BKException] | None = None
    """The first of the entries before `next` that no bookie has and of which no gateway was asked, and why it is not
    there.
    """

    @property
    def first_open(self) -> int:
        """The first entry that was neither returned nor skipped."""
        return self.next if self.missing is None else self.missing[0]

    def miss(self, last: int, error: BKException) -> None:
        """No bookie has the next entries, up to `last`."""
        self.missing = self.missing or (self.next, error)
        self.next = last + 1

    def go_back(self) -> None:
        """What is missing is to be read again."""
        self.next, self.missing = self.first_open, None


def _told(error: BKException, piece: Slice, first: int) -> BKException:
    """The same error with ledger and range added, and with a remedy where there is one."""
    hint = "; failOnDataLoss=false skips what is lost" if isinstance(error, _LOST) else ""
    what = f"entries {first} to {piece.last_entry_id} of ledger {piece.ledger_id} can't be read: {error}{hint}"
    if isinstance(error, LedgerTrimmedException):
        return LedgerTrimmedException(what, error.first_available)
    return type(error)(what)


def _moved(client: BookKeeper, piece: Slice, options: Options) -> Slice | None:
    """The slice with newer metadata; None if there are none, the ledger is gone, or the metadata can't be read."""
    try:
        return _newer(client, piece, options)
    except BKException:
        return None


def _newer(client: BookKeeper, piece: Slice, options: Options) -> Slice | None:
    """The slice with newer metadata, None if there are none. Raises NoSuchLedgerExistsOnMetadataServerException and
    others.
    """
    catch_up(client)
    record = client.read_record(piece.ledger_id)
    if record.version <= piece.version:
        return None
    password = options.password_of(piece.record)
    client.open_record(record, password=password).close()
    record = opened_with(record, password)
    fresh = TemplateTable(with_ledger_columns=options.include_ledger_metadata).slice_of(
        readable_record(record, piece.end, piece.length)
    )
    return fresh._replace(first_entry_id=piece.first_entry_id, last_entry_id=piece.last_entry_id, size=piece.size)


def _read(
    client: BookKeeper, piece: Slice, progress: _Progress, options: Options, losses: Losses
) -> Generator[Sequence[Entry], None, Slice | None]:
    """Yields the next entries; returns the slice with newer metadata if the rest must be read with these."""
    try:
        with client.open_record(piece.record, password=options.password_of(piece.record)) as handle:
            return (yield from _rest(client, handle, piece, progress, options, losses))
    except NoSuchLedgerExistsOnMetadataServerException as error:
        if options.fail_on_data_loss:
            raise
        losses.skip(piece, progress.first_open, piece.last_entry_id, error)
        return None


def _rest(
    client: BookKeeper, handle: ReadHandle, piece: Slice, progress: _Progress, options: Options, losses: Losses
) -> Generator[Sequence[Entry], None, Slice | None]:
    """As `_read`. Raises NoSuchLedgerExistsOnMetadataServerException if entries are missing and the ledger is gone.

    To skip losses, a range that fails is halved until the lost entry is isolated. A bookie's response is the same for a
    lost entry and for one that it no longer has to hold. So nothing is skipped before the gateway has confirmed that
    there are no newer metadata: once for entries that follow each other, however many they are.
    """
    ranges = [(progress.next, piece.last_entry_id)]
    has_asked = False
    while ranges:
        start, last = ranges.pop()
        if start > last:
            continue
        try:
            for batch in handle.read_columns(start, last):
                if (fresh := _settled(client, piece, progress, options, losses)) is not None:
                    return fresh
                # Ids have a gap where an unbounded ledger was taken over.
                progress.next = batch[-1].entry_id + 1
                yield batch
            if (fresh := _settled(client, piece, progress, options, losses)) is not None:
                return fresh
            progress.next = last + 1
        except _LOST as error:
            if options.fail_on_data_loss:
                raise
            if not has_asked:
                has_asked = True
                if (fresh := _newer(client, piece, options)) is not None:
                    return fresh
            start, end = progress.next, _end_of_loss(error, progress.next)
            if start < last and end == start:
                middle = (start + last) // 2
                ranges += [(middle + 1, last), (start, middle)]
            else:
                progress.miss(min(end, last), error)
                ranges.append((end + 1, last))
    return _settled(client, piece, progress, options, losses)


def _end_of_loss(error: BKException, first: int) -> int:
    """The last entry that an error about the entry `first` says to be lost; `first` for a single one."""
    return max(first, error.first_available - 1) if isinstance(error, LedgerTrimmedException) else first


def _settled(client: BookKeeper, piece: Slice, progress: _Progress, options: Options, losses: Losses) -> Slice | None:
    """Skips what no bookie has; nothing is skipped if there are newer metadata, which are returned."""
    if progress.missing is None:
        return None
    fresh = _newer(client, piece, options)
    if fresh is None:
        first, error = progress.missing
        losses.skip(piece, first, progress.next - 1, error)
        progress.missing = None
    return fresh
