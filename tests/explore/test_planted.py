"""The exploration finds bugs that are planted in the cores, and its traces replay."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bookgate.thinclient.core.writing import LedgerWriter
from tests.explore.planting import planted
from tests.explore.search import Found, explore, replay
from tests.explore.stream_worlds import SMALL_STREAMS, StreamWorld
from tests.explore.worlds import SMALL, SmallWorld
from tests.simulation.mutations.mutation import Mutation
from tests.simulation.mutations.planted import small_streams, small_worlds


def _first_found(worlds: Sequence[SmallWorld | StreamWorld]) -> tuple[Found, bool]:
    """What the first world shows that breaks a rule, and whether its trace replays."""
    for small in worlds:
        world, judge = small.build()
        found = explore(world, judge)
        if found.violation is not None:
            again, judge_again = small.build()
            taken, violation = replay(again, judge_again, found.trace)
            return found, violation is not None and tuple(taken) == found.trace
    return Found(), False


_LONG = ("tail-reads-behind-the-lac", "first-entry-of-a-fragment-taken-for-confirmed", "one-missing-is-enough")
"""Those of which the shortest trace is behind the most states."""


@pytest.mark.parametrize(
    "mutation",
    [
        pytest.param(mutation, id=mutation.name, marks=pytest.mark.long if mutation.name in _LONG else ())
        for mutation in (*small_worlds.MUTATIONS, *small_streams.MUTATIONS)
    ],
)
def test_a_planted_bug_is_found_by_a_trace_that_replays(mutation: Mutation) -> None:
    with planted(mutation):
        found, replays = _first_found(SMALL_STREAMS if mutation in small_streams.MUTATIONS else SMALL)
    assert found.violation is not None
    assert replays, found.trace
    assert len(found.trace) < 60, found.trace


def test_what_was_planted_is_gone_afterwards() -> None:
    before = LedgerWriter.on_acks.__code__
    (mutation,) = (each for each in small_worlds.MUTATIONS if each.name == "confirmed-during-a-change")
    with planted(mutation):
        assert LedgerWriter.on_acks.__code__ is not before
    assert LedgerWriter.on_acks.__code__ is before
