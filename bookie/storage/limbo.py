"""Ledgers in limbo: those of which this bookie may have lost something, because a start accepted a loss.

What it still holds of them is served. What it does not hold is unknown, and so are the last entry, the LAC and whether
the ledger was fenced: the bookie never says that there is no such entry or no such ledger, and accepts no normal adds
(S8).

A ledger enters when a loss is accepted: every ledger that the metadata has at that time. Ledgers created later are not
concerned. So it does when the bookie begins anew under an id that the ledger's metadata name (`limbo.former_life`). A
ledger whose index file is missing, is an older copy, or has lost entries enters by itself (`index_list`).
A ledger leaves once it is verified (`limbo.check`). Ids are kept, with a checksum, in a file next to `current` of each
ledger directory, so limbo survives restarts; if there are several copies, each id in any valid one counts.

Storage of type `db` has a limbo of its own in addition, which Apache BookKeeper's bookie marks in RocksDB.

Any thread reads; changes are made one at a time. Not its job: responses (`reader`).
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Collection, Sequence
from pathlib import Path

from pyroaring import BitMap64

from bookgate.bookie.system.data_loss import LostDataException, OnLoss
from bookgate.bookie.system.files import FileSystem, read_whole, write_beside
from bookgate.ledger.ledger_id import ledger_name
from bookgate.ledger.ledger_numbers import LedgerNumbers, union
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)

LIMBO_FILE = "bookie.limbo"
SCOPED_LIMBO_FILE = "bookie.scoped-limbo"
"""The same for ledgers with a scope, where there are any: the 16 bytes of each."""
_MAGIC = b"BGLI"
_CRC_SIZE = 4
_NUMBER_SIZE = 16
_MOST_LOGGED = 100


class Limbo:
    """`directories` are the configured ledger directories, the parents of `current`."""

    def __init__(self, files: FileSystem, directories: Sequence[Path]) -> None:
        self._files = files
        self._directories = directories
        self._numbers = LedgerNumbers()
        """Replaced as a whole, never changed."""

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and number in self._numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def numbers(self) -> list[int]:
        """All numbers, ascending."""
        return list(self._numbers)

    def load(self, on_loss: OnLoss) -> None:
        """Reads what an earlier process left; calls `on_loss` if only damaged files say it. Raises OSError."""
        self._numbers = union((self._load(LIMBO_FILE, on_loss), self._load(SCOPED_LIMBO_FILE, on_loss)))

    def _load(self, name: str, on_loss: OnLoss) -> LedgerNumbers:
        contents = {path: read_whole(self._files, path) for path in self._paths(name)}
        found = {path: _decode(name, content) for path, content in contents.items() if content is not None}
        sound = [numbers for numbers in found.values() if numbers is not None]
        if found and not sound:
            on_loss(LostDataException(f"{next(iter(found))}, the list of ledgers in limbo, is damaged"))
        return union(sound)

    def begin(self, numbers: Collection[int]) -> None:
        """The directories are a new bookie's: in limbo are these ledgers, of a former life, and no others.

        Durable on return. Raises OSError.
        """
        self._replace(LedgerNumbers(numbers))
        if numbers:
            log_event(
                _log,
                "former_life_found",
                logging.WARNING,
                ledgers=len(numbers),
                note="their metadata name this bookie, which is empty: what it held is unknown, not absent, until each "
                "is verified",
            )

    def add(self, numbers: Collection[int]) -> None:
        """A loss was accepted. Durable on return. Raises OSError."""
        self._replace(self._numbers | LedgerNumbers(numbers))
        log_event(
            _log,
            "loss_accepted",
            logging.WARNING,
            ledgers=len(numbers),
            note="what is missing of them here is unknown, not absent, until each is verified",
        )

    def add_lost(self, numbers: Collection[int]) -> None:
        """The index has lost these ledgers, or entries of them. Durable on return. Raises OSError."""
        new = [number for number in numbers if number not in self._numbers]
        if not new:
            return
        self._replace(self._numbers | LedgerNumbers(new))
        for number in new[:_MOST_LOGGED]:
            log_event(
                _log,
                "ledger_lost_entries",
                logging.ERROR,
                ledger=ledger_name(number),
                note="it is in limbo until verified",
            )

    def remove(self, numbers: Collection[int]) -> None:
        """Removes verified ledgers. Durable on return. Raises OSError."""
        self._replace(self._numbers - LedgerNumbers(numbers))

    def _replace(self, numbers: LedgerNumbers) -> None:
        unscoped = numbers.unscoped.serialize() if numbers.unscoped else b""
        scoped = b"".join(number.to_bytes(_NUMBER_SIZE, "big") for number in sorted(numbers.scoped))
        for name, body in ((LIMBO_FILE, unscoped), (SCOPED_LIMBO_FILE, scoped)):
            for path in self._paths(name):
                if body:
                    write_beside(self._files, path, _MAGIC + zlib.crc32(body).to_bytes(_CRC_SIZE, "big") + body)
                elif self._files.exists(path):
                    self._files.unlink(path)
        for directory in self._directories:
            self._files.sync_directory(directory)
        self._numbers = numbers

    def _paths(self, name: str) -> list[Path]:
        return [directory / name for directory in self._directories]


def _decode(name: str, content: bytes) -> LedgerNumbers | None:
    """None for what is damaged."""
    body = content[len(_MAGIC) + _CRC_SIZE :]
    if content[: -len(body) or None] != _MAGIC + zlib.crc32(body).to_bytes(_CRC_SIZE, "big"):
        return None
    if name == LIMBO_FILE:
        return LedgerNumbers.of_parts(BitMap64.deserialize(body))
    starts = range(0, len(body), _NUMBER_SIZE)
    return LedgerNumbers(int.from_bytes(body[start : start + _NUMBER_SIZE], "big") for start in starts)
