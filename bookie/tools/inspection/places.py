"""Finds the files to examine from any path that a user gives: a file, `current`, its parent, or a data directory.

Users need not know what each of a bookie's directories contains; directories of Apache BookKeeper's bookie have the
same layout.
"""

from __future__ import annotations

import os
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from bookgate.bookie.disks.directories import CURRENT
from bookgate.bookie.entry_logs import format as entry_log_format
from bookgate.bookie.index import file_format
from bookgate.bookie.index.file_format import IndexHeader
from bookgate.bookie.index.file_index import LedgerCache
from bookgate.bookie.index.index_files import IndexFiles
from bookgate.bookie.index.rocksdb_index import RocksDbIndex
from bookgate.bookie.index.rocksdb_rows import LEDGERS, LOCATIONS, SCOPED_LEDGERS, SCOPED_LOCATIONS
from bookgate.bookie.journal import format as journal_format
from bookgate.bookie.journal.last_mark import LAST_MARK_FILE
from bookgate.bookie.system.files import FileSystem
from bookgate.ledger.ledger_id import MAX_UNSCOPED, LedgerId

LIBRARY_FILE = "rocksdict-config.json"
"""What the library writes beside a database that it opens, also to read it. Nothing of the index is in it."""

_PAGES = 4 << 20
_IdOf = Callable[[str], int | None]


class ReadOnlyFileSystem(FileSystem):
    """Opens files for reading and changes nothing."""

    def open(self, path: Path, flags: int) -> int:
        if flags != os.O_RDONLY:
            raise PermissionError(f"{path} is only looked at, not opened for writing")
        return super().open(path, flags)

    def pwrite(self, fd: int, data: bytes, offset: int) -> None:
        raise PermissionError("files are only looked at")

    def make_directory(self, path: Path) -> bool:
        raise PermissionError(f"{path} is only looked at")

    def unlink(self, path: Path) -> None:
        raise PermissionError(f"{path} is only looked at")

    def rename(self, path: Path, target: Path) -> None:
        raise PermissionError(f"{path} is only looked at")

    def sync_directory(self, path: Path) -> None:
        raise PermissionError(f"{path} is only looked at")


FILES = ReadOnlyFileSystem()


class NothingToInspectException(OSError):
    """The path has nothing of the requested kind; the message says what was searched for."""


@dataclass(frozen=True)
class Places:
    """A bookie's directories (the `current` ones), by their contents."""

    journals: tuple[Path, ...]
    logs: tuple[Path, ...]
    indexes: tuple[Path, ...]
    databases: tuple[Path, ...]
    """Directories with an index in RocksDB."""


def find(paths: Iterable[Path]) -> Places:
    """The contents of the directories. Raises NothingToInspectException for a path that is not a directory or has no
    such contents.
    """
    candidates: dict[Path, None] = {}
    for path in paths:
        if not path.is_dir():
            raise NothingToInspectException(f"{path} is no directory; give the bookie's directories")
        candidates.update(dict.fromkeys(_candidates(path)))
    found = Places(
        tuple(filter(_has_journals, candidates)),
        tuple(filter(_has_logs, candidates)),
        tuple(filter(_has_index_files, candidates)),
        tuple(path for path in candidates if (path / LOCATIONS).is_dir() and (path / LEDGERS).is_dir()),
    )
    if found == Places((), (), (), ()):
        raise NothingToInspectException(f"no journal, entry log or index in {', '.join(map(str, candidates))}")
    return found


def _candidates(path: Path) -> Iterator[Path]:
    yield path
    for pattern in (CURRENT, f"*/{CURRENT}"):
        yield from sorted(found for found in path.glob(pattern) if found.is_dir())


def journal_files(path: Path) -> list[Path]:
    """The file itself, or the journal files of a directory, oldest first."""
    return _files(path, journal_format.journal_id_of, "journal file (*.txn)")


def log_files(path: Path) -> list[Path]:
    """The file itself, or the entry logs of a directory, oldest first."""
    return _files(path, log_id_of, "entry log (*.log)")


def log_id_of(name: str) -> int | None:
    """The id in an entry log's name; None also for leftovers of a compaction."""
    log_id = entry_log_format.log_id_of(name)
    return log_id if log_id is not None and name == entry_log_format.file_name(log_id) else None


def _files(path: Path, id_of: _IdOf, what: str) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.exists():
        raise NothingToInspectException(f"{path} does not exist")
    found = [(number, file) for place in _candidates(path) for number, file in _numbered(place, id_of)]
    if not found:
        raise NothingToInspectException(f"{path} holds no {what}, nor do its directories named {CURRENT}")
    return [file for _, file in sorted(found)]


def _numbered(directory: Path, id_of: _IdOf) -> list[tuple[int, Path]]:
    return [(number, path) for path in directory.iterdir() if (number := id_of(path.name)) is not None]


def _has_journals(path: Path) -> bool:
    return any(_numbered(path, journal_format.journal_id_of))


