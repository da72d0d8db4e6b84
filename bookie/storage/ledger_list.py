"""A durable list of ledgers beside the ledger directories, for facts that must outlive the ledgers' own files.

Numbers are kept, with a checksum, in a file next to `current` of each ledger directory; if there are several copies,
each number in any valid one counts. Scoped ledgers are in a separate file, with the 16 bytes of each number.

Any thread reads; changes are made one at a time. Not its job: the meaning of the list (`limbo`,
`closed_before`).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path

from pyroaring import BitMap64

from bookgate.bookie.system.data_loss import LostDataException, OnLoss
from bookgate.bookie.system.files import FileSystem, read_whole, write_beside
from bookgate.ledger.ledger_numbers import LedgerNumbers, union

_MAGIC = b"BGLI"
_CRC_SIZE = 4
_NUMBER_SIZE = 16


class LedgerList:
    """`directories` are the configured ledger directories, the parents of `current`."""

    def __init__(self, files: FileSystem, directories: Sequence[Path], name: str, scoped_name: str, what: str) -> None:
        """`name` and `scoped_name` are the names of the files; `what` describes the list, for errors."""
        self._files = files
        self._directories = directories
        self._name = name
        self._scoped_name = scoped_name
        self._what = what
        self.numbers = LedgerNumbers()
        """Replaced as a whole, never changed."""

    def __contains__(self, number: object) -> bool:
        return number in self.numbers

    def load(self, on_loss: OnLoss) -> None:
        """Reads the stored list; calls `on_loss` if all copies are damaged. Raises OSError."""
        self.numbers = union((self._load(self._name, on_loss), self._load(self._scoped_name, on_loss)))

    def _load(self, name: str, on_loss: OnLoss) -> LedgerNumbers:
        contents = {path: read_whole(self._files, path) for path in self._paths(name)}
        found = {path: self._decode(name, content) for path, content in contents.items() if content is not None}
        sound = [numbers for numbers in found.values() if numbers is not None]
        if found and not sound:
            on_loss(LostDataException(f"{next(iter(found))}, {self._what}, is damaged"))
        return union(sound)

    def replace(self, numbers: LedgerNumbers) -> None:
        """Replaces the whole list. Durable on return. Raises OSError."""
        unscoped = numbers.unscoped.serialize() if numbers.unscoped else b""
        scoped = b"".join(number.to_bytes(_NUMBER_SIZE, "big") for number in sorted(numbers.scoped))
        for name, body in ((self._name, unscoped), (self._scoped_name, scoped)):
            for path in self._paths(name):
                if body:
                    write_beside(self._files, path, _MAGIC + zlib.crc32(body).to_bytes(_CRC_SIZE, "big") + body)
                elif self._files.exists(path):
                    self._files.unlink(path)
        for directory in self._directories:
            self._files.sync_directory(directory)
        self.numbers = numbers

    def _paths(self, name: str) -> list[Path]:
        return [directory / name for directory in self._directories]

    def _decode(self, name: str, content: bytes) -> LedgerNumbers | None:
        """The numbers in a file's content; None if it is damaged."""
        body = content[len(_MAGIC) + _CRC_SIZE :]
        if content[: -len(body) or None] != _MAGIC + zlib.crc32(body).to_bytes(_CRC_SIZE, "big"):
            return None
        if name == self._name:
            return LedgerNumbers.of_parts(BitMap64.deserialize(body))
        starts = range(0, len(body), _NUMBER_SIZE)
        return LedgerNumbers(int.from_bytes(body[start : start + _NUMBER_SIZE], "big") for start in starts)
