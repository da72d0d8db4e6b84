"""The progress of a scrub, as kept in the store, so that a new auditor continues where the former one stopped.

A pass goes through the ledgers by their ids, and through the entries of each. It may skip a ledger because a bookie
does not respond, and then continues; skipped ledgers are part of its progress. A pass is complete when it is past the
last ledger and has skipped none, and only then its end is recorded. Pure. Source: docs/protocol/auto-recovery.md#scrub.
Not its job: reading (`scrub`).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace

from bookgate.bookie.replication.copies.fragments import CompleteFragment, complete_fragments
from bookgate.ledger.metadata import LedgerMetadata

MOST_LEFT_OUT = 1000
"""Maximum number of skipped ledgers, at which a pass stops until some of them could be examined."""


@dataclass(frozen=True, slots=True)
class ScrubProgress:
    """The progress of the current pass, and the end of the last one."""

    ledger_id: int = 0
    """All ledgers before this one were examined or skipped."""
    entry_id: int = 0
    """All entries of that ledger before this one were examined."""
    left_out: tuple[int, ...] = ()
    """Skipped ledgers, which must be examined from their beginning, in order."""
    began_ms: int | None = None
    """When the current pass began, in milliseconds since 1970; None if there is none."""
    ended_ms: int | None = None
    """When the last complete pass ended, in milliseconds since 1970."""

    @property
    def since_ms(self) -> int | None:
        """The end of the last complete pass; where none is known, the beginning of the one under way. A pass that was
        ordered (`ORDERED_MS`, which is 0) has replaced the end before it.
        """
        return self.ended_ms or self.began_ms

    def begun(self, now_ms: int) -> ScrubProgress:
        """The progress at the beginning of a pass."""
        return ScrubProgress(began_ms=now_ms, ended_ms=self.ended_ms)

    def looked_at(self, ledger_id: int, before_entry_id: int) -> ScrubProgress:
        """The progress after all entries of a ledger before that one were examined."""
        if ledger_id < self.ledger_id:
            return self  # a skipped ledger: it counts only as a whole
        return replace(self, ledger_id=ledger_id, entry_id=before_entry_id)

    def done_with(self, ledger_id: int) -> ScrubProgress:
        """The progress after a whole ledger was examined, or was found deleted."""
        left_out = tuple(each for each in self.left_out if each != ledger_id)
        if ledger_id < self.ledger_id:
            return replace(self, left_out=left_out)
        return replace(self, ledger_id=ledger_id + 1, entry_id=0, left_out=left_out)

    def without(self, ledger_id: int) -> ScrubProgress:
        """The progress after a ledger was skipped."""
        passed = self.done_with(ledger_id)
        return replace(passed, left_out=tuple(sorted({*passed.left_out, ledger_id})))

    def ended(self, now_ms: int) -> ScrubProgress:
        """The progress after the last ledger. Raises ValueError while a skipped ledger is left."""
        if self.left_out:
            raise ValueError(f"{len(self.left_out)} ledgers are left out")
        return ScrubProgress(ended_ms=now_ms)

    def encode(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True).encode()

    @classmethod
    def decode(cls, record: bytes) -> ScrubProgress:
        """Decodes a record; one that can't be read is no progress, so a pass begins again."""
        try:
            told = json.loads(record)
            return cls(
                int(told["ledger_id"]),
                int(told["entry_id"]),
                tuple(map(int, told["left_out"])),
                told["began_ms"],
                told["ended_ms"],
            )
        except (ValueError, TypeError, KeyError):
            return cls()


def next_entries(metadata: LedgerMetadata, entry_id: int, most: int) -> CompleteFragment | None:
    """The next entries to examine, as a fragment; None after the last entry of the complete fragments.

    Args:
        metadata: The ledger's metadata.
        entry_id: All entries before this one were examined.
        most: Maximum number of entries.
    """
    for fragment in complete_fragments(metadata):
        if entry_id <= fragment.last_entry_id:
            first = max(entry_id, fragment.first_entry_id)
            last = min(fragment.last_entry_id, first + most - 1)
            return CompleteFragment(first, last, fragment.ensemble, fragment.write_quorum_size)
    return None
