"""What the main job reads: which files of a directory are text, the ledger each belongs to, and a plain count of them.

Each package (directory) and each file at the top of the input becomes one ledger, its files in path order, one entry
a line without its newline. Left out: `__pycache__`, directories already read by another path (so that a loop of links
ends), and, counted, files with a NUL byte in their first 8 KiB and whatever can't be read. Only regular files are
opened: a pipe or a device would hang.

The plain count at the end is the yardstick for the Spark job and shares no code with it. A word is what
`bytes.split()` takes for one.
"""

from __future__ import annotations

import os
import stat
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_PROBE_BYTES = 8 * 1024
_BLOCK_BYTES = 16 * 1024 * 1024
_NEVER = frozenset({"__pycache__"})


class InputError(Exception):
    """The input can't be used; the message says what to do."""


def shown(path: str | Path) -> str:
    """A file name as text that can be printed, whatever bytes it has."""
    return os.fsencode(path).decode(errors="backslashreplace")


@dataclass(frozen=True, slots=True)
class Rules:
    """Which files count: names that end in `suffix`, outside directories called one of `excluded`."""

    suffix: str = ""
    excluded: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class TextSource:
    """The files of one ledger. `name` is the top-level name in the input directory."""

    name: str
    files: tuple[Path, ...]

    @property
    def encoded_name(self) -> bytes:
        """The name as the file system has it."""
        return os.fsencode(self.name)


@dataclass(frozen=True, slots=True)
class Selection:
    """What was found in a directory. `size` is in bytes and may change until the files are read."""

    root: Path
    sources: tuple[TextSource, ...]
    size: int
    binary: int
    unreadable: int

    @property
    def files(self) -> int:
        return sum(len(source.files) for source in self.sources)


def standard_library() -> tuple[Path, Rules]:
    """The running Python's own sources."""
    rules = Rules(suffix=".py", excluded=frozenset({"site-packages", "dist-packages"}))
    return Path(sysconfig.get_path("stdlib")), rules


def select_text(root: Path, rules: Rules | None = None) -> Selection:
    """Looks through a directory. Raises InputError when it is none, or holds no text."""
    if not root.exists():
        raise InputError(f"input {shown(root)} does not exist; give a directory with text files")
    if not root.is_dir():
        raise InputError(f"input {shown(root)} is not a directory; give the directory that holds it")
    selection = _Walk(rules or Rules()).select(root)
    if not selection.sources:
        left_out = f" ({selection.binary} binary and {selection.unreadable} unreadable left out)"
        raise InputError(
            f"input {root} holds no text files{left_out if selection.binary + selection.unreadable else ''}"
        )
    return selection


@dataclass(slots=True)
class _Walk:
    """One look through a directory tree, with what it counted."""

    rules: Rules
    size: int = 0
    binary: int = 0
    unreadable: int = 0
    _seen: set[tuple[int, int]] = field(default_factory=set)

    def select(self, root: Path) -> Selection:
        self._enter(root)
        sources = []
        for path in self._children(root):
            files = tuple(self._files(path))
            if files:
                sources.append(TextSource(path.name, files))
        return Selection(root, tuple(sources), self.size, self.binary, self.unreadable)

    def _files(self, top: Path) -> Iterator[Path]:
        """Text files at or below a path, in order; the stack stands in for recursion, since trees may be deep."""
        stack = [top]
        while stack:
            path = stack.pop()
            try:
                status = path.stat()
            except OSError:
                self.unreadable += 1
                continue
            if stat.S_ISDIR(status.st_mode):
                if self._may_enter(path):
                    stack.extend(reversed(self._children(path)))
            elif path.name.endswith(self.rules.suffix) and self._is_text(path, status):
                self.size += status.st_size
                yield path

    def _may_enter(self, path: Path) -> bool:
        return path.name not in _NEVER and path.name not in self.rules.excluded and self._enter(path)

    def _enter(self, path: Path) -> bool:
        """False for a directory that was read already, by whatever path."""
        status = path.stat()
        identity = (status.st_dev, status.st_ino)
        if identity in self._seen:
            return False
        self._seen.add(identity)
        return True

    def _children(self, path: Path) -> list[Path]:
        try:
            return sorted(path.iterdir())
        except OSError:
            self.unreadable += 1
            return []

    def _is_text(self, path: Path, status: os.stat_result) -> bool:
        if not stat.S_ISREG(status.st_mode):
            self.unreadable += 1
            return False
        try:
            with path.open("rb") as file:
                probe = file.read(_PROBE_BYTES)
        except OSError:
            self.unreadable += 1
            return False
        if b"\0" in probe:
            self.binary += 1
            return False
        return True


def lines_of(source: TextSource, max_line: int) -> Iterator[bytes]:
    """The entries of a ledger. Raises InputError for a line over `max_line` bytes, naming file and line."""
    for path in source.files:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(max_line + 2):
                number += 1
                if line.endswith(b"\n"):
                    line = line[:-1]
                if len(line) > max_line:
                    raise InputError(
                        f"{shown(path)}, line {number}: longer than {max_line} bytes, the limit of an entry; "
                        "break the line or leave the file out"
                    )
                yield line


@dataclass(frozen=True, slots=True)
class TextStatistics:
    """The figures of one ledger. Bytes are those of the lines without newlines."""

    entries: int = 0
    bytes: int = 0
    distinct_words: int = 0
    longest_line: int = 0


def plain_statistics(source: TextSource) -> TextStatistics:
    """Counts files by reading them, without ledgers or Spark."""
    entries = size = longest = 0
    words: set[bytes] = set()
    for path in source.files:
        with path.open("rb") as file:
            while block := file.readlines(_BLOCK_BYTES):
                text = b"".join(block)
                terminated = text.count(b"\n")
                entries += len(block)
                size += len(text) - terminated
                words.update(text.split())
                longest = max(longest, max(len(line.removesuffix(b"\n")) for line in block))
    return TextStatistics(entries, size, len(words), longest)


def differences(plain: TextStatistics, counted: TextStatistics | None) -> str:
    """What differs, in words; empty when nothing does. `counted` None: the ledger is not in the result at all."""
    if counted is None:
        return "missing from the result of the Spark job"
    pairs = [
        (name, getattr(plain, name), getattr(counted, name))
        for name in ("entries", "bytes", "distinct_words", "longest_line")
    ]
    return "; ".join(
        f"{name.replace('_', ' ')} {actual:,} in Spark, {expected:,} in the files"
        for name, expected, actual in pairs
        if expected != actual
    )
