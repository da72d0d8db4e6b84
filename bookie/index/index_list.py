"""The list of index files: which ledgers have one, and the durable state of each (S8).

An index file that is missing, or an older copy of itself, does not show this by itself. Therefore every update of a
ledger's file leaves a number in the seal of its header (`file_format`), its *generation*, and once the file is durable
the list records the number, before the checkpoint's mark advances. A ledger is removed from the list, durably, before
its file is deleted. So at any time, also after a crash, a ledger on the list has a file, and the file's generation is
the list's or a later one. Anything else proves a loss.

The list is a file of frames: a tag, the number of records, a CRC-32 over them and the frame before, and records of two
integers, ledger id and generation. The first frame contains all ledgers, ascending, the following ones the changes
since; when these have become many the file is rewritten. Anything after an incomplete frame is a torn tail. Zeros are
no frame: space is allocated behind the last one, since a removal must not need any on a full disk.

The list counts only if this bookie ran last on the directories, which the seals of the last marks show (`last_mark`):
Apache BookKeeper's bookie does not know it. If it does not count, is missing, or has a damaged first frame, it is
rebuilt from the existing files. Without it nothing is lost but this proof.

Ledgers with a scope have a list of their own, which exists only if there are such ledgers; its records have three
integers, the scope first.

In memory it takes 16 bytes per ledger, plus the changes since the first frame. Any thread may call `generation_of`;
everything else belongs to the holder of the checkpoint lock. Not its job: finding the files (`file_index`), the
consequences (`storage`).
"""

from __future__ import annotations

import logging
import os
import struct
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableSequence, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from bookgate.bookie.index.index_list_records import Columns, Records, ScopedRecords, UnscopedRecords
from bookgate.bookie.system.files import FileSystem, is_no_space, write_beside
from bookgate.ledger.ledger_id import MAX_UNSCOPED
from bookgate.ledger.ledger_numbers import LedgerNumbers
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)

LIST_FILE = "bookie.index"
"""Beside `current` of the first ledger directory."""
SCOPED_LIST_FILE = "bookie.scoped-index"
"""The same for ledgers with a scope."""
UNKNOWN = 0
"""The generation of a file that has none: its header has no room for a seal, or another bookie wrote it."""

_REMOVED = -1
_TAG = b"BGLS"
_frame = struct.Struct(">4sqI")
_NOTHING: Mapping[int, int] = {}
_MANY_CHANGES = 65_536
"""Records behind the first frame from which on the file is written anew, if they are a quarter of all, too."""
_LEAST_RESERVED = 16_384
_RESERVED = 2 * _LEAST_RESERVED
"""Bytes allocated behind the last frame, and how few may be left of them: enough for a thousand removals, with which
entry logs become empty, and so free space.
"""


class _Listed(NamedTuple):
    """`numbers` and their `generations` as in the first frame; `changed` goes before them."""

    numbers: MutableSequence[int]
    generations: array[int]
    changed: dict[int, int]


