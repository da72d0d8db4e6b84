"""Bugs of unbounded ledgers that the exploration of small worlds finds (`tests/explore`)."""

from __future__ import annotations

from functools import partial

from tests.simulation.mutations.mutation import in_small_worlds

_WORLDS = ("tests/explore/test_small_streams.py",)
_WRITING = "thinclient/core/unbounded/writing.py"
_TAKING = "thinclient/core/unbounded/taking_over.py"
_BOOKIE = "bookie/storage/ledger_state.py"


_planted = partial(in_small_worlds, _WORLDS)

MUTATIONS = (
    _planted(
        "no-truncate-flag",
        "a take-over ends with an entry that truncates nothing",
        _WRITING,
        "        add, sends = self._begin(0, truncate=True)\n",
        "        add, sends = self._begin(0)\n",
    ),
    _planted(
        "lafr-follows-the-lac",
        "what an ack quorum has counts as fully replicated",
        _WRITING,
        "        while self._pending and self._pending[0].replicated:\n",
        "        while self._pending and self._pending[0].entry_id <= self.last_add_confirmed:\n",
    ),
    _planted(
        "pinned-bookie-gives-way",
        "a bookie is replaced that holds an entry which is confirmed, but not fully replicated",
        _WRITING,
        "        return pinned(self._failed, (add.acked for add in confirmed), self._ack_quorum_size)\n",
        "        return set()\n",
    ),
    _planted(
        "old-terms-served",
        "a bookie serves requests of a term below its own",
        _BOOKIE,
        "if self.term is not None and term < self.term else Status.EOK",
        "if self.term is not None and term < 0 else Status.EOK",
    ),
    _planted(
        "term-forgotten-by-a-restart",
        "a bookie that starts again knows the ledger at term 0",
        _BOOKIE,
        "            self.term, self.fenced = kept.term, kept.fenced\n",
        "            self.term, self.fenced = 0, kept.fenced\n",
    ),
    _planted(
        "take-over-after-one-missing",
        "a take-over takes the word of one bookie that an entry is missing",
        "thinclient/core/recovery_reads.py",
        "            if self.misses >= self._misses_needed:\n",
        "            if self.misses:\n",
    ),
    _planted(
        "take-over-opens-early",
        "a take-over opens the ledger before its adds are on all their bookies",
        _TAKING,
        "        if self.state is not TakeOverState.STORING or writer is None or writer.pending_count:\n",
        "        if self.state is not TakeOverState.STORING or writer is None:\n",
    ),
    _planted(
        "lac-includes-what-is-pending",
        "adds carry a LAC that includes entries which are still on their way",
        _WRITING,
        "        horizon = self._frozen or (self.last_add_confirmed, self.lafr)\n",
        "        horizon = (self.last_add_pushed - 1, self.lafr)\n",
    ),
    _planted(
        "fragments-begin-at-the-lac",
        "a new fragment begins after the LAC, with the end of the one before it not fully replicated",
        _WRITING,
        "        self._next = NewFragment(Fragment(self.lafr + 1, ensemble), self.replicated_length)\n",
        "        self._next = NewFragment(Fragment(self.last_add_confirmed + 1, ensemble), self.replicated_length)\n",
    ),
)
