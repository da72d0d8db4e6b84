"""The index files of one directory: slots and headers written by checkpoints, pages cached for readers.

Pages are cached only as they are on disk: a checkpoint writes slots through, and drops the pages it touched. So a page
is never dirty, and memory is bounded by the LRU alone. A reader that loaded a page while an update went on does not
leave it in the cache (`_generation`), for it may be the older one. Until an update is complete readers find its entries
in the write cache.

The checkpoint thread updates; any thread reads. Index files are opened where needed and closed again.

Not its job: what is in a header and where a slot stands (`index_file`), when to update (`checkpoint`).
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock

from bookie import index_file
from bookie.files import FileSystem
from bookie.index_file import PAGE_SIZE, IndexHeader, SlotRun
from ledger.ledger_id import NO_ENTRY, LedgerId

_SYNC_BATCH = 256
"""Index files that are written before the first of them is synced: the kernel writes them out together."""

_PageKey = tuple[int, int, int]


class LedgerCache:
    """`capacity` is in bytes of pages."""

    def __init__(self, files: FileSystem, directory: Path, capacity: int) -> None:
        self._files = files
        self._directory = directory
        self._max_pages = max(1, capacity // PAGE_SIZE)
        self._lock = Lock()
        self._pages: OrderedDict[_PageKey, bytes] = OrderedDict()
        self._generation = 0
        self._unsynced: list[int] = []
        self._new_names: set[Path] = set()

    # Reading

    def read_header(self, ledger_id: LedgerId) -> tuple[IndexHeader | None, int] | None:
        """(header, highest entry id or -1); None when there is no index file.

        The header is None when it was never written. Raises StorageCorruptException when it can't be read.
        """
        path = self._path(ledger_id)
        fd = self._open(path)
        if fd is None:
            return None
        try:
            header = index_file.decode_header(self._files.pread(fd, index_file.HEADER_SIZE, 0), str(path))
            return header, self._last_entry_id(fd)
        finally:
            self._files.close(fd)

    def location(self, ledger_id: LedgerId, entry_id: int) -> int:
        """Where the entry is, 0 when the index does not have it."""
        page_number, key = self._key(ledger_id, entry_id)
        with self._lock:
            page = self._pages.get(key)
            if page is not None:
                self._pages.move_to_end(key)
            generation = self._generation
        if page is None:
            page = self._load_page(ledger_id, page_number)
            if page is None:
                return 0
            self._keep(key, page, generation)
        return index_file.location_in(page, entry_id)

    def entry_ids(self, ledger_id: LedgerId) -> Iterator[int]:
        """Ids of the entries in the index, ascending; parts of the file that were never written are passed over."""
        fd = self._open(self._path(ledger_id))
        if fd is None:
            return
        try:
            next_page = 0
            for start, end in self._files.data_extents(fd, index_file.HEADER_SIZE):
                first = max(next_page, (start - index_file.HEADER_SIZE) // PAGE_SIZE)
                next_page = max(first, index_file.page_count(end))
                for number in range(first, next_page):
                    base = number * index_file.SLOTS_PER_PAGE
                    for slot in index_file.held_in(self._page_of(fd, number)):
                        yield base + slot
        finally:
            self._files.close(fd)

    def _last_entry_id(self, fd: int) -> int:
        for number in reversed(range(index_file.page_count(self._files.size(fd)))):
            held = index_file.held_in(self._page_of(fd, number))
            if held:
                return number * index_file.SLOTS_PER_PAGE + held[-1]
        return NO_ENTRY

    def _load_page(self, ledger_id: LedgerId, number: int) -> bytes | None:
        fd = self._open(self._path(ledger_id))
        if fd is None:
            return None
        try:
            return self._page_of(fd, number)
        finally:
            self._files.close(fd)

    def _page_of(self, fd: int, number: int) -> bytes:
        return index_file.whole_page(self._files.pread(fd, PAGE_SIZE, index_file.page_offset(number)))

    def _keep(self, key: _PageKey, page: bytes, generation: int) -> None:
        with self._lock:
            if generation != self._generation:
                return
            self._pages[key] = page
            if len(self._pages) > self._max_pages:
                self._pages.popitem(last=False)

    # Writing

    def update(self, ledger_id: LedgerId, header: IndexHeader | None, runs: Sequence[SlotRun]) -> None:
        """Writes slots, and the header if given, of one ledger. A new file needs its header. Durable after `sync`."""
        path = self._path(ledger_id)
        fd = self._files.open(path, os.O_RDWR) if header is None else self._open_or_create(path)
        self._unsynced.append(fd)
        self._forget_pages(ledger_id, runs)
        if header is not None:
            self._files.pwrite(fd, header.encode(), 0)
        for run in runs:
            self._files.pwrite(fd, run.data, index_file.slot_offset(run.first))
        if runs:
            whole = index_file.page_offset(index_file.page_count(index_file.slot_offset(runs[-1].end)))
            if self._files.size(fd) < whole:
                self._files.truncate(fd, whole)
        self._forget_pages(ledger_id, runs)
        if len(self._unsynced) >= _SYNC_BATCH:
            self._sync_files()

    def sync(self) -> None:
        """Makes all updates durable, names included."""
        self._sync_files()
        # From the top down: a directory's name counts only once its parent holds it.
        for directory in sorted(self._new_names, key=lambda path: len(path.parts)):
            self._files.sync_directory(directory)
        self._new_names.clear()

    def _sync_files(self) -> None:
        while self._unsynced:
            fd = self._unsynced.pop()
            try:
                self._files.fdatasync(fd)
            finally:
                self._files.close(fd)

    def close(self) -> None:
        """Lets go of files that an update which failed left open."""
        while self._unsynced:
            self._files.close(self._unsynced.pop())

    def _forget_pages(self, ledger_id: LedgerId, runs: Sequence[SlotRun]) -> None:
        with self._lock:
            self._generation += 1
            for run in runs:
                first = run.first // index_file.SLOTS_PER_PAGE
                last = (run.end - 1) // index_file.SLOTS_PER_PAGE
                for number in range(first, last + 1):
                    self._pages.pop((ledger_id.scope_id, ledger_id.ledger_id, number), None)

    def _open_or_create(self, path: Path) -> int:
        # Names are synced even where they exist: an earlier process may have been killed before it could.
        self._new_names.update((path.parent, path.parent.parent, self._directory))
        fd = self._open(path, os.O_RDWR)
        if fd is not None:
            return fd
        self._files.make_directory(path.parent.parent)
        self._files.make_directory(path.parent)
        return self._files.open(path, os.O_RDWR | os.O_CREAT)

    # Both

    def _open(self, path: Path, flags: int = os.O_RDONLY) -> int | None:
        try:
            return self._files.open(path, flags)
        except FileNotFoundError:
            return None

    def _path(self, ledger_id: LedgerId) -> Path:
        return self._directory / index_file.relative_path(ledger_id)

    @staticmethod
    def _key(ledger_id: LedgerId, entry_id: int) -> tuple[int, _PageKey]:
        number = entry_id // index_file.SLOTS_PER_PAGE
        return number, (ledger_id.scope_id, ledger_id.ledger_id, number)
