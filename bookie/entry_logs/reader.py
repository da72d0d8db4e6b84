"""Reads single records of a store's entry logs by their location. Ledgers are identified by their number.

The records after an entry that a sequential reader requested are kept in memory (`read_ahead`). Descriptors are kept in
an LRU; one that is evicted, or whose log was removed, closes when its last reader releases it. Any thread may read.

Not its job: which copy of an entry counts (the index decides), scanning whole logs (`log_file`).
"""

from __future__ import annotations

import itertools
import operator
import os
import struct
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock

from bookgate.bookie.entry_logs import format as fmt
from bookgate.bookie.entry_logs.read_ahead import ReadAhead
from bookgate.bookie.entry_logs.record_run import RecordRun, run_of
from bookgate.bookie.statistics import StoreStatistics
from bookgate.bookie.system.files import FileSystem, StorageCorruptException
from bookgate.ledger.entry import is_scoped_packet, packet_ids
from bookgate.ledger.ledger_id import MAX_UNSCOPED, ledger_name

_FIRST_READ = 8192
_MOST_IN_MEMORY = 64 * 1024
"""Maximum bytes read at once on the event loop, which must not be blocked."""
_MAX_RUN = 4 << 20
"""Approximate maximum of bytes read at once for a run of entries."""

_NO_LIMIT = 1 << 62

_ids = struct.Struct(">qq")


class LogHandle:
    """A log open for reading; closed once it is no longer used."""

    __slots__ = ("_files", "fd", "path")

    def __init__(self, files: FileSystem, path: Path) -> None:
        self._files = files
        self.path = path
        self.fd = files.open(path, os.O_RDONLY)

    def __del__(self) -> None:
        fd = getattr(self, "fd", None)
        if fd is not None:
            self._files.close(fd)


