"""Quorum arithmetic: where an entry lives, and when enough bookies have answered.

Entry e of an ensemble of E bookies is on the indexes (e + i) mod E for i below the write quorum. An ensemble is
*covered* when in every round-robin write set fewer than ack quorum bookies are unknown: then no entry can have been
acknowledged by bookies all of which were silent. Source: docs/protocol/client-protocol.md#quorums,
docs/protocol/client-protocol.md#which-rule-counts; P9.
"""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=256)
def write_sets(ensemble_size: int, write_quorum_size: int) -> tuple[tuple[int, ...], ...]:
    """The write set of entry e stands at index e mod E."""
    return tuple(
        tuple((start + offset) % ensemble_size for offset in range(write_quorum_size)) for start in range(ensemble_size)
    )


def write_set(entry_id: int, ensemble_size: int, write_quorum_size: int) -> tuple[int, ...]:
    """Indexes of the bookies that hold the entry, in the order in which they are written and read."""
    return write_sets(ensemble_size, write_quorum_size)[entry_id % ensemble_size]


class CoverageSet:
    """Which bookies of one ensemble have given an answer that counts (an entry, or no such entry or ledger)."""

    def __init__(self, ensemble_size: int, write_quorum_size: int, ack_quorum_size: int) -> None:
        self._write_sets = write_sets(ensemble_size, write_quorum_size)
        self._ack_quorum_size = ack_quorum_size
        self._unknown = set(range(ensemble_size))

    def mark_known(self, index: int) -> None:
        """The bookie at `index` has answered."""
        self._unknown.discard(index)

    @property
    def covered(self) -> bool:
        return all(
            sum(index in self._unknown for index in indexes) < self._ack_quorum_size for indexes in self._write_sets
        )
