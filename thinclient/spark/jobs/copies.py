"""Reads every copy of a ledger's entries, bookie by bookie: the core of `audit`, without Spark.

To read one bookie alone, the reader uses a record that names only that bookie: the same pipelined and batched reads,
the same digest check, and no other replica to fall back on. A copy is good; *missing* (the bookie says it has no such
entry or ledger); *corrupt* (its digest is wrong, or the bookie can't read it from disk); or of *wrong length* (see
`core.copy_check`). The state of a copy is unknown if its bookie is *unreachable* (no response) or *busy* (it rejected
the read because of overload, also after pauses). A ledger that may not be read is *unauthorized*, as a whole.

A fault is reported only if a second check, with the ledger's newest metadata, confirms it: a ledger deleted meanwhile
has none, one whose ensemble changed is examined again. Before that the gateway catches up with the metadata store. The
last entries of an open ledger may still be on their way to a slow bookie, so they get a few seconds.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from bookgate.ledger.entry_columns import EntryColumns
from bookgate.ledger.errors import (
    BKException,
    BookieHandleNotAvailableException,
    DigestMatchException,
    NoSuchEntryException,
    NoSuchLedgerExistsException,
    NoSuchLedgerExistsOnMetadataServerException,
    ReadException,
    TimeoutException,
    TooManyRequestsException,
    UnauthorizedAccessException,
)
from bookgate.ledger.metadata import Fragment
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.thinclient.core.copy_check import LengthCheck, held_entries, held_ranges
from bookgate.thinclient.spark.options.read_options import DEFAULT_NUM_RETRIES
from bookgate.thinclient.spark.reading.planning import Slice, TemplateTable, readable_record
from bookgate.thinclient.spark.reading.slice_reads import FIRST_PAUSE_SECONDS
from bookgate.thinclient.spark.worker_client import catch_up
from bookgate.thinclient.tools.single_replica import record_on

if TYPE_CHECKING:
    from bookgate.thinclient.blocking.client import BookKeeper, ReadHandle

WINDOW = 16 * 1024
"""Entries whose lengths are compared together, and which are held in memory."""
MAX_RANGES = 1000
"""Maximum number of fault ranges that one task lists for one bookie; further faults are only counted."""
_PROBED_AT_ONCE = 64
_PROBE_THREADS = 16
_PAUSES = (0.0, 0.2, 1.0, 3.0)
"""Seconds before each further check. The first is immediate: time may have passed while other copies of the bookie were
awaited.
"""
_LOOKS = 3
"""How often a slice is started again because its ledger's metadata changed."""


_MISSING = (NoSuchEntryException, NoSuchLedgerExistsException)
_AWAY = (BookieHandleNotAvailableException, TimeoutException)
_CORRUPT = (DigestMatchException, ReadException)
"""A bookie that can't read an entry from its disk returns EIO, which is a ReadException."""


class Fault(Enum):
    """Why a copy is not known to be good."""

    MISSING = "missing"
    CORRUPT = "corrupt"
    WRONG_LENGTH = "wrong length"
    UNREACHABLE = "unreachable"
    BUSY = "busy"
    UNAUTHORIZED = "unauthorized"

    @property
    def column(self) -> str:
        """The column of the table that counts this fault."""
        return self.value.replace(" ", "_")


class FaultRange(NamedTuple):
    """Copies of consecutive entries (of those that the bookie should hold) with the same fault."""

    fault: Fault
    first_entry_id: int
    last_entry_id: int
    detail: str


@dataclass(frozen=True, slots=True)
class CopyReport:
    """The result for one bookie of one fragment, or, without either, for the ledger as a whole."""

    record: LedgerRecord
    fragment: Fragment | None
    bookie_id: str | None
    copies: int
    counts: Counter[Fault]
    ranges: Sequence[FaultRange]

    @property
    def good(self) -> int:
        return max(0, self.copies - self.counts.total())


