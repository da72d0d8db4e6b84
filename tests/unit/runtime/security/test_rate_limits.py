"""Buckets never give more than their rate, and queues take turns."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookgate.runtime.security.policy import parse_policy
from bookgate.runtime.security.principal import Kind, Principal
from bookgate.runtime.security.rate_limits import FairQueue, PrincipalLimits, RefusalPace, TokenBucket
from tests.unit.memory import memory_kept

A, B = Principal(Kind.TOKEN, "a"), Principal(Kind.TOKEN, "b")
POLICY = parse_policy("""
[[limits]]
principals = ["token:a"]
calls_per_second = 2
[[limits]]
principals = ["*"]
calls_per_second = 10
""")


@given(st.floats(0.1, 1000), st.lists(st.tuples(st.floats(0, 5), st.floats(0, 50)), max_size=50))
def test_a_bucket_gives_its_rate_and_one_second_in_front(rate: float, steps: list[tuple[float, float]]) -> None:
    bucket, now, taken, largest = TokenBucket(rate, 0.0), 0.0, 0.0, 0.0
    for pause, amount in steps:
        now += pause
        if bucket.take(now, amount) == 0:
            taken += amount
            largest = max(largest, amount)
    assert taken <= rate * now + bucket.capacity + largest + 1e-6


@given(st.floats(0.1, 1000), st.lists(st.floats(0, 50), min_size=1, max_size=20))
def test_after_the_pause_that_a_bucket_names_it_gives(rate: float, amounts: list[float]) -> None:
    bucket, now = TokenBucket(rate, 0.0), 0.0
    for amount in amounts:
        wait = bucket.take(now, amount)
        now += wait * (1 + 1e-9) + 1e-9
        assert wait == 0 or bucket.take(now, amount) == 0


def test_who_is_refused_is_told_a_moment_of_its_own() -> None:
    bucket = TokenBucket(10, 0.0)
    assert bucket.take(0.0, 10) == 0
    told = [bucket.take(0.0) for _ in range(30)]
    assert told == pytest.approx([0.1 * number for number in range(1, 31)])
    assert [bucket.take(moment + 1e-6) for moment in told] == [0] * 30


def test_moments_that_nobody_heeds_are_told_no_further_ahead_than_a_few_seconds() -> None:
    bucket = TokenBucket(10, 0.0)
    assert bucket.take(0.0, 10) == 0
    assert max(bucket.take(0.0) for _ in range(1000)) == pytest.approx(5.1)
    assert bucket.take(0.2) == 0, "nothing is kept for who does not come"


def test_refusals_are_held_back_from_whoever_is_refused_all_the_time() -> None:
    pace = RefusalPace()
    assert [pace.hold(A, 0.0) for _ in range(100)] == [0] * 100
    held = [pace.hold(A, 0.0) for _ in range(200)]
    assert held[:3] == pytest.approx([0.01, 0.02, 0.03])
    assert max(held) == pytest.approx(1.0)
    assert max(later - earlier for earlier, later in itertools.pairwise(sorted(held[100:]))) < 0.02, "in one heap"
    assert pace.hold(B, 0.0) == 0
    assert pace.hold(A, 3.0) == 0


def test_each_principal_has_buckets_of_its_own() -> None:
    limits = PrincipalLimits()
    assert [limits.take(POLICY, A, "calls_per_second", 0.0) for _ in range(3)] == [0, 0, pytest.approx(0.5)]
    assert limits.take(POLICY, B, "calls_per_second", 0.0) == 0
    assert limits.take(POLICY, A, "creates_per_second", 0.0) == 0
    assert limits.take(POLICY, A, "calls_per_second", 0.5) == 0


def test_tokens_of_one_principal_with_other_groups_have_one_bucket() -> None:
    """As where some of its tokens do not name its groups; a new bucket for each change of the rate would be full."""
    policy = parse_policy("""
[[limits]]
principals = ["group:batch"]
creates_per_second = 10
[[limits]]
principals = ["*"]
creates_per_second = 5
""")
    limits, tokens = PrincipalLimits(), (Principal(Kind.JWT, "a", frozenset({"batch"})), Principal(Kind.JWT, "a"))
    moments = [0.0] * 1000 + [1.0] * 1000
    taken = [at for n, at in enumerate(moments) if not limits.take(policy, tokens[n % 2], "creates_per_second", at)]
    assert 5 <= taken.count(0.0) <= 10
    assert 5 <= taken.count(1.0) <= 10


def test_what_is_known_afterwards_is_paid_afterwards() -> None:
    limits = PrincipalLimits()
    assert limits.charge(POLICY, A, "calls_per_second", 0.0, 12) == pytest.approx(5.0)
    assert limits.take(POLICY, A, "calls_per_second", 5.0) > 0
    assert limits.take(POLICY, A, "calls_per_second", 5.6) == 0


def test_full_buckets_are_forgotten() -> None:
    limits = PrincipalLimits()
    with memory_kept() as kept:
        for number in range(10_000):
            limits.take(POLICY, Principal(Kind.JWT, str(number)), "calls_per_second", float(number))
        assert kept() < 1_000_000, "far less than that of all"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers()), max_size=60))
def test_queues_take_turns(puts: list[tuple[str, int]]) -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue()
    for name, number in puts:
        queue.put(name, (name, number))
    taken: list[tuple[str, int]] = []
    while (item := queue.take()) is not None:
        taken.append(item)
    assert len(queue) == 0
    for name in "abc":
        assert [each for each in taken if each[0] == name] == [each for each in puts if each[0] == name]
        places = [place for place, each in enumerate(taken) if each[0] == name]
        assert all(later - earlier <= 3 for earlier, later in itertools.pairwise(places))


def test_what_waits_no_more_is_taken_out() -> None:
    queue: FairQueue[int] = FairQueue()
    queue.put("a", 1)
    queue.put("a", 2)
    queue.remove("a", 1)
    queue.remove("b", 1)
    assert (queue.take(), queue.take(), len(queue)) == (2, None, 0)
