from __future__ import annotations

from itertools import combinations

import pytest

from bookgate.ledger import quorum
from bookgate.ledger.quorum import CoverageSet, write_set, write_sets


@pytest.mark.parametrize(
    ("entry_id", "expected"), [(0, (0, 1)), (1, (1, 2)), (2, (2, 0)), (3, (0, 1)), (2**31, (2, 0)), (2**62 + 1, (2, 0))]
)
def test_write_sets_go_round_the_ensemble(entry_id: int, expected: tuple[int, ...]) -> None:
    assert write_set(entry_id, 3, 2) == expected


def test_an_entry_is_on_every_bookie_when_write_quorum_is_ensemble() -> None:
    assert all(sorted(write_set(entry_id, 3, 3)) == [0, 1, 2] for entry_id in range(7))


@pytest.mark.parametrize(
    ("sizes", "fewest"),
    [((3, 3, 2), 2), ((3, 2, 2), 2), ((3, 3, 3), 1), ((3, 2, 1), 3), ((1, 1, 1), 1), ((5, 5, 3), 3)],
)
def test_coverage_needs_the_answers_of_the_table(sizes: tuple[int, int, int], fewest: int) -> None:
    """The table of docs/protocol/client-protocol.md#quorums."""
    for count in range(sizes[0] + 1):
        for known in combinations(range(sizes[0]), count):
            coverage = CoverageSet(*sizes)
            for index in known:
                coverage.mark_known(index)
            assert coverage.covered == (count >= fewest)


def test_coverage_of_a_striped_ensemble_depends_on_who_answered() -> None:
    """E 5, Qw 3, Qa 2: no window of three may hold two unknown."""
    for known in combinations(range(5), 3):
        coverage = CoverageSet(5, 3, 2)
        for index in known:
            coverage.mark_known(index)
        first, second = (index for index in range(5) if index not in known)
        adjacent = (second - first) % 5 in (1, 2, 3, 4) and min((second - first) % 5, (first - second) % 5) <= 2
        assert coverage.covered == (not adjacent)


def test_large_tables_are_not_kept() -> None:
    """Metadata of any client may name thousands of bookies."""
    before = quorum._kept_write_sets.cache_info().currsize
    assert write_sets(1000, 5)[998] == write_set(1_000_998, 1000, 5) == (998, 999, 0, 1, 2)
    assert quorum._kept_write_sets.cache_info().currsize == before
    assert write_sets(7, 3) is write_sets(7, 3)
