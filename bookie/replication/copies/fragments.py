"""Fragments of a ledger for auto-recovery: the entries that each position of an ensemble should hold.

A fragment is *complete* when its last entry is final: every fragment of a closed ledger, and of any other ledger all
but the last, which its writer may still extend. Only complete fragments are repaired (R7). In a closed ledger each id
up to the last entry exists, even if a fragment has a single entry. Source: docs/protocol/auto-recovery.md#fragments,
docs/protocol/client-protocol.md#quorums.

Not its job: which bookies hold what (`verdicts`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from pyroaring import BitMap64

from bookgate.ledger.metadata import Fragment, LedgerMetadata

_MOST_ENTRIES, _MOST_STRIPED_ENTRIES = 1 << 32, 1 << 28
"""Maximum number of entries of a ledger whose copies are examined. A bitmap of so many ids takes a MiB where a bookie
should hold all of them, and 32 MiB where it should hold some (striped). Metadata may claim 2^63 entries, whose bitmaps
would take all memory of the process."""
_MOST_PLACES, _LARGE_PLACES = 1 << 31, 1 << 26
"""Maximum number of entries times bookies of a striped ledger whose copies are examined, and the number above which it
is large: the bitmaps of all its bookies take up to 256 MiB, or more than 8."""
_MANY_RUNS = 1 << 16
"""Number of runs of ids above which a ledger of many fragments is large: work with them takes some 0.1 s."""
_SEED_ENTRIES = 1 << 16
"""Entries of which a striped bitmap is made id by id; the others repeat these."""


@dataclass(frozen=True, slots=True)
class CompleteFragment:
    """Entries `first_entry_id` to `last_entry_id` of a ledger; none if the last is below the first."""

    first_entry_id: int
    last_entry_id: int
    ensemble: tuple[str, ...]
    write_quorum_size: int

    def write_set(self, entry_id: int) -> tuple[str, ...]:
        """The bookies that should hold an entry."""
        size = len(self.ensemble)
        return tuple(self.ensemble[(entry_id + behind) % size] for behind in range(self.write_quorum_size))

    def due(self, index: int) -> BitMap64:
        """The ids that the bookie at this position of the ensemble should hold."""
        ids, size, end = BitMap64(), len(self.ensemble), self.last_entry_id + 1
        if end <= self.first_entry_id:
            return ids
        if self.write_quorum_size == size:
            ids.add_range(self.first_entry_id, end)
            return ids
        count = min(end - self.first_entry_id, -(-_SEED_ENTRIES // size) * size)
        for behind in range(self.write_quorum_size):
            begin = self.first_entry_id + (index - behind - self.first_entry_id) % size
            ids |= BitMap64(range(begin, self.first_entry_id + count, size))
        while self.first_entry_id + count < end:
            # The write sets recur after as many entries as there are bookies.
            more = min(count, -(-(end - self.first_entry_id - count) // size) * size)
            ids |= ids.shift(more)
            count += more
        ids.remove_range(end, self.first_entry_id + count)
        return ids

    def due_count(self, index: int) -> int:
        """The number of ids in `due`."""
        size, count = len(self.ensemble), max(0, self.last_entry_id + 1 - self.first_entry_id)
        rest = range(self.last_entry_id + 1 - count % size, self.last_entry_id + 1)
        held = sum((index - entry_id) % size < self.write_quorum_size for entry_id in rest)
        return count // size * self.write_quorum_size + held


def due_at(metadata: LedgerMetadata, bookie_ids: Collection[str]) -> tuple[int, int]:
    """The number of entries of complete fragments that these bookies should hold, each counted once per bookie, and
    their bytes (`mean_bytes`).
    """
    entries = sum(
        fragment.due_count(index)
        for fragment in complete_fragments(metadata)
        for index, bookie_id in enumerate(fragment.ensemble)
        if bookie_id in bookie_ids
    )
    return entries, mean_bytes(metadata, entries)


def mean_bytes(metadata: LedgerMetadata, entries: int) -> int:
    """The mean size of this number of entries, from the ledger's length; 0 if it is not closed, since the metadata then
    lack the length.
    """
    if not metadata.is_closed or metadata.last_entry_id < 0:
        return 0
    return entries * max(0, metadata.length) // (metadata.last_entry_id + 1)


def complete_fragments(metadata: LedgerMetadata) -> list[CompleteFragment]:
    """All fragments of a ledger whose last entry is final, in order."""
    starts = [fragment.first_entry_id for fragment in metadata.fragments]
    ends = [start - 1 for start in starts[1:]]
    if metadata.is_closed:
        ends.append(metadata.last_entry_id)
    return [
        CompleteFragment(fragment.first_entry_id, last, fragment.ensemble, metadata.write_quorum_size)
        for fragment, last in zip(metadata.complete_fragments, ends, strict=True)
    ]


def why_not_examined(metadata: LedgerMetadata) -> str:
    """Why the copies of a ledger can't be examined: its metadata claim too many entries. Empty if they can."""
    entries, most = _claimed(metadata), _MOST_ENTRIES
    if _is_striped(metadata):
        most = min(_MOST_STRIPED_ENTRIES, _MOST_PLACES // metadata.ensemble_size)
    return f"its metadata claim {entries} entries, and at most {most} can be examined" if entries > most else ""


def is_large(metadata: LedgerMetadata) -> bool:
    """Whether the bitmaps of a ledger take much memory, or work with all of them much time."""
    places = len(metadata.fragments) * metadata.ensemble_size
    if not _is_striped(metadata):
        return places > _MANY_RUNS
    has_many_runs = places * metadata.write_quorum_size > _MANY_RUNS
    return has_many_runs or _claimed(metadata) * metadata.ensemble_size > _LARGE_PLACES


def _is_striped(metadata: LedgerMetadata) -> bool:
    return metadata.write_quorum_size < metadata.ensemble_size


def _claimed(metadata: LedgerMetadata) -> int:
    """The number of entries of the complete fragments."""
    return sum(max(0, each.last_entry_id + 1 - each.first_entry_id) for each in complete_fragments(metadata))


def written_ensemble(metadata: LedgerMetadata) -> tuple[str, ...]:
    """The ensemble of the fragment that may still be extended; empty for a closed ledger."""
    return () if metadata.is_closed else metadata.last_fragment.ensemble


def with_members_replaced(
    metadata: LedgerMetadata, repaired: CompleteFragment, replacements: Mapping[int, tuple[str, str]]
) -> LedgerMetadata | None:
    """The metadata after a repair of one fragment.

    Args:
        metadata: The metadata stored now.
        repaired: The fragment as it was when its entries were copied.
        replacements: By position in the ensemble: the member that is replaced, and its replacement.

    Returns:
        The new metadata; None if they have changed so that the repair does not apply any more: there is no complete
        fragment with these entries, a position has another member now, or a bookie would be in the ensemble twice
        (R4). In an unbounded ledger, adjacent fragments with the same ensemble are merged: the new member would lack
        the entries that the fragment has gained (R3).
    """
    first_entry_id = repaired.first_entry_id
    if (first_entry_id, repaired.last_entry_id) not in {
        (each.first_entry_id, each.last_entry_id) for each in complete_fragments(metadata)
    }:
        return None
    fragments = list(metadata.fragments)
    for number, fragment in enumerate(fragments):
        if fragment.first_entry_id == first_entry_id:
            ensemble = _replaced(fragment.ensemble, replacements)
            if ensemble is None:
                return None
            fragments[number] = Fragment(first_entry_id, ensemble)
    return replace(metadata, fragments=tuple(fragments))


def _replaced(ensemble: tuple[str, ...], replacements: Mapping[int, tuple[str, str]]) -> tuple[str, ...] | None:
    changed = list(ensemble)
    for index, (before, after) in replacements.items():
        if index >= len(changed) or changed[index] != before:
            return None
        changed[index] = after
    # An ensemble that names another bookie twice, as a flaw of BookKeeper's leaves it, is repaired nevertheless.
    return tuple(changed) if all(changed.count(after) == 1 for _, after in replacements.values()) else None


def pieces_of(ids: BitMap64, most: int) -> Iterator[tuple[int, int]]:
    """Yields first and last of runs of consecutive ids, each of at most `most` ids."""
    first: int | None = None
    last = -1
    for entry_id in ids:
        if first is not None and entry_id == last + 1 and entry_id - first < most:
            last = entry_id
            continue
        if first is not None:
            yield first, last
        first = last = entry_id
    if first is not None:
        yield first, last
