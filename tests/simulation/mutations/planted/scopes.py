"""Ledgers with a scope."""

from __future__ import annotations

from tests.simulation.mutations.mutation import REPAIR, Mutation

_STORAGE = "tests/unit/bookie/storage/test_scoped_storage.py"
_ENTRIES = "tests/unit/ledger/test_scoped_entries.py"
_PATHS = "tests/unit/gateway/stores/test_mark_paths.py"
_COLLECTION = "tests/unit/bookie/collection/test_garbage_collector.py"

MUTATIONS = (
    Mutation(
        "index-path-without-scope",
        "scopes",
        (),
        "the index file of a scoped ledger has the path of the ledger of the same id in scope 0",
        "bookie/index/file_format.py",
        "    if ledger_id.scope_id != 0:\n        name",
        "    number = ledger_id.low\n    if False:\n        name",
        tests=(f"{_STORAGE}::test_ledgers_of_one_id_stay_apart_over_restarts",),
    ),
    Mutation(
        "scope-left-out-of-reads",
        "scopes",
        (),
        "a read of a scoped ledger is decoded as one of scope 0",
        "ledger/wire/v3.py",
        "    return messages.ReadRequest(\n        txn_id,\n        number_of(read.ledgerScopeId, read.ledgerId),\n",
        "    return messages.ReadRequest(\n        txn_id,\n        number_of(0, read.ledgerId),\n",
        tests=(f"{_ENTRIES}::test_v3_requests_carry_the_scope",),
    ),
    Mutation(
        "scopes-share-a-listing",
        "scopes",
        (),
        "garbage collection compares the ledgers of a scope with the listing of scope 0",
        "bookie/collection/ledger_collector.py",
        "        ranges = aiter(self._metadata.ledger_manager.ledger_ranges(scope_id))\n",
        "        ranges = aiter(self._metadata.ledger_manager.ledger_ranges(0))\n",
        tests=(f"{_COLLECTION}::test_scopes_are_collected_by_themselves",),
    ),
    Mutation(
        "copies-stored-in-scope-0",
        "scopes",
        ("R5", "D1"),
        "a worker stores the copies of a scoped ledger as those of the ledger with its lower half in scope 0",
        "bookie/replication/copies/copying.py",
        "self._bookies.add_copies(target, ledger_id.number, group, secrets)",
        "self._bookies.add_copies(target, ledger_id.low, group, secrets)",
        world=REPAIR,
    ),
    Mutation(
        "lower-half-marked",
        "scopes",
        ("R5", "R13"),
        "an audit marks the ledger of scope 0 that has the lower half of a scoped ledger's id",
        "bookie/replication/audits/ledger_index.py",
        "            slot = self._take_slot(record.ledger_id.number)\n",
        "            slot = self._take_slot(record.ledger_id.low)\n",
        world=REPAIR,
    ),
    Mutation(
        "scoped-mark-in-the-tree-of-scope-0",
        "scopes",
        (),
        "marks of scoped ledgers are written where BookKeeper's auditor looks for those of scope 0",
        "gateway/stores/zookeeper/replication_paths.py",
        "        return self.marks if number <= MAX_UNSCOPED else self.scoped_marks\n",
        "        return self.marks\n",
        tests=(f"{_PATHS}::test_marks_and_locks_of_scopes_are_where_bookkeeper_does_not_look",),
    ),
    Mutation(
        "loss-of-scoped-ledgers-forgotten",
        "scopes",
        (),
        "where a loss is accepted, ledgers with a scope of which nothing is left do not enter limbo",
        "bookie/limbo/check.py",
        "    async for scopes in manager.scopes():\n",
        "    async for scopes in manager.scopes(-1):\n",
        tests=("tests/unit/bookie/limbo/test_check.py",),
    ),
)