def _has_logs(path: Path) -> bool:
    """Whether there are logs or will be: a start writes a mark before there is a log."""
    return any(_numbered(path, log_id_of)) or bool(marks([path]))


def _has_index_files(path: Path) -> bool:
    names = (entry.name for entry in path.iterdir() if entry.is_dir())
    return any(file_format.is_level_name(name) or file_format.is_scoped_level_name(name) for name in names)


def data_files(places: Places) -> Iterator[tuple[str, Path]]:
    """Every data file with its kind (`journal`, `log` or `index`), each kind in order."""
    for directory in places.journals:
        yield from (("journal", file) for _, file in sorted(_numbered(directory, journal_format.journal_id_of)))
    for directory in places.logs:
        yield from (("log", file) for _, file in sorted(_numbered(directory, log_id_of)))
    for directory in places.indexes:
        yield from (("index", file) for file in sorted(directory.rglob("*.idx")))
    for directory in places.databases:
        names = _databases_in(directory)
        yield from (
            ("index", file) for name in names for file in sorted((directory / name).iterdir()) if file.is_file()
        )


def _databases_in(directory: Path) -> list[str]:
    return [name for name in (LOCATIONS, LEDGERS, SCOPED_LOCATIONS, SCOPED_LEDGERS) if (directory / name).is_dir()]


def marks(paths: Sequence[Path]) -> list[Path]:
    """The lastMark files of the directories."""
    return [file for path in paths for file in sorted(path.glob(f"{LAST_MARK_FILE}*"))]


class ReadableIndex(Protocol):
    """The read-only part of a LedgerIndex."""

    def read_header(self, ledger_id: LedgerId) -> tuple[IndexHeader | None, int] | None: ...

    def location(self, ledger_id: LedgerId, entry_id: int) -> int: ...

    def entry_ids(self, ledger_id: LedgerId) -> Iterator[int]: ...

    def ledger_ids(self) -> array[int]: ...

    def scoped_ledgers(self) -> list[int]: ...

    def close(self) -> None: ...


class LinkedDatabase(RocksDbIndex):
    """An index in RocksDB, opened read-only through links elsewhere, because the library writes a file beside a
    database that it opens. That file is not linked: it would be written through the link.
    """

    def __init__(self, directory: Path) -> None:
        self._links = tempfile.TemporaryDirectory(prefix="bookgate-inspect-")
        for name in _databases_in(directory):
            linked = Path(self._links.name, name)
            linked.mkdir()
            for file in (file for file in (directory / name).iterdir() if file.name != LIBRARY_FILE):
                (linked / file.name).symlink_to(file.absolute())
        super().__init__(FILES, Path(self._links.name), _PAGES, read_only=True)

    def close(self) -> None:
        super().close()
        self._links.cleanup()


class _OneFile(IndexFiles):
    """One index file, in whatever place."""

    def __init__(self, path: Path, number: int) -> None:
        super().__init__(FILES, (path.parent,))
        self._path = path
        self._number = number

    def ledger_ids(self) -> array[int]:
        return array("q", [self._number] if self._number <= MAX_UNSCOPED else [])

    def scoped_ledgers(self) -> list[int]:
        return [self._number] if self._number > MAX_UNSCOPED else []

    def paths(self, ledger_id: LedgerId) -> Iterator[Path]:
        return iter((self._path,) if ledger_id == LedgerId.of_number(self._number) else ())


class SingleIndexFile(LedgerCache):
    """An index of one file, in any place. Raises NothingToInspectException if its name is not a ledger's."""

    def __init__(self, path: Path) -> None:
        levels = path.absolute().parent.parts[-3:]
        scoped = len(levels) == 3 and all(map(file_format.is_scoped_level_name, levels))
        number = file_format.scoped_number_of(levels, path.name) if scoped else file_format.ledger_id_of(path.name)
        if number is None:
            raise NothingToInspectException(f"{path} is no index file: those are named by the ledger's id, as 1f.idx")
        self.root = path.absolute().parents[3 if scoped else 2]
        """The directory in which the file's subdirectories begin."""
        super().__init__(FILES, (path.parent,), _PAGES)
        self._places = _OneFile(path, number)


class OpenIndex(NamedTuple):
    """An index, and the directories of the entry logs that it refers to."""

    entries: ReadableIndex
    logs: tuple[Path, ...]


def open_indexes(places: Places) -> list[OpenIndex]:
    """The indexes of a bookie: one for all its index files, and one per RocksDB."""
    indexes = [
        OpenIndex(LinkedDatabase(path), _logs_of_database(places, number))
        for number, path in enumerate(places.databases)
    ]
    if places.indexes:
        indexes.append(OpenIndex(LedgerCache(FILES, places.indexes, _PAGES), places.logs))
    return indexes


def _logs_of_database(places: Places, number: int) -> tuple[Path, ...]:
    """Each database has logs of its own, whose ids begin at 0 in each directory: those beside it, else by its
    number.
    """
    path = places.databases[number]
    if path in places.logs:
        return (path,)
    if len(places.logs) == len(places.databases):
        return (places.logs[number],)
    return places.logs
