"""The list of index files: which ledgers have one, and how far each had durably come (S8).

An index file that is gone, or an older copy of itself, is right in itself: only somebody else can tell. So every update
of a ledger's file leaves a number in the seal of its header (`file_format`), its *generation*, and once the file is
durable the list takes the number down, before the checkpoint's mark moves. A ledger leaves the list, durably, before
its file goes. So at any time, be there a crash: a ledger in the list has a file, and the file's generation is that of
the list or a later one. Anything else is proof of a loss.

The list is a file of frames: a tag, the number of records, a CRC-32 over them and the frame before, and records of two
integers, ledger id and generation. The first frame has all ledgers, ascending, the others what changed since; where
these have become many the file is written anew. What follows a frame that is not whole is a torn tail.

It counts only where this bookie was the last on the directories, which the seals of the last marks tell (`last_mark`):
Apache BookKeeper's bookie does not know it. Where it does not count, is missing, or its first frame is damaged, it is
made anew from the files there are. Without it nothing is lost but this proof.

In memory it takes 16 bytes a ledger, and what changed since the first frame. `generation_of` belongs to any thread, the
rest to whoever holds the checkpoint lock. Not its job: finding the files (`file_index`), what follows (`storage`).
"""

from __future__ import annotations

import logging
import os
import struct
import sys
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from pyroaring import BitMap64

from bookgate.bookie.system.files import FileSystem, is_no_space, write_beside
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)

LIST_FILE = "bookie.index"
"""Beside `current` of the first ledger directory."""
UNKNOWN = 0
"""The generation of a file that has none: its header has no room for a seal, or another bookie wrote it."""

_REMOVED = -1
_TAG = b"BGLS"
_frame = struct.Struct(">4sqI")
_RECORD_SIZE = 16
_NOTHING: Mapping[int, int] = {}
_MANY_CHANGES = 65_536
"""Records behind the first frame from which on the file is written anew, if they are a quarter of all, too."""


class _Listed(NamedTuple):
    """`numbers` and their `generations` as in the first frame; `changed` goes before them."""

    numbers: array[int]
    generations: array[int]
    changed: dict[int, int]


class IndexList:
    """See the module. Methods raise OSError."""

    def __init__(self, files: FileSystem, path: Path) -> None:
        self._files = files
        self.path = path
        self._listed = _Listed(array("q"), array("q"), {})
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
        for records in frames:
            changed.update(zip(records[::2], records[1::2], strict=True))
            self._appended += len(records) // 2
        self._listed = _Listed(first[::2], first[1::2], changed)
        # One more than a process that was killed may have used.
        self.generation = max(chain(first[1::2], changed.values()), default=UNKNOWN) + 2
        return True

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

    def _frames(self, content: bytes) -> Iterator[array[int]]:
        while len(content) >= self._end + _frame.size:
            tag, count, crc = _frame.unpack_from(content, self._end)
            begin = self._end + _frame.size
            end = begin + count * _RECORD_SIZE
            if tag != _TAG or count < 0 or end > len(content) or crc != zlib.crc32(content[begin:end], self._crc):
                return
            self._end, self._crc = end, crc
            records = array("q", content[begin:end])
            if sys.byteorder == "little":
                records.byteswap()
            yield records

    def generation_of(self, number: int) -> int | None:
        """What the ledger's file has at least; None where it is not in the list."""
        numbers, generations, changed = self._listed
        found = changed.get(number)
        if found is None:
            index = bisect_left(numbers, number)
            found = generations[index] if index < len(numbers) and numbers[index] == number else _REMOVED
        return None if found == _REMOVED else found

    def numbers(self) -> BitMap64:
        """Ids of all ledgers in it."""
        numbers, _, changed = self._listed
        gone = BitMap64([number for number, generation in changed.items() if generation == _REMOVED])
        return (id_set(numbers) | BitMap64(changed)) - gone

    # Writing

    def begin_anew(self, numbers: Sequence[int]) -> None:
        """These ledgers, ascending, have files, of whatever generations. Durable on return, or where there is space.

        An old list is gone in any case: from now on the last marks will say that this bookie was the last.
        """
        if self._files.exists(self.path):
            self._files.unlink(self.path)
            self._files.sync_directory(self.path.parent)
        self._listed = _Listed(array("q", numbers), array("q", bytes(8 * len(numbers))), {})
        self._end = self._appended = 0
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
        gone = {number: found for number in numbers if (found := self.generation_of(number)) is not None}
        for number in gone:
            self._pending.pop(number, None)
        if gone:
            self._append(dict.fromkeys(gone, _REMOVED))
        return gone

    def put_back(self, removed: dict[int, int]) -> None:
        """The files of these stay after all: they are in the list again from the next `sync` on."""
        self._pending = removed | self._pending

    def _append(self, changes: dict[int, int]) -> None:
        if self._end == 0:
            self._write_anew(changes)
            return
        frame, crc = _framed(array("q", chain.from_iterable(changes.items())), self._crc)
        fd = self._files.open(self.path, os.O_RDWR)
        try:
            self._files.pwrite(fd, frame, self._end)
            self._files.fdatasync(fd)
        finally:
            self._files.close(fd)
        self._end, self._crc = self._end + len(frame), crc
        self._listed.changed.update(changes)
        self._appended += len(changes)
        if self._appended > max(_MANY_CHANGES, len(self._listed.numbers) // 4):
            self._compact()

    def _compact(self) -> None:
        try:
            self._write_anew()
        except OSError as error:
            if not is_no_space(error):
                raise
            log_event(_log, "index_list_without_space", logging.WARNING, error=error, note="it stays as it is")

    def _write_anew(self, changes: Mapping[int, int] = _NOTHING) -> None:
        """Beside the old one first, so that one of them is whole at any time."""
        listed = _merged(self._listed, changes)
        records = array("q", bytes(2 * 8 * len(listed.numbers)))
        records[::2], records[1::2] = listed.numbers, listed.generations
        frame, crc = _framed(records, 0)
        write_beside(self._files, self.path, frame)
        self._files.sync_directory(self.path.parent)
        self._listed, self._end, self._crc, self._appended = listed, len(frame), crc, 0


def id_set(numbers: array[int]) -> BitMap64:
    """Of an array of ids of type code q; they are not looked at one by one."""
    return BitMap64(array("Q", numbers.tobytes()))


def _framed(records: array[int], previous: int) -> tuple[bytes, int]:
    """A frame, and its CRC."""
    count = len(records) // 2
    if sys.byteorder == "little":
        records.byteswap()
    body = records.tobytes()
    crc = zlib.crc32(body, previous)
    return _frame.pack(_TAG, count, crc) + body, crc


def _merged(listed: _Listed, changes: Mapping[int, int]) -> _Listed:
    """All of it in order, with nothing in `changed`. Runs between the changes are copied as wholes."""
    numbers, generations = array("q"), array("q")
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
