"""Which bookie is due to hold which entry, and whose place a repair gives to whom: of a ledger's metadata."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from bookgate.ledger.digest import digest_for
from bookgate.ledger.entry import decode_entry
from bookgate.ledger.errors import DigestMatchException
from bookgate.ledger.metadata import LedgerMetadata


def is_good(metadata: LedgerMetadata, packet: bytes, number: int, entry_id: int) -> bool:
    if metadata.digest_type is None:
        return True
    try:
        decode_entry(digest_for(metadata.digest_type, metadata.password or b""), packet, number, entry_id)
    except DigestMatchException:
        return False
    return True


class Place(NamedTuple):
    """A bookie takes another's place."""

    first_entry_id: int
    """Of the fragment."""
    place: int
    """In its ensemble."""
    was: str
    bookie_id: str


def new_members(before: LedgerMetadata, after: LedgerMetadata) -> Iterator[Place]:
    for old, new in zip(before.fragments, after.fragments, strict=False):
        for index, (was, is_now) in enumerate(zip(old.ensemble, new.ensemble, strict=True)):
            if was != is_now:
                yield Place(new.first_entry_id, index, was, is_now)


def end_of(metadata: LedgerMetadata, first_entry_id: int) -> int:
    """The id after the last one of a fragment that is complete."""
    later = [fragment.first_entry_id for fragment in metadata.fragments if fragment.first_entry_id > first_entry_id]
    return min(later) if later else metadata.last_entry_id + 1


def due_at(metadata: LedgerMetadata, first_entry_id: int, index: int) -> Iterator[int]:
    """Ids that the bookie at that index of the fragment has to hold, of a fragment that is complete."""
    for entry_id in range(first_entry_id, end_of(metadata, first_entry_id)):
        if (index - entry_id) % metadata.ensemble_size < metadata.write_quorum_size:
            yield entry_id


def write_sets(metadata: LedgerMetadata) -> Iterator[tuple[int, int, list[str]]]:
    """Each entry of a closed ledger, or of complete fragments: with the first one of its fragment, and its members."""
    for fragment in metadata.fragments:
        for entry_id in range(fragment.first_entry_id, end_of(metadata, fragment.first_entry_id)):
            places = range(entry_id, entry_id + metadata.write_quorum_size)
            yield (
                fragment.first_entry_id,
                entry_id,
                [fragment.ensemble[place % metadata.ensemble_size] for place in places],
            )