class EntryLogReader:
    """Reads and validates records. `open_files` limits the descriptors kept; a log may be in any of `directories`."""

    def __init__(
        self,
        files: FileSystem,
        directories: Sequence[Path],
        open_files: int,
        read_ahead_bytes: int = 0,
        statistics: StoreStatistics | None = None,
    ) -> None:
        self.written_for_good: Callable[[int], int] = lambda log_id: _NO_LIMIT
        """The offset up to which a log is final and may be read ahead."""
        self._files = files
        self._directories = directories
        self._open_files = open_files
        self._handles: OrderedDict[int, LogHandle] = OrderedDict()
        self._forgotten = 0
        """Number of removed logs."""
        self._statistics = statistics or StoreStatistics()
        self._ahead = ReadAhead(read_ahead_bytes)
        self._lock = Lock()

    @property
    def read_ahead_usage(self) -> tuple[int, int]:
        """Number of entries kept for sequential readers, and the bytes of memory they use."""
        return self._ahead.usage

    def read(self, location: int, ledger_id: int, entry_id: int) -> bytes:
        """The packet at `location`. Raises StorageCorruptException if it belongs to another entry or is incomplete."""
        kept = self._kept(location, ledger_id, entry_id)
        if kept is not None:
            return kept
        self._statistics.read_ahead_misses += 1
        window = self._ahead.window(ledger_id, entry_id)
        log_id, offset = fmt.split_location(location)
        handle = self.handle(log_id)
        start = offset - 4
        size = max(_FIRST_READ, window)
        started = time.monotonic()
        data = self._files.pread(handle.fd, size, start) if start >= fmt.HEADER_SIZE else b""
        length = _check_record(handle, data, offset, ledger_id, entry_id)
        if length + 4 > len(data):
            data = self._read_rest(handle, data, start, length + 4)
            if length + 4 > len(data):
                raise _corrupt(handle, offset, ledger_id, entry_id, "is cut off by the end of the log")
        if window:
            self._keep_ahead(location, ledger_id, entry_id, data, window, started)
        return data[4 : 4 + length]

    def read_in_memory(self, locations: Sequence[int], ledger_id: int, first_entry_id: int) -> list[bytes]:
        """The packets of consecutive entries at `locations`, as many of the first as need no disk, perhaps none.

        Damage is left to `read`. Reads at most some 64 KiB, once. Never blocks.
        """
        starts = _leading_starts(locations, _MOST_IN_MEMORY) if len(locations) > 1 else ()
        if len(starts) > 1:
            runs = self._runs_in_memory(locations[0], starts, ledger_id, first_entry_id)
            if runs:
                return [packet for run in runs for packet in run.packets()]
        packet = self._packet_in_memory(locations[0], ledger_id, first_entry_id)
        return [] if packet is None else [packet]

    def _runs_in_memory(
        self, location: int, starts: Sequence[int], ledger_id: int, first_entry_id: int
    ) -> list[RecordRun]:
        log_id, offset = fmt.split_location(location)
        handle = self._handles.get(log_id)
        if handle is None or offset < fmt.HEADER_SIZE + 4:
            return []
        buffer = memoryview(bytearray(2 * starts[-1] - starts[-2] + 4))
        count = self._files.pread_in_memory(handle.fd, buffer, offset - 4)
        return _runs_in(bytes(buffer[:count]), starts, ledger_id, first_entry_id)

    def read_scattered_in_memory(
        self, locations: Sequence[int], ledger_id: int, entry_ids: Sequence[int]
    ) -> list[bytes]:
        """The packets of entries at `locations`, as many of the first as need no disk and are short, perhaps none.

        Nothing is read ahead. Damage is left to `read`. Reads at most some 64 KiB. Never blocks.
        """
        whole = memoryview(bytearray(_FIRST_READ))
        # Entries of a ledger are mostly alike: the size of those before is mostly enough.
        buffer = whole
        size = 0
        packets: list[bytes] = []
        total = 0
        for location, entry_id in zip(locations, entry_ids, strict=True):
            length, _ = self._record_in_memory(buffer, location, ledger_id, entry_id)
            if length + 4 > len(buffer) and buffer is not whole:
                length, _ = self._record_in_memory(whole, location, ledger_id, entry_id)
            if not 0 < length <= _FIRST_READ - 4:
                break
            if length + 4 > size:
                size = length + 4
                buffer = whole[:size]
            packets.append(whole[4 : 4 + length].tobytes())
            total += length
            if total >= _MOST_IN_MEMORY:
                break
        return packets

    def _record_in_memory(self, buffer: memoryview, location: int, ledger_id: int, entry_id: int) -> tuple[int, int]:
        """Reads the record of an entry, and what lies behind it, into `buffer`, as far as there is room.

        Returns:
            The length of the packet, 0 where the disk is needed or the record is not the entry's; and the bytes read.
        """
        log_id, offset = fmt.split_location(location)
        # No lock is needed: a log that is dropped meanwhile stays open as long as it is held here.
        handle = self._handles.get(log_id)
        start = offset - 4
        if handle is None or start < fmt.HEADER_SIZE:
            return 0, 0
        count = self._files.pread_in_memory(handle.fd, buffer, start)
        if count < fmt.RECORD_PREFIX_SIZE:
            return 0, 0
        length, its_ledger, its_entry = fmt.decode_prefix(buffer if count == len(buffer) else buffer[:count])
        if its_ledger != ledger_id or its_entry != entry_id or length < fmt.MIN_ENTRY_SIZE:
            return 0, 0
        return (length, count) if count >= 4 + length or count == len(buffer) else (0, 0)

    def _packet_in_memory(self, location: int, ledger_id: int, entry_id: int) -> bytes | None:
        """The result of `read` if that needs no disk, else None."""
        kept = self._kept(location, ledger_id, entry_id)
        if kept is not None:
            return kept
        window = min(self._ahead.window(ledger_id, entry_id), _MOST_IN_MEMORY)
        started = time.monotonic()
        buffer = memoryview(bytearray(max(_FIRST_READ, window)))
        length, count = self._record_in_memory(buffer, location, ledger_id, entry_id)
        if not 0 < length <= count - 4:
            return None
        self._statistics.read_ahead_misses += 1
        if window:
            self._keep_ahead(location, ledger_id, entry_id, bytes(buffer[:count]), window, started)
        return buffer[4 : 4 + length].tobytes()

    def _kept(self, location: int, ledger_id: int, entry_id: int) -> bytes | None:
        """The packet if it was read ahead."""
        kept = self._ahead.get(location)
        if kept is None or not _is_packet_of(kept, ledger_id, entry_id):
            return None
        self._statistics.read_ahead_hits += 1
        return kept

    def _keep_ahead(
        self, location: int, ledger_id: int, entry_id: int, data: bytes, window: int, started: float
    ) -> None:
        """Keeps the records after an entry that a sequential reader requested, up to the final part of the log."""
        log_id, offset = fmt.split_location(location)
        written = self.written_for_good(log_id) - offset + 4
        if written < fmt.decode_prefix(data)[0] + 4:
            return
        count = self._ahead.keep(location, ledger_id, entry_id, data[:written], window)
        self._statistics.read_ahead_entries.record_value(count)
        self._statistics.read_ahead_bytes.record_value(len(data))
        self._statistics.read_ahead_seconds += time.monotonic() - started

    def read_runs(
        self, locations: Sequence[int], ledger_id: int, first_entry_id: int, max_bytes: int
    ) -> list[RecordRun]:
        """Records of consecutive entries at `locations`, in a single read if the entries ascend in one log.

        Returns at least the first record, which is read as `read` does, and as many more as follow it in the same log
        within about `max_bytes`, are complete, and belong to the expected entries. Adjacent records form one run.
        """
        starts = _leading_starts(locations, min(max_bytes, _MAX_RUN))
        log_id, offset = fmt.split_location(locations[0])
        if len(starts) == 1 or offset < fmt.HEADER_SIZE + 4:
            return [run_of([self.read(locations[0], ledger_id, first_entry_id)])]
        handle = self.handle(log_id)
        data = self._files.pread(handle.fd, 2 * starts[-1] - starts[-2] + 4, offset - 4)
        runs = _runs_in(data, starts, ledger_id, first_entry_id)
        return runs or [run_of([self.read(locations[0], ledger_id, first_entry_id)])]

    def _read_rest(self, handle: LogHandle, data: bytes, start: int, size: int) -> bytes:
        if start + size > self._files.size(handle.fd):
            return b""
        return data + self._files.pread(handle.fd, size - len(data), start + len(data))

    def handle(self, log_id: int) -> LogHandle:
        """The log, open for reading. Raises StorageCorruptException when there is no such log."""
        with self._lock:
            handle = self._handles.get(log_id)
            if handle is not None:
                self._handles.move_to_end(log_id)
                return handle
            forgotten = self._forgotten
        handle = self._open(log_id)
        with self._lock:
            if forgotten != self._forgotten:
                # It may be the removed log: kept open, its space would not be released.
                return handle
            self._handles[log_id] = handle
            if len(self._handles) > self._open_files:
                self._handles.popitem(last=False)
        return handle

    def _open(self, log_id: int) -> LogHandle:
        name = fmt.file_name(log_id)
        for directory in self._directories:
            try:
                return LogHandle(self._files, directory / name)
            except FileNotFoundError:
                continue
        places = ", ".join(map(str, self._directories))
        raise StorageCorruptException(f"entry log {name} does not exist in {places}, but the index points into it")

    def forget(self, log_id: int) -> None:
        """Drops everything kept of a removed log."""
        with self._lock:
            self._forgotten += 1
            self._handles.pop(log_id, None)

    def close(self) -> None:
        with self._lock:
            self._handles.clear()


