"""Who has to go where there are too many connections, and how descriptors are shared out."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookgate.bookie.config.descriptor_shares import share_out
from bookgate.bookie.protocol.connection_budget import greediest, idle_longest


@dataclass
class Known:
    name: str
    owed: int = 0
    asked: int = 1
    heard_at: float = 0.0
    held_bytes: int = 0
    stalled_since: float | None = None


def test_the_one_goes_that_has_been_quiet_the_longest() -> None:
    connections = [Known("waits for an answer", owed=1), Known("late", heard_at=7), Known("early", heard_at=5)]
    assert idle_longest(connections) == connections[2]


def test_those_that_never_asked_go_first() -> None:
    connections = [
        Known("used", heard_at=1),
        Known("silent", asked=0, heard_at=9),
        Known("newer", asked=0, heard_at=10),
    ]
    assert idle_longest(connections) == connections[1]


def test_nobody_goes_where_all_are_owed_something() -> None:
    assert idle_longest([Known("a", owed=1), Known("b", owed=7)]) is None


def test_what_is_held_for_long_weighs_more_than_a_burst() -> None:
    burst = Known("burst", held_bytes=10_000_000, stalled_since=99.9)
    patient = Known("patient", held_bytes=1_000_000, stalled_since=10.0)
    assert greediest([burst, patient], now=100.0) == patient


def test_the_largest_goes_where_all_get_on() -> None:
    connections = [Known("small", held_bytes=10), Known("large", held_bytes=11)]
    assert greediest(connections, now=1.0) == connections[1]
    assert greediest([], now=1.0) is None


@pytest.mark.parametrize(
    ("limit", "shares"), [(256, (80, 60, 24, 12)), (1024, (256, 430, 172, 86)), (65_536, (256, 54_944, 10_000, 256))]
)
def test_shares(limit: int, shares: tuple[int, int, int, int]) -> None:
    assert share_out(limit, files=16, open_logs=256) == shares


@given(st.integers(128, 1 << 20), st.integers(8, 2000), st.integers(1, 1000), st.integers(1, 20))
def test_storage_has_its_share_however_many_come(limit: int, files: int, open_logs: int, places: int) -> None:
    shares = share_out(limit, files, open_logs, places)
    assert min(shares) >= 1
    assert shares.open_logs <= open_logs
    clients = shares.entry + shares.gateway + shares.http
    # A table that is too small for storage alone has the least of everything.
    assert files + places * shares.open_logs + clients <= max(limit, files + places * (shares.open_logs + 1) + 3 * 8)
