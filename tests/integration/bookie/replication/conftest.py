"""Metadata stores of one test each, of every kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest

from tests.integration.bookie.replication.healing import AT_LENGTH, STORES, Store, store_of


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each test on each store at full length; else on one, not all on the same, and on the others as a long test if it
    is marked `each_store`.
    """
    markers = list(metafunc.definition.iter_markers())
    if "store" not in metafunc.fixturenames or any(
        each.name == "parametrize" and "store" in each.args for each in markers
    ):
        return
    one = STORES[crc32(metafunc.function.__name__.encode()) % len(STORES)]
    if AT_LENGTH:
        metafunc.parametrize("store", STORES, indirect=True)
        return
    others = STORES if any(each.name == "each_store" for each in markers) else ()
    marked = [pytest.param(each, marks=pytest.mark.long) for each in others if each != one]
    metafunc.parametrize("store", [one, *marked], indirect=True)


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with store_of(request.param, tmp_path) as made:
        yield made
