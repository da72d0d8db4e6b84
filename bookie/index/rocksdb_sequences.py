"""The durable state of the two databases of a RocksDB index: proof of a loss if they are behind it (S8).

RocksDB notices damage in its files, but takes an empty directory for a new database, and accepts one that lost its
write-ahead log or was restored from an older copy. Every change has a sequence number, which never decreases. A
checkpoint records the numbers of both databases once the changes are durable, before its mark advances.

The numbers count only if this bookie ran last on the directories, like the list of index files (`index_list`). Not its
job: reading and writing the databases (`rocksdb_rows`).
"""

from __future__ import annotations

import logging
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

from bookgate.bookie.system.data_loss import LostDataException, OnLoss
from bookgate.bookie.system.files import FileSystem, read_whole, write_in_place
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)

SEQUENCES_FILE = "bookie.sequences"
"""Beside `current` of the ledger directory that the index belongs to."""
SCOPED_SEQUENCES_FILE = "bookie.scoped-sequences"
"""The same of the databases of ledgers with a scope."""

_values = struct.Struct(">4sqq")
_TAG = b"BGSQ"


class Sequences:
    """See the module. Belongs to whoever holds the checkpoint lock. Methods raise OSError."""

    def __init__(self, files: FileSystem, path: Path) -> None:
        self._files = files
        self._path = path
        self._stored: tuple[int, ...] | None = None

    def check(self, now: Sequence[int], index: Path, trusted: bool, on_loss: OnLoss) -> None:
        """Whether databases that are at `now` have lost something. From then on what was stored does not count."""
        stored = self._read() if trusted else None
        if stored is not None and any(has < had for has, had in zip(now, stored, strict=True)):
            on_loss(
                LostDataException(
                    f"the RocksDB index in {index} is behind what {self._path} says: its databases are at changes "
                    f"{list(now)}, and were at {list(stored)}"
                )
            )
        elif stored is not None:
            self._stored = stored
            return
        if self._files.exists(self._path):
            self._files.unlink(self._path)
            self._files.sync_directory(self._path.parent)

    def store(self, now: Sequence[int]) -> None:
        """Everything up to these is durable. The same is true of this on return."""
        if self._stored != tuple(now):
            data = _values.pack(_TAG, *now)
            write_in_place(self._files, self._path, data + zlib.crc32(data).to_bytes(4, "big"))
            self._stored = tuple(now)

    def may_tell_of_changes(self) -> bool:
        """Whether a checkpoint has recorded changes, or the file can't be read and nobody knows."""
        stored = self._read()
        return self._files.exists(self._path) if stored is None else any(stored)

    def _read(self) -> tuple[int, ...] | None:
        content = read_whole(self._files, self._path)
        if content is None:
            return None
        data, crc = content[: _values.size], content[_values.size :]
        if not data.startswith(_TAG) or crc != zlib.crc32(data).to_bytes(4, "big"):
            log_event(_log, "sequences_damaged", logging.ERROR, path=self._path, note="they do not count")
            return None
        return tuple(_values.unpack(data)[1:])
