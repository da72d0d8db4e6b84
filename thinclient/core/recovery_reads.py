"""The reads of a recovery or a take-over: replicas in turn for each entry, and several entries with one request.

A read is *asked for* with one request of its own, or behind another entry's (`following`); it is *answered* by one good
copy, by write quorum − ack quorum + 1 explicit "missing" responses, or, once no replica is left, by an error. Where
every bookie holds every entry, consecutive entries are asked for in runs: the request names the first, and how many
behind it the response may have besides. The first entry that the response lacks is then asked for by name, and the
rest behind it: a run ends at the limit of bytes, at a bad copy, at a gap in what this bookie holds, or at once where
the bookie knows nothing of runs, so what a run lacks says nothing of the entry. A bookie that returned the entry and
none of those behind it is asked for single entries from then on.

Events in: `begin`, `on_answer`. Effects out: `RecoveryRead`.

Invariants. P8: an entry counts as missing only by responses to fencing requests that named it. P2: one good copy, in a
run or not, is enough.

Not its job: which entries are read and when, what becomes of them (`recovery`, `unbounded.taking_over`), packets.
Source: docs/protocol/client-protocol.md#recovery-reads.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bookgate.ledger.entry import Entry
from bookgate.ledger.errors import BKException, LedgerRecoveryException, NoSuchEntryException
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.wire.messages import MOST_FOLLOWING_BYTES
from bookgate.thinclient.core.entry_read import EntryRead, write_set_bookies

_BESIDES = 64
"""At least what a packet and its place in a run have besides the payload: header, digest, length."""


class RecoveryRead(NamedTuple):
    """Send a fencing, high-priority read of `entry_id` to `bookie_id`, and of at most so many entries behind it."""

    entry_id: int
    bookie_id: str
    following: int = 0


class Missing(enum.Enum):
    """The bookie reported that it has no such entry or ledger."""

    MISSING = enum.auto()


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The bookie did not respond, responded with another error, or its packet is damaged."""

    error: BKException


Answer = Entry | Missing | Unreadable


class ReplicaRead:
    """The recovery read of one entry: the replicas in turn, and the number of explicit "missing" responses."""

    __slots__ = ("_misses_needed", "answer", "misses", "read")

    def __init__(self, entry_id: int, metadata: LedgerMetadata) -> None:
        self.read = EntryRead(entry_id, write_set_bookies(metadata, entry_id))
        self._misses_needed = metadata.write_quorum_size - metadata.ack_quorum_size + 1
        self.misses = 0
        self.answer: Answer | None = None

    def on_answer(self, answer: Answer) -> str | None:
        """Takes one replica's response; returns the replica to try next, or None when `answer` is final."""
        if isinstance(answer, Entry):
            self.answer = answer
            return None
        if isinstance(answer, Missing):
            self.misses += 1
            self.read.on_error(NoSuchEntryException(f"entry {self.read.entry_id} is missing on a bookie"))
            if self.misses >= self._misses_needed:
                self.answer = Missing.MISSING
                return None
        else:
            self.read.on_error(answer.error)
        replica = self.read.next_replica()
        if replica is None:
            self.answer = Unreadable(self.read.error or LedgerRecoveryException("no replica answered"))
        return replica


class RecoveryReads:
    """The reads of entries of one recovery, from the request to the answer that it takes."""

    def __init__(self, metadata: LedgerMetadata, read_batch: int, *, runs: bool) -> None:
        """Nothing is asked for yet.

        Args:
            metadata: The ensembles that the entries are read from, as they were at the start.
            read_batch: The most entries that are read ahead; a run has half of them.
            runs: Whether a read may ask for several entries: their response has up to `MOST_FOLLOWING_BYTES`.
        """
        self._metadata = metadata
        is_striped = metadata.ensemble_size > metadata.write_quorum_size
        self._longest_run = max(read_batch // 2, 1) if runs and not is_striped else 1
        self._reads: dict[int, ReplicaRead] = {}
        """By entry, the read of those that a request of their own asks for."""
        self._asked: dict[int, str] = {}
        """By entry of `_reads`, the replica that was asked last."""
        self._behind: dict[int, int] = {}
        """By entry of `_reads`, the number of those behind it that were asked for with it, until the answer."""
        self._found: dict[int, Entry] = {}
        """Entries that came behind others."""
        self._without_runs: set[str] = set()
        """Bookies that returned an entry, and none of those behind it."""

    def begin(self, first: int, end: int, largest: int) -> list[RecoveryRead]:
        """Asks for the entries from `first` to before `end`; `largest` is the payload of the largest entry so far."""
        longest = min(self._longest_run, max(MOST_FOLLOWING_BYTES // (largest + _BESIDES), 1))
        reads: list[RecoveryRead] = []
        for begin in range(first, end, longest):
            reads += self._ask(begin, min(begin + longest, end))
        return reads

    def _ask(self, first: int, end: int) -> Sequence[RecoveryRead]:
        """Asks for `first` and, besides, for the entries behind it to before `end`."""
        read = self._reads[first] = ReplicaRead(first, self._metadata)
        bookie_id = self._asked[first] = read.read.next_replica() or ""
        behind = end - first - 1
        if behind and bookie_id in self._without_runs:
            singly = [each for entry_id in range(first + 1, end) for each in self._ask(entry_id, entry_id + 1)]
            return [RecoveryRead(first, bookie_id), *singly]
        if behind:
            self._behind[first] = behind
        return [RecoveryRead(first, bookie_id, behind)]

    def asked(self, entry_id: int) -> str | None:
        """The replica that was asked last for an entry; None for one without a request of its own."""
        return self._asked.get(entry_id)

    def on_answer(
        self, entry_id: int, answer: Answer, following: Sequence[Entry] = ()
    ) -> Sequence[RecoveryRead] | None:
        """Takes a replica's response.

        Args:
            entry_id: The entry that was asked for.
            answer: What the replica has of it.
            following: The entries behind it that the response has besides, in order and without a gap.

        Returns:
            The reads that follow from it; None if nobody waits for the response.
        """
        read = self._reads.get(entry_id)
        if read is None or read.answer is not None:
            return None
        replica = read.on_answer(answer)
        if replica is not None:
            self._asked[entry_id] = replica
            return [RecoveryRead(entry_id, replica, self._behind.get(entry_id, 0))]
        behind = self._behind.pop(entry_id, 0)
        # Without the entry a recovery ends at it, or fails: what is behind it does not matter.
        return self._take(entry_id, behind, following) if behind and isinstance(answer, Entry) else ()

    def _take(self, entry_id: int, behind: int, following: Sequence[Entry]) -> Sequence[RecoveryRead]:
        """Takes the entries that came behind one, and asks for those that were asked for and did not come."""
        end = entry_id + 1 + behind
        came = following[:behind]
        for follower, entry in enumerate(came, entry_id + 1):
            assert entry.entry_id == follower, "the entries behind one come in order"
            self._found[follower] = entry
        if not came:
            self._without_runs.add(self._asked[entry_id])
        lacking = entry_id + 1 + len(came)
        return self._ask(lacking, end) if lacking < end else ()

    def take(self, entry_id: int) -> Answer | None:
        """Removes and returns the answer of an entry; None while there is none."""
        found = self._found.pop(entry_id, None)
        if found is not None:
            return found
        read = self._reads.get(entry_id)
        if read is None or read.answer is None:
            return None
        del self._reads[entry_id], self._asked[entry_id]
        return read.answer

    def clear(self) -> None:
        """Nothing that was asked for matters any more."""
        self._reads.clear()
        self._asked.clear()
        self._behind.clear()
        self._found.clear()
