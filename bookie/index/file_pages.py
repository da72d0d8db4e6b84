"""The pages of one open index file, as they are on disk.

Parts of a file that were never written are passed over, however large they are. Not its job: what a page contains
(`file_format`), keeping pages in memory (`file_index`).
"""

from __future__ import annotations

from collections.abc import Iterator

from bookgate.bookie.index import file_format
from bookgate.bookie.index.file_format import PAGE_SIZE
from bookgate.bookie.system.files import FileSystem
from bookgate.ledger.ledger_id import NO_ENTRY


def page_of(files: FileSystem, fd: int, number: int) -> bytes:
    """A page of the file; zeros where the file has none."""
    return file_format.whole_page(files.pread(fd, PAGE_SIZE, file_format.page_offset(number)))


def pages_of(files: FileSystem, fd: int) -> Iterator[tuple[int, bytes]]:
    """(number, page) of the pages that were written, ascending."""
    next_page = 0
    for start, end in files.data_extents(fd, file_format.HEADER_SIZE):
        first = max(next_page, (start - file_format.HEADER_SIZE) // PAGE_SIZE)
        next_page = max(first, file_format.page_count(end))
        for number in range(first, next_page):
            yield number, page_of(files, fd, number)


def last_entry_of(files: FileSystem, fd: int) -> int:
    """The highest entry in the file, or -1. Looked for from the end: mostly it is in the last page."""
    end = file_format.page_count(files.size(fd))
    found = _last_in(files, fd, max(0, end - 1), end)
    if found == NO_ENTRY and end > 1:
        for start, stop in reversed(list(files.data_extents(fd, file_format.HEADER_SIZE))):
            first = (start - file_format.HEADER_SIZE) // PAGE_SIZE
            found = _last_in(files, fd, first, min(end - 1, file_format.page_count(stop)))
            if found != NO_ENTRY:
                break
    return found


def _last_in(files: FileSystem, fd: int, first: int, end: int) -> int:
    """The highest entry in a range of pages, or -1."""
    for number in reversed(range(first, end)):
        last = file_format.last_held_in(page_of(files, fd, number))
        if last >= 0:
            return number * file_format.SLOTS_PER_PAGE + last
    return NO_ENTRY
