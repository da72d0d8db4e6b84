"""The bookie's storage."""

from __future__ import annotations

from tests.simulation.mutations.mutation import SMALL, Edit, Mutation

_LIMBO_CHECK = "tests/unit/bookie/limbo/test_check.py"
_INDEX_LIST = "tests/unit/bookie/index/test_index_list.py"
_RUNS = "tests/unit/bookie/collection/test_garbage_collector.py"
_OVER_REPLICATED = "tests/unit/bookie/collection/test_over_replicated.py"
_TRIMMED = "tests/unit/bookie/collection/test_trimmed_ledgers.py"
_INDEX_FILES = "tests/unit/bookie/index/test_file_index.py"
_MOVED_SLOTS = f"{_INDEX_FILES}::test_moved_slots_bring_header_and_name_to_the_disk_that_only_memory_showed"
_LOST_DATA = "tests/unit/bookie/storage/test_lost_data.py"
_MADE_ANEW = f"{_LOST_DATA}::test_a_ledger_made_anew"
_USED_AGAIN = (
    "tests/unit/bookie/storage/test_storage.py"
    "::test_a_ledger_made_anew_while_its_deletion_is_synced_has_nothing_of_the_former_one"
)
_USED_AGAIN_WITHOUT_SPACE = (
    "tests/unit/bookie/storage/test_storage.py"
    "::test_a_ledger_made_anew_while_its_deletion_finds_no_space_has_nothing_of_the_former_one"
)
_LAST_LAC = "tests/unit/bookie/storage/test_known_flaws.py::test_f19_a_lac_that_no_crc_proves_is_not_told"

