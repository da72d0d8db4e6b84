"""The operator's client: both forms have the same calls, and what replicas lack is found."""

from __future__ import annotations

import inspect

import pytest

import bookgate
from bookgate import blocking
from bookgate.thinclient.administration.admin import _without


def test_the_blocking_client_has_the_same_calls() -> None:
    def calls(value: type) -> dict[str, list[str]]:
        members = inspect.getmembers(value, callable)
        return {name: [*inspect.signature(member).parameters] for name, member in members if not name.startswith("_")}

    assert calls(blocking.Admin) == calls(bookgate.Admin)
    assert inspect.getdoc(blocking.Admin.replicas) == inspect.getdoc(bookgate.Admin.replicas)


def test_every_public_name_is_there() -> None:
    assert [name for name in bookgate.__all__ if not hasattr(bookgate, name)] == []
    with pytest.raises(AttributeError, match="NoSuchName"):
        _ = bookgate.NoSuchName


@pytest.mark.parametrize(
    ("wanted", "held", "missing"),
    [
        ([], [(0, 9)], []),
        ([(0, 9)], [], [(0, 9)]),
        ([(0, 9)], [(0, 9)], []),
        ([(0, 9)], [(0, 3), (6, 20)], [(4, 5)]),
        ([(2, 5)], [(0, 1), (3, 3), (9, 9)], [(2, 2), (4, 5)]),
        ([(0, 1), (3, 4)], [(1, 3)], [(0, 0), (4, 4)]),
    ],
)
def test_what_a_bookie_lacks(
    wanted: list[tuple[int, int]], held: list[tuple[int, int]], missing: list[tuple[int, int]]
) -> None:
    assert _without(wanted, held) == missing
