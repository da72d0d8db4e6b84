"""Writes headers of index files with their seals, which say what of a file is certain to be durable.

What files have is remembered of those that were written last, so that a checkpoint need not read these again. What an
update writes counts once it is synced (`take`, `synced`), and never if the sync fails.

Only the checkpoint thread. Not its job: slots, and syncing (`file_index`); where the seal stands (`file_format`); the
generations that prove a file to be the newest copy (`index_list`).
"""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from bookgate.bookie.index import file_format
from bookgate.bookie.index.file_format import IndexHeader
from bookgate.bookie.index.file_pages import last_entry_of
from bookgate.bookie.index.index_list import UNKNOWN, IndexLists
from bookgate.bookie.system.files import FileSystem, StorageCorruptException
from bookgate.ledger.ledger_id import NO_ENTRY

_MOST_REMEMBERED = 16_384
"""Files of which is remembered what they durably have: a checkpoint need not read these. Some 300 bytes each."""


class Content(NamedTuple):
    """What a file has."""

    header: bytes
    """At least up to its seal; zeros at the end may be missing."""
    last_entry_id: int
    durable_entry_id: int
    """Up to which entry that is durable for certain."""


class Seals:
    """See the module. `listed` is the list of the files; a directory that is only read has none."""

    def __init__(self, files: FileSystem, listed: IndexLists | None) -> None:
        self._files = files
        self._list = listed
        self._durable: dict[int, Content] = {}
        """By ledger, those written last at the end; none whose update is not complete."""
        self._written: dict[int, Content] = {}
        """What is durable after the next sync, if that succeeds."""

    def write(self, fd: int, number: int, header: IndexHeader | None, first_deleted: int | None) -> Content | None:
        """The header, as given or as found, with a seal of what is certain to be durable of the file.

        The one found is written as well: where a sync failed, memory shows a header that no disk has, and no later sync
        brings it there. Slots without it would be a damaged file.

        Whoever moves entries gives no header, and does not ask what the file has lost: of one that has lost something
        the seal stays, and tells. What this update deletes is not missed later.

        Returns what the file has once it is synced, but for new slots, where that is certain.
        """
        self._written.pop(number, None)
        found = self._durable.pop(number, None) or self._read(fd, number, needs_header=header is None)
        if found is None:
            return None
        last, data = found.durable_entry_id, found.header.ljust(file_format.HEADER_SIZE, b"\0")
        if first_deleted is not None:
            last = min(last, first_deleted - 1)
        generation = self._list.generation_for(number) if self._list is not None else UNKNOWN
        if header is not None:
            data = header.encode()
        data, is_sealed = file_format.sealed(data, last, generation)
        self._files.pwrite(fd, data, 0)
        if self._list is not None:
            self._list.updated(number, generation if is_sealed else UNKNOWN)
        return found._replace(header=data[: file_format.SEAL_AT].rstrip(b"\0")) if is_sealed else None

    def _read(self, fd: int, number: int, needs_header: bool) -> Content | None:
        """None for a file that has lost something, or has no header although one is needed."""
        data = self._files.pread(fd, file_format.HEADER_SIZE, 0)
        found, last = _readable(data, f"{number:x}"), last_entry_of(self._files, fd)
        listed = UNKNOWN
        if self._list is not None:
            listed = self._list.generation_of(number) or UNKNOWN
        if needs_header and (found is None or has_lost(found, last, listed)):
            return None
        durable = last
        if found is None or found.generation == UNKNOWN or found.generation != listed:
            # The update that wrote this was not completed: memory shows what the disk may not have.
            durable = min(last, found.sealed_last_entry if found is not None else NO_ENTRY)
        return Content(data, last, durable)

    def wrote(self, number: int, content: Content, last_entry_id: int) -> None:
        """The slots up to that entry are written as well: so much is durable after the next sync."""
        self._written[number] = Content(content.header, last_entry_id, durable_entry_id=last_entry_id)

    def take(self) -> dict[int, Content]:
        """What a sync that begins now makes durable: of one that fails nothing is certain."""
        written, self._written = self._written, {}
        return written

    def keep(self, written: dict[int, Content]) -> None:
        """What was taken counts after the next sync: only files were synced, not their names."""
        self._written = written

    def synced(self, written: dict[int, Content]) -> None:
        """What was taken is durable."""
        self._durable.update(written)
        for number in list(islice(self._durable, max(0, len(self._durable) - _MOST_REMEMBERED))):
            del self._durable[number]

    def forget(self, number: int) -> None:
        """The ledger's file is removed."""
        self._durable.pop(number, None)
        self._written.pop(number, None)


def has_lost(header: IndexHeader, last_entry_id: int, generation: int | None) -> bool:
    """Whether a file has less than its seal says, or is older than the list says."""
    return header.sealed_last_entry > last_entry_id or header.generation < (generation or UNKNOWN)


def _readable(data: bytes, name: str) -> IndexHeader | None:
    """The header in a file's first bytes, if it can be read."""
    try:
        return file_format.decode_header(data, name)
    except StorageCorruptException:
        return None
