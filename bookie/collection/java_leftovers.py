"""Leftovers of compactions by Apache BookKeeper's bookie, completed or removed before a run.

Its transactional compaction writes `<new>.log.compacting`, then links the finished log to `<new>.log.<old>.compacted`,
then to `<new>.log`, updates the index, and removes the link and the old log. A `.compacting` file is therefore useless,
and a `.compacted` file is a complete log whose entries the index may not know yet. The ids in these names are
hexadecimal. When that bookie recovers a log, it links it to a name with a decimal id (F9), and then fails on that name
every time; this second name of the same file is removed here.

Our own compaction leaves no files with special names (`compactor`). Source:
docs/protocol/storage.md#transactional-compaction.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from bookgate.bookie.collection.log_removal import LogRemoval
from bookgate.bookie.entry_logs import format as fmt
from bookgate.bookie.index.file_format import slot_runs
from bookgate.bookie.storage.ledger_store import LedgerStore
from bookgate.bookie.system.files import FileSystem, StorageCorruptException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)

_COMPACTING = re.compile(r"[0-9a-f]+\.log\.compacting")
_COMPACTED = re.compile(r"([0-9a-f]+)\.log\.([0-9a-f]+)\.compacted")
_UPDATED_AT_ONCE = 10_000


class Leftovers:
    """The leftovers in one store. `exclusive` holds the checkpoint lock; blocking."""

    def __init__(
        self,
        files: FileSystem,
        store: LedgerStore,
        exclusive: Callable[[], AbstractContextManager[None]],
        removal: LogRemoval,
    ) -> None:
        self._files = files
        self._store = store
        self._exclusive = exclusive
        self._removal = removal

    def settle(self) -> list[int]:
        """Settles all leftovers. Returns the ids of old logs from which everything was moved. Raises OSError."""
        emptied: list[int] = []
        for directory in self._store.logs.directories:
            for name in sorted(self._files.list_directory(directory)):
                if _COMPACTING.fullmatch(name):
                    self._files.unlink(directory / name)
                elif match := _COMPACTED.fullmatch(name):
                    new, old = int(match[1], 16), int(match[2], 16)
                    if self._complete(directory, name, new, old):
                        emptied.append(old)
        return emptied

    def _complete(self, directory: Path, name: str, new: int, old: int) -> bool:
        """Completes a compaction. Returns False if that is not possible; the files then stay as they are."""
        path = directory / name
        final = directory / fmt.file_name(new)
        names = set(self._files.list_directory(directory))
        if final.name not in names:
            self._files.link(path, final)
        # Sync even if the name exists: the process that created it may have been killed before it was durable.
        self._files.sync_directory(directory)
        self._remove_decimal_name(directory, names, path, new)
        try:
            self._point_into(new, old)
        except StorageCorruptException as error:
            log_event(_log, "compaction_not_completed", logging.ERROR, path=path, error=error)
            return False
        self._files.unlink(path)
        self._files.sync_directory(directory)
        log_event(_log, "compaction_completed", log=f"{old:x}", into=f"{new:x}")
        return True

    def _remove_decimal_name(self, directory: Path, names: set[str], path: Path, new: int) -> None:
        wrong = f"{new}{fmt.FILE_SUFFIX}"
        if wrong != fmt.file_name(new) and wrong in names and self._files.same_file(directory / wrong, path):
            self._store.logs.remove(int(str(new), 16))

    def _point_into(self, new: int, old: int) -> None:
        """Points the index to the new log for entries that it has in the old one."""
        moves: dict[int, dict[int, int]] = {}
        count = 0
        for record in self._store.logs.scan(new):
            if record.entry_id >= 0:
                moves.setdefault(record.ledger_id, {})[record.entry_id] = record.location
                count += 1
            if count >= _UPDATED_AT_ONCE:
                self._update(moves, old, new)
                moves, count = {}, 0
        self._update(moves, old, new)

    def _update(self, moves: dict[int, dict[int, int]], old: int, new: int) -> None:
        index = self._store.index
        self._removal.points_into(new, moves)
        with self._exclusive():
            for number in sorted(moves):
                ledger_id = LedgerId.of_number(number)
                held = [entry for entry in sorted(moves[number]) if _is_in(index.location(ledger_id, entry), old)]
                if held:
                    index.update(ledger_id, None, slot_runs(held, [moves[number][entry] for entry in held]))
            index.sync()


def _is_in(location: int, log_id: int) -> bool:
    """Whether a location is in the log. Location 0 is not a place in log 0: it means that there is no such entry."""
    return location != 0 and fmt.split_location(location)[0] == log_id
