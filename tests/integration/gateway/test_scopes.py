"""Ledgers of scopes other than 0 in the metadata stores: apart from those of scope 0 and from one another (D1)."""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from bookgate import BookKeeper
from bookgate.gateway.server import GatewayServer
from bookgate.gateway.stores.drivers import create_factory
from bookgate.gateway.stores.zookeeper.ledger_paths import ScopedPaths, paths_of
from bookgate.ledger.errors import (
    BKException,
    IncorrectParameterException,
    LedgerExistException,
    MetadataVersionException,
    NoSuchLedgerExistsOnMetadataServerException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import CreateRequest, LedgerManagerFactory, LedgerRecord
from tests.integration.gateway.conftest import Recorder, all_ids, some_metadata, unscoped
from tests.stores import made

pytestmark = pytest.mark.asyncio

SCOPES = [1, 2**40, 2**63 - 1, -(2**63), -1]
"""In the order of their bits."""
IDS = [0, 5, 2**63 - 1, -(2**63), -7, -1]
_ROOTS = itertools.count()


@pytest_asyncio.fixture(params=["sqlite", "hierarchical", "longhierarchical", "longlonghierarchical"])
async def factory(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LedgerManagerFactory]:
    if request.param == "sqlite":
        uri = f"sqlite://{tmp_path}/m.db"
    else:
        plain = request.getfixturevalue("zookeeper").metadata_uri(f"/scopes/{next(_ROOTS)}/ledgers")
        uri = f"zk+{request.param}://" + plain.partition("://")[2]
    found = create_factory(made(uri))
    await found.initialize()
    yield found
    await found.close()


async def test_each_scope_has_its_ledgers(factory: LedgerManagerFactory) -> None:
    manager = factory.ledger_manager
    for scope in SCOPES:
        results = await manager.create_many(
            [CreateRequest(LedgerId(scope, number), some_metadata(s=b"%d" % scope)) for number in IDS]
        )
        assert all(isinstance(each, LedgerRecord) for each in results)
    await manager.create(unscoped(5), replace(some_metadata(), custom_metadata={"s": b"0"}))
    assert await all_ids(factory) == [5]
    for scope in SCOPES:
        assert await all_ids(factory, scope_id=scope) == IDS
        assert await all_ids(factory, scope_id=scope, start_after=5, end_before=-7) == [2**63 - 1, -(2**63)]
        assert (await manager.read(LedgerId(scope, 5))).metadata.custom_metadata == {"s": b"%d" % scope}
        found = [r.ledger_id.low async for page in manager.ledger_records(scope, page_size=2) for r in page]
        assert found == IDS
    assert await all_ids(factory, scope_id=77) == []
    assert [scope async for run in manager.scopes() for scope in run] == SCOPES
    assert [scope async for run in manager.scopes(2**40) for scope in run] == SCOPES[2:]
    assert [scope async for run in manager.scopes(-1) for scope in run] == []


async def test_a_scoped_ledger_is_changed_watched_and_removed(factory: LedgerManagerFactory) -> None:
    manager, ledger_id, told = factory.ledger_manager, LedgerId(-3, 5), Recorder()
    await manager.create(unscoped(5), some_metadata())
    record = await manager.create(ledger_id, some_metadata())
    with pytest.raises(LedgerExistException):
        await manager.create(ledger_id, some_metadata())
    await manager.register_listener(ledger_id, told)
    await told.until_version(0)
    await manager.write(ledger_id, record.metadata.begin_recovery(), 0)
    await told.until_version(1)
    with pytest.raises(MetadataVersionException):
        await manager.remove(ledger_id, 0)
    await manager.remove(ledger_id, 1)
    await told.until_version(None)
    with pytest.raises(NoSuchLedgerExistsOnMetadataServerException):
        await manager.read(ledger_id)
    assert [scope async for run in manager.scopes() for scope in run] == []
    assert await all_ids(factory) == [5]


@pytest.mark.long
async def test_random_ids_are_listed_in_order(factory: LedgerManagerFactory) -> None:
    """Each has a scope to itself, as UUIDs have."""
    rng = random.Random(1)
    ids = [LedgerId.of_number(rng.getrandbits(128) | 1 << 127) for _ in range(300)]
    ids += [LedgerId(9, rng.getrandbits(64) - 2**63) for _ in range(300)]
    await factory.ledger_manager.create_many([CreateRequest(each, some_metadata()) for each in ids])
    scopes = [scope async for run in factory.ledger_manager.scopes() for scope in run]
    listed = [LedgerId(scope, number) for scope in scopes for number in await all_ids(factory, scope_id=scope)]
    assert listed == sorted(ids)


async def test_a_flat_cluster_refuses_scopes_with_a_sentence(zookeeper_uri: str) -> None:
    uri = made(zookeeper_uri.replace("zk+hierarchical", "zk+flat").replace("/ledgers", "/flat/ledgers"))
    factory = create_factory(uri)
    await factory.initialize()
    with pytest.raises(IncorrectParameterException, match="scope 0 only"):
        await factory.ledger_manager.create(LedgerId(1, 1), some_metadata())
    with pytest.raises(IncorrectParameterException, match="scope 0 only"):
        await all_ids(factory, scope_id=1)
    assert [run async for run in factory.ledger_manager.scopes()] == []
    server = GatewayServer(factory)
    port = await server.start()
    try:
        async with await BookKeeper.connect(f"grpc://127.0.0.1:{port}") as client:
            with pytest.raises(BKException, match="scope 0 only"):
                await client.ledger_manager.create(LedgerId(1, 1), some_metadata())
            for refused in (client.open_ledger(LedgerId(1, 1)), client.delete_ledger(LedgerId(1, 1))):
                with pytest.raises(BKException, match="scope 0 only"):
                    await refused
            [found] = await client.ledger_manager.read_many([LedgerId(1, 1)])
            assert "scope 0 only" in str(found)
            with pytest.raises(BKException, match="scope 0 only"):
                _ = [page async for page in client.list_ledgers(1)]
    finally:
        await server.stop(0)
        await factory.close()


async def test_paths_of_scopes_are_none_of_scope_0() -> None:
    scoped = LedgerId(0x0123456789ABCDEF, -2)
    path = ScopedPaths("/ledgers").path(scoped)
    assert path == "/ledgers/scoped/0123/4567/89ab/cdef/ffff/ffff/ffff/Lfffe"
    for manager in ("hierarchical", "longhierarchical", "longlonghierarchical", "flat", "legacyhierarchical"):
        paths = paths_of(manager, "/ledgers")
        assert paths.ledger_id_at(path) == scoped.number
        assert paths.ledger_id_at(path.removesuffix("/Lfffe")) is None
        assert paths.ledger_id_at("/ledgers/scoped/0000/0000/0000/0000/0000/0000/0000/L0007") is None, "of no scope"
