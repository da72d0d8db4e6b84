"""Ledgers with a scope."""

from __future__ import annotations

from tests.simulation.mutations.mutation import Mutation

_STORAGE = "tests/unit/bookie/storage/test_scoped_storage.py"
_ENTRIES = "tests/unit/ledger/test_scoped_entries.py"
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
        "loss-of-scoped-ledgers-forgotten",
        "scopes",
        ("S8",),
        "where a loss is accepted, ledgers with a scope do not enter limbo",
        "bookie/limbo/check.py",
        "    async for scopes in manager.scopes():\n",
        "    async for scopes in manager.scopes(-1):\n",
    ),
)
