"""Who wakes when: long polls while they are parked."""

from __future__ import annotations

import random

from bookgate.bookie.protocol.lac_waiters import LacWaiters, Waiter
from tests.unit.memory import memory_kept

Waiters = LacWaiters[str, str]


def park(
    waiters: Waiters, token: str, previous_lac: int, *, ledger: int = 1, owner: str = "a", until: float = 9
) -> None:
    waiters.park(Waiter(owner, token, ledger, previous_lac, until))


def tokens(woken: list[Waiter[str, str]]) -> list[str]:
    return [waiter.token for waiter in woken]


def test_a_waiter_leaves_when_its_lac_is_passed_and_not_before() -> None:
    """F8: a LAC that grows to its own value or less leaves it parked."""
    waiters: Waiters = LacWaiters(10)
    park(waiters, "three", 3)
    park(waiters, "one", 1)
    assert tokens(waiters.lac_is(1, 1)) == []
    assert tokens(waiters.lac_is(1, 3)) == ["one"]
    assert 1 in waiters.ledgers
    assert tokens(waiters.lac_is(1, 4)) == ["three"]
    assert 1 not in waiters.ledgers
    assert tokens(waiters.lac_is(1, 5)) == []


def test_ledgers_do_not_wake_each_other() -> None:
    waiters: Waiters = LacWaiters(10)
    park(waiters, "first", 0, ledger=1)
    park(waiters, "second", 0, ledger=2)
    assert tokens(waiters.lac_is(2, 5)) == ["second"]
    assert tokens(waiters.wake(2)) == []
    assert tokens(waiters.wake(1)) == ["first"]


def test_a_fence_wakes_all_in_order() -> None:
    waiters: Waiters = LacWaiters(10)
    for lac in (7, 2, 5):
        park(waiters, str(lac), lac)
    assert tokens(waiters.wake(1)) == ["2", "5", "7"]
    assert len(waiters) == 0


def test_deadlines() -> None:
    waiters: Waiters = LacWaiters(10)
    assert waiters.next_deadline() is None
    park(waiters, "late", 0, until=20)
    park(waiters, "early", 0, until=10)
    assert waiters.next_deadline() == 10
    assert tokens(waiters.expire(9.9)) == []
    assert tokens(waiters.expire(10)) == ["early"]
    assert waiters.next_deadline() == 20
    assert tokens(waiters.lac_is(1, 1)) == ["late"]
    assert tokens(waiters.expire(30)) == []
    assert waiters.next_deadline() is None


def test_an_owner_has_a_limit_of_its_own() -> None:
    waiters: Waiters = LacWaiters(2)
    park(waiters, "x", 0)
    assert waiters.has_room("a")
    park(waiters, "y", 5)
    assert not waiters.has_room("a")
    assert waiters.has_room("b")
    waiters.lac_is(1, 1)
    assert waiters.has_room("a")


def test_who_is_gone_is_forgotten() -> None:
    waiters: Waiters = LacWaiters(10)
    park(waiters, "x", 0)
    park(waiters, "y", 0, owner="b")
    waiters.forget("a")
    waiters.forget("nobody")
    assert tokens(waiters.wake(1)) == ["y"]
    assert tokens(waiters.expire(99)) == []


def test_every_waiter_leaves_exactly_once_whatever_happens() -> None:
    chance = random.Random(7)
    waiters: Waiters = LacWaiters(10_000)
    parked: dict[str, tuple[int, int, float]] = {}
    for step in range(3000):
        now = step / 10
        ledger = chance.randrange(4)
        kind = chance.random()
        if kind < 0.6:
            parked[str(step)] = (ledger, chance.randrange(100), now + chance.randrange(1, 60))
            park(waiters, str(step), parked[str(step)][1], ledger=ledger, until=parked[str(step)][2])
            continue
        lac = chance.randrange(100)
        if kind < 0.8:
            woken, expected = (
                waiters.lac_is(ledger, lac),
                {k for k, v in parked.items() if v[0] == ledger and v[1] < lac},
            )
        elif kind < 0.82:
            woken, expected = waiters.wake(ledger), {k for k, v in parked.items() if v[0] == ledger}
        else:
            woken, expected = waiters.expire(now), {k for k, v in parked.items() if v[2] <= now}
        assert set(tokens(woken)) == expected
        assert len(woken) == len(expected)
        for token in expected:
            del parked[token]
        assert len(waiters) == len(parked)
        assert waiters.next_deadline() == min((v[2] for v in parked.values()), default=None)


def test_what_left_early_takes_no_room() -> None:
    """A poll with a far deadline that is woken at once, again and again."""
    waiters: Waiters = LacWaiters(10)
    with memory_kept() as kept:
        for lac in range(5000):
            park(waiters, "x", lac, until=1e9)
            assert len(waiters.lac_is(1, lac + 1)) == 1
        assert kept() < 100 * 400, "no more than that of a hundred"
