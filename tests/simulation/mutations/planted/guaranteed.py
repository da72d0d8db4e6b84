"""Ordinary ledgers with a guaranteed write quorum: their writer's core, its handle, and recovery."""

from __future__ import annotations

from functools import partial

from tests.simulation.mutations.mutation import Mutation

_WRITER = "thinclient/core/guaranteed_writing.py"
_MODEL = ("tests/unit/thinclient/core/test_protocol.py",)
_HANDLE_TESTS = ("tests/unit/thinclient/handles/test_guaranteed_write_quorum.py",)


def _planted(tests: tuple[str, ...], name: str, breaks: str, file: str, before: str, after: str) -> Mutation:
    return Mutation(name, "client", (), breaks, file, before, after, tests=tests)


_in_the_model = partial(_planted, _MODEL)
_in_the_handle = partial(_planted, _HANDLE_TESTS)

MUTATIONS = (
    Mutation(
        "pinned-member-never-written-to-again",
        "client",
        (),
        "a failed bookie that may not be replaced is waited for, not written to, where another could replace it",
        "thinclient/handles/ensemble_changer.py",
        " if i in self._writer.replaceable}\n",
        "}\n",
        tests=("tests/unit/thinclient/handles/test_guaranteed_write_quorum.py",),
    ),
    Mutation(
        "guaranteed-lac-at-ack-quorum",
        "client",
        ("G2", "P9"),
        "the LAC of a ledger with a guaranteed write quorum moves at ack quorum",
        _WRITER,
        "        while replicating and replicating[0].acks == self._write_quorum_size:\n",
        "        while replicating and replicating[0].acks >= self._ack_quorum_size:\n",
    ),
    _in_the_handle(
        "guaranteed-recovery-takes-an-ack-quorum",
        "recovery closes a ledger with a guaranteed write quorum once an ack quorum has each entry",
        "thinclient/core/recovery.py",
        "            metadata.write_quorum_size if metadata.guaranteed_write_quorum else metadata.ack_quorum_size,\n",
        "            metadata.ack_quorum_size,\n",
    ),
    _in_the_model(
        "guaranteed-nobody-pinned",
        "a bookie is replaced that holds an entry which is confirmed, but not fully replicated",
        _WRITER,
        "        self._spared = self.pinned\n",
        "        self._spared = frozenset()\n",
    ),
    _planted(
        ("tests/unit/thinclient/core/test_guaranteed_writing.py",),
        "guaranteed-pinned-one-by-one",
        "several failed bookies are replaced together that an entry could each do without",
        "thinclient/core/ensemble_change.py",
        "            gone = ~left\n",
        "            pass\n",
    ),
    _planted(
        ("tests/unit/thinclient/core/test_guaranteed_writing.py",),
        "guaranteed-change-under-way-forgotten",
        "a bookie that fails during a change is replaced as if those that the change replaces were still there",
        _WRITER,
        "        self._leaving = self._failed.keys() - self._spared\n",
        "",
    ),
    _in_the_handle(
        "guaranteed-joiner-gets-pending-only",
        "a bookie that joins gets only what is not confirmed, so that the rest is never replicated",
        _WRITER,
        "        return chain(self._replicating, self._pending)\n",
        "        return self._pending\n",
    ),
    _in_the_handle(
        "guaranteed-closed-before-replicated",
        "`close` does not wait for full replication, and cuts acknowledged entries off",
        "thinclient/handles/guaranteed_write_handle.py",
        "        if not self._writer.fully_replicated and self._writer.error is None:\n",
        "        if not self._writer.fully_replicated and self._writer.error is not None:\n",
    ),
)
