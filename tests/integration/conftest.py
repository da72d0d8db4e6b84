"""A real ZooKeeper for the whole run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bookgate.bookie.standalone.local_zookeeper import LocalZooKeeper


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalZooKeeper]:
    """One server for all tests; each takes a ledgers root of its own. Who stops it takes `own_zookeeper`."""
    with LocalZooKeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture
def own_zookeeper(tmp_path: Path) -> Iterator[LocalZooKeeper]:
    """A server for one test, which may do to it what it likes."""
    with LocalZooKeeper(tmp_path / "zookeeper") as server:
        yield server
