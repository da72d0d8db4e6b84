"""Auto-recovery beside what the simulated worlds meet: odd metadata, orders, disabled times, records and budgets."""

from __future__ import annotations

from tests.simulation.mutations.mutation import Mutation

_INTEGRATION, _UNIT = "tests/integration/bookie/replication", "tests/unit/bookie/replication"

MUTATIONS = (
    Mutation(
        "ledger-that-claims-too-much-checked",
        "auto-recovery",
        (),
        "the check of replicas makes a bitmap of as many entries as any metadata claim",
        "bookie/replication/checks/replica_check.py",
        "            self._not_checked(record.ledger_id, reason)\n            return True\n",
        "            self._not_checked(record.ledger_id, reason)\n",
        tests=(
            f"{_INTEGRATION}/test_replica_check.py::test_ledgers_that_claim_too_many_entries_are_left_out_and_said",
        ),
    ),
    Mutation(
        "ledger-that-claims-too-much-scrubbed",
        "auto-recovery",
        (),
        "a scrub reads such a ledger for years, and no other",
        "bookie/replication/checks/scrub.py",
        "                self._unverified(ledger_id, reason)\n                return\n            fragment",
        "                self._unverified(ledger_id, reason)\n            fragment",
        tests=(f"{_INTEGRATION}/test_scrub.py::test_a_ledger_that_claims_too_many_entries_is_left_out_and_said",),
    ),
    Mutation(
        "ledger-that-claims-too-much-repaired",
        "auto-recovery",
        (),
        "a worker examines such a ledger, and lists it as unrecoverable",
        "bookie/replication/repairs/repair.py",
        "        if reason := why_not_examined(self._record.metadata):\n",
        '        if (reason := why_not_examined(self._record.metadata)) == "never":\n',
        tests=(f"{_INTEGRATION}/test_worker.py::test_a_ledger_that_claims_too_many_entries_is_put_off",),
    ),
    Mutation(
        "scrub-divides-by-no-entries",
        "auto-recovery",
        (),
        "a ledger without entries whose metadata tell a length divides by zero",
        "bookie/replication/copies/copying.py",
        " or metadata.last_entry_id < 0:",
        ":",
        tests=(f"{_UNIT}/copies/test_copying.py",),
    ),
    Mutation(
        "scrub-ended-by-one-ledger",
        "auto-recovery",
        (),
        "an unforeseen error in one ledger ends the scrub, and the next one begins with that ledger",
        "bookie/replication/checks/scrub.py",
        "        except Exception as error:  # an unforeseen",
        "        except KeyError as error:  # an unforeseen",
        tests=(f"{_INTEGRATION}/test_scrub.py::test_a_bug_in_the_scrub_of_one_ledger_keeps_it_from_no_other",),
    ),
)