def _is_packet_of(packet: bytes, ledger_id: int, entry_id: int) -> bool:
    if ledger_id <= MAX_UNSCOPED:
        return packet.startswith(_ids.pack(ledger_id, entry_id))
    return is_scoped_packet(packet) and packet_ids(packet) == (ledger_id, entry_id)


def _leading_starts(locations: Sequence[int], max_bytes: int) -> list[int]:
    """Distances from the first location, for those that ascend in one log within `max_bytes`; at least the first."""
    first = locations[0]
    steps = list(map(operator.sub, itertools.islice(locations, 1, None), locations))
    if steps and min(steps) <= 0:
        steps = list(itertools.takewhile(lambda step: step > 0, steps))
    starts = list(itertools.accumulate(steps, initial=0))
    return starts[: max(1, bisect_right(starts, min(max_bytes, (first | 0xFFFFFFFF) - first)))]


def _runs_in(data: bytes, starts: Sequence[int], ledger_id: int, first_entry_id: int) -> list[RecordRun]:
    """The records of `data` that begin at `starts`, up to the first that is cut off or not the expected entry's.

    All lengths and ids are compared at once: a call per entry would cost more than everything else.
    """
    begun = bisect_right(starts, len(data) - fmt.RECORD_PREFIX_SIZE)
    if not begun:
        return []
    if ledger_id <= MAX_UNSCOPED:
        heads = list(fmt.decode_prefixes(data, starts[:begun]))
    else:
        heads = [fmt.decode_prefix(data[start : start + fmt.LONGEST_PREFIX_SIZE]) for start in starts[:begun]]
    lengths = map(operator.sub, starts[1:begun], map((4).__add__, starts))
    expected = list(zip(lengths, itertools.repeat(ledger_id), itertools.count(first_entry_id), strict=False))
    if heads[:-1] == expected:
        last_of_runs = [begun - 1]
    else:
        breaks = (index for index, (found, wanted) in enumerate(zip(heads, expected, strict=False)) if found != wanted)
        last_of_runs = [*dict.fromkeys((*breaks, begun - 1))]
    runs: list[RecordRun] = []
    first = 0
    for last in last_of_runs:
        length, *ids = heads[last]
        end = starts[last] + 4 + length
        is_good = ids == [ledger_id, first_entry_id + last] and length >= fmt.MIN_ENTRY_SIZE and end <= len(data)
        ends = [*starts[first + 1 : last + 1], *([end] if is_good else [])]
        if ends:
            begin = starts[first]
            relative = ends if begin == 0 else [each - begin for each in ends]
            runs.append(RecordRun(memoryview(data)[begin : ends[-1]], relative))
        if not is_good:
            break
        first = last + 1
    return runs


def _check_record(handle: LogHandle, data: bytes, offset: int, ledger_id: int, entry_id: int) -> int:
    """The length of the record at the beginning of `data`. Raises StorageCorruptException if it is not that entry's."""
    if len(data) < fmt.RECORD_PREFIX_SIZE:
        raise _corrupt(handle, offset, ledger_id, entry_id, "lies outside the log's records")
    length, *ids = fmt.decode_prefix(data)
    if ids != [ledger_id, entry_id] or length < fmt.MIN_ENTRY_SIZE:
        raise _corrupt(handle, offset, ledger_id, entry_id, f"has length {length} and ids {ids}")
    return length


def _corrupt(handle: LogHandle, offset: int, ledger_id: int, entry_id: int, what: str) -> StorageCorruptException:
    return StorageCorruptException(
        f"entry {entry_id} of ledger {ledger_name(ledger_id)}: the record at offset {offset} of {handle.path} {what}; "
        "the log or the index is damaged, other replicas of the entry are not affected"
    )