def ledger_report(record: LedgerRecord, fault: Fault, detail: str) -> CopyReport:
    """The report of a fault that concerns the ledger, not a single copy."""
    return CopyReport(record, None, None, 0, Counter({fault: 1}), [FaultRange(fault, -1, -1, detail)])


def unauthorized_report(record: LedgerRecord, error: BKException) -> CopyReport:
    """The report of a ledger that could not be examined."""
    return ledger_report(record, Fault.UNAUTHORIZED, f"not checked: unauthorized: {error}")


class Patience:
    """Retries at an overloaded bookie, after pauses that double each time."""

    def __init__(self, retries: int, pause: Callable[[float], None]) -> None:
        self._retries = retries
        self._pause = pause
        self._failures = 0

    def once_more(self) -> bool:
        """Called after a rejection: waits and returns True, or returns False when the retries are used up."""
        if self._failures >= self._retries:
            return False
        self._pause(FIRST_PAUSE_SECONDS * 2**self._failures)
        self._failures += 1
        return True

    def answered(self) -> None:
        """The bookie was not busy: the retries start anew."""
        self._failures = 0

    def fresh(self) -> Patience:
        """An independent copy for one of several concurrent reads, with the retries that are left now."""
        other = Patience(self._retries, self._pause)
        other._failures = self._failures
        return other


def password_for(record: LedgerRecord, given: bytes) -> bytes:
    """The password in the metadata, or `given` if the metadata has none or withholds it."""
    metadata = record.metadata
    return given if metadata.password is None or metadata.password_check is not None else metadata.password


