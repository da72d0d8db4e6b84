"""Consecutive entries' records as they are in an entry log: a length and a packet each.

The body of a response to a batch read has the same form (docs/protocol/wire.md#batch_read_entry), so a run goes from
the log to the client unchanged, without an object per entry.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from bookgate.bookie.entry_logs import format as fmt


class RecordRun(NamedTuple):
    """`ends` has the end of each record, in bytes from the beginning of `records`, which ends with the last one."""

    records: bytes | memoryview
    ends: Sequence[int]

    def first(self, count: int) -> RecordRun:
        """The first `count` records."""
        if count == len(self.ends):
            return self
        return RecordRun(memoryview(self.records)[: self.ends[count - 1]], self.ends[:count])

    def packets(self) -> list[bytes]:
        """The entries' packets."""
        records, starts = bytes(self.records), (0, *self.ends[:-1])
        return [records[start + 4 : end] for start, end in zip(starts, self.ends, strict=True)]


def run_of(packets: Sequence[bytes]) -> RecordRun:
    """The run of these entries' packets, of which there is at least one."""
    return RecordRun(fmt.encode_records(packets), list(itertools.accumulate(len(packet) + 4 for packet in packets)))
