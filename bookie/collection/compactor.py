"""Compaction: moves live entries of entry logs to a separate log, and removes the old logs.

A record is alive if its ledger exists and the index refers exactly to it. For each old log, in pieces:

1. copy live records to the compaction's log; sync it;
2. holding the checkpoint lock, point the index to the copies, except where it no longer points to the originals (the
   ledger was deleted, or an entry written again); sync the index;
3. when the whole log is done, and is known to hold nothing alive, remove it.

A crash after 1 leaves copies to which nothing refers: the compaction's log has no map before it is finished, so the
next process counts its records one by one (`log_usage`). A crash in 2 leaves some index slots pointing to the old log
and some to the new one, both durable. So no entry is ever without a durable copy to which the index refers (S2).

Records that a scan could not see may be alive: a damaged length hides the records behind it. Therefore the index
decides whether a log is removed (`log_removal`). A log that can't be read, or to which the index still refers, stays as
it is, and the others are compacted (S3).

Not its job: which logs (`rules`), when (`garbage_collector`).
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Container
from contextlib import AbstractContextManager, suppress

from bookgate.bookie.collection.log_removal import LogRemoval
from bookgate.bookie.collection.log_usage import RECORD_LENGTH_SIZE, is_live
from bookgate.bookie.collection.statistics import GcStatistics
from bookgate.bookie.collection.throttle import Throttle
from bookgate.bookie.entry_logs.entry_logs import CompactionLog
from bookgate.bookie.index.file_format import slot_runs
from bookgate.bookie.storage.ledger_store import LedgerStore
from bookgate.bookie.system.files import StorageCorruptException, is_no_space, is_not_opened
from bookgate.ledger.ledger_id import LedgerId
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)

_WRITE_BYTES = 1 << 20
_PUBLISHED_AT_ONCE = 10_000
"""Index slots that are changed under one hold of the checkpoint lock."""


class Compactor:
    """Compacts logs of one store, on one thread. Always call `finish` at the end."""

    def __init__(
        self,
        store: LedgerStore,
        exclusive: Callable[[], AbstractContextManager[None]],
        removal: LogRemoval,
        throttle: Throttle,
        statistics: GcStatistics,
        max_log_bytes: int,
    ) -> None:
        self._store = store
        self._exclusive = exclusive
        self._removal = removal
        self._throttle = throttle
        self._statistics = statistics
        self._max_log_bytes = max_log_bytes
        self._target: CompactionLog | None = None
        self._target_bytes = 0
        self._batch_ledger = -1
        self._batch: list[tuple[int, int, bytes]] = []
        self._batch_bytes = 0
        self._moves: dict[int, list[tuple[int, int, int]]] = {}
        self._moved = 0
        self._copied_bytes = 0

    def compact(self, log_id: int, existing: Container[int]) -> None:
        """Moves live entries out of a complete log, and removes the log if it held nothing else."""
        before = self._copied_bytes
        try:
            self._move_live(log_id, existing)
        except StorageCorruptException as error:
            self._statistics.failed_deletions += 1
            log_event(_log, "compaction_kept_log", logging.ERROR, log=f"{log_id:x}", error=error)
            self._publish()
            return
        except BaseException:
            # The copies made so far are worth keeping; if the disk failed, they are not needed.
            with suppress(OSError):
                self._publish()
            raise
        self._publish()
        freed = max(0, self._store.logs.size(log_id) - (self._copied_bytes - before))
        if self._removal.remove([log_id], existing, self._throttle):
            self._statistics.reclaimed_by_compaction += freed

    def finish(self) -> None:
        """Ends the compaction's own log. Raises OSError; the next process then scans the log."""
        target, self._target = self._target, None
        if target is not None:
            target.finish()

    # Step 1

    def _move_live(self, log_id: int, existing: Container[int]) -> None:
        for ledger_id, entry_id, location, packet in self._store.logs.scan(log_id):
            self._throttle.read(len(packet))
            if ledger_id in existing and is_live(self._store, ledger_id, entry_id, location):
                self._add(ledger_id, entry_id, location, packet)

    def _add(self, ledger_id: int, entry_id: int, location: int, packet: bytes) -> None:
        self._throttle.copied(len(packet))
        if ledger_id != self._batch_ledger or self._batch_bytes + len(packet) > _WRITE_BYTES:
            self._write_batch()
        self._batch_ledger = ledger_id
        self._batch.append((entry_id, location, packet))
        self._batch_bytes += len(packet) + RECORD_LENGTH_SIZE
        if self._moved + len(self._batch) >= _PUBLISHED_AT_ONCE:
            self._publish()

    def _write_batch(self) -> None:
        if not self._batch:
            return
        batch, size = self._batch, self._batch_bytes
        self._batch, self._batch_bytes = [], 0
        if self._target is not None and self._target_bytes + size > self._max_log_bytes:
            self._publish_moves()
            self.finish()
        if self._target is None:
            self._target = self._store.logs.new_log()
            self._target_bytes = 0
        locations = self._target.append(self._batch_ledger, [packet for _, _, packet in batch])
        self._target_bytes += size
        self._copied_bytes += size
        moves = self._moves.setdefault(self._batch_ledger, [])
        moves += ((entry_id, old, new) for (entry_id, old, _), new in zip(batch, locations, strict=True))
        self._moved += len(batch)

    # Step 2

    def _publish(self) -> None:
        self._write_batch()
        self._publish_moves()

    def _publish_moves(self) -> None:
        moves, self._moves, self._moved = self._moves, {}, 0
        if not moves or self._target is None:
            return
        self._target.sync()
        no_room: OSError | None = None
        with self._exclusive():
            try:
                for number in sorted(moves):
                    self._point_at_copies(LedgerId.of_number(number), moves[number])
            except OSError as error:
                if not is_no_space(error):
                    raise
                no_room = error
            self._sync_index()
        if no_room is not None:
            raise no_room

    def _sync_index(self) -> None:
        """Syncs the index. A full disk is an error like any other where the index in memory then differs from the disk.

        It does not where the list of index files alone found no space, nor for want of file descriptors: then the next
        sync tries again.
        """
        index = self._store.index
        try:
            index.sync()
        except OSError as error:
            if index.shows_unsynced and is_no_space(error) and not is_not_opened(error):
                raise OSError(errno.EIO, f"the index could not be synced: {error}") from error
            raise

    def _point_at_copies(self, ledger_id: LedgerId, moves: list[tuple[int, int, int]]) -> None:
        index = self._store.index
        valid = [(entry_id, new) for entry_id, old, new in sorted(moves) if index.location(ledger_id, entry_id) == old]
        if valid:
            index.update(ledger_id, None, slot_runs([entry_id for entry_id, _ in valid], [new for _, new in valid]))