class CopyReader:
    """Reads slices of one task. A bookie that did not respond is not contacted again."""

    def __init__(
        self,
        client: BookKeeper,
        password: bytes,
        retries: int = DEFAULT_NUM_RETRIES,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """`password` is for ledgers whose metadata has none; `retries` for busy bookies. `pause` takes seconds."""
        self._client = client
        self._password = password
        self._retries = retries
        self._pause = pause
        self._away: dict[str, str] = {}
        self._patience: dict[str, Patience] = {}

    def check(self, piece: Slice, *, is_open: bool = False) -> list[CopyReport]:
        """The reports of one slice, one per bookie; none if the ledger was deleted meanwhile.

        `is_open`: the ledger was not closed when the slice was made.
        """
        try:
            return self._check(piece, is_open)
        except UnauthorizedAccessException as error:
            return [unauthorized_report(piece.record, error)]

    def _check(self, piece: Slice, is_open: bool) -> list[CopyReport]:
        reports = self._look(piece, is_open)
        for _ in range(_LOOKS):
            if not any(report.counts for report in reports):
                return reports
            try:
                catch_up(self._client)
                newest = self._client.read_record(piece.ledger_id)
            except NoSuchLedgerExistsOnMetadataServerException:
                return []
            moved = _by_newer_metadata(piece, newest)
            if moved is None:
                return reports
            piece = moved
            reports = self._look(piece, is_open)
        return reports

    def _look(self, piece: Slice, is_open: bool) -> list[CopyReport]:
        found: list[CopyReport] = []
        metadata = piece.record.metadata
        fragments = metadata.fragments
        for number, fragment in enumerate(fragments):
            end = fragments[number + 1].first_entry_id - 1 if number + 1 < len(fragments) else piece.last_entry_id
            first, last = max(piece.first_entry_id, fragment.first_entry_id), min(piece.last_entry_id, end)
            if first <= last:
                found += self._fragment(piece.record, fragment, first, last, is_open)
        return found

    def _fragment(
        self, record: LedgerRecord, fragment: Fragment, first: int, last: int, is_open: bool
    ) -> list[CopyReport]:
        being_written = is_open and fragment is record.metadata.last_fragment
        reports = [
            _Report(record, fragment, index, first, last, being_written) for index in range(len(fragment.ensemble))
        ]
        previous = self._length_before(record, first)
        for start in range(first, last + 1, WINDOW):
            stop = min(last, start + WINDOW - 1)
            check = LengthCheck(start, stop, previous)
            for report in reports:
                self._window(report, check, start, stop)
            wrong, previous = check.finish()
            by_bookie = {report.bookie_id: report for report in reports}
            for bookie_id, entry_id in wrong:
                by_bookie[bookie_id].add(Fault.WRONG_LENGTH, entry_id, entry_id, "its length field is not the sum")
        whole = [report.finish() for report in reports]
        metadata = record.metadata
        ends = last == metadata.last_entry_id and not is_open
        if ends and previous not in (None, metadata.length):
            detail = f"the metadata say {metadata.length} bytes, the entries {previous}"
            whole.append(ledger_report(record, Fault.WRONG_LENGTH, detail))
        return whole

    def _length_before(self, record: LedgerRecord, first: int) -> int | None:
        if first == 0:
            return 0
        try:
            with self._open(record) as handle:
                return next(iter(handle.read(first - 1, first - 1))).ledger_length
        except (BKException, StopIteration):
            return None

    def _window(self, report: _Report, check: LengthCheck, first: int, last: int) -> None:
        bookie_id = report.bookie_id
        with self._open(record_on(report.record, bookie_id)) as handle:
            for found in self._held(report, handle, first, last):
                for copy in self._settled(report, handle, found):
                    if isinstance(copy, FaultRange):
                        report.add(*copy)
                    else:
                        check.add(bookie_id, copy)

    def _held(self, report: _Report, handle: ReadHandle, first: int, last: int) -> Iterator[EntryColumns | FaultRange]:
        """The bookie's copies in the window; the runs of a striped ledger are read concurrently."""
        ranges = list(report.ranges_between(first, last))
        if len(ranges) == 1:
            yield from self._range(report.bookie_id, handle, *ranges[0])
            return
        with ThreadPoolExecutor(_PROBE_THREADS) as pool:
            for found in pool.map(lambda run: list(self._range(report.bookie_id, handle, *run)), ranges):
                yield from found

    def _settled(
        self, report: _Report, handle: ReadHandle, found: FaultRange | EntryColumns
    ) -> Sequence[FaultRange | EntryColumns]:
        """`found` itself or, if entries are missing that may still be on their way, the outcome after some seconds."""
        again: list[FaultRange | EntryColumns] = [found]
        if isinstance(found, EntryColumns) or found.fault is not Fault.MISSING or not report.is_being_written:
            return again
        for seconds in _PAUSES:
            if seconds:
                self._pause(seconds)
            patience = self._patience_with(report.bookie_id)
            again = list(_copies(handle, found.first_entry_id, found.last_entry_id, patience))
            if not any(isinstance(copy, FaultRange) for copy in again):
                return again
        report.is_being_written = False
        return again

    def _open(self, record: LedgerRecord) -> ReadHandle:
        return self._client.open_record(record, password=password_for(record, self._password))

    def _range(self, bookie_id: str, handle: ReadHandle, first: int, last: int) -> Iterator[EntryColumns | FaultRange]:
        if bookie_id in self._away:
            yield FaultRange(Fault.UNREACHABLE, first, last, self._away[bookie_id])
            return
        for found in _copies(handle, first, last, self._patience_with(bookie_id)):
            if isinstance(found, FaultRange) and found.fault is Fault.UNREACHABLE:
                self._away[bookie_id] = found.detail
            yield found

    def _patience_with(self, bookie_id: str) -> Patience:
        return self._patience.setdefault(bookie_id, Patience(self._retries, self._pause))


class _Report:
    """A mutable CopyReport."""

    def __init__(
        self, record: LedgerRecord, fragment: Fragment, index: int, first: int, last: int, is_being_written: bool
    ) -> None:
        metadata = record.metadata
        self.record = record
        self.bookie_id = fragment.ensemble[index]
        self.is_being_written = is_being_written
        self._fragment = fragment
        self._shape = metadata.ensemble_size, metadata.write_quorum_size, index
        self._copies = held_entries(*self._shape, first, last)
        self._counts: Counter[Fault] = Counter()
        self._ranges: list[FaultRange] = []

    def ranges_between(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        return held_ranges(*self._shape, first, last)

    def add(self, fault: Fault, first: int, last: int, detail: str) -> None:
        self._counts[fault] += held_entries(*self._shape, first, last)
        before = self._ranges[-1] if self._ranges else None
        if (
            before is not None
            and before.fault is fault
            and not held_entries(*self._shape, before.last_entry_id + 1, first - 1)
        ):
            self._ranges[-1] = before._replace(last_entry_id=last)
        elif len(self._ranges) < MAX_RANGES:
            self._ranges.append(FaultRange(fault, first, last, detail))

    def finish(self) -> CopyReport:
        return CopyReport(self.record, self._fragment, self.bookie_id, self._copies, self._counts, self._ranges)


def _by_newer_metadata(piece: Slice, newest: LedgerRecord) -> Slice | None:
    """The slice under the newest metadata; None if they name the same ensembles and the same end."""
    before = piece.record.metadata
    if newest.version <= piece.version:
        return None
    record = readable_record(newest, before.last_entry_id, before.length)
    now = record.metadata
    if (now.fragments, now.last_entry_id) == (before.fragments, before.last_entry_id):
        return None
    fresh = TemplateTable().slice_of(record)
    last = min(piece.last_entry_id, now.last_entry_id)
    return fresh._replace(first_entry_id=piece.first_entry_id, last_entry_id=last, size=piece.size)


def _copies(handle: ReadHandle, first: int, last: int, patience: Patience) -> Iterator[EntryColumns | FaultRange]:
    """The copies in a range that the handle's only bookie holds, in order, without payloads."""
    position = first
    while position <= last:
        try:
            for columns in handle.read_columns(position, last):
                patience.answered()
                yield _without_payload(columns)
                position = columns.first_entry_id + len(columns)  # not the sum: ids may have gaps
            return
        except BKException as failed:
            error = failed
        fault = _fault_of(error)
        if fault is Fault.BUSY and patience.once_more():
            continue
        if fault in (Fault.BUSY, Fault.UNREACHABLE) or isinstance(error, NoSuchLedgerExistsException):
            yield FaultRange(fault, position, last, str(error))
            return
        # A bookie that lost one entry may have lost many; each is read by itself, many concurrently.
        patience.answered()
        probed = range(position, min(last, position + _PROBED_AT_ONCE - 1) + 1)
        with ThreadPoolExecutor(_PROBE_THREADS) as pool:
            for copy in pool.map(lambda entry_id: _copy(handle, entry_id, patience.fresh()), probed):
                yield from copy
        position = probed.stop


def _copy(handle: ReadHandle, entry_id: int, patience: Patience) -> list[EntryColumns | FaultRange]:
    """Reads one copy; nothing is returned for a truncate entry that the bookie holds."""
    while True:
        try:
            return [_without_payload(columns) for columns in handle.read_columns(entry_id, entry_id)]
        except BKException as error:
            fault = _fault_of(error)
            if fault is Fault.BUSY and patience.once_more():
                continue
            return [FaultRange(fault, entry_id, entry_id, str(error))]


def _fault_of(error: BKException) -> Fault:
    """The fault of the copy that a read error stands for. Raises the error if it does not concern the copy."""
    if isinstance(error, _MISSING):
        return Fault.MISSING
    if isinstance(error, _AWAY):
        return Fault.UNREACHABLE
    if isinstance(error, TooManyRequestsException):
        return Fault.BUSY
    if isinstance(error, _CORRUPT):
        return Fault.CORRUPT
    raise error


def _without_payload(columns: EntryColumns) -> EntryColumns:
    return EntryColumns(
        columns.ledger_id, columns.first_entry_id, columns.last_adds_confirmed, columns.lengths, columns.sizes, ()
    )
