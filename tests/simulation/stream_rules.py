"""What must hold of one stream in a world: T1, T2, T4, T6 and U7, beside what holds of its unbounded ledger.

Judged at each acknowledgement, each change of the metadata, each delivery to a consumer, each pass of a bookie's
collection, and at the end. T3 and T5 show in T1: a writer that does not find the whole table appends a number twice.
Numbered: docs/protocol/invariants.md#invariants-of-streams.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.payload_codec import RecordPosition
from bookgate.ledger.stream_entry import StreamRecord, decode_stream_entry
from bookgate.ledger.streams import CURSOR_KEY, CommittedCursor, Retention
from bookgate.ledger.unbounded import deleted_before
from tests.history.violations import (
    AcknowledgedValueLost,
    AppendedTwice,
    BookiesDiffer,
    CollectedTooMuch,
    CursorMovedBack,
    TimeFell,
    TrimmedBeforeCursor,
)
from tests.simulation.unbounded_rules import UnboundedRules
from tests.simulation.world import World


class Numbered(NamedTuple):
    """A record as its producer numbers it."""

    producer: str
    sequence: int

    @property
    def payload(self) -> bytes:
        """What the producer always sends under this number."""
        return b"%s %d" % (self.producer.encode(), self.sequence)

    @classmethod
    def of(cls, payload: bytes) -> Numbered:
        producer, _, sequence = payload.partition(b" ")
        return cls(producer.decode(), int(sequence))


class StreamRules(UnboundedRules):
    """Of one stream."""

    def __init__(self, world: World, retention: Retention, period: float) -> None:
        """`period`: seconds for which the metadata must have had a watermark before bookies go by it."""
        super().__init__(world)
        self._retention = retention
        self._period = period
        self.offered: set[Numbered] = set()
        self.positions: dict[RecordPosition, Numbered] = {}
        """Of the records that were acknowledged."""
        self._places: dict[Numbered, RecordPosition] = {}
        """Where records were seen first, or acknowledged."""
        self._taken: set[Numbered] = set()
        """Records of which a writer said that the stream has them."""
        self._delivered: dict[str, set[RecordPosition]] = {}
        self._cursors: dict[str, RecordPosition] = {}
        self._watermarks: list[tuple[float, int]] = [(0.0, 0)]
        """When the metadata had which."""
        self.misled: dict[str, list[tuple[float, int]]] = {}
        """By bookie when it was shown a watermark that the metadata did not have. If they have a higher one later, the
        period has begun with that sight: a bookie goes by what it finds, twice, a whole period apart.
        """
        self.trimmed_by_hand = 0
        """The highest entry from which on somebody asked to keep records."""

    @property
    def watermark(self) -> int:
        """As the metadata have it."""
        return self._watermarks[-1][1]

    # Producers

    def appended(self, source: Numbered, position: RecordPosition | None) -> None:
        """A record is acknowledged; without a position because the stream has it already."""
        self.looked["T1"] += 1
        if position is None:
            if source not in self.offered:
                self._fail(AppendedTwice(f"{source} counts as a duplicate, and was never offered"))
            self._taken.add(source)
            return
        self.positions[position] = source
        self._seen(source, position, "acknowledged")

    def _seen(self, source: Numbered, position: RecordPosition, how: str) -> None:
        place = self._places.setdefault(source, position)
        if place != position:
            self._fail(AppendedTwice(f"{source} is at {place} and, {how}, at {position}"))
        known = self.positions.get(position)
        if known is not None and known != source:
            self._fail(BookiesDiffer(f"at {position} {known} was acknowledged, and {source} is there, {how}"))

    def delivered(self, record: StreamRecord, how: str, cursor: str | None = None) -> None:
        """A reader was given a record; with a cursor it is committed later."""
        self.looked["U4"] += 1
        self._seen(Numbered.of(record.payload), record.position, how)
        if cursor is not None:
            self._delivered.setdefault(cursor, set()).add(record.position)

    def delivered_all(
        self, start: RecordPosition, records: Sequence[StreamRecord], due: Iterable[RecordPosition]
    ) -> None:
        """A reader that began at `start` came to its end without an error; `due` was acknowledged before."""
        self.looked["U5"] += 1
        found = [record.position for record in records]
        if found != sorted(set(found)):
            self._fail(AcknowledgedValueLost(f"records from {start} on came out of order: {found}"))
        if missing := sorted({each for each in due if each >= start}.difference(found)):
            self._fail(AcknowledgedValueLost(f"a reader from {start} on was not given {missing[:5]}"))
        last: dict[str, int] = {}
        for record in records:
            producer, sequence = Numbered.of(record.payload)
            if producer in last and sequence != last[producer] + 1:
                self._fail(AppendedTwice(f"{producer} has {sequence} at {record.position}, after {last[producer]}"))
            last[producer] = sequence

    def trimmed(self, position: RecordPosition, first_available: int) -> None:
        """A reader was told that what it asked for is deleted."""
        self.looked["U5"] += 1
        marks = {watermark for _, watermark in self._watermarks}
        if first_available not in marks or first_available <= position.entry_id:
            self._fail(
                AcknowledgedValueLost(f"a reader at {position} was told to go on at {first_available}, of {marks}")
            )

    def all_there(self, records: Sequence[StreamRecord]) -> None:
        """At the end, from the watermark on: what counts as a duplicate is there, or was deleted with what follows."""
        highest: dict[str, int] = {}
        for source in map(Numbered.of, (record.payload for record in records)):
            highest[source.producer] = max(source.sequence, highest.get(source.producer, -1))
        for source in self._taken | {*self.positions.values()}:
            if source.sequence > highest.get(source.producer, -1):
                self._fail(AcknowledgedValueLost(f"{source} was acknowledged, and the stream ends before it"))

    def times(self, payloads: Iterable[bytes]) -> None:
        """Of all entries from the watermark on."""
        before = 0
        for entry in map(decode_stream_entry, payloads):
            if not entry.records:
                continue
            self.looked["T2"] += 1
            if entry.append_time_ms < before:
                self._fail(TimeFell(f"an entry of {entry.append_time_ms} follows one of {before}"))
            before = entry.append_time_ms

    # Metadata

    def changed(self, before: LedgerRecord | None, after: LedgerRecord | None) -> None:
        super().changed(before, after)
        if after is None:
            return
        if CURSOR_KEY in after.metadata.custom_metadata:
            self._cursor_changed(CommittedCursor.of(after.metadata.custom_metadata))
        if after.metadata.terms is not None and before is not None:
            self._ledger_changed(after.ledger_id, after.metadata)

    def _cursor_changed(self, cursor: CommittedCursor) -> None:
        self.looked["T6"] += 1
        before, after = self._cursors.get(cursor.name, cursor.position), cursor.position
        self._cursors[cursor.name] = after
        if after < before:
            self._fail(CursorMovedBack(f"cursor {cursor.name} moved from {before} back to {after}"))
        given = self._delivered.get(cursor.name, set())
        due = [each for each in self.positions if before <= each < after and each.entry_id >= self.watermark]
        if missing := sorted(set(due) - given):
            self._fail(CursorMovedBack(f"cursor {cursor.name} moved past {missing[:5]}, which it was never given"))

    def _ledger_changed(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> None:
        watermark = deleted_before(metadata)
        if watermark <= self.watermark:
            return
        self._watermarks.append((self._world.now, watermark))
        if watermark > self.trimmed_by_hand and self._retention.keep_for_cursors and self._cursors:
            self.looked["T4"] += 1
            slowest = min(self._cursors.items(), key=lambda each: each[1])
            if watermark > slowest[1].entry_id:
                self._fail(TrimmedBeforeCursor(f"entries before {watermark} are deleted; {slowest} is not that far"))
        self.check_held(ledger_id, metadata)

    # Bookies

    def collected(self, bookie: str, before: int) -> None:
        """A bookie has deleted what is below an entry."""
        self.looked["U7"] += 1
        shown = [*self._watermarks, *self.misled.get(bookie, ())]
        long_since = [each for at, each in shown if self._world.now - at >= self._period]
        if before > min(self.watermark, max(long_since)):
            seen = f"{bookie} has deleted what is before entry {before}"
            self._fail(CollectedTooMuch(f"{seen}; the metadata had {self._watermarks[-5:]}"))

    def check_held(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> None:
        """Whatever bookies have deleted, from the watermark on everything of complete fragments is there."""
        held = self._held(ledger_id)
        end = metadata.last_entry_id + 1 if metadata.is_closed else metadata.last_fragment.first_entry_id
        for entry_id in range(deleted_before(metadata), end):
            self.looked["U7"] += 1
            lacking = [
                each for each in self._members(metadata, entry_id) if each in held and entry_id not in held[each]
            ]
            if lacking:
                self._fail(
                    CollectedTooMuch(f"{lacking} lack entry {entry_id}; the watermark is {deleted_before(metadata)}")
                )

    def uncollected(self, ledger_id: LedgerId) -> list[str]:
        """Bookies that hold more below the watermark than the last entry that they have."""
        return [
            bookie
            for bookie, entries in self._held(ledger_id).items()
            if any(each < self.watermark and each != max(entries) for each in entries)
        ]
