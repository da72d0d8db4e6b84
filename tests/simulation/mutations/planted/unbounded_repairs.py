"""Auto-recovery of unbounded ledgers: what its worlds and its tests on real bookies find."""

from __future__ import annotations

from functools import partial

from tests.simulation.mutations.mutation import Mutation

_REPAIR, _WORKER = "bookie/replication/repairs/repair.py", "bookie/replication/repairs/worker.py"
_BOOKIES, _FRAGMENTS = "bookie/replication/copies/bookies.py", "bookie/replication/copies/fragments.py"
_WORLDS = ("tests/simulation/test_unbounded_repairs.py",)
_REAL = "tests/integration/bookie/replication/test_unbounded_ledgers.py"

_planted = partial(Mutation, area="auto-recovery", expected=())

MUTATIONS = (
    _planted(
        name="unbounded-target-believed",
        breaks="what a bookie holds already counts as copied, though an older term may have left it there",
        file=_REPAIR,
        before="            return BitMap64()  # entries of an older term",
        after="            return repair.due  # entries of an older term",
        tests=_WORLDS,
    ),
    _planted(
        name="unbounded-target-not-at-the-term",
        breaks="the bookie that gets copies does not hear of the term",
        file=_REPAIR,
        before="        if record.metadata.terms is not None:\n            await",
        after="        if record.metadata.terms is not None and record.metadata.is_closed:\n            await",
        tests=_WORLDS,
    ),
    _planted(
        name="unbounded-last-fragment-repaired",
        breaks="the last fragment counts as complete",
        file="ledger/metadata.py",
        before="return self.fragments if self.is_closed else self.fragments[:-1]",
        after="return self.fragments if self.is_closed or self.terms else self.fragments[:-1]",
        tests=_WORLDS,
    ),
    _planted(
        name="unbounded-bookies-not-told",
        breaks="a bookie is not told that what is read is confirmed",
        file=_BOOKIES,
        before="known_lac = entry_id if ledger.unbounded else None",
        after="known_lac = None",
        tests=_WORLDS,
    ),
    _planted(
        name="unbounded-merged-fragment",
        breaks="a fragment that was merged with the next one is taken for the one that was copied",
        file=_FRAGMENTS,
        before="        (each.first_entry_id, each.last_entry_id) for each in complete_fragments(metadata)\n",
        after="        (each.first_entry_id, repaired.last_entry_id) for each in complete_fragments(metadata)\n",
        tests=(f"{_REAL}::test_fragments_that_were_merged_while_one_was_copied_are_looked_at_again",),
    ),
    _planted(
        name="unbounded-recovered",
        breaks="a ledger whose last fragment has lost a bookie is taken from its writer",
        file=_WORKER,
        before="or record.metadata.is_unbounded or not self._is_to_be_fenced(outcome)",
        after="or not self._is_to_be_fenced(outcome)",
        tests=(f"{_REAL}::test_a_complete_fragment_is_copied_and_the_last_one_is_its_writers",),
    ),
)
