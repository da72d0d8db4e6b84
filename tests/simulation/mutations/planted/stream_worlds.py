"""Streams in worlds with faults: writers in turn, cursors, retention, and bookies that collect what is trimmed."""

from __future__ import annotations

from functools import partial

from tests.simulation.mutations.mutation import STREAMS, in_worlds_of

_planted = partial(in_worlds_of, STREAMS)

MUTATIONS = (
    _planted(
        "collects-beyond-the-watermark",
        ("U7", "U5"),
        "bookies delete the entry at the watermark as well",
        "bookie/index/file_index.py",
        "        end = min(entry_id, last_entry_of(self._files, fd))\n",
        "        end = min(entry_id + 1, last_entry_of(self._files, fd))\n",
    ),
    _planted(
        "collects-at-the-first-sight",
        ("U7",),
        "bookies go by a watermark that they have seen once",
        "bookie/collection/trimmed_ledgers.py",
        "            if before is None or watermark < before.watermark:\n",
        "            due[number] = watermark\n            if before is None or watermark < before.watermark:\n",
    ),
    _planted(
        "producers-forgotten-by-the-next-writer",
        ("T1",),
        "the next writer of a stream begins with an empty table of producers",
        "thinclient/streams/writer.py",
        "    return StreamAppends(table, last_time,",
        "    return StreamAppends(type(table)(), last_time,",
    ),
    _planted(
        "stream-snapshot-trimmed",
        ("T1",),
        "a trim deletes the last snapshot of producers",
        "thinclient/core/streams/retention.py",
        "    return min(before, last_snapshot)\n",
        "    return before\n",
    ),
    _planted(
        "commit-moves-back",
        ("T6",),
        "of two consumers of one cursor the slower one moves it back",
        "thinclient/streams/cursor.py",
        "        while self._found == before or self._found in self._tried:\n            moved = change(self._found)\n",
        "        while True:\n            moved = change(before)\n",
    ),
    _planted(
        "trimmed-told-as-the-end",
        ("U5",),
        "a reader below the watermark is told that the stream ends there",
        "thinclient/handles/ledger_view.py",
        "        while first <= last:\n            self.check_not_trimmed(first)\n",
        "        while first <= last:\n            if first < deleted_before(self.record.metadata):\n"
        "                return\n",
    ),
    _planted(
        "retention-passes-cursors",
        ("T4",),
        "a retention deletes what a cursor has not committed",
        "thinclient/core/streams/retention.py",
        "        before = min(before, slowest)\n",
        "        before = max(before, slowest)\n",
    ),
)
