"""Bugs to plant: each is a change of a few characters of the product that breaks what an invariant promises.

A mutation is text in one file that is replaced by other text; the text must stand there exactly once, so that the table
can't rot. `world` says which simulation has the code in it: `data` (clients, bookies, disks; `run.run_seed`) or
`metadata` (gateways, ZooKeeper, watchers; `metadata_run.run_seed`). `expected` are the invariants that it should break;
another one may be the first to notice. What no simulation has in it (Spark, SQLite, TLS) names the `tests` that are to
notice instead, and what few seeds meet the plan that does (`regressions`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

DATA = "data"
METADATA = "metadata"
_TLS = "tests/integration/bookie/test_tls_and_authentication.py"
_DRIVERS = "tests/unit/thinclient/spark/writing/test_sink_interleavings.py"
_SINK = "tests/unit/thinclient/spark/test_commit_protocol.py"
_PLANNING = "tests/unit/thinclient/spark/reading/test_planning.py"
_REGISTRATION = "tests/integration/gateway/test_registration.py"
_EMBEDDED = "tests/integration/gateway/test_embedded.py"
_CONTRACT = "tests/integration/gateway/test_store_contract.py"
_PLAN = "tests/simulation/test_seeds.py::test_no_invariant_is_broken"
_UNHEARD_FENCE = f"{_PLAN}[fence-of-a-recovery-that-a-bookie-does-not-hear]"
_TWO_RECOVERIES = f"{_PLAN}[reader-between-two-recoveries-of-a-ledger]"
_INDEX_LIST = "tests/unit/bookie/index/test_index_list.py"


class Edit(NamedTuple):
    """Text of one file, which stands there once, and what takes its place."""

    file: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Mutation:
    """One bug. `breaks` is a sentence for the table; `more` are edits that it takes beside the first.

    `tests`: pytest's files and nodes, one of which must fail; no seeds are run then.
    """

    name: str
    area: str
    expected: tuple[str, ...]
    breaks: str
    file: str
    before: str
    after: str
    world: str = DATA
    more: tuple[Edit, ...] = ()
    tests: tuple[str, ...] = ()

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
        "thinclient/handles/ensemble_changer.py",
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
        "thinclient/handles/base_write_handle.py",
        "        if response is not None and response.status == 0:\n            confirmed",
        "        if response is not None and response.status in (0, 504):\n            confirmed",
    ),
    # Recovery
    Mutation(
        "recovery-does-not-fence",
        "client",
        ("P2", "P8"),
        "recovery fences nobody, neither with its first reads nor with those of entries",
        "thinclient/handles/recovery.py",
        "messages.ReadRequest(txn_id, ledger_id, LAST_ENTRY, True, key)",
        "messages.ReadRequest(txn_id, ledger_id, LAST_ENTRY)",
        more=(
            Edit(
                "thinclient/handles/recovery.py",
                "        self._reads = ReadRequestEncoder(number, key, HIGH_PRIORITY)\n",
                "        self._reads = ReadRequestEncoder(number)\n",
            ),
        ),
    ),
    Mutation(
        "recovery-reads-do-not-fence",
        "client",
        (),
        "recovery reads do not fence: a bookie that answered 'no such entry' may accept it afterwards",
        "thinclient/handles/recovery.py",
        "        self._reads = ReadRequestEncoder(number, key, HIGH_PRIORITY)\n",
        "        self._reads = ReadRequestEncoder(number)\n",
        tests=(_UNHEARD_FENCE,),  # one seed in a hundred meets it
    ),
    Mutation(
        "bad-digest-counts-as-missing",
        "client",
        ("P1", "P2"),
        "a recovery read counts a damaged copy as 'no such entry'",
        "thinclient/handles/recovery.py",
        '            return Unreadable(DigestMatchException(f"bookie {bookie_id}: {error}"))\n',
        "            return Missing.MISSING\n",
    ),
    Mutation(
        "silence-counts-as-missing",
        "client",
        ("P2",),
        "a bookie that gives no answer counts as 'no such entry'",
        "thinclient/handles/recovery.py",
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
        (),
        "recovery adds carry the last add confirmed of the recoverer, which may die or lose, not that of its start",
        "thinclient/core/recovery.py",
        "        add.last_add_confirmed = self._start\n",
        "",
        tests=(_TWO_RECOVERIES,),
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
        "thinclient/handles/recovery.py",
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
        "bookie/storage/ledger_state.py",
        "        if self.fenced and not recovery:\n",
        "        if recovery is None:\n",
    ),
    Mutation(
        "fence-not-persisted",
        "bookie",
        ("P7", "S6"),
        "a fence lives in memory only",
        "bookie/storage/writer.py",
        "            self._write_state(ledger, journal_format.encode_fence(ledger.number), completion)\n",
        "            self._journal_of(ledger.number).force(completion)\n",
    ),
    Mutation(
        "fence-answered-at-once",
        "bookie",
        ("S6", "P7"),
        "a fencing read of a ledger that was fenced a moment ago does not wait for the fence to be durable",
        "bookie/storage/writer.py",
        "            self._journal_of(ledger.number).force(completion)\n            return\n",
        "            self._events.stored((completion,))\n            return\n",
    ),
    Mutation(
        "fence-lost-in-header",
        "storage",
        ("P7",),
        "a checkpoint writes index headers without the fence",
        "bookie/storage/ledger_store.py",
        "                header = IndexHeader(ledger.master_key, ledger.fenced, ledger.explicit_lac)\n",
        "                header = IndexHeader(ledger.master_key, False, ledger.explicit_lac)\n",
    ),
    Mutation(
        "replay-forgets-fences",
        "storage",
        ("P7", "S1"),
        "replay passes over the journal's fence records",
        "bookie/storage/replay.py",
        "        if record.entry_id == fmt.FENCE:\n            ledger.fenced = True\n",
        "        if record.entry_id == fmt.FENCE:\n            return\n",
    ),
    Mutation(
        "key-not-checked",
        "bookie",
        ("S7",),
        "any master key may add",
        "bookie/storage/ledger_state.py",
        "        if master_key != self.master_key:\n            return Status.EUA\n        if "
        "self.fenced and not recovery:\n",
        "        if self.fenced and not recovery:\n",
    ),
    Mutation(
        "key-not-checked-in-the-fast-path",
        "bookie",
        ("S7",),
        "any master key may add what is served without a second look",
        "bookie/protocol/request_processor.py",
        "            or ledger.master_key != master_key\n",
        "",
    ),
    # The fast path: what is done by the thousand, and knows the ordinary case only
    Mutation(
        "fence-not-checked-in-the-fast-path",
        "bookie",
        ("P7", "P2"),
        "a fenced ledger takes the adds that are served without a second look",
        "bookie/protocol/request_processor.py",
        "            or ledger.fenced\n",
        "",
    ),
    Mutation(
        "lac-of-the-entry-itself-in-the-fast-path",
        "bookie",
        ("P10",),
        "a bookie takes an entry that it is given for confirmed, not what the entry says of its predecessors",
        "bookie/protocol/request_processor.py",
        "        if last_add_confirmed > ledger.known_lac:\n            ledger.known_lac = last_add_confirmed\n",
        "        ledger.known_lac = max(entry_id, ledger.known_lac)\n",
    ),
    Mutation(
        "answered-at-once-in-the-fast-path",
        "bookie",
        ("S5",),
        "the answer to an ordinary add leaves before the add is durable",
        "bookie/protocol/request_processor.py",
        "            self._writer.add_checked_entry(ledger, entry_id, body, "
        "AddCompletion(client, stored, timer, body, txn_id))\n",
        "            self._writer.add_checked_entry(ledger, entry_id, body, "
        'AddCompletion(client, b"", timer, body, txn_id))\n'
        "            client.send(stored)\n",
    ),
    Mutation(
        "declined-adds-are-lost",
        "bookie",
        ("P12",),
        "what the fast path of adds leaves to the general one is served by nobody",
        "bookie/protocol/connection.py",
        ", add):\n                    continue\n",
        ", add) or add is not None:\n                    continue\n",
    ),
    Mutation(
        "ordinary-add-of-another-entry",
        "bookie",
        ("P12", "P1", "P9"),
        "an ordinary add is stored under the last add confirmed that its packet has, not under its own id",
        "ledger/wire/fast_add.py",
        "    return _new(FastAdd, (stored, ledger_id, entry_id, last_add_confirmed, master_key,"
        " bytes(packet[start:]), txn_id))\n",
        "    return _new(\n        FastAdd,\n        (stored, ledger_id, last_add_confirmed, last_add_confirmed,"
        " master_key, bytes(packet[start:]), txn_id),\n    )\n",
    ),
    Mutation(
        "any-answer-is-stored",
        "client",
        ("P1", "P9"),
        'the client\'s short way takes an answer to an add for "stored" whatever its status says',
        "ledger/wire/fast_responses.py",
        "\\x18(%(n)b)\\x10\\x00\\xaa\\x06(.)\\x08\\x00(\\x10%(n)b",
        "\\x18(%(n)b)\\x10%(n)b\\xaa\\x06(.)\\x08%(n)b(\\x10%(n)b",
        more=(Edit("ledger/wire/fast_responses.py", " or length[0] != 2 + len(ids):\n", ":\n"),),
    ),
    Mutation(
        "fence-flag-forgotten",
        "client",
        (),
        "the reads of recovery carry the master key, and not the flag that makes them fence",
        "ledger/wire/fast_requests.py",
        '        self._ledger = (b"" if fence_with is None else _FENCE_FLAG) + b',
        "        self._ledger = b",
        tests=(_UNHEARD_FENCE,),
    ),
    Mutation(
        "recovery-flag-forgotten",
        "client",
        ("P12", "P3"),
        "the adds of recovery do not say that they are such, and a fenced ledger refuses them",
        "ledger/wire/fast_requests.py",
        '        self._ledger = (_RECOVERY_FLAG if recovery else b"") + b',
        "        self._ledger = b",
    ),
    Mutation(
        "read-only-takes-ordinary-adds",
        "bookie",
        (),
        "a bookie that is read-only takes the adds that are served without a second look",
        "bookie/protocol/request_processor.py",
        "            or self._mode.read_only\n",
        "",
        tests=("tests/integration/bookie/test_read_only.py::test_the_operators_switch",),
    ),
    Mutation(
        "fast-path-wakes-no-long-poll",
        "bookie",
        (),
        "who waits for the last add confirmed to grow is not told of ordinary adds",
        "bookie/protocol/request_processor.py",
        "            return False  # fails again there, and is answered\n        if ledger_id in self._awaited:\n",
        "            return False  # fails again there, and is answered\n        if False:\n",
        tests=("tests/integration/bookie/test_long_poll.py",),
    ),
    Mutation(
        "fast-path-beside-the-gate",
        "bookie",
        (),
        "ordinary adds are served before authentication or TLS has let the connection in",
        "bookie/protocol/connection.py",
        "        shortcut = self._processor.add if serve == self._processor.process else None\n",
        "        shortcut = self._processor.add\n",
        tests=(_TLS,),
    ),
    Mutation(
        "asked-in-clear-answered-inside-tls",
        "bookie",
        (),
        "a connection becomes TLS after it has served something in clear, which anybody may have asked",
        "bookie/protocol/connection.py",
        "        if self._tls is not None or self._served_in_clear or self._security.certificates is None:\n",
        "        if self._tls is not None or self._security.certificates is None:\n",
        tests=(_TLS,),
    ),
    Mutation(
        "answers-from-clear-are-taken-inside-tls",
        "client",
        (),
        "the ids by which a client that uses TLS tells its answers can be guessed by whoever stands in between",
        "thinclient/bookies/pool.py",
        "itertools.count(1 + (self._rng.getrandbits(_SECRET_BITS) if secret_txn_ids else 0))",
        "itertools.count(1)",
        tests=("tests/unit/thinclient/bookies/test_secure_connections.py",),
        more=(
            Edit(
                "thinclient/bookies/handshake.py",
                "itertools.count(secrets.randbits(62))",
                "itertools.count(1)",
            ),
        ),
    ),
    # Storage
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
        "        while (ids := await self._next_range(ranges)) is not None:\n            comparison.add_range(ids)\n"
        "            await self._pace(1)\n        missing = comparison.finish()\n",
        "        try:\n"
        "            while (ids := await self._next_range(ranges)) is not None:\n                "
        "comparison.add_range(ids)\n"
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
        "                    self._point_at_copies(LedgerId.unscoped(number), moves[number])\n",
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
        "        lost = list(listed - id_set(found))\n",
        "        lost = list(listed - listed)\n",
    ),
    Mutation(
        "older-index-file-believed",
        "storage",
        (),
        "an index file that is older than the list of index files says is taken for right",
        "bookie/index/file_index.py",
        " or header.generation < (generation or UNKNOWN)\n",
        "\n",
        tests=(f"{_INDEX_LIST}::test_a_ledger_whose_index_file_is_an_older_copy_is_in_limbo",),
    ),
    Mutation(
        "log-removed-on-the-word-of-memory",
        "storage",
        ("S1", "P1"),
        "a log goes because memory shows that its entries were moved, which a killed process did not make durable",
        "bookie/collection/log_removal.py",
        "            self._store.index.read_back([LedgerId.unscoped(number) for number in numbers])\n",
        "            self._store.index.sync()\n",
    ),
    Mutation(
        "damage-answered-as-missing",
        "bookie",
        ("S3",),
        "an entry that can't be read is answered as 'no such entry'",
        "bookie/protocol/read_scheduler.py",
        "            return _refusal(request, Status.EIO)\n\n    def _known_lac",
        "            return _refusal(request, Status.ENOENTRY)\n\n    def _known_lac",
    ),
    # The gateway
    Mutation(
        "iterate-ends-on-an-error",
        "gateway",
        ("M5",),
        "a listing that fails in the middle ends as if it were whole",
        "gateway/services/iterate.py",
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
        "bookie/collection/ledger_collector.py",
        "        await self._within_timeout(self._metadata.registration_manager.verify(self._membership))\n",
        "        return\n",
    ),
    Mutation(
        "no-quarantine",
        "bookie",
        ("S2",),
        "a ledger that one run misses is deleted by that run",
        "bookie/collection/deletion_rules.py",
        "        waited = SortedIds(self._candidates)\n",
        "        waited = SortedIds(missing)\n",
        more=(
            Edit(
                "bookie/collection/deletion_rules.py",
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
        "gateway/services/watch_hub.py",
        "        if known is not None and (record.version == known.version"
        " or DAMAGED < record.version < known.version):\n            return []\n",
        "",
        METADATA,
        (
            Edit("gateway/services/watch_hub.py", "        return version != self.version\n", "        return True\n"),
            Edit(
                "gateway/stores/ledger_listeners.py",
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
        "gateway/stores/ledger_listeners.py",
        "            watched.outdated()\n        if self._sweep is None:\n",
        "            break\n        if False:\n",
        METADATA,
    ),
    Mutation(
        "removal-not-told",
        "gateway",
        ("M2",),
        "a watch falls silent when its ledger is deleted",
        "gateway/services/watch_hub.py",
        "            stream.removed[ledger_id] = None\n        return list(ledger.streams)\n",
        "        return list(ledger.streams)\n",
        METADATA,
    ),
    Mutation(
        "cache-serves-what-was-overwritten",
        "gateway",
        ("M4",),
        "the cache keeps the answer that it has made of a ledger when it hears that somebody has changed it",
        "gateway/services/metadata_cache.py",
        "        self.answer = self.ledger = None\n",
        "        self.ledger = None\n",
        METADATA,
    ),
    Mutation(
        "freshness-not-asked",
        "gateway",
        ("M4",),
        "a gateway answers from what it holds, whatever its client has seen at another one",
        "gateway/services/freshness.py",
        "        if revision <= self._reached:\n            return\n",
        "        if revision >= 0:\n            return\n",
        METADATA,
    ),
    Mutation(
        "blind-write",
        "gateway",
        ("P6", "M6"),
        "a write does not look at the version it was made from",
        "gateway/stores/zookeeper/ledger_manager.py",
        "            stat = await self._session.set(self._path(ledger_id), data, expected_version)\n",
        "            stat = await self._session.set(self._path(ledger_id), data, -1)\n",
        METADATA,
    ),
    Mutation(
        "any-creator-owns",
        "gateway",
        ("M6",),
        "a Create that finds the ledger there takes it for its own",
        "gateway/stores/zookeeper/ledger_manager.py",
        "            return creator_of(await self.read(ledger_id), metadata)\n",
        "            return Creator.SELF\n",
        METADATA,
    ),
    Mutation(
        "watches-never-released",
        "gateway",
        ("M7",),
        "the store's watch stays when the last subscriber has gone",
        "gateway/stores/ledger_listeners.py",
        "        del self._ledgers[ledger_id]\n        if not watched.busy:\n            self._released(ledger_id)\n",
        "        return\n",
        METADATA,
    ),
    Mutation(
        "loop-waits-for-the-store",
        "gateway",
        ("P12",),
        "each request wakes the thread of the store's client by a byte of its own, which waits for room",
        "gateway/stores/zookeeper/kazoo_thread.py",
        "        if not self._woken:\n",
        "        self._wake_sock.setblocking(True)\n        if True:\n",
        METADATA,
    ),
    Mutation(
        "client-not-made-anew",
        "gateway",
        ("P12",),
        "a gateway whose client of the store has ended by an error goes on without one",
        "gateway/stores/zookeeper/session.py",
        "        loop.call_at(max(loop.time(), self._started_at + _RETRY_SECONDS), self._start_anew)\n",
        "        return\n",
        METADATA,
    ),
    # Leases of bookies
    Mutation(
        "lease-of-another-claims",
        "gateway",
        (),
        "a bookie id that one lease has registered is given to another that asks for it",
        "gateway/stores/claims.py",
        "        return held is None or same_life(held[0].lease, lease)\n",
        "        return True\n",
        tests=(_REGISTRATION + "::test_a_process_tells_the_owners_of_its_registrations_apart",),
    ),
    Mutation(
        "lease-claims-the-hosts-own-id",
        "gateway",
        (),
        "a lease registers the id of the bookie that hosts the gateway",
        "gateway/stores/claims.py",
        "        if bookie_id in self._own:\n            return lease is None\n",
        "",
        tests=(_REGISTRATION + "::test_a_process_tells_the_owners_of_its_registrations_apart",),
    ),
    Mutation(
        "lease-kept-when-it-is-over",
        "gateway",
        (),
        "a bookie that has fallen silent stays registered",
        "gateway/services/registration.py",
        "        if registration.expires > asyncio.get_running_loop().time():\n",
        "        if registration.expires > 0:\n",
        tests=(_REGISTRATION + "::test_a_bookie_that_dies_leaves_discovery_with_its_lease",),
    ),
    Mutation(
        "lease-not-lengthened",
        "gateway",
        (),
        "a heartbeat does not lengthen the lease of its bookie",
        "gateway/services/registration.py",
        "        registration.expires = asyncio.get_running_loop().time() + self._lease_seconds\n"
        "        if request.unregister:\n",
        "        if request.unregister:\n",
        tests=(_REGISTRATION,),
    ),
    Mutation(
        "waiting-lease-takes-the-id-in-the-end",
        "gateway",
        (),
        "a bookie that was unregistered while it waited for its id is given the id nevertheless",
        "gateway/services/registration.py",
        "        if registration.over:\n            self._forget(registration)\n        elif registration",
        "        if registration",
        tests=(_REGISTRATION + "::test_a_bookie_that_gives_up_waiting_for_its_id_leaves_it_to_others",),
    ),
    Mutation(
        "watch-of-another-thrown-away",
        "gateway",
        ("M2", "M3", "M4"),
        "an answer that there is no node throws away every watch of the path, also a later request's",
        "gateway/stores/zookeeper/session.py",
        "        found: tuple[bytes, ZnodeStat] = await self._read(lambda kazoo: GetData(path, "
        "kazoo.watcher(watch)))\n"
        "        return found\n",
        "        try:\n"
        "            found: tuple[bytes, ZnodeStat] = await self._read(lambda kazoo: GetData(path, "
        "kazoo.watcher(watch)))\n"
        "        except NoNodeError:\n"
        "            if self._kazoo is not None:\n"
        "                self._kazoo.client._data_watchers.pop(path, None)\n"
        "            raise\n"
        "        return found\n",
        METADATA,
    ),
    # The store in SQLite
    Mutation(
        "sqlite-blind-write",
        "gateway",
        (),
        "a write to SQLite does not look at the version it was made from",
        "gateway/stores/sqlite/ledger_manager.py",
        "    if expected_version is not None and row[0] != expected_version:\n",
        "    if False:\n",
        tests=(_CONTRACT + "::TestLedgers::test_write_replaces_only_the_expected_version[sqlite]",),
    ),
    Mutation(
        "sqlite-any-creator-owns",
        "gateway",
        (),
        "a Create that finds the ledger in SQLite takes it for its own",
        "gateway/stores/sqlite/ledger_manager.py",
        '    raise LedgerExistException(f"ledger {ledger_id} exists already")\n',
        "    return\n",
        tests=(
            _CONTRACT + "::TestLedgers::test_given_id_is_taken_once[sqlite]",
            _CONTRACT + "::TestLedgers::test_repeated_create_with_its_token_finds_its_own_ledger[sqlite]",
        ),
    ),
    Mutation(
        "sqlite-removal-not-noted",
        "gateway",
        (),
        "watches of other processes are not told that a ledger was removed from SQLite",
        "gateway/stores/sqlite/ledger_manager.py",
        "            transaction.ledger_changed(ledger_key(ledger_id))\n"
        '            transaction.execute("DELETE FROM ledgers',
        '            transaction.execute("DELETE FROM ledgers',
        tests=(_CONTRACT,),
    ),
    Mutation(
        "sqlite-id-given-again",
        "gateway",
        (),
        "the generated id of a ledger that was removed is given to another",
        "gateway/stores/sqlite/ledger_manager.py",
        "            transaction.execute(\"UPDATE meta SET value = ? WHERE name = 'next_ledger_id'\", (stored,))\n",
        "            assert stored\n",
        tests=(_CONTRACT + "::TestLedgers::test_generated_id_of_a_removed_ledger_is_not_given_again[sqlite]",),
    ),
    Mutation(
        "sqlite-listing-ends-early",
        "gateway",
        (),
        "a listing of SQLite ends with its first run",
        "gateway/stores/sqlite/ledger_manager.py",
        "            if len(keys) < _RUN:\n                return\n",
        "            return\n",
        tests=(_EMBEDDED,),
    ),
    Mutation(
        "sqlite-commits-unsynced",
        "gateway",
        (),
        "a change is acknowledged before SQLite has it on the disk",
        "gateway/stores/sqlite/store.py",
        'connection.execute("PRAGMA synchronous=FULL")',
        'connection.execute("PRAGMA synchronous=OFF")',
        tests=(_EMBEDDED,),
    ),
    Mutation(
        "sqlite-failed-change-stays",
        "gateway",
        (),
        "what a change had done before it failed is committed with the next one",
        "gateway/stores/sqlite/store.py",
        "            if connection.in_transaction:\n"
        '                connection.execute("ROLLBACK")\n'
        "            raise\n"
        "        try:",
        "            if connection.in_transaction:\n"
        '                connection.execute("COMMIT")\n'
        "            raise\n"
        "        try:",
        tests=(_CONTRACT, _EMBEDDED),
    ),
    Mutation(
        "sqlite-pruned-changes-forgotten",
        "gateway",
        (),
        "who slept for longer than changes are kept goes on with those that are left",
        "gateway/stores/sqlite/change_feed.py",
        "        if pruned:\n            return Changes(anything=True)\n",
        "",
        tests=(_EMBEDDED,),
    ),
    Mutation(
        "sqlite-lease-never-ends",
        "gateway",
        (),
        "a registration in SQLite whose lease has ended is still its former owner's",
        "gateway/stores/sqlite/registration.py",
        "        held_by_another = row is not None and row[0] != self._owner and row[2] > now\n",
        "        held_by_another = row is not None and row[0] != self._owner\n",
        tests=(_EMBEDDED,),
    ),
    Mutation(
        "sqlite-lease-made-again",
        "gateway",
        (),
        "what is left of a bookie at its former gateway registers it anew",
        "gateway/stores/sqlite/registration.py",
        "            if row is None or row[0] != self._owner:\n                raise moved_on(info.bookie_id)\n",
        "",
        tests=(_REGISTRATION + "::test_what_is_left_of_a_bookie_at_a_former_gateway_comes_back_in_no_list",),
    ),
    # Spark: planning
    Mutation(
        "parts-overlap",
        "spark",
        (),
        "where a ledger is cut, the entry at the border is read twice",
        "thinclient/spark/reading/planning.py",
        "        yield piece.between(first, end - 1)\n\n\ndef by",
        "        yield piece.between(first, min(end, piece.last_entry_id))\n\n\ndef by",
        tests=(_PLANNING,),
    ),
    Mutation(
        "last-part-cut-short",
        "spark",
        (),
        "the remainder of an uneven cut is read by nobody",
        "thinclient/spark/reading/planning.py",
        "        end = piece.first_entry_id + piece.entries * (index + 1) // parts\n",
        "        end = first + piece.entries // parts\n",
        tests=(_PLANNING,),
    ),
    Mutation(
        "task-over-two-ensembles",
        "spark",
        (),
        "an ensemble that begins with the last entry of a slice is passed over",
        "thinclient/spark/reading/planning.py",
        "if piece.first_entry_id < border <= piece.last_entry_id]",
        "if piece.first_entry_id < border < piece.last_entry_id]",
        tests=(_PLANNING,),
    ),
    Mutation(
        "ending-offset-included",
        "spark",
        (),
        "a batch reads the entry at its ending offset, which the next one reads again",
        "thinclient/spark/reading/planning.py",
        "options.ending_offsets.get(ledger_id, last + 1) - 1)",
        "options.ending_offsets.get(ledger_id, last))",
        tests=(_PLANNING,),
    ),
    Mutation(
        "shape-of-another-ledger",
        "spark",
        (),
        "slices travel with the ensembles of another ledger",
        "thinclient/spark/reading/planning.py",
        "        [index_of[id(shape)] for shape in shapes],\n",
        "        [0 for shape in shapes],\n",
        tests=(_PLANNING,),
    ),
    Mutation(
        "entry-bound-not-kept",
        "spark",
        (),
        "small ledgers are packed together beyond the number of entries that a task may have",
        "thinclient/spark/reading/planning.py",
        "        return weight <= self.weight and size <= self.size and entries <= self.entries\n",
        "        return weight <= self.weight and size <= self.size\n",
        tests=(_PLANNING,),
    ),
    Mutation(
        "old-ledgers-left-out",
        "spark",
        (),
        "a ledger that does not say when it was created is left out by a starting time",
        "thinclient/spark/reading/planning.py",
        "    if options.starting_timestamp_ms is not None and created is not None and created < "
        "options.starting_timestamp_ms:\n",
        "    if options.starting_timestamp_ms is not None and (created or 0) < options.starting_timestamp_ms:\n",
        tests=(_PLANNING,),
    ),
    # Spark: the sink
    Mutation(
        "sink-claims-nothing",
        "spark",
        (),
        "a driver commits without having claimed its ledgers, which another may delete meanwhile",
        "thinclient/spark/writing/commit.py",
        "        records = self._claimed(write, records)\n",
        "",
        tests=(_SINK, _DRIVERS),
    ),
    Mutation(
        "sink-deletes-any-version",
        "spark",
        (),
        "a driver deletes what was claimed or committed since it looked",
        "thinclient/spark/writing/commit.py",
        "                self._ledgers.remove(record.ledger_id, record.version)\n",
        "                self._ledgers.remove(record.ledger_id)\n",
        tests=(_SINK, _DRIVERS),
    ),
    Mutation(
        "sink-looks-up-no-leads",
        "spark",
        (),
        "a claimed ledger whose lead the listing has passed is left over",
        "thinclient/spark/writing/commit.py",
        "        records += self._read(leads_not_shown(records))\n",
        "",
        tests=(_SINK, _DRIVERS),
    ),
    Mutation(
        "sink-trusts-its-tasks",
        "spark",
        (),
        "a ledger is committed without a look at how many entries it holds",
        "thinclient/spark/writing/commit.py",
        "            if not metadata.is_closed or metadata.last_entry_id + 1 != entries:\n",
        "            if not metadata.is_closed:\n",
        tests=(_SINK,),
    ),
    Mutation(
        "sink-commits-twice",
        "spark",
        (),
        "a write that another driver has committed is committed once more",
        "thinclient/spark/writing/commit.py",
        '        if verdict.committed_by is not None:\n            _log.warning("%s is committed already',
        '        if False:\n            _log.warning("%s is committed already',
        tests=(_SINK, _DRIVERS),
    ),
    Mutation(
        "sink-deletes-out-of-order",
        "spark",
        (),
        "what is claimed is deleted before the lead that it is claimed for",
        "thinclient/spark/commit_protocol.py",
        "    for _, (record, state) in sorted(states.items()):\n",
        "    for _, (record, state) in sorted(states.items(), reverse=True):\n",
        tests=(_SINK, _DRIVERS),
    ),
    Mutation(
        "sink-mark-is-enough",
        "spark",
        (),
        "a listing counts what is marked, and lacks what of the write was not marked yet",
        "thinclient/spark/commit_protocol.py",
        "            return lead.names(state.ledger_id)\n        return state.marked and",
        "            return state.marked\n        return state.marked and",
        tests=(_SINK, _DRIVERS),
    ),
    Mutation(
        "sink-later-batches-left-over",
        "spark",
        (),
        "a driver of an earlier batch deletes what a later one writes",
        "thinclient/spark/commit_protocol.py",
        "    if state is None or state.write.query != write.query or state.write.batch > write.batch:\n",
        "    if state is None or state.write.query != write.query:\n",
        tests=(_SINK, _DRIVERS),
    ),
)
"""By area: client, bookie, storage, gateway, spark."""
