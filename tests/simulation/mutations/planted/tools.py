"""What operators touch: commands, and the processes that they start."""

from __future__ import annotations

from tests.simulation.mutations.mutation import Mutation

MUTATIONS = (
    Mutation(
        "damaged-entry-adopted-as-dummy",
        "tools",
        (),
        "a ledger whose first entry is damaged is adopted as one without checksums, and these are shown as payload",
        "thinclient/tools/adoption.py",
        "                    if digest_type is not DigestType.DUMMY or entry.ledger_length == len(entry.payload):\n",
        "                    if entry is not None:\n",
        tests=("tests/unit/thinclient/tools/test_adoption.py",),
    ),
    Mutation(
        "security-files-half-made",
        "tools",
        (),
        "a run of `security init` that is interrupted leaves half a file, which the next one takes for a whole one",
        "bookie/tools/trial_security/files.py",
        '    unfinished = path.with_name(path.name + ".new")\n',
        "    unfinished = path\n",
        tests=("tests/unit/bookie/tools/trial_security/test_files.py",),
    ),
    Mutation(
        "gateway-process-starts-for-ever",
        "tools",
        (),
        "a gateway's process that never comes to serve is waited for",
        "bookie/gateway_process.py",
        "                async with asyncio.timeout(_START_SECONDS):\n",
        "                async with asyncio.timeout(None):\n",
        tests=("tests/unit/bookie/test_gateway_process.py",),
    ),
    Mutation(
        "standalone-gives-a-bookie-up",
        "tools",
        (),
        "a bookie that could not be started again once stays away",
        "bookie/commands/standalone.py",
        "            if _starts(each.process):\n",
        "            if _starts(each.process) or each.process.process is None:\n",
        tests=("tests/unit/bookie/standalone/test_restarts.py",),
    ),
    Mutation(
        "server-outlives-its-owner",
        "tools",
        (),
        "a ZooKeeper that a run or a test started goes on after a kill of that",
        "bookie/standalone/local_zookeeper.py",
        "            self._guard = Guard(self._process.pid)\n",
        "",
        tests=("tests/integration/test_guard.py",),
    ),
    Mutation(
        "guard-waits-for-forks-of-its-owner",
        "tools",
        (),
        "a stop of the ZooKeeper of a run lasts until each process that the run has forked is over",
        "bookie/standalone/guard.py",
        "            process.kill()\n            process.communicate()\n",
        "            process.communicate()\n",
        tests=("tests/integration/test_guard.py::test_it_is_released_at_once_where_the_owner_has_forked",),
    ),
    Mutation(
        "only-audit-file-without-limit",
        "tools",
        (),
        "an audit trail of one file grows for ever",
        "runtime/security/audit_trail.py",
        "        anew.truncate(0)\n",
        "        anew.flush()\n",
        tests=("tests/unit/runtime/security/test_access_control.py",),
    ),
    Mutation(
        "audit-file-emptied-where-it-was-moved-to",
        "tools",
        (),
        "an audit trail of one file, which somebody has moved away, empties the moved file and goes on there",
        "runtime/security/audit_trail.py",
        "        anew = self._open()\n        anew.truncate(0)\n",
        "        if self.stream is not None:\n            self.stream.truncate(0)\n            return\n"
        "        anew = self._open()\n",
        tests=("tests/unit/runtime/security/test_access_control.py",),
    ),
)