MUTATIONS = (
    # Storage
    Mutation(
        "lac-of-a-damaged-entry",
        "storage",
        (),
        "a bookie that starts tells the LAC that stands in the last entry, whether its CRC fits or not",
        "bookie/storage/reader.py",
        "            if has_matching_crc(packet):\n",
        "            if packet:\n",
        tests=(_LAST_LAC,),
    ),
    Mutation(
        "made-anew-told-to-a-journal-that-refuses",
        "storage",
        (),
        "a ledger counts as no longer made anew after a request that the journal refused",
        "bookie/storage/writer.py",
        "        if is_made_anew:\n            journal.append(",
        "        if is_made_anew:\n            self._ledgers.made_anew(ledger)\n            journal.append(",
        tests=(f"{_MADE_ANEW}_that_the_journal_refused_at_first",),
    ),
    Mutation(
        "made-anew-told-for-the-one-before",
        "storage",
        (),
        "a ledger that is deleted while its key is journaled takes the proof of that from the next one",
        "bookie/storage/ledger_table.py",
        "            if not ledger.deleted:  # otherwise the next one is made anew, too\n",
        "            if True:\n",
        tests=(_LOST_DATA,),
    ),
    Mutation(
        "limbo-changed-by-two-at-once",
        "storage",
        (),
        "a ledger that enters limbo while another leaves is lost from the list, or breaks its file",
        "bookie/storage/limbo.py",
        "        with self._lock:\n            self._list.replace(self._list.numbers - LedgerNumbers(numbers))\n",
        "        self._list.replace(self._list.numbers - LedgerNumbers(numbers))\n",
        tests=("tests/unit/bookie/storage/test_limbo.py",),
    ),
    Mutation(
        "pages-of-a-deleted-ledger-are-read",
        "storage",
        (),
        "a ledger whose id is used again while the deletion is synced shows the entries of the deleted one",
        "bookie/index/file_index.py",
        "            if page is None or key[0] in self._deleted:\n",
        "            if page is None:\n",
        tests=(_USED_AGAIN,),
    ),
    Mutation(
        "scattered-pages-of-a-deleted-ledger-are-read",
        "storage",
        (),
        "the same for entries in any order",
        "bookie/index/file_index.py",
        "        if number in self._deleted:\n            return found\n",
        "",
        tests=(_USED_AGAIN,),
    ),
    Mutation(
        "rows-of-a-deleted-ledger-are-read",
        "storage",
        (),
        "the same in RocksDB, where rows are there until the sync",
        "bookie/index/rocksdb_rows.py",
        "        self._deleting.add(number)\n",
        "",
        tests=(_USED_AGAIN,),
    ),
    Mutation(
        "deletion-lost-with-its-batch",
        "storage",
        (),
        "a deletion that finds no space in RocksDB is forgotten, and a new ledger shows the former one's entries",
        "bookie/index/rocksdb_rows.py",
        "        for number in self._deleting:\n            self._queue_deletion(number)\n",
        "",
        tests=(_USED_AGAIN_WITHOUT_SPACE,),
    ),
    Mutation(
        "ack-before-fdatasync",
        "storage",
        ("S5",),
        "adds are acknowledged once they are written, before the sync",
        "bookie/journal/journal.py",
        "            if deferred:\n                self._events.stored(deferred)\n            self._file.sync()\n",
        "            self._events.stored([*deferred, *completions])\n            completions = []\n"
        "            self._file.sync()\n",
    ),
    Mutation(
        "no-fdatasync",
        "storage",
        ("S5", "S1"),
        "the journal is not synced at all",
        "bookie/journal/file.py",
        "            self._files.fdatasync(self._fd)\n",
        "            pass\n",
    ),
    Mutation(
        "mark-moves-too-early",
        "storage",
        ("S1",),
        "a checkpoint takes its mark after the cache was flushed, so that it passes records that came meanwhile",
        "bookie/storage/checkpoint.py",
        "            marks = [journal.synced_mark for journal in self._journals]\n"
        "            if self._flusher.flush():\n                self._events.capacity_available()\n",
        "            if self._flusher.flush():\n                self._events.capacity_available()\n"
        "            marks = [journal.synced_mark for journal in self._journals]\n",
    ),
    Mutation(
        "flush-drops-entries",
        "storage",
        ("S1", "P1"),
        "a checkpoint writes index headers only and lets the cached entries go",
        "bookie/storage/checkpoint.py",
        "        kept = {ledger: table for ledger, table in snapshot.tables.items() if not ledger.deleted}\n",
        "        kept = {ledger: table for ledger, table in snapshot.tables.items() if ledger.deleted}\n",
    ),
    Mutation(
        "index-before-log-is-synced",
        "storage",
        ("S1", "P1"),
        "the entry log is not synced before the mark moves",
        "bookie/storage/ledger_store.py",
        "        slots = self._write_entries(tables)\n        self.logs.sync()\n",
        "        slots = self._write_entries(tables)\n",
    ),
    Mutation(
        "index-not-synced",
        "storage",
        ("S1", "P1"),
        "the index is not synced before the mark moves",
        "bookie/storage/ledger_store.py",
        "        self.index.sync()\n        self._statistics.flush_index",
        "        self._statistics.flush_index",
    ),
    Mutation(
        "replay-starts-behind-the-mark",
        "storage",
        ("S1",),
        "replay begins with the journal file after the one that the mark names",
        "bookie/storage/replay.py",
        "        for journal_id in journals:\n            start =",
        "        for journal_id in journals[1:]:\n            start =",
    ),
    Mutation(
        "collects-what-was-not-listed",
        "storage",
        ("S2",),
        "garbage collection takes a listing that ended in an error for the whole",
        "bookie/collection/ledger_collector.py",
        "        while (ids := await self._next_range(ranges)) is not None:\n"
        "            comparison.add_range(ids if scope_id == 0 else [number_of(scope_id, each) for each in ids])\n"
        "            await self._pace(1)\n        missing = comparison.finish()\n",
        "        try:\n"
        "            while (ids := await self._next_range(ranges)) is not None:\n"
        "                comparison.add_range(ids if scope_id == 0 else [number_of(scope_id, each) for each in ids])\n"
        "        except BKException:\n            pass\n        missing = comparison.finish()\n",
        more=(
            Edit(
                "bookie/collection/ledger_collector.py",
                "        if not self._config.verify_metadata:\n            return list(candidates)\n",
                "        return list(candidates)\n",
            ),
        ),
    ),
    Mutation(
        "log-removed-while-referenced",
        "storage",
        ("S2", "P1"),
        "compaction removes the old log before the index points at the copies",
        "bookie/collection/compactor.py",
        "                    self._point_at_copies(LedgerId.of_number(number), moves[number])\n",
        "                    pass\n",
        more=(
            Edit(
                "bookie/collection/log_removal.py",
                "        unreferenced = sorted(wanted - referenced)\n",
                "        unreferenced = sorted(wanted)\n",
            ),
        ),
    ),
    Mutation(
        "any-mark-believed",
        "storage",
        ("S8", "P1", "P2"),
        "a start replays from where the mark says, whether or not the journal reaches to it",
        "bookie/storage/replay_start.py",
        "        problem = _problem(files, directory, stored) if stored.mark.journal_id > 0 else None\n",
        "        problem = None\n",
        world=SMALL,
    ),
    Mutation(
        "what-is-here-is-not-doubted",
        "storage",
        (),
        "where a loss is accepted, ledgers that older metadata do not list count as whole",
        "bookie/storage/storage.py",
        "            held = [*self.ledger_ids(), *self.scoped_ledgers()]\n",
        "            held = []\n",
        tests=(_LOST_DATA,),
    ),
    Mutation(
        "made-anew-beside-what-the-index-has",
        "storage",
        (),
        "after a crash a ledger made anew has the entries and the key of one whose deletion was not durable",
        "bookie/storage/replay.py",
        "        if self._entries_follow or ledger_id in self._applied:\n",
        "        if ledger_id in self._applied:\n",
        tests=(f"{_MADE_ANEW}_has_nothing_of_one_whose_deletion_was_not_durable_as_the_process_ended",),
    ),
    Mutation(
        "fence-of-limbo-in-memory-only",
        "storage",
        (),
        "a fence that is acknowledged while its ledger is in limbo is gone after limbo and a restart",
        "bookie/storage/ledger_table.py",
        "                    ledger.has_header = False\n",
        "",
        tests=(f"{_LOST_DATA}::test_a_fence_acknowledged_in_limbo_outlives_limbo_and_a_restart",),
    ),
    Mutation(
        "limbo-denies",
        "storage",
        ("S8", "P1", "P2"),
        "a bookie that was started with its loss accepted says that there is no such entry",
        "bookie/storage/reader.py",
        "    if ledger.limbo:\n        raise DataUnknownException(\n",
        "    if False:\n        raise DataUnknownException(\n",
    ),
    Mutation(
        "list-of-index-files-not-asked",
        "storage",
        ("S8", "P1", "P2"),
        "a start does not ask the list of index files for those that are missing",
        "bookie/index/file_index.py",
        "            lost += numbers - found\n",
        "            lost += numbers - numbers\n",
    ),
    Mutation(
        "older-index-file-believed",
        "storage",
        (),
        "an index file that is older than the list of index files says is taken for right",
        "bookie/index/seals.py",
        " or header.generation < (generation or UNKNOWN)\n",
        "\n",
        tests=(f"{_INDEX_LIST}::test_a_ledger_whose_index_file_is_an_older_copy_is_in_limbo",),
    ),
    Mutation(
        "moved-slots-without-header",
        "storage",
        (),
        "a compaction writes slots and a seal into an index file whose header a failed sync left in memory only",
        "bookie/index/seals.py",
        "        self._files.pwrite(fd, data, 0)\n",
        "        if header is not None:\n            self._files.pwrite(fd, data, 0)\n        elif is_sealed:\n"
        "            seal = slice(file_format.SEAL_AT, file_format.SEAL_AT + file_format.SEAL_SIZE)\n"
        "            self._files.pwrite(fd, data[seal], seal.start)\n",
        tests=(_MOVED_SLOTS,),
    ),
    Mutation(
        "moved-slots-without-name",
        "storage",
        (),
        "a compaction lists an index file whose name a failed sync left in memory only",
        "bookie/index/file_index.py",
        "                if has_header or not self._is_listed(ledger_id.number):\n",
        "                if has_header:\n",
        tests=(_MOVED_SLOTS,),
    ),
    Mutation(
        "log-removed-on-the-word-of-memory",
        "storage",
        ("S1", "P1"),
        "a log goes because memory shows that its entries were moved, which a killed process did not make durable",
        "bookie/collection/log_removal.py",
        "            self._store.index.read_back([LedgerId.of_number(number) for number in numbers])\n",
        "            self._store.index.sync()\n",
        world=SMALL,
        more=(
            Edit(
                "bookie/collection/log_removal.py",
                "                self._store.index.read_back(())\n",
                "                pass\n",
            ),
        ),
    ),
    Mutation(
        "deletions-of-an-earlier-process-unsynced",
        "storage",
        (),
        "a log goes because its ledger's index file is gone in memory, of which the disk may have kept the name",
        "bookie/collection/log_removal.py",
        "                self._store.index.read_back(())\n",
        "                pass\n",
        tests=("tests/unit/bookie/collection/test_compaction_crashes.py",),
    ),
    Mutation(
        "failed-update-leaves-its-file-open",
        "storage",
        (),
        "each repetition of an index update on a full disk opens another file, until there is no descriptor left",
        "bookie/index/file_index.py",
        "            self._close_batch(1 if self._guards else _SYNC_BATCH)\n",
        "            pass\n",
        tests=(_INDEX_FILES,),
    ),
    Mutation(
        "suspension-from-the-next-run-on",
        "storage",
        (),
        "a run under way goes on deleting ledgers after an operator has suspended it",
        "bookie/collection/suspension.py",
        "            if self.is_suspended():\n",
        "            if False:\n",
        tests=(
            _RUNS,
            _OVER_REPLICATED,
            _TRIMMED,
        ),
    ),
    Mutation(
        "suspension-returns-during-a-deletion",
        "storage",
        (),
        "an operator is told that deletion is suspended while a batch is being deleted",
        "bookie/collection/suspension.py",
        "        with self._deleting:\n            self._files.close(",
        "        if True:\n            self._files.close(",
        tests=(_RUNS,),
    ),
    Mutation(
        "compactions-log-without-map-incomplete",
        "storage",
        (),
        "a compaction's log for whose map there is no space stays open, and is never collected",
        "bookie/entry_logs/entry_logs.py",
        "            self._log.sync()\n            self._logs._write_map(self._log, required=False)\n"
        "        finally:\n",
        "            self._log.finish()\n        except OSError:\n            raise\n        else:\n",
        tests=("tests/unit/bookie/entry_logs/test_entry_logs.py",),
    ),
    Mutation(
        "waits-without-limit",
        "storage",
        (),
        "a setting in seconds may be longer than a thread can wait, which ends the thread of checkpoints or journal",
        "runtime/settings.py",
        "not value <= MOST_SECONDS:\n",
        "value != value:\n",
        tests=("tests/unit/bookie/config/test_config.py::test_no_wait_is_longer_than_a_thread_can_wait",),
    ),
    Mutation(
        "damage-answered-as-missing",
        "bookie",
        ("S3",),
        "an entry that can't be read is answered as 'no such entry'",
        "bookie/protocol/read_scheduler.py",
        "            return _refusal(request, Status.EIO)\n\n    def _recover",
        "            return _refusal(request, Status.ENOENTRY)\n\n    def _recover",
    ),
    Mutation(
        "limbo-asks-any-cluster",
        "storage",
        (),
        "the check of limbo lets ledgers go on the word of a store that is not the bookie's cluster's",
        "bookie/limbo/check.py",
        "        if numbers:\n            await self._metadata.registration_manager.verify(self._membership)\n",
        "        if numbers:\n",
        tests=(_LIMBO_CHECK,),
    ),
    Mutation(
        "limbo-gone-at-once",
        "storage",
        (),
        "a ledger leaves limbo when its metadata are missed once",
        "bookie/limbo/check.py",
        "        left += await self._leave(self._quarantine.due(sorted(gone), self._clock()))\n",
        "        left += await self._leave(sorted(gone))\n",
        tests=(_LIMBO_CHECK,),
    ),
)
