"""Bugs to plant: each is a change of a few characters of the product that breaks what an invariant promises.

A mutation is text in one file that is replaced by other text; the text must stand there exactly once, so that the table
can't rot. `world` says which simulation has the code in it: `data` (clients, bookies, disks; `run.run_seed`) or
`metadata` (gateways, ZooKeeper, watchers; `metadata_run.run_seed`). `expected` are the invariants that it should break;
another one may be the first to notice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

DATA = "data"
METADATA = "metadata"


class Edit(NamedTuple):
    """Text of one file, which stands there once, and what takes its place."""

    file: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Mutation:
    """One bug. `breaks` is a sentence for the table; `more` are edits that it takes beside the first."""

    name: str
    area: str
    expected: tuple[str, ...]
    breaks: str
    file: str
    before: str
    after: str
    world: str = DATA
    more: tuple[Edit, ...] = ()

    @property
    def edits(self) -> tuple[Edit, ...]:
        return Edit(self.file, self.before, self.after), *self.more


MUTATIONS = (
    # The writer
    Mutation(
        "ack-below-quorum",
        "client",
        ("P1", "P9"),
        "an add is acknowledged one bookie short of the ack quorum",
        "thinclient/core/writing.py",
        "        while pending and pending[0].acks >= ack_quorum_size:\n",
        "        while pending and pending[0].acks >= max(1, ack_quorum_size - 1):\n",
    ),
    Mutation(
        "ack-out-of-order",
        "client",
        ("P9",),
        "an add that is complete is acknowledged before the ones in front of it",
        "thinclient/core/writing.py",
        "        if not pending or pending[0] is not add or self.changing:\n            return _NONE\n",
        "        if not pending or self.changing:\n            return _NONE\n"
        "        if pending[0] is not add:\n            pending.remove(add)\n            return [add]\n",
    ),
    Mutation(
        "lac-runs-ahead",
        "client",
        ("P2", "P10"),
        "entries carry a last add confirmed that includes entries which are still on their way",
        "thinclient/core/writing.py",
        "        add = PendingAdd(entry_id, size, self.length, self.last_add_confirmed, indexes)\n",
        "        add = PendingAdd(entry_id, size, self.length, entry_id - 1, indexes)\n",
    ),
    Mutation(
        "change-from-lac-plus-2",
        "client",
        ("P1", "P3"),
        "an ensemble change begins one entry too late: the first entry on the new bookies is not where readers look",
        "thinclient/ensemble_changer.py",
        "        first_entry_id = self._writer.last_add_confirmed + 1\n",
        "        first_entry_id = self._writer.last_add_confirmed + 2\n",
    ),
    Mutation(
        "no-resend-after-change",
        "client",
        ("P1", "P3"),
        "what a replaced bookie had stored counts for its successor, which never gets it",
        "thinclient/core/writing.py",
        "            add.acked &= kept\n",
        "            add.acked &= -1\n",
        more=(
            Edit(
                "thinclient/core/writing.py",
                "            resend += [(add, index) for index in self._write_set(add) if index in new]\n",
                "            resend += []\n",
            ),
        ),
    ),
    Mutation(
        "bookie-twice-in-ensemble",
        "client",
        ("P5",),
        "a failed bookie is replaced by one that is in the ensemble already",
        "thinclient/core/ensemble_change.py",
        "        if bookie_id is not None and bookie_id not in members:\n            members[index] = bookie_id\n",
        "        if bookie_id is not None:\n            members[index] = members[index - 1]\n",
    ),
    Mutation(
        "fenced-writer-goes-on",
        "client",
        ("P1", "P2"),
        "a writer takes the answer 'fenced' for a success",
        "thinclient/base_write_handle.py",
        "        if response is not None and response.status == 0:\n            confirmed",
        "        if response is not None and response.status in (0, 504):\n            confirmed",
    ),
    # Recovery
    Mutation(
        "recovery-does-not-fence",
        "client",
        ("P2", "P8"),
        "recovery fences nobody, neither with its first reads nor with those of entries",
        "thinclient/recovery_driver.py",
        "requests.ReadRequest(txn_id, ledger_id, LAST_ENTRY, True, key)",
        "requests.ReadRequest(txn_id, ledger_id, LAST_ENTRY)",
        more=(
            Edit(
                "thinclient/recovery_driver.py",
                "        self._reads = ReadRequestEncoder(number, key, HIGH_PRIORITY)\n",
                "        self._reads = ReadRequestEncoder(number)\n",
            ),
        ),
    ),
    Mutation(
        "recovery-reads-do-not-fence",
        "client",
        ("P2", "P8"),
        "recovery reads do not fence: a bookie that answered 'no such entry' may accept it afterwards",
        "thinclient/recovery_driver.py",
        "        self._reads = ReadRequestEncoder(number, key, HIGH_PRIORITY)\n",
        "        self._reads = ReadRequestEncoder(number)\n",
    ),
    Mutation(
        "bad-digest-counts-as-missing",
        "client",
        ("P1", "P2"),
        "a recovery read counts a damaged copy as 'no such entry'",
        "thinclient/recovery_driver.py",
        '            return Unreadable(DigestMatchException(f"bookie {bookie_id}: {error}"))\n',
        "            return Missing.MISSING\n",
    ),
    Mutation(
        "silence-counts-as-missing",
        "client",
        ("P2",),
        "a bookie that gives no answer counts as 'no such entry'",
        "thinclient/recovery_driver.py",
        '            return Unreadable(error or BKException(f"bookie {bookie_id} gave no answer"))\n',
        "            return Missing.MISSING\n",
    ),
    Mutation(
        "one-missing-ends-recovery",
        "client",
        ("P2",),
        "recovery ends at the first bookie that lacks an entry",
        "thinclient/core/recovery.py",
        "        self._misses_needed = metadata.write_quorum_size - metadata.ack_quorum_size + 1\n",
        "        self._misses_needed = 1\n",
    ),
    Mutation(
        "recovery-tells-its-own-lac",
        "client",
        ("P10", "P3"),
        "recovery adds carry the last add confirmed of the recoverer, which may die or lose, not that of its start",
        "thinclient/core/recovery.py",
        "        add.last_add_confirmed = self._start\n",
        "",
    ),
    Mutation(
        "recovery-starts-too-late",
        "client",
        ("P2", "P3"),
        "recovery begins to read one entry behind where it should",
        "thinclient/core/recovery.py",
        "        self._next_to_read = self._next_to_add = self._start + 1\n",
        "        self._next_to_read = self._next_to_add = self._start + 2\n",
    ),
    Mutation(
        "recovery-does-not-write-back",
        "client",
        ("P3",),
        "recovery closes the ledger behind entries without writing them to the ack quorum",
        "thinclient/core/recovery.py",
        "        if not self._end_found or writer is None or writer.pending_count or self._sizing is not None:\n",
        "        if not self._end_found or writer is None or self._sizing is not None:\n",
    ),
    # The reader
    Mutation(
        "reads-beyond-the-lac",
        "client",
        ("P10",),
        "a reader takes the last entry that a bookie holds for confirmed, not what that entry says of its predecessors",
        "thinclient/recovery_driver.py",
        "        lac = max(lac, decode_entry(secrets.digest, response.last_entry_body, ledger_id, None)"
        ".last_add_confirmed)\n",
        "        lac = max(lac, decode_entry(secrets.digest, response.last_entry_body, ledger_id, None).entry_id)\n",
    ),
    # The bookie's rules
    Mutation(
        "fence-not-checked",
        "bookie",
        ("P7",),
        "a fenced ledger takes ordinary adds",
        "bookie/core/ledger_state.py",
        "        if self.fenced and not recovery:\n",
        "        if recovery is None:\n",
    ),
    Mutation(
        "fence-not-persisted",
        "bookie",
        ("P7", "S6"),
        "a fence lives in memory only",
        "bookie/ledger_writes.py",
        "            self._write_state(ledger, journal_format.encode_fence(ledger.number), token)\n",
        "            self._journal_of(ledger.number).force(token)\n",
    ),
    Mutation(
        "fence-answered-at-once",
        "bookie",
        ("S6", "P7"),
        "a fencing read of a ledger that was fenced a moment ago does not wait for the fence to be durable",
        "bookie/ledger_writes.py",
        "            self._journal_of(ledger.number).force(token)\n            return\n",
        "            self._on_durable([token])\n            return\n",
    ),
    Mutation(
        "fence-lost-in-header",
        "storage",
        ("P7",),
        "a checkpoint writes index headers without the fence",
        "bookie/ledger_store.py",
        "                header = IndexHeader(ledger.master_key, ledger.fenced, ledger.explicit_lac)\n",
        "                header = IndexHeader(ledger.master_key, False, ledger.explicit_lac)\n",
    ),
    Mutation(
        "replay-forgets-fences",
        "storage",
        ("P7", "S1"),
        "replay passes over the journal's fence records",
        "bookie/replay.py",
        "        if record.entry_id == fmt.FENCE:\n            ledger.fenced = True\n",
        "        if record.entry_id == fmt.FENCE:\n            return\n",
    ),
    Mutation(
        "key-not-checked",
        "bookie",
        ("S7",),
        "any master key may add",
        "bookie/core/ledger_state.py",
        "        if master_key != self.master_key:\n            return Status.EUA\n        if "
        "self.fenced and not recovery:\n",
        "        if self.fenced and not recovery:\n",
    ),
    Mutation(
        "key-not-checked-in-the-fast-path",
        "bookie",
        ("S7",),
        "any master key may add what is served without a second look",
        "bookie/request_processor.py",
        "            or ledger.master_key != master_key\n",
        "",
    ),
    # Storage
    Mutation(
        "ack-before-fdatasync",
        "storage",
        ("S5",),
        "adds are acknowledged once they are written, before the sync",
        "bookie/journal.py",
        "            if deferred:\n                self._on_durable(deferred)\n            self._file.sync()\n",
        "            self._on_durable([*deferred, *tokens])\n            tokens = []\n            self._file.sync()\n",
    ),
    Mutation(
        "no-fdatasync",
        "storage",
        ("S5", "S1"),
        "the journal is not synced at all",
        "bookie/journal_file.py",
        "            self._files.fdatasync(self._fd)\n",
        "            pass\n",
    ),
    Mutation(
        "mark-moves-too-early",
        "storage",
        ("S1",),
        "a checkpoint takes its mark after the cache was flushed, so that it passes records that came meanwhile",
        "bookie/checkpoint.py",
        "            marks = self._synced_marks()\n            if self._flusher.flush():\n              "
        "  self._on_room()\n",
        "            if self._flusher.flush():\n                self._on_room()\n            marks = "
        "self._synced_marks()\n",
    ),
    Mutation(
        "flush-drops-entries",
        "storage",
        ("S1", "P1"),
        "a checkpoint writes index headers only and lets the cached entries go",
        "bookie/checkpoint.py",
        "        kept = {ledger: table for ledger, table in snapshot.tables.items() if not ledger.deleted}\n",
        "        kept = {ledger: table for ledger, table in snapshot.tables.items() if ledger.deleted}\n",
    ),
    Mutation(
        "index-before-log-is-synced",
        "storage",
        ("S1", "P1"),
        "the entry log is not synced before the mark moves",
        "bookie/ledger_store.py",
        "        slots = self._write_entries(tables)\n        self.logs.sync()\n",
        "        slots = self._write_entries(tables)\n",
    ),
    Mutation(
        "index-not-synced",
        "storage",
        ("S1", "P1"),
        "the index is not synced before the mark moves",
        "bookie/ledger_store.py",
        "        self.index.sync()\n        self._statistics.flush_index",
        "        self._statistics.flush_index",
    ),
    Mutation(
        "replay-starts-behind-the-mark",
        "storage",
        ("S1",),
        "replay begins with the journal file after the one that the mark names",
        "bookie/replay.py",
        "        for journal_id in journals:\n            start =",
        "        for journal_id in journals[1:]:\n            start =",
    ),
    Mutation(
        "collects-what-was-not-listed",
        "storage",
        ("S2",),
        "garbage collection takes a listing that ended in an error for the whole",
        "bookie/ledger_collector.py",
        "        while (ids := await self._next_range(ranges)) is not None:\n            comparison.add_range(ids)\n"
        "            await self._pace(1)\n        missing = comparison.finish()\n",
        "        try:\n"
        "            while (ids := await self._next_range(ranges)) is not None:\n                "
        "comparison.add_range(ids)\n"
        "        except BKException:\n            pass\n        missing = comparison.finish()\n",
        more=(
            Edit(
                "bookie/ledger_collector.py",
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
        "bookie/compactor.py",
        "                    self._point_at_copies(LedgerId.unscoped(number), moves[number])\n",
        "                    pass\n",
        more=(
            Edit(
                "bookie/log_removal.py",
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
        "bookie/replay_start.py",
        "        problem = _problem(files, directory, stored) if stored.mark.journal_id > 0 else None\n",
        "        problem = None\n",
    ),
    Mutation(
        "limbo-denies",
        "storage",
        ("S8", "P1", "P2"),
        "a bookie that was started with its loss accepted says that there is no such entry",
        "bookie/stored_entries.py",
        "    if ledger.limbo:\n        raise DataUnknownException(\n",
        "    if False:\n        raise DataUnknownException(\n",
    ),
    Mutation(
        "log-removed-on-the-word-of-memory",
        "storage",
        ("S1", "P1"),
        "a log goes because memory shows that its entries were moved, which a killed process did not make durable",
        "bookie/log_removal.py",
        "            self._store.index.read_back([LedgerId.unscoped(number) for number in numbers])\n",
        "            self._store.index.sync()\n",
    ),
    Mutation(
        "damage-answered-as-missing",
        "bookie",
        ("S3",),
        "an entry that can't be read is answered as 'no such entry'",
        "bookie/entry_reads.py",
        "            return _refusal(request, Status.EIO)\n\n    def _known_lac",
        "            return _refusal(request, Status.ENOENTRY)\n\n    def _known_lac",
    ),
    # The gateway
    Mutation(
        "iterate-ends-on-an-error",
        "gateway",
        ("M5",),
        "a listing that fails in the middle ends as if it were whole",
        "gateway/listing.py",
        "            async for response in responses:\n                if held is not None:\n"
        "                    yield held.of(cluster)\n                held = response\n",
        "            try:\n                async for response in responses:\n                    if held is not None:\n"
        "                        yield held\n                    held = response\n"
        "            except MetaStoreException:\n                pass\n",
        METADATA,
    ),
    Mutation(
        "any-cluster-is-believed",
        "bookie",
        ("S2",),
        "garbage collection does not ask whose metadata it lists",
        "bookie/ledger_collector.py",
        "        await self._within_timeout(self._metadata.registration_manager.verify(self._membership))\n",
        "        return\n",
    ),
    Mutation(
        "no-quarantine",
        "bookie",
        ("S2",),
        "a ledger that one run misses is deleted by that run",
        "bookie/core/ledger_deletion.py",
        "        waited = SortedIds(self._candidates)\n",
        "        waited = SortedIds(missing)\n",
        more=(
            Edit(
                "bookie/core/ledger_deletion.py",
                "        if self._since is not None and now - self._since < self._wait_seconds:\n",
                "        if self._since is not None and now < self._since:\n",
            ),
        ),
    ),
    Mutation(
        "version-told-again",
        "gateway",
        ("M1",),
        "a watch tells a version once more whenever the ledger was read again, as after a lost connection",
        "gateway/watch_hub.py",
        "        if known is not None and (record.version == known.version"
        " or DAMAGED < record.version < known.version):\n            return []\n",
        "",
        METADATA,
        (
            Edit("gateway/watch_hub.py", "        return version != self.version\n", "        return True\n"),
            Edit(
                "gateway/ledger_listeners.py",
                "            if record.version > seen and listener in watched.listeners:\n",
                "            if listener in watched.listeners:\n",
            ),
        ),
    ),
    Mutation(
        "watch-not-armed-again",
        "gateway",
        ("M2", "M3"),
        "after the store's connection was lost nobody asks what changed meanwhile",
        "gateway/ledger_listeners.py",
        "            watched.outdated()\n        if self._sweep is None:\n",
        "            break\n        if False:\n",
        METADATA,
    ),
    Mutation(
        "removal-not-told",
        "gateway",
        ("M2",),
        "a watch falls silent when its ledger is deleted",
        "gateway/watch_hub.py",
        "            stream.removed[ledger_id] = None\n        return list(ledger.streams)\n",
        "        return list(ledger.streams)\n",
        METADATA,
    ),
    Mutation(
        "cache-serves-what-was-overwritten",
        "gateway",
        ("M4",),
        "the cache keeps the answer that it has made of a ledger when it hears that somebody has changed it",
        "gateway/metadata_cache.py",
        "        self.answer = self.ledger = None\n",
        "        self.ledger = None\n",
        METADATA,
    ),
    Mutation(
        "freshness-not-asked",
        "gateway",
        ("M4",),
        "a gateway answers from what it holds, whatever its client has seen at another one",
        "gateway/freshness.py",
        "        if revision <= self._reached:\n            return\n",
        "        if revision >= 0:\n            return\n",
        METADATA,
    ),
    Mutation(
        "blind-write",
        "gateway",
        ("P6", "M6"),
        "a write does not look at the version it was made from",
        "gateway/zookeeper/ledger_manager.py",
        "            stat = await self._session.set(self._path(ledger_id), data, expected_version)\n",
        "            stat = await self._session.set(self._path(ledger_id), data, -1)\n",
        METADATA,
    ),
    Mutation(
        "any-creator-owns",
        "gateway",
        ("M6",),
        "a Create that finds the ledger there takes it for its own",
        "gateway/zookeeper/ledger_manager.py",
        "            return creator_of(await self.read(ledger_id), metadata)\n",
        "            return Creator.SELF\n",
        METADATA,
    ),
    Mutation(
        "watches-never-released",
        "gateway",
        ("M7",),
        "the store's watch stays when the last subscriber has gone",
        "gateway/ledger_listeners.py",
        "        del self._ledgers[ledger_id]\n        if watched.task is None:\n            "
        "self._released(ledger_id)\n",
        "        return\n",
        METADATA,
    ),
    Mutation(
        "loop-waits-for-the-store",
        "gateway",
        ("P12",),
        "each request wakes the thread of the store's client by a byte of its own, which waits for room",
        "gateway/zookeeper/kazoo_thread.py",
        "        if not self._woken:\n",
        "        self._wake_sock.setblocking(True)\n        if True:\n",
        METADATA,
    ),
    Mutation(
        "client-not-made-anew",
        "gateway",
        ("P12",),
        "a gateway whose client of the store has ended by an error goes on without one",
        "gateway/zookeeper/session.py",
        "        loop.call_at(max(loop.time(), self._started_at + _RETRY_SECONDS), self._start_anew)\n",
        "        return\n",
        METADATA,
    ),
)
"""By area: client, bookie, storage, gateway."""
