"""Where index files lie: a file a ledger, in one of several directories, below levels named after its id.

`*.idx.rloc` is a file that was being moved to another directory: a start removes it if the ledger has a file, and
otherwise renames it to that file.

Not its job: making new files and their names durable (`file_index`), the names themselves (`file_format`).
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from pyroaring import BitMap64

from bookgate.bookie.index import file_format
from bookgate.bookie.system.files import FileSystem
from bookgate.ledger.ledger_id import LedgerId

_LISTING_CHUNK = 10_000
"""Ids copied at once where a listing is turned into an array: other threads run in between."""

_SCOPED_LEVELS = 3


class IndexFiles:
    """The index files below `directories`. Any thread."""

    def __init__(self, files: FileSystem, directories: Sequence[Path]) -> None:
        self._files = files
        self.directories = tuple(directories)

    def open(self, ledger_id: LedgerId, flags: int = os.O_RDONLY) -> int | None:
        """A descriptor of the ledger's file; None when it has none."""
        for path in self.paths(ledger_id):
            fd = self.open_path(path, flags)
            if fd is not None:
                return fd
        return None

    def open_path(self, path: Path, flags: int) -> int | None:
        """A descriptor of the file; None when there is none."""
        try:
            return self._files.open(path, flags)
        except FileNotFoundError:
            return None

    def paths(self, ledger_id: LedgerId) -> Iterator[Path]:
        """Where the ledger's file may lie, a path for each directory."""
        name = file_format.relative_path(ledger_id)
        return (directory / name for directory in self.directories)

    def ledger_ids(self) -> array[int]:
        """Ids of all ledgers of scope 0 that have an index file, ascending. Lists directories only."""
        found = BitMap64()
        for leaf in self._leaves():
            names = self._files.list_directory(leaf)
            found.update(number for name in names if (number := file_format.ledger_id_of(name)) is not None)
        ids = array("q")
        ascending = iter(found)
        while chunk := list(islice(ascending, _LISTING_CHUNK)):
            ids.extend(chunk)
        return ids

    def scoped_ledgers(self) -> list[int]:
        """Numbers of all ledgers with a scope that have an index file, ascending. Lists directories only."""
        found = (
            file_format.scoped_number_of(levels, name)
            for directory in self.directories
            for leaf, levels in self._scoped_levels(directory)
            if len(levels) == _SCOPED_LEVELS
            for name in self._files.list_directory(leaf)
        )
        return sorted(number for number in found if number is not None)

    def tree(self) -> Iterator[Path]:
        """Every directory that names index files, or other such directories."""
        for directory in self.directories:
            yield directory
            for upper in self._level(directory):
                yield upper
                yield from self._level(upper)
            yield from (path for path, _ in self._scoped_levels(directory))

    def _scoped_levels(self, directory: Path, above: tuple[str, ...] = ()) -> Iterator[tuple[Path, tuple[str, ...]]]:
        """The directories for scoped ledgers below, of every level, each with the names of its levels."""
        if len(above) == _SCOPED_LEVELS:
            return
        for name in filter(file_format.is_scoped_level_name, self._files.list_directory(directory)):
            levels = (*above, name)
            yield directory / name, levels
            yield from self._scoped_levels(directory / name, levels)

    def _leaves(self) -> Iterator[Path]:
        """The directories that hold index files of scope 0."""
        for directory in self.directories:
            for upper in self._level(directory):
                yield from self._level(upper)

    def _level(self, directory: Path) -> list[Path]:
        return [directory / name for name in self._files.list_directory(directory) if file_format.is_level_name(name)]

    def finish_relocations(self) -> None:
        """Completes moves of files between directories that another process left. Before anything is read."""
        for leaf in self._leaves():
            for name in self._files.list_directory(leaf):
                number = file_format.relocated_ledger_id_of(name)
                if number is None:
                    continue
                fd = self.open(LedgerId.unscoped(number))
                if fd is None:
                    self._files.rename(leaf / name, leaf / name.removesuffix(file_format.RELOCATION_SUFFIX))
                else:
                    self._files.close(fd)
                    self._files.unlink(leaf / name)
                self._files.sync_directory(leaf)
