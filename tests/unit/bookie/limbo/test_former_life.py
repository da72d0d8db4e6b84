"""A bookie that begins with empty directories under an id that ledgers name: those are in limbo, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from bookgate.bookie.config.bookie import BookieConfig, load_config
from bookgate.bookie.disks import directories
from bookgate.bookie.limbo import former_life
from bookgate.bookie.limbo.former_life import FormerLife, find_former_life
from bookgate.bookie.membership.registration import check_cookie
from bookgate.bookie.storage.closed_before import closed_before
from bookgate.bookie.storage.limbo import Limbo
from bookgate.bookie.system.data_loss import refuse_loss
from bookgate.bookie.system.files import REAL_FILE_SYSTEM
from bookgate.gateway.server import GatewayServer
from bookgate.gateway.stores.drivers import create_factory
from bookgate.gateway.stores.sqlite.factory import SqliteLedgerManagerFactory
from bookgate.ledger.errors import MetaStoreException, WrongClusterException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bookgate.ledger.metadata_store import LedgerManagerFactory
from bookgate.ledger.unbounded import begin_term, create_unbounded
from bookgate.runtime.logs import Event
from tests.stores import made

pytestmark = pytest.mark.asyncio

WIPED, NEW = "b-1:3181", "b-9:3181"
ENSEMBLES = (("b-1", "b-2"), ("b-2", "b-3"), ("b-3", "b-1"))


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[LedgerManagerFactory]:
    """Ledgers 1 to 4 without a scope, 5 to 7 with one, all open; 4 named the bookie in its first fragment only."""
    factory = create_factory(made(f"sqlite://{tmp_path}/metadata.db"))
    await factory.initialize()
    manager = factory.ledger_manager
    for number, names in enumerate(ENSEMBLES, 1):
        metadata = LedgerMetadata.new([f"{name}:3181" for name in names], 2, 2)
        await manager.create(LedgerId.unscoped(number), metadata)
        await manager.create(LedgerId(-1, 4 + number), metadata)
    moved = LedgerMetadata.new([WIPED, "b-2:3181"], 2, 2)
    await manager.create(LedgerId.unscoped(4), moved)
    fragments = (*moved.fragments, Fragment(7, ("b-3:3181", "b-2:3181")))
    await manager.write(LedgerId.unscoped(4), LedgerMetadata(2, 2, 2, fragments), 0)
    yield factory
    await factory.close()


NAMED = [1, 3, 4, LedgerId(-1, 5).number, LedgerId(-1, 7).number]


async def test_all_ledgers_that_name_it_anywhere(store: LedgerManagerFactory) -> None:
    assert list((await find_former_life(store, WIPED)).naming) == NAMED
    assert list((await find_former_life(store, NEW)).naming) == []


async def test_an_unbounded_ledger_in_recovery_is_written_again() -> None:
    found = FormerLife(NEW)
    metadata = begin_term(create_unbounded(LedgerMetadata.new(["b-1:3181", "b-2:3181"], 2, 2)), holder=1)
    assert metadata.state is LedgerState.IN_RECOVERY
    found.saw(7, metadata)
    assert not found.closed
    found.saw(7, replace(metadata, state=LedgerState.CLOSED, last_entry_id=-1, length=0))
    assert 7 in found.closed


async def test_what_is_closed_and_names_others_was_closed_before(store: LedgerManagerFactory, tmp_path: Path) -> None:
    """Among it is what was moved away from the id; the writer of an open ledger knows better than to come here."""
    manager = store.ledger_manager
    for ledger_id, state in (
        (LedgerId.unscoped(1), LedgerState.CLOSED),
        (LedgerId.unscoped(2), LedgerState.CLOSED),
        (LedgerId(-1, 6), LedgerState.IN_RECOVERY),
    ):
        metadata = (await manager.read(ledger_id)).metadata
        end = {"last_entry_id": 3, "length": 9} if state is LedgerState.CLOSED else {}
        await manager.write(ledger_id, replace(metadata, state=state, **end), 0)  # type: ignore[arg-type]
    found = await find_former_life(store, WIPED)
    assert (list(found.naming), list(found.closed)) == (NAMED, [2, LedgerId(-1, 6).number])
    config = settings(tmp_path / "reused")
    await check_cookie(config, WIPED, store)
    closed = closed_before(REAL_FILE_SYSTEM, config.ledgers)
    closed.load(refuse_loss)
    assert closed.numbers == found.closed


async def test_a_long_listing_tells_how_far_it_is(
    store: LedgerManagerFactory, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(former_life, "_TOLD_EVERY_SECONDS", 0.0)
    with caplog.at_level("INFO"):
        await find_former_life(store, WIPED)
    told = [record.msg.fields for record in caplog.records if isinstance(record.msg, Event)]
    assert [(each["ledgers"], each["naming_it"]) for each in told] == [(4, 3), (7, 5)]


async def test_what_is_damaged_may_name_it(store: LedgerManagerFactory) -> None:
    assert isinstance(store, SqliteLedgerManagerFactory)
    await store.store.change(
        lambda change: change.execute(
            "UPDATE ledgers SET metadata = x'00' WHERE key IN (SELECT key FROM ledgers LIMIT 2)"
        )
    )
    server = GatewayServer(store)
    behind = create_factory(f"grpc://127.0.0.1:{await server.start()}")
    await behind.initialize()
    for factory in (store, behind):
        found = await find_former_life(factory, NEW)
        assert list(found.naming) == [1, 2]
    await behind.close()
    await server.stop(0)


def settings(root: Path, name: str = WIPED) -> BookieConfig:
    chosen = load_config(bookie_id=name, data_dir=root, metadata_uri=f"sqlite://{root}/metadata.db")
    for path in (*chosen.journals, *chosen.ledgers):
        directories.prepare(path)
    return chosen


def in_limbo(config: BookieConfig) -> list[int]:
    limbo = Limbo(REAL_FILE_SYSTEM, config.ledgers)
    limbo.load(refuse_loss)
    return limbo.numbers()


async def test_a_wiped_bookie_begins_with_its_ledgers_in_limbo(store: LedgerManagerFactory, tmp_path: Path) -> None:
    config = settings(tmp_path / "wiped")
    Limbo(REAL_FILE_SYSTEM, config.ledgers).begin([77])
    await check_cookie(config, WIPED, store)
    assert in_limbo(config) == NAMED
    # From then on it is known, and what was in limbo leaves by being verified only.
    Limbo(REAL_FILE_SYSTEM, config.ledgers).begin([3])
    await check_cookie(config, WIPED, store)
    assert in_limbo(config) == [3]


async def test_a_new_bookie_has_none(store: LedgerManagerFactory, tmp_path: Path) -> None:
    config = settings(tmp_path / "new", NEW)
    await check_cookie(config, NEW, store)
    assert in_limbo(config) == []
    assert not list((tmp_path / "new").rglob("*limbo*"))


async def test_a_start_that_is_cut_short_lists_them_again(
    store: LedgerManagerFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store has no cookie before the list is durable."""
    config = settings(tmp_path / "wiped")

    async def out_of_reach(*_cookie: Any) -> None:
        raise MetaStoreException("out of reach")

    with monkeypatch.context() as patch:
        patch.setattr(store.registration_manager, "write_cookie", out_of_reach)
        with pytest.raises(MetaStoreException):
            await check_cookie(config, WIPED, store)
    assert in_limbo(config) == NAMED
    await store.ledger_manager.create(LedgerId.unscoped(9), LedgerMetadata.new([WIPED, "b-2:3181"], 2, 2))
    await check_cookie(config, WIPED, store)
    assert in_limbo(config) == sorted([*NAMED, 9])


async def test_a_listing_that_fails_leaves_no_cookie(
    store: LedgerManagerFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start is refused: nothing is guessed."""
    config = settings(tmp_path / "wiped")

    async def cut_short(*_arguments: Any) -> AsyncIterator[list[int]]:
        yield [1]
        raise MetaStoreException("out of reach")

    monkeypatch.setattr(store.ledger_manager, "ledger_ranges", cut_short)
    with pytest.raises(MetaStoreException, match="out of reach"):
        await check_cookie(config, WIPED, store)
    assert await store.registration_manager.read_cookie(WIPED) is None
    assert not list((tmp_path / "wiped").rglob("VERSION"))


async def test_the_ledgers_of_another_cluster_do_not_count(
    store: LedgerManagerFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings(tmp_path / "wiped")
    ids = iter([await store.registration_manager.cluster_instance_id(), "another"])

    async def changes() -> str:
        return next(ids)

    monkeypatch.setattr(store.registration_manager, "cluster_instance_id", changes)
    with pytest.raises(WrongClusterException):
        await check_cookie(config, WIPED, store)
    assert await store.registration_manager.read_cookie(WIPED) is None
