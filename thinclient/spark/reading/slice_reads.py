"""Reads the entries of slices from the bookies, in order, on an executor.

`task_entries` reads slices, small ones some ahead, and `slice_entries` reads one. The gateway is asked only when the
bookies in the slice fail, since the ledger may have moved meanwhile.

Data loss: an entry that no bookie of the newest metadata holds. It is an error that names ledger and range, or is
skipped and counted when `failOnDataLoss` is false. Every other entry comes once, whatever fails in between.

Not its job: which slices there are (`entries`).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bookgate.ledger.entry import Entry
from bookgate.ledger.entry_columns import EntryColumns
from bookgate.ledger.errors import (
    BKException,
    ClientClosedException,
    DigestMatchException,
    NoSuchEntryException,
    NoSuchLedgerExistsException,
    NoSuchLedgerExistsOnMetadataServerException,
    UnauthorizedAccessException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.thinclient.spark.options.read_options import Options
from bookgate.thinclient.spark.reading.planning import Slice, TemplateTable, readable_record

if TYPE_CHECKING:
    from bookgate.thinclient.blocking.client import BookKeeper

_log = logging.getLogger(__name__)

_SLICES_AT_ONCE = 8
_SMALL_BYTES = 1024 * 1024
_SMALL_ENTRIES = 1000
"""A slice that is no larger may be read ahead, and is then in memory as a whole."""
_LOST = (NoSuchEntryException, NoSuchLedgerExistsException)
_FINAL = (*_LOST, ClientClosedException, DigestMatchException, UnauthorizedAccessException)
"""What another try would not mend: every replica was asked already."""
FIRST_PAUSE_SECONDS = 0.2


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
        with client.open_record(piece.record, password=options.password_of(piece.record)) as handle:
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
    client.open_record(record, password=options.password_of(record)).close()
    fresh = TemplateTable(with_ledger_columns=options.include_ledger_metadata).slice_of(
        readable_record(record, piece.end, piece.length)
    )
    return fresh._replace(first_entry_id=piece.first_entry_id, last_entry_id=piece.last_entry_id, size=piece.size)


def _read(
    client: BookKeeper, piece: Slice, progress: _Progress, options: Options, losses: Losses
) -> Generator[Sequence[Entry], None, Slice | None]:
    """The entries that are next; returns the slice by newer metadata where the rest has to be read by those.

    To skip losses, a range that fails is halved until the lost entry stands alone. Bookies answer the same for what is
    lost and for what is no longer theirs: so nothing is skipped before the gateway has said that there are no newer
    metadata, or no ledger.
    """
    with client.open_record(piece.record, password=options.password_of(piece.record)) as handle:
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