class IndexList:
    """See the module. Methods raise OSError."""

    def __init__(self, files: FileSystem, path: Path, records: Records | None = None) -> None:
        self._files = files
        self.path = path
        self._records = records or UnscopedRecords()
        self._listed = _Listed(self._records.column(()), array("q"), {})
        self._pending: dict[int, int] = {}
        """What was updated since the last `sync`."""
        self._end = 0
        """Where the next frame begins; 0: the file is to be written anew."""
        self._crc = 0
        self._appended = 0
        self.generation = UNKNOWN + 1
        """That of the updates until the next `sync`."""

    # Reading

    def load(self) -> bool:
        """Reads the file. False when there is none, or its first frame is damaged."""
        content = self._content()
        if content is None:
            return False
        frames = self._frames(content)
        first = next(frames, None)
        if first is None:
            log_event(_log, "index_list_damaged", logging.ERROR, path=self.path, note="it is made anew")
            return False
        changed: dict[int, int] = {}
        for numbers, generations in frames:
            changed.update(zip(numbers, generations, strict=True))
            self._appended += len(numbers)
        self._listed = _Listed(*first, changed)
        # One more than a process that was killed may have used.
        self.generation = max(chain(first[1], changed.values()), default=UNKNOWN) + 2
        return True

    @property
    def is_not_made(self) -> bool:
        """Whether there is no file, as before the first ledger of a list that exists only where it is needed."""
        return self._records.only_where_needed and not self._files.exists(self.path)

    def _content(self) -> bytes | None:
        """As the disk has it: what a killed process left in memory only must not be built upon."""
        try:
            fd = self._files.open(self.path, os.O_RDWR)
        except FileNotFoundError:
            return None
        try:
            self._files.fdatasync(fd)
            self._files.forget_cached(fd)
            self._files.sync_directory(self.path.parent)
            return self._files.pread(fd, self._files.size(fd), 0)
        finally:
            self._files.close(fd)

    def _frames(self, content: bytes) -> Iterator[Columns]:
        while len(content) >= self._end + _frame.size:
            tag, count, crc = _frame.unpack_from(content, self._end)
            begin = self._end + _frame.size
            end = begin + count * self._records.size
            if tag != _TAG or count < 0 or end > len(content) or crc != zlib.crc32(content[begin:end], self._crc):
                return
            self._end, self._crc = end, crc
            yield self._records.decode(content[begin:end])

    def generation_of(self, number: int) -> int | None:
        """What the ledger's file has at least; None where it is not in the list."""
        numbers, generations, changed = self._listed
        found = changed.get(number)
        if found is None:
            index = bisect_left(numbers, number)
            found = generations[index] if index < len(numbers) and numbers[index] == number else _REMOVED
        return None if found == _REMOVED else found

    def numbers(self) -> LedgerNumbers:
        """Those of all ledgers in it."""
        numbers, _, changed = self._listed
        gone = LedgerNumbers(number for number, generation in changed.items() if generation == _REMOVED)
        return (self._records.set_of(numbers) | LedgerNumbers(changed)) - gone

    def own(self, numbers: LedgerNumbers) -> Sequence[int]:
        """Those of the numbers that belong here, ascending."""
        return self._records.own(numbers)

    # Writing

    def begin_anew(self, numbers: Sequence[int]) -> None:
        """These ledgers, ascending, have files, of whatever generations. Durable on return, or where there is space.

        An old list is gone in any case: from now on the last marks will say that this bookie was the last.
        """
        if self._files.exists(self.path):
            self._files.unlink(self.path)
            self._files.sync_directory(self.path.parent)
        self._listed = _Listed(self._records.column(numbers), array("q", bytes(8 * len(numbers))), {})
        self._end = self._appended = 0
        if not numbers and self._records.only_where_needed:
            return
        try:
            self._write_anew()
        except OSError as error:
            if not is_no_space(error):
                raise
            log_event(_log, "index_list_without_space", logging.WARNING, error=error, note="a checkpoint makes it")

    def updated(self, number: int, generation: int) -> None:
        """The ledger's file has this generation, not durably yet."""
        self._pending[number] = generation

    def sync(self) -> None:
        """All files that were updated are durable: they are in the list, durably on return."""
        if self._pending:
            self._append(self._pending)
            self._pending = {}
            self.generation += 1

    def remove(self, numbers: Iterable[int]) -> dict[int, int]:
        """These are not in the list any more, durably on return; then their files may go.

        Returns those that were in it, for `put_back`.
        """
        numbers = list(numbers)
        listed = {number: found for number in numbers if (found := self.generation_of(number)) is not None}
        if listed:
            self._append(dict.fromkeys(listed, _REMOVED))
        # A file of which a flush has written the beginning alone is not in the list yet, and must not get into it.
        pending = {number: self._pending.pop(number) for number in numbers if number in self._pending}
        return listed | pending

    def put_back(self, removed: dict[int, int]) -> None:
        """The files of these stay after all: they are in the list again from the next `sync` on."""
        self._pending = removed | self._pending

    def _framed(self, numbers: Collection[int], generations: Collection[int], previous: int) -> tuple[bytes, int]:
        """A frame, and its CRC."""
        body = self._records.encode(numbers, generations)
        crc = zlib.crc32(body, previous)
        return _frame.pack(_TAG, len(numbers), crc) + body, crc

    def _append(self, changes: dict[int, int]) -> None:
        if self._end == 0:
            self._write_anew(changes)
            return
        frame, crc = self._framed(changes.keys(), changes.values(), self._crc)
        fd = self._files.open(self.path, os.O_RDWR)
        try:
            self._reserve(fd, self._end + len(frame))
            self._files.pwrite(fd, frame, self._end)
            self._files.fdatasync(fd)
        finally:
            self._files.close(fd)
        self._end, self._crc = self._end + len(frame), crc
        self._listed.changed.update(changes)
        self._appended += len(changes)
        if self._appended > max(_MANY_CHANGES, len(self._listed.numbers) // 4):
            self._compact()

    def _reserve(self, fd: int, end: int) -> None:
        """Allocates space behind the end, so that a full disk does not keep ledgers from being deleted."""
        if self._files.size(fd) >= end + _LEAST_RESERVED:
            return
        try:
            self._files.allocate(fd, end + _RESERVED)
        except OSError as error:
            if not is_no_space(error):
                raise

    def _compact(self) -> None:
        try:
            self._write_anew()
        except OSError as error:
            if not is_no_space(error):
                raise
            log_event(_log, "index_list_without_space", logging.WARNING, error=error, note="it is tried again")

    def _write_anew(self, changes: Mapping[int, int] = _NOTHING) -> None:
        """Beside the old one first, so that one of them is whole at any time."""
        listed = _merged(self._listed, changes)
        frame, crc = self._framed(listed.numbers, listed.generations, 0)
        write_beside(self._files, self.path, frame + bytes(_RESERVED))
        # Until its name is durable either file may be the one that is left: then the next change writes it anew, too.
        self._end = 0
        self._files.sync_directory(self.path.parent)
        self._listed, self._end, self._crc, self._appended = listed, len(frame), crc, 0


class IndexLists:
    """The two lists of a bookie, each asked for the ledgers that belong into it."""

    def __init__(self, files: FileSystem, directory: Path) -> None:
        """`directory` is the parent of `current` of the first ledger directory."""
        self._unscoped = IndexList(files, directory / LIST_FILE)
        self._scoped = IndexList(files, directory / SCOPED_LIST_FILE, ScopedRecords())
        self.parts = (self._unscoped, self._scoped)

    @property
    def path(self) -> Path:
        """That of ledgers without a scope, for messages."""
        return self._unscoped.path

    def _of(self, number: int) -> IndexList:
        return self._unscoped if number <= MAX_UNSCOPED else self._scoped

    def generation_of(self, number: int) -> int | None:
        """What the ledger's file has at least; None where it is in no list."""
        return self._of(number).generation_of(number)

    def generation_for(self, number: int) -> int:
        """That of an update of the ledger until the next `sync`."""
        return self._of(number).generation

    def updated(self, number: int, generation: int) -> None:
        """The ledger's file has this generation, not durably yet."""
        self._of(number).updated(number, generation)

    def sync(self) -> None:
        """All files that were updated are durable."""
        self._unscoped.sync()
        self._scoped.sync()

    def remove(self, numbers: Iterable[int]) -> dict[int, int]:
        """As `IndexList.remove`."""
        wanted = list(numbers)
        if not wanted or max(wanted) <= MAX_UNSCOPED:
            return self._unscoped.remove(wanted)
        unscoped = self._unscoped.remove(number for number in wanted if number <= MAX_UNSCOPED)
        try:
            return unscoped | self._scoped.remove(number for number in wanted if number > MAX_UNSCOPED)
        except OSError:
            # Nobody will delete them.
            self._unscoped.put_back(unscoped)
            raise

    def put_back(self, removed: dict[int, int]) -> None:
        """As `IndexList.put_back`."""
        for each in self.parts:
            each.put_back({number: found for number, found in removed.items() if self._of(number) is each})


def _merged(listed: _Listed, changes: Mapping[int, int]) -> _Listed:
    """All of it in order, with nothing in `changed`. Runs between the changes are copied as wholes."""
    numbers: MutableSequence[int] = array("q") if isinstance(listed.numbers, array) else []
    generations = array("q")
    begin = 0
    for number, generation in sorted((listed.changed | dict(changes)).items()):
        at = bisect_left(listed.numbers, number, begin)
        numbers.extend(listed.numbers[begin:at])
        generations.extend(listed.generations[begin:at])
        begin = at + (at < len(listed.numbers) and listed.numbers[at] == number)
        if generation != _REMOVED:
            numbers.append(number)
            generations.append(generation)
    numbers.extend(listed.numbers[begin:])
    generations.extend(listed.generations[begin:])
    return _Listed(numbers, generations, {})
