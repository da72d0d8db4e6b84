"""Index files in one or several directories: slots and headers written by checkpoints, pages cached for readers.

A new file is created in a writable directory.

Pages are cached only as they are on disk: a checkpoint writes slots through and drops the pages concerned. A page is
therefore never dirty, and memory is bounded by the LRU alone. A page that a reader loaded during an update is not kept
(`_page_generation`), because it may be outdated. Until an update is complete readers find its entries in the write
cache.

The checkpoint thread updates; any thread reads. Index files are opened on demand and closed again, so the number of
open files is bounded by the number of reading threads plus a batch of updates.

The list of the files (`index_list`) proves that a file is missing or an older copy. Read-only users need no list.

Not its job: the contents of headers and the positions of slots (`file_format`), where files lie (`index_files`), what
of a file is durable (`seals`), when to update (`checkpoint`).
"""

from __future__ import annotations

import logging
import os
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from threading import Lock

from bookgate.bookie.index import file_format
from bookgate.bookie.index.file_format import PAGE_SIZE, IndexHeader, SlotRun
from bookgate.bookie.index.file_pages import last_entry_of, page_of, pages_of
from bookgate.bookie.index.index_files import IndexFiles
from bookgate.bookie.index.index_list import UNKNOWN, IndexLists
from bookgate.bookie.index.index_list_records import id_set
from bookgate.bookie.index.seals import Seals, has_lost
from bookgate.bookie.statistics import StoreStatistics
from bookgate.bookie.system.data_loss import LostDataException, OnLoss
from bookgate.bookie.system.files import FileSystem
from bookgate.ledger.ledger_id import NO_ENTRY, LedgerId
from bookgate.ledger.ledger_numbers import LedgerNumbers
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)

_MANY = 64
"""Files and directories from which on syncing the file system once is taken to be cheaper than syncing each."""
_SYNC_BATCH = 256
"""Index files that are written before the first of them is synced: the kernel writes them out together."""

MOST_LOST = 100
"""Files that may be missing without that a start is refused: more of them are not lost one by one."""

_PageKey = tuple[int, int]
"""Ledger number and page."""


