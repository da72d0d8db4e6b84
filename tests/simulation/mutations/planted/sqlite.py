"""The metadata store in SQLite."""

from __future__ import annotations

from tests.simulation.mutations.mutation import Mutation

_REGISTRATION = "tests/integration/gateway/test_registration.py"
_EMBEDDED = "tests/integration/gateway/test_embedded.py"
_CHANGE_FEED = "tests/unit/gateway/stores/sqlite/test_change_feed.py"
_CLUSTER_COMMANDS = "tests/integration/gateway/test_cluster_cli.py"
_CONTRACT = "tests/integration/gateway/test_store_contract.py"

MUTATIONS = (
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
        "sqlite-revision-read-once",
        "gateway",
        (),
        "the revision of SQLite is the one that was read first, whatever is committed",
        "gateway/stores/sqlite/factory.py",
        "        if version is None or version != self._revision_at:\n",
        "        if self._revision_at is None:\n",
        tests=(_EMBEDDED + "::TestFile::test_the_revision_follows_every_commit_and_only_those",),
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
        tests=(_CHANGE_FEED,),
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
        "cluster-made-without-its-settings",
        "gateway",
        (),
        "a cluster in SQLite is there without its default of auto-recovery, which nothing brings back",
        "gateway/stores/sqlite/store.py",
        " for key, content in settings.items()]",
        " for key, content in ()]",
        tests=(f"{_CLUSTER_COMMANDS}::test_an_init_that_is_interrupted_and_repeated_ends_as_one_that_was_not",),
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
)
