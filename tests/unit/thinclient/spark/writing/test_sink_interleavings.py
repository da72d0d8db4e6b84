"""Drivers that are paused at every step, for any time, beside each other and beside readers: all orders are tried."""

from __future__ import annotations

import os
from random import Random
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookgate.thinclient.blocking.client import BookKeeper
from bookgate.thinclient.spark.commit_protocol import Write, sink_state
from bookgate.thinclient.spark.writing import commit
from bookgate.thinclient.spark.writing.commit import Committer, Lookups
from tests.unit.thinclient.spark.interleavings import (
    HIGH,
    LOW,
    WRITE,
    Actor,
    Client,
    Run,
    World,
    alone,
    driver,
    every_order,
    reader,
    stream,
)

TASKS = [
    ([HIGH], [LOW]),
    ([LOW], [HIGH]),
    ([HIGH, LOW], [LOW]),
    ([HIGH, LOW], [HIGH]),
    *([([LOW, HIGH], [LOW]), ([HIGH, LOW], [HIGH, LOW])] if os.environ.get("BOOKGATE_SPARK_FULL") else []),
]
"""Of two drivers, the gateways that their tasks get their ledgers from, in this order."""


@pytest.fixture(autouse=True)
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are an actor's own, so it has no threads."""
    monkeypatch.setattr(commit, "_each", lambda call, arguments: [call(each) for each in arguments])


def next_batch(client: Client) -> None:
    write = Write(WRITE.query, WRITE.batch + 1)
    Committer(cast(BookKeeper, client), "another run", Lookups()).commit(write, [client.create(LOW, write)])


def nothing_is_left_over(world: World) -> None:
    """Once the query has committed its next batch."""
    alone(world, next_batch)
    states = [sink_state(record) for record in world.records.values()]
    assert all(state is not None and state.marked for state in states)


@pytest.mark.parametrize(("first", "second"), TASKS)
def test_of_two_drivers_one_commits_at_most_and_all_of_its_ledgers(first: list[int], second: list[int]) -> None:
    assert every_order(lambda: [driver(*first), driver(*second)], nothing_is_left_over) > 300


@pytest.mark.parametrize(("first", "second"), [([HIGH], [LOW]), ([LOW], [HIGH]), ([LOW], [HIGH, LOW])])
def test_a_driver_that_was_superseded_goes_on(first: list[int], second: list[int]) -> None:
    """It remembers from the batch before what it need not look up."""
    assert every_order(lambda: [driver(*first, goes_on=True), driver(*second)], nothing_is_left_over) > 300


@pytest.mark.parametrize("drivers", [[[HIGH, LOW]], [[LOW, HIGH]], [[LOW], [HIGH]]])
def test_a_reader_finds_all_of_a_write_or_nothing(drivers: list[list[int]]) -> None:
    found: list[set[int]] = []

    def actors() -> list[Actor]:
        found.clear()
        return [reader(found), *(driver(*tasks) for tasks in drivers)]

    def check(world: World) -> None:
        assert found in ([set()], [world.committed]), f"{found} of {world.committed}"

    assert every_order(actors, check) > 100


@pytest.mark.parametrize("tasks", [[HIGH, LOW], [LOW, HIGH]])
def test_a_stream_reads_nothing_but_what_is_committed(tasks: list[int]) -> None:
    found: list[set[int]] = []

    def actors() -> list[Actor]:
        found.clear()
        return [stream(found), driver(*tasks)]

    def check(world: World) -> None:
        assert set().union(*found) <= (world.committed or set())

    assert every_order(actors, check) > 100


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.lists(st.sampled_from([LOW, HIGH]), min_size=1, max_size=4), min_size=2, max_size=3),
    st.randoms(use_true_random=False),
)
def test_more_drivers_with_more_ledgers_and_readers_in_some_orders(drivers: list[list[int]], at_random: Random) -> None:
    once: list[set[int]] = []
    streamed: list[set[int]] = []
    run = Run([*(driver(*tasks) for tasks in drivers), reader(once), stream(streamed)])
    number = 0
    while able := run.able():
        # Long turns are as likely as short ones.
        if number not in able or at_random.random() < 0.3:
            number = at_random.choice(able)
        run.step(number)
    assert once in ([set()], [run.world.committed])
    assert set().union(*streamed) <= (run.world.committed or set())
    nothing_is_left_over(run.world)
    alone(run.world, stream(streamed))
    assert set().union(*streamed) >= (run.world.committed or set())