class LedgerCache:
    """`directories` are those that hold the index (the `current` ones); `capacity` is in bytes of pages.

    `writable` gives those of the directories that may take a new file; when it gives none, all may.
    """

    def __init__(
        self,
        files: FileSystem,
        directories: Sequence[Path],
        capacity: int,
        writable: Callable[[], Sequence[Path]] | None = None,
        statistics: StoreStatistics | None = None,
        listed: IndexLists | None = None,
    ) -> None:
        self._files = files
        self._list = listed
        self._places = IndexFiles(files, directories)
        self._seals = Seals(files, listed)
        self._directories = self._places.directories
        self._writable = writable or (lambda: self._directories)
        self._statistics = statistics or StoreStatistics()
        self._max_pages = max(1, capacity // PAGE_SIZE)
        self._lock = Lock()
        self._pages: OrderedDict[_PageKey, bytes] = OrderedDict()
        self._page_generation = 0
        self._unsynced: list[int] = []
        self._guards: list[int] = []
        """A descriptor of each directory's file system, opened before the first change since the last sync."""
        self._closed_unsynced = False
        """Whether files were closed that only a sync of the file systems makes durable."""
        self._new_names: set[Path] = set()
        self.shows_unsynced = False
        """Whether files have changed since they and their names were last synced: the list says nothing of contents."""
        self._deleted: set[int] = set()
        """Ledgers whose cached pages are dropped with the next sync, all at once. Until then they count as not cached:
        the id may be used again.
        """
        self._left_is_written = False
        """Whether what an earlier process left unsynced has been written since this one began; see
        `_write_what_is_left`.
        """

    # Reading

    def read_header(self, ledger_id: LedgerId) -> tuple[IndexHeader | None, int] | None:
        """(header, highest entry id or -1); None when there is no index file.

        The header is None when it was never written; it says when entries are lost that were there. Raises
        StorageCorruptException when it can't be read.
        """
        # Asked first: a checkpoint writes the file, and then the list.
        generation = self._list.generation_of(ledger_id.number) if self._list is not None else None
        fd = self._places.open(ledger_id)
        if fd is None:
            return None
        try:
            name = str(file_format.relative_path(ledger_id))
            header = file_format.decode_header(self._files.pread(fd, file_format.HEADER_SIZE, 0), name)
            last_entry_id = last_entry_of(self._files, fd)
            if header is None and generation:
                raise file_format.corrupt(name, "has lost its header")
            if header is not None:
                lost = has_lost(header, last_entry_id, generation)
                header = header._replace(lost=lost, sealed_last_entry=NO_ENTRY, generation=UNKNOWN)
            return header, last_entry_id
        finally:
            self._files.close(fd)

    def find_lost(self, trusted: bool, on_loss: OnLoss) -> list[int]:
        """Ledgers on the list whose files are missing. Called once, before anything is changed; lists directories.

        Removes the files that no flush has completed, unless it raises.
        """
        if self._list is None:
            return []
        found = LedgerNumbers.of_parts(id_set(self.ledger_ids()), self.scoped_ledgers())
        lost: list[int] = []
        unfinished: list[int] = []
        listed = 0
        for each in self._list.parts:
            is_loaded = each.load()
            if trusted and (is_loaded or each.is_not_made):
                unfinished += self._without_header(each.own(found - each.numbers()))
            if not trusted or not is_loaded:
                each.begin_anew(each.own(found - LedgerNumbers(unfinished)))
                continue
            numbers = each.numbers()
            listed += len(numbers)
            lost += numbers - found
        if len(lost) > MOST_LOST:
            example = file_format.relative_path(LedgerId.of_number(lost[0]))
            on_loss(
                LostDataException(
                    f"of {listed} index files that {self._list.path} lists {len(lost)} are missing in "
                    f"{', '.join(map(str, self._directories))}, such as {example}"
                )
            )
        self._remove_unfinished(unfinished)
        return lost

    def _without_header(self, numbers: Sequence[int]) -> list[int]:
        """Those of the ledgers whose files have no header."""
        found: list[int] = []
        for number in numbers:
            fd = self._places.open(LedgerId.of_number(number))
            if fd is None:
                continue
            try:
                if file_format.is_blank(self._files.pread(fd, file_format.HEADER_SIZE, 0)):
                    found.append(number)
            finally:
                self._files.close(fd)
        return found

    def _remove_unfinished(self, numbers: Sequence[int]) -> None:
        """Removes files without header that are not on the list: they were never synced, so all that was acknowledged
        of their ledgers is in the journal. What was refused is not, and nothing else would ever give them a header.
        """
        for number in numbers:
            self.delete(LedgerId.of_number(number))
        if numbers:
            example = file_format.relative_path(LedgerId.of_number(numbers[0]))
            log_event(_log, "unfinished_index_files_removed", logging.WARNING, count=len(numbers), first=example)

    def forget(self, numbers: Collection[int]) -> dict[int, int]:
        """Removes these ledgers, whose files are missing or about to be deleted, from the list. Durable on return."""
        return self._list.remove(numbers) if self._list is not None else {}

    def put_back(self, forgotten: dict[int, int]) -> None:
        """Returns these ledgers to the list: their files stay after all. Durable after `sync`."""
        if self._list is not None:
            self._list.put_back(forgotten)

    def location(self, ledger_id: LedgerId, entry_id: int) -> int:
        """Location of the entry; 0 if it is not in the index."""
        page = self._page(ledger_id, entry_id // file_format.SLOTS_PER_PAGE)
        return file_format.location_in(page, entry_id) if page is not None else 0

    def locations_in_memory(self, ledger_id: LedgerId, first_entry_id: int, count: int) -> Sequence[int]:
        """The first of `locations`: those of the first page, if it is cached."""
        page = self._cached_page((ledger_id.number, first_entry_id // file_format.SLOTS_PER_PAGE))
        if page is None:
            return ()
        if count == 1:
            location = file_format.location_in(page, first_entry_id)
            return (location,) if location else ()
        slots = file_format.locations_in(page, first_entry_id, count)
        return slots[: slots.index(0)] if 0 in slots else slots

    def scattered_locations_in_memory(self, ledger_id: LedgerId, entry_ids: Sequence[int]) -> Sequence[int]:
        """`location` of entries in any order, ending before the first that is absent or whose page is not cached."""
        number, pages = ledger_id.number, self._pages
        found: list[int] = []
        if number in self._deleted:
            return found
        with self._lock:
            for entry_id in entry_ids:
                key = number, entry_id // file_format.SLOTS_PER_PAGE
                page = pages.get(key)
                location = 0 if page is None else file_format.location_in(page, entry_id)
                if not location:
                    break
                pages.move_to_end(key)
                found.append(location)
        self._statistics.index_hits += len(found)
        return found

    def locations(self, ledger_id: LedgerId, first_entry_id: int, count: int) -> list[int]:
        """`location` of up to `count` consecutive entries, ending before the first that is absent."""
        found: list[int] = []
        while len(found) < count:
            entry_id = first_entry_id + len(found)
            page = self._page(ledger_id, entry_id // file_format.SLOTS_PER_PAGE)
            slots = file_format.locations_in(page, entry_id, count - len(found)) if page is not None else ()
            held = slots.index(0) if 0 in slots else len(slots)
            found.extend(slots[:held])
            if held == 0 or held < len(slots):
                break
        return found

    def _page(self, ledger_id: LedgerId, number: int) -> bytes | None:
        """A page from the cache or its file; None when there is no file."""
        key = (ledger_id.number, number)
        generation = self._page_generation
        page = self._cached_page(key)
        if page is not None:
            return page
        started = time.monotonic()
        page = self._load_page(ledger_id, number)
        self._statistics.index_misses += 1
        self._statistics.read_page.success(time.monotonic() - started)
        if page is not None:
            self._keep(key, page, generation)
        return page

    def _cached_page(self, key: tuple[int, int]) -> bytes | None:
        with self._lock:
            page = self._pages.get(key)
            if page is None or key[0] in self._deleted:
                return None
            self._pages.move_to_end(key)
        self._statistics.index_hits += 1
        return page

    @property
    def cached_pages(self) -> int:
        """Number of pages in memory."""
        return len(self._pages)

    def entry_ids(self, ledger_id: LedgerId) -> Iterator[int]:
        """Ids of the entries in the index, ascending."""
        for number, page in self._pages_on_disk(ledger_id):
            base = number * file_format.SLOTS_PER_PAGE
            for slot in file_format.held_in(page):
                yield base + slot

    def log_ids(self, ledger_id: LedgerId) -> set[int]:
        """Ids of the entry logs that the ledger's slots point into."""
        found: set[int] = set()
        for _, page in self._pages_on_disk(ledger_id):
            found |= file_format.log_ids_in(page)
        return found

    def _pages_on_disk(self, ledger_id: LedgerId) -> Iterator[tuple[int, bytes]]:
        fd = self._places.open(ledger_id)
        if fd is None:
            return
        try:
            yield from pages_of(self._files, fd)
        finally:
            self._files.close(fd)

    def _load_page(self, ledger_id: LedgerId, number: int) -> bytes | None:
        fd = self._places.open(ledger_id)
        if fd is None:
            return None
        try:
            return page_of(self._files, fd, number)
        finally:
            self._files.close(fd)

    def _keep(self, key: _PageKey, page: bytes, generation: int) -> None:
        with self._lock:
            if generation != self._page_generation:
                return
            self._pages[key] = page
            if len(self._pages) > self._max_pages:
                self._pages.popitem(last=False)

    def ledger_ids(self) -> array[int]:
        """Ids of all ledgers of scope 0 that have an index file, ascending. Lists directories only."""
        return self._places.ledger_ids()

    def scoped_ledgers(self) -> list[int]:
        """Numbers of all ledgers with a scope that have an index file, ascending. Lists directories only."""
        return self._places.scoped_ledgers()

    def finish_relocations(self) -> None:
        """Completes moves of files between directories that another process left. Before anything is read."""
        self._places.finish_relocations()

    # Writing

    def update(self, ledger_id: LedgerId, header: IndexHeader | None, runs: Sequence[SlotRun]) -> None:
        """Writes slots, and the header if given, of one ledger. A new file needs its header. Durable after `sync`."""
        self._open_guards()
        self.shows_unsynced = True
        fd = self._open_to_write(ledger_id, has_header=header is not None)
        if fd is None:
            raise FileNotFoundError(f"ledger {ledger_id} has no index file in {self._directories}; it needs a header")
        self._unsynced.append(fd)
        try:
            self._write(fd, ledger_id, header, runs)
        except BaseException:
            # A full disk fails every repetition: none may leave another file open.
            self._close_batch(1 if self._guards else _SYNC_BATCH)
            raise
        self._close_batch(_SYNC_BATCH)

    def _write(self, fd: int, ledger_id: LedgerId, header: IndexHeader | None, runs: Sequence[SlotRun]) -> None:
        self._forget_pages(ledger_id, runs)
        deleted = [entry_id for run in runs if (entry_id := run.first_empty) is not None]
        written = self._seals.write(fd, ledger_id.number, header, min(deleted, default=None))
        for run in runs:
            self._files.pwrite(fd, run.data, file_format.slot_offset(run.first))
        if runs:
            whole = file_format.page_offset(file_format.page_count(file_format.slot_offset(runs[-1].end)))
            if self._files.size(fd) < whole:
                self._files.truncate(fd, whole)
        self._forget_pages(ledger_id, runs)
        if written is not None and not deleted:
            last = max([written.last_entry_id, *(run.end - 1 for run in runs)])
            self._seals.wrote(ledger_id.number, written, last)

    def _close_batch(self, least: int) -> None:
        """Closes the files that are not synced yet if there are so many; with guards, `sync` syncs them all the
        same.
        """
        if len(self._unsynced) < least:
            return
        if self._guards:
            self._closed_unsynced = True
            self._close_files()
        else:
            self._sync_files()

    def delete_below(self, ledger_id: LedgerId, entry_id: int) -> None:
        """Deletes the entries below an id, but never the ledger's last one, of which the seal tells. Durable after
        `sync`.
        """
        fd = self._places.open(ledger_id, os.O_RDWR)
        if fd is None:
            return
        self._unsynced.append(fd)
        self.shows_unsynced = True
        end = min(entry_id, last_entry_of(self._files, fd))
        if end <= 0:
            return
        self._files.clear(fd, file_format.slot_offset(0), file_format.slot_offset(end))
        self._forget_ledgers({ledger_id.number})

    def _open_guards(self) -> None:
        """All of them or none: what is written stands under the guard of every directory."""
        if self._guards or not self._files.syncs_file_systems:
            return
        try:
            for directory in self._directories:
                self._guards.append(self._files.open_file_system(directory))
        except BaseException:
            self._close_guards()
            raise

    def sync(self) -> None:
        """Makes all updates durable, names included: one by one, or where there are many, the file systems at once."""
        written = self._seals.take()
        many = len(self._unsynced) + len(self._new_names) >= _MANY
        if self._closed_unsynced or (many and self._guards):
            for guard in self._guards:
                self._files.sync_file_system(guard)
            self._close_files()
        else:
            self._sync_files()
            # From the top down: a directory's name counts only once its parent holds it.
            for directory in sorted(self._new_names, key=lambda path: (len(path.parts), path)):
                self._files.sync_directory(directory)
        self._new_names.clear()
        self._closed_unsynced = False
        self.shows_unsynced = False
        self._close_guards()
        if self._list is not None:
            self._list.sync()
        self._seals.synced(written)
        self._forget_ledgers(self._deleted)
        self._deleted.clear()

    def _forget_ledgers(self, ledgers: set[int]) -> None:
        """Drops the pages of ledgers: all at once, since there may be many ledgers and many pages."""
        if not ledgers:
            return
        with self._lock:
            self._page_generation += 1
            for key in [key for key in self._pages if key[0] in ledgers]:
                del self._pages[key]

    def read_back(self, ledger_ids: Sequence[LedgerId]) -> None:
        """From now on these ledgers are read as they are on disk, whatever memory contains. Syncs first."""
        self.sync()
        if not self._left_is_written:
            # Once is enough: what this process writes it syncs itself.
            self._write_what_is_left()
            self._left_is_written = True
        for ledger_id in ledger_ids:
            fd = self._places.open(ledger_id)
            if fd is None:
                continue
            try:
                if not self._files.syncs_file_systems:
                    self._files.fdatasync(fd)
                self._files.forget_cached(fd)
            finally:
                self._files.close(fd)
        self._forget_ledgers({ledger_id.number for ledger_id in ledger_ids})

    def _write_what_is_left(self) -> None:
        """Where a file system can't be synced as a whole, names alone: that a deleted ledger's file is gone, too."""
        if not self._files.syncs_file_systems:
            for directory in self._places.tree():
                self._files.sync_directory(directory)
            return
        for directory in self._directories:
            self._sync_file_system(directory)

    def _sync_file_system(self, directory: Path) -> None:
        fd = self._files.open_file_system(directory)
        try:
            self._files.sync_file_system(fd)
        finally:
            self._files.close(fd)

    def _sync_files(self) -> None:
        written = self._seals.take()
        while self._unsynced:
            fd = self._unsynced.pop()
            try:
                self._files.fdatasync(fd)
            finally:
                self._files.close(fd)
        self._seals.keep(written)

    def prepare_deletion(self) -> None:
        """Opens what a deletion needs before its first change."""
        self._open_guards()

    def delete(self, ledger_id: LedgerId) -> None:
        """Removes the ledger's file; there may be none. Durable after `sync`."""
        self.prepare_deletion()
        number = ledger_id.number
        self.forget([number])
        self._seals.forget(number)
        self._deleted.add(number)
        for path in self._places.paths(ledger_id):
            try:
                self._files.unlink(path)
            except FileNotFoundError:
                continue
            self._new_names.add(path.parent)

    def compact(self) -> None:
        """Does nothing: a deleted ledger's file is gone."""

    def close(self) -> None:
        """Closes files that a failed update left open."""
        self._close_files()
        self._close_guards()

    def _close_files(self) -> None:
        while self._unsynced:
            self._files.close(self._unsynced.pop())

    def _close_guards(self) -> None:
        while self._guards:
            self._files.close(self._guards.pop())

    def _forget_pages(self, ledger_id: LedgerId, runs: Sequence[SlotRun]) -> None:
        ledger = ledger_id.number
        with self._lock:
            self._page_generation += 1
            for run in runs:
                first = run.first // file_format.SLOTS_PER_PAGE
                last = (run.end - 1) // file_format.SLOTS_PER_PAGE
                for number in range(first, last + 1):
                    self._pages.pop((ledger, number), None)

    def _open_to_write(self, ledger_id: LedgerId, *, has_header: bool) -> int | None:
        """The file; a new one only for who has a header."""
        for directory, path in zip(self._directories, self._places.paths(ledger_id), strict=True):
            fd = self._places.open_path(path, os.O_RDWR)
            if fd is not None:
                # Synced even where it exists: an earlier process may have ended before it could.
                if has_header or not self._is_listed(ledger_id.number):
                    self._new_names.update(_levels(path, directory))
                return fd
        return self._create(ledger_id) if has_header else None

    def _is_listed(self, number: int) -> bool:
        """Whether the list has the ledger: then its file's name is durable."""
        return self._list is not None and self._list.generation_of(number) is not None

    def _create(self, ledger_id: LedgerId) -> int:
        places = self._writable() or self._directories
        directory = places[ledger_id.number % len(places)]
        path = directory / file_format.relative_path(ledger_id)
        *levels, _ = _levels(path, directory)
        self._new_names.update((*levels, directory))
        for level in reversed(levels):
            self._files.make_directory(level)
        return self._files.open(path, os.O_RDWR | os.O_CREAT)


def _levels(path: Path, directory: Path) -> list[Path]:
    """The directories above a file, from its own up to `directory`, which is the last."""
    found = [path.parent]
    while found[-1] != directory:
        found.append(found[-1].parent)
    return found
