"""Bugs of the ordinary protocol that the exploration of small worlds finds (`tests/explore`)."""

from __future__ import annotations

from functools import partial

from tests.simulation.mutations.mutation import in_small_worlds

_WORLDS = ("tests/explore/test_small_worlds.py",)
_WRITING = "thinclient/core/writing.py"
_RECOVERY = "thinclient/core/recovery.py"
_READS = "thinclient/core/recovery_reads.py"
_CHANGE = "thinclient/core/ensemble_change.py"


_planted = partial(in_small_worlds, _WORLDS)

MUTATIONS = (
    _planted(
        "ack-of-the-replaced-counts",
        "the acknowledgement of a bookie that was replaced counts for its successor",
        _WRITING,
        "            add.acks = add.acked.bit_count()\n",
        "",
    ),
    _planted(
        "late-ack-of-the-replaced-counts",
        "a bookie that was replaced acknowledges late, and that counts for its successor",
        _WRITING,
        "            self._members[index].bit = 0\n",
        "",
    ),
    _planted(
        "confirmed-during-a-change",
        "entries are confirmed by the old ensemble while the metadata move on to the new one",
        _WRITING,
        "        if not self._note_acks(adds, member) or self.changing:\n",
        "        if not self._note_acks(adds, member):\n",
    ),
    _planted(
        "change-one-entry-late",
        "metadata name the new ensemble from one entry too late on",
        _CHANGE,
        "        return metadata.with_ensemble(first_entry_id, ensemble)\n",
        "        return metadata.with_ensemble(first_entry_id + 1, ensemble)\n",
    ),
    _planted(
        "change-in-recovery",
        "a writer changes the ensemble of a ledger that is being recovered",
        _CHANGE,
        "        if metadata.state is not LedgerState.OPEN:\n",
        "        if metadata.state is LedgerState.CLOSED:\n",
    ),
    _planted(
        "fence-not-looked-at",
        "a fenced bookie takes adds of the writer",
        "bookie/storage/ledger_state.py",
        "        if not recovery and (self.fenced or (",
        "        if not recovery and ((self.fenced and recovery) or (",
    ),
    _planted(
        "one-missing-is-enough",
        "recovery takes the word of one bookie that an entry is missing",
        _READS,
        "            if self.misses >= self._misses_needed:\n",
        "            if self.misses:\n",
    ),
    _planted(
        "unreadable-counts-as-missing",
        "recovery takes an error for the word that an entry is missing",
        _READS,
        "            self.read.on_error(answer.error)\n",
        "            self.misses += 1\n            self.read.on_error(answer.error)\n"
        "            if self.misses >= self._misses_needed:\n"
        "                self.answer = Missing.MISSING\n                return None\n",
    ),
    _planted(
        "recovered-entries-not-awaited",
        "recovery closes the ledger before what it found is stored again",
        _RECOVERY,
        "writer is None or writer.pending_count:\n            return ()\n",
        "writer is None:\n            return ()\n",
    ),
    _planted(
        "recovered-ensembles-not-stored",
        "a recovery that replaced a bookie closes the ledger with the old ensemble",
        _RECOVERY,
        "        return [Finished(last_entry_id, length, self._fragments.fragments)]\n",
        "        return [Finished(last_entry_id, length)]\n",
    ),
    _planted(
        "closed-at-the-lac-of-the-start",
        "recovery closes the ledger at the LAC it began with, and not behind what it found",
        _RECOVERY,
        "            return self._finish(writer.last_add_confirmed, self._closing_length)\n",
        "            return self._finish(self._start, self._closing_length)\n",
    ),
    _planted(
        "tail-reads-behind-the-lac",
        "a tailing reader delivers the entry after the LAC",
        "thinclient/core/tailing.py",
        "        if self.position <= last_add_confirmed:\n            return ReadRange(",
        "        if self.position <= last_add_confirmed + 1:\n            return ReadRange(",
    ),
    _planted(
        "first-entry-of-a-fragment-taken-for-confirmed",
        "a reader takes the first entry of the last fragment for confirmed, whatever its bookies say",
        "thinclient/core/last_confirmed.py",
        "        self._best = metadata.last_fragment.first_entry_id - 1\n",
        "        self._best = metadata.last_fragment.first_entry_id\n",
    ),
)
