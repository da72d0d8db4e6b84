"""Metadata stores of one test each, of every kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.bookie.replication.healing import STORES, Store, store_of


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with store_of(request.param, tmp_path) as made:
        yield made
