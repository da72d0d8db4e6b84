"""Quorum arithmetic: which bookies hold an entry, and when enough bookies have responded.

In an ensemble of E bookies, entry e is on the indexes (e + i) mod E for i below the write quorum. An ensemble is
*covered* when in every round-robin write set fewer than ack quorum bookies are unknown: then no entry can have been
acknowledged only by bookies that have not responded. Source: docs/protocol/client-protocol.md#quorums,
docs/protocol/client-protocol.md#which-rule-counts; P9.
"""

from __future__ import annotations

from functools import lru_cache

_MOST_KEPT = 4096
"""Indexes of a table that is kept: ensemble size × write quorum. Stored metadata may name any number of bookies."""


def write_sets(ensemble_size: int, write_quorum_size: int) -> tuple[tuple[int, ...], ...]:
    """All write sets of an ensemble; the one of entry e is at index e mod E."""
    if ensemble_size * write_quorum_size <= _MOST_KEPT:
        return _kept_write_sets(ensemble_size, write_quorum_size)
    return _made_write_sets(ensemble_size, write_quorum_size)


def _made_write_sets(ensemble_size: int, write_quorum_size: int) -> tuple[tuple[int, ...], ...]:
    return tuple(_made_write_set(start, ensemble_size, write_quorum_size) for start in range(ensemble_size))


def _made_write_set(start: int, ensemble_size: int, write_quorum_size: int) -> tuple[int, ...]:
    return tuple((start + offset) % ensemble_size for offset in range(write_quorum_size))


_kept_write_sets = lru_cache(maxsize=256)(_made_write_sets)


def write_set(entry_id: int, ensemble_size: int, write_quorum_size: int) -> tuple[int, ...]:
    """Ensemble indexes of the bookies that hold the entry, in the order of writing and reading."""
    if ensemble_size * write_quorum_size <= _MOST_KEPT:
        return _kept_write_sets(ensemble_size, write_quorum_size)[entry_id % ensemble_size]
    return _made_write_set(entry_id % ensemble_size, ensemble_size, write_quorum_size)


class CoverageSet:
    """The bookies of one ensemble whose response counts towards coverage (an entry, or no such entry or ledger)."""

    def __init__(self, ensemble_size: int, write_quorum_size: int, ack_quorum_size: int) -> None:
        self._write_sets = write_sets(ensemble_size, write_quorum_size)
        self._ack_quorum_size = ack_quorum_size
        self._unknown = set(range(ensemble_size))

    def mark_known(self, index: int) -> None:
        """Records that the bookie at `index` has responded."""
        assert 0 <= index < len(self._write_sets), "an index of the ensemble"
        self._unknown.discard(index)

    @property
    def covered(self) -> bool:
        return all(
            sum(index in self._unknown for index in indexes) < self._ack_quorum_size for indexes in self._write_sets
        )
