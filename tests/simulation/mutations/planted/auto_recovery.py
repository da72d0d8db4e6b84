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
    Mutation(
        "order-of-long-ago-obeyed",
        "auto-recovery",
        (),
        "an auditor obeys an order that it heard as a candidate, months before",
        "bookie/replication/audits/auditor.py",
        "self._now() - self._ordered_at > self._options.roll_call_seconds:",
        "self._ordered_at < 0:",
        tests=(
            f"{_INTEGRATION}/test_audits.py::test_an_order_that_a_candidate_heard_long_ago_is_not_for_its_own_term",
        ),
    ),
    Mutation(
        "order-forgotten-when-disabled",
        "auto-recovery",
        (),
        "an ordered audit that is interrupted because auto-recovery is disabled is not made when it is enabled",
        "bookie/replication/audits/auditor.py",
        "                self._ordered_at = self._ordered_at or ordered_at\n            return 0.0",
        "                pass\n            return 0.0",
        tests=(
            f"{_INTEGRATION}/test_audits.py::test_an_order_that_is_interrupted_by_disabling_is_carried_out_when_enabled",
        ),
    ),
    Mutation(
        "returns-unseen-while-disabled",
        "auto-recovery",
        (),
        "a bookie that is back while auto-recovery is disabled counts as missed since before",
        "bookie/replication/audits/auditor.py",
        "        await self._noted(ordered=False)\n        return",
        "        return",
        tests=(f"{_INTEGRATION}/test_audits.py::test_who_is_missed_and_who_is_back_is_recorded_while_disabled",),
    ),
    Mutation(
        "drained-bookie-settled",
        "auto-recovery",
        (),
        "a bookie that is emptied while it serves counts as a loss that is settled, once it is away",
        "bookie/replication/audits/audit_plan.py",
        "times + (bookie_id not in draining)",
        "times + 1",
        tests=(f"{_UNIT}/audits/test_audit_plan.py",),
    ),
)
