"""Metadata stores under test, each fresh: the embedded one, ZooKeeper, and a third that is no part of Bookgate."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from bookgate.bookie.standalone.local_zookeeper import LocalZooKeeper
from bookgate.gateway.stores.drivers import create_factory
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerManagerFactory, LedgerRecord
from tests.stores import made

_ROOTS = itertools.count()

STORES = ("sqlite", "zookeeper")
ALL_STORES = (*STORES, "tiny")
THIRD_STORE = Path(__file__).parents[2] / "third_store"


@pytest.fixture
def third_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """`tests/third_store`, as if it were installed: here, and in processes that are started."""
    monkeypatch.syspath_prepend(str(THIRD_STORE))
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(THIRD_STORE), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    )


def unused_store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URI of a store of the kind that the parameter names, which nobody has used yet."""
    if request.param == "sqlite":
        return f"sqlite://{tmp_path}/metadata.db"
    if request.param == "tiny":
        request.getfixturevalue("third_store")
        return f"tiny://{tmp_path}/tiny"
    server: LocalZooKeeper = request.getfixturevalue("zookeeper")
    return server.metadata_uri(f"/test/{next(_ROOTS)}/ledgers")


@pytest.fixture(params=STORES)
def empty_uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store that nobody has used yet."""
    return unused_store(request, tmp_path)


@pytest.fixture
def metadata_uri(empty_uri: str) -> str:
    """A store with a fresh cluster."""
    return made(empty_uri)


@pytest.fixture
def empty_zookeeper_uri(zookeeper: LocalZooKeeper) -> str:
    return zookeeper.metadata_uri(f"/test/{next(_ROOTS)}/ledgers")


@pytest.fixture
def zookeeper_uri(empty_zookeeper_uri: str) -> str:
    return made(empty_zookeeper_uri)


@pytest_asyncio.fixture
async def factories(metadata_uri: str) -> AsyncIterator[tuple[LedgerManagerFactory, LedgerManagerFactory]]:
    """Two independent factories on one store, as two processes have them."""
    first, second = create_factory(metadata_uri), create_factory(metadata_uri)
    await first.initialize()
    await second.initialize()
    yield first, second
    await second.close()
    await first.close()


def some_metadata(**custom: bytes) -> LedgerMetadata:
    return LedgerMetadata.new(
        ["127.0.0.1:3181", "127.0.0.1:3182", "b-3"], 2, 2, password=b"planted-pw", custom_metadata=custom
    )


class Recorder:
    """A listener that can be waited on."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self._more = asyncio.Event()

    def __call__(self, *arguments: Any) -> None:
        self.told.append(arguments[-1])
        self._more.set()

    @property
    def versions(self) -> list[int | None]:
        return [None if record is None else record.version for record in self.told]

    async def until(self, condition: Callable[[Any], object]) -> Any:
        """Returns the newest value told once the condition gives something true for it."""
        while not (self.told and condition(self.told[-1])):
            self._more.clear()
            await asyncio.wait_for(self._more.wait(), 30)
        return self.told[-1]

    async def until_version(self, version: int | None) -> None:
        def reached(record: LedgerRecord | None) -> bool:
            return record is None if version is None else record is not None and record.version == version

        await self.until(reached)


async def all_ids(factory: LedgerManagerFactory, **arguments: Any) -> list[int]:
    return [i async for run in factory.ledger_manager.ledger_ranges(**arguments) for i in run]


def unscoped(number: int) -> LedgerId:
    return LedgerId.unscoped(number)
