"""Unbounded ledgers in worlds where clients fight for one: handles, readers, and bookies on their disks."""

from __future__ import annotations

from functools import partial

from tests.simulation.mutations.mutation import UNBOUNDED, Mutation, in_worlds_of

_VIEW = "thinclient/handles/ledger_view.py"
_WRITER = "thinclient/core/unbounded/writing.py"
_CHANGES = "thinclient/core/unbounded/changes.py"
_HANDLE = "thinclient/handles/unbounded/write_handle.py"
_LEDGER = "bookie/storage/ledger_state.py"


_planted = partial(in_worlds_of, UNBOUNDED)

MUTATIONS = (
    Mutation(
        "readers-tell-bookies-the-lac",
        "client",
        (),
        "a reader tells bookies its LAC: one that has left the ensemble shows an entry of an earlier term",
        _VIEW,
        "        return known_last_entry(self.record) if self.record.metadata.is_unbounded else None\n",
        "        return self.last_add_confirmed if self.record.metadata.is_unbounded else None\n",
        tests=("tests/unit/thinclient/handles/test_unbounded_reading.py",),
    ),
    _planted(
        "dirty-entries-shown",
        ("U4",),
        "a bookie shows readers what it does not know to be confirmed",
        _LEDGER,
        "        return self.term is None or entry_id <= max(",
        "        return entry_id >= 0 or entry_id <= max(",
    ),
    _planted(
        "truncate-entries-shown",
        ("U4",),
        "readers are given truncate entries",
        "thinclient/handles/truncate_entries.py",
        "            written = batch if all(entry.payload for entry in batch) else "
        "[each for each in batch if each.payload]\n",
        "            written = batch\n",
    ),
    _planted(
        "told-at-the-first-acknowledgement",
        ("G3", "U5"),
        "an append returns when one bookie has stored it",
        _WRITER,
        "        while self._unconfirmed and self._unconfirmed[0].acked.bit_count() >= self._ack_quorum_size:\n",
        "        while self._unconfirmed and self._unconfirmed[0].acked.bit_count() >= 1:\n",
    ),
    _planted(
        "closed-while-entries-are-pending",
        ("G2",),
        "the ledger is closed as soon as all appends are acknowledged",
        _HANDLE,
        "        if self._writer.pending_count and self._writer.error is None:\n            self._replicated",
        "        if self._writer.unconfirmed_count and self._writer.error is None:\n            self._replicated",
    ),
    _planted(
        "take-over-stored-by-anybody",
        ("P6", "U5"),
        "a take-over stores its end though another client has the term",
        _CHANGES,
        "        check_holder(metadata, *holder)\n        if metadata.state is LedgerState.OPEN:\n",
        "        if metadata.state is LedgerState.OPEN:\n",
    ),
    _planted(
        "fragments-stored-by-anybody",
        ("G1", "U5"),
        "a writer stores its next fragment though another client has the term",
        _CHANGES,
        "        check_holder(metadata, *holder)\n        if metadata.last_fragment == new.fragment:\n",
        "        if metadata.last_fragment == new.fragment:\n",
    ),
    _planted(
        "fragments-begin-behind-the-lac",
        ("G1",),
        "the next fragment begins behind the LAC: what was confirmed before is not on its whole write set",
        _WRITER,
        "        self._next = NewFragment(Fragment(self.lafr + 1, ensemble), self.replicated_length)\n",
        "        self._next = NewFragment(Fragment(self.last_add_confirmed + 1, ensemble), self.confirmed_length)\n",
    ),
    _planted(
        "old-term-goes-on-adding",
        ("U5", "G3"),
        "a bookie takes adds of a term that another client has ended",
        _LEDGER,
        "        return Status.EINVALIDTERM if self.term is not None and term < self.term else Status.EOK\n",
        "        return Status.EOK\n",
    ),
    Mutation(
        "readers-believe-bookies-of-later-terms",
        "client",
        (),
        "a reader with old metadata takes entries from a bookie that has left their fragment, and joined another since",
        "ledger/unbounded.py",
        "    return metadata.is_closed or entry_id < metadata.last_fragment.first_entry_id\n",
        "    return entry_id >= 0\n",
        tests=("tests/unit/thinclient/handles/test_unbounded_reading.py",),
    ),
)
