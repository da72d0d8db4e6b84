"""`bookgate bookie recover` and `replace` on real bookies, with nobody else to repair anything."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from bookgate import BookKeeper
from bookgate.ledger.ledger_id import LedgerId, ledger_name, number_in_json
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerManagerFactory
from bookgate.ledger.replication_control import find_bookie
from bookgate.ledger.unbounded import create_unbounded
from tests.integration.bookie.replication import healing
from tests.integration.bookie.replication.healing import Store
from tests.integration.bookie.replication.test_auto_recovery import members
from tests.integration.bookie.replication.test_draining import answer, refusal, started, until_unregistered
from tests.integration.bookie.replication.test_replica_check import moved
from tests.integration.bookie.replication.test_worker import check, written
from tests.integration.thinclient.forked_cluster import ForkedCluster, forked_cluster

pytestmark = pytest.mark.asyncio

DONE = {"deleted": 0, "skipped": 0, "left": [], "unreadable": []}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ForkedCluster]:
    with healing.store_of("grpc", tmp_path) as store, forked_cluster(tmp_path, 5, store.uri) as running:
        yield running


@contextlib.asynccontextmanager
async def using(cluster: ForkedCluster) -> AsyncIterator[tuple[LedgerManagerFactory, BookKeeper]]:
    async with healing.healing(cluster) as (factory, client):
        yield factory, client


async def lost(cluster: ForkedCluster, factory: LedgerManagerFactory, bookie_id: str) -> None:
    await asyncio.to_thread(cluster.kill, bookie_id)
    await until_unregistered(factory, bookie_id)


async def incomplete(cluster: ForkedCluster, *arguments: str) -> Any:
    """What it says where not all could be done."""
    async with started(cluster, *arguments) as process:
        output, complaints = await process.communicate()
    assert process.returncode == 1, output.decode() + complaints.decode()
    return json.loads(output)


async def test_a_lost_bookie_is_recovered_while_auto_recovery_is_disabled(store: Store, tmp_path: Path) -> None:
    with forked_cluster(tmp_path, 4, store.uri) as cluster:
        async with using(cluster) as (factory, client):
            acknowledged = await healing.filled(client, 12, entries=20, size=1000)
            gone = "bookie-2"
            on_it = await healing.naming(factory, {gone})
            await factory.replication_metadata.set_enabled(False)
            await lost(cluster, factory, gone)
            marked = next(iter(on_it))
            await factory.replication_metadata.mark(marked, [gone], 1)

            plan = await answer(cluster, "recover", gone, "--dry-run")
            sums = {"fragments": len(on_it), "entries": 20 * len(on_it), "unreadable": []}
            assert sums.items() <= plan.items()
            assert {each["ledger_id"] for each in plan["ledgers"]} == set(map(number_in_json, on_it))
            assert {(each["is_open"], each["copies_left"]) for each in plan["ledgers"]} == {(False, 2)}
            lengths = [
                len(payload) for each, known in acknowledged.items() for payload in known if each.number in on_it
            ]
            assert abs(plan["bytes"] - sum(lengths)) <= len(on_it), "each is rounded"
            assert await healing.naming(factory, {gone}) == on_it

            done = await answer(cluster, "recover", gone)
            assert {"ledgers": len(on_it), "moved": len(on_it), **DONE}.items() <= done.items()
            assert done["entries_copied"] == 20 * len(on_it)
            assert await healing.naming(factory, {gone}) == set()
            assert await factory.replication_metadata.lock_holders() == {}
            assert await healing.audit(factory, client, acknowledged) == 12 * 20 * 3
            assert await find_bookie(factory, gone) is not None, "its cookie stays"
            assert (await answer(cluster, "recover", gone))["ledgers"] == 0


async def test_a_bookie_that_serves_is_emptied_but_for_what_is_written_there(cluster: ForkedCluster) -> None:
    async with using(cluster) as (factory, client):
        acknowledged = await healing.filled(client, 6)
        ledger = await written(client, 10, 5, 3, 2, close=False)
        number = ledger.ledger_id.low
        leaving = "bookie-1"
        left = await incomplete(cluster, "recover", leaving)
        assert [(each["ledger_id"], each["state"]) for each in left["left"]] == [(number, "still written")]
        assert await healing.naming(factory, {leaving}) == {number}
        skipped = await answer(cluster, "recover", leaving, "--skip-open-ledgers")
        assert (skipped["ledgers"], skipped["skipped"], skipped["moved"]) == (1, 1, 0)
        await ledger.append(b"its writer is not fenced")
        await healing.audit(factory, client, acknowledged)


@pytest.mark.long
async def test_a_ledger_that_is_written_at_a_lost_bookie_is_closed_after_the_grace(cluster: ForkedCluster) -> None:
    async with using(cluster) as (factory, client):
        await written(client, 50, 5, 3, 2)
        left_behind = await written(client, 10, 3, 3, 2, close=False)
        await asyncio.to_thread(cluster.start, cluster.add())
        gone = left_behind.metadata.fragments[0].ensemble[0]
        await lost(cluster, factory, gone)
        number = str(left_behind.ledger_id.low)
        assert (await answer(cluster, "recover", gone, "-l", number, "--skip-open-ledgers"))["skipped"] == 1
        assert not (await factory.ledger_manager.read(left_behind.ledger_id)).metadata.is_closed
        # Its writer goes on elsewhere within the grace: it is not fenced.
        async with started(cluster, "recover", gone, "--grace", "3600") as waiting:
            assert waiting.stderr is not None
            while b"1 of 2 ledgers left" not in await waiting.stderr.readline():
                assert not waiting.stderr.at_eof()
            entries = 10
            while gone in left_behind.metadata.last_fragment.ensemble:
                entries = 1 + await left_behind.append(b"more")
            assert await waiting.wait() == 0
        await left_behind.append(b"and more")
        another = next(iter(left_behind.metadata.last_fragment.ensemble))
        await lost(cluster, factory, another)
        assert (await answer(cluster, "recover", another, "-l", number, "--grace", "0.5"))["moved"] == 1
        async with await client.open_ledger(left_behind.ledger_id, b"planted-secret") as reader:
            assert reader.last_add_confirmed == entries


async def test_what_has_no_copy_left_is_said_and_does_not_keep_the_others(cluster: ForkedCluster) -> None:
    async with using(cluster) as (factory, client):
        single = await written(client, 5, 1, 1, 1)
        (gone,) = single.metadata.bookies
        others = [await written(client, 5, 4, 2, 2) for _ in range(4)]
        await lost(cluster, factory, gone)
        found = await incomplete(cluster, "recover", gone)
        assert [(each["ledger_id"], each["state"]) for each in found["left"]] == [
            (single.ledger_id.low, "unrecoverable")
        ]
        assert "5 entries have no copy left: 0, 1, 2, 3, 4" in found["left"][0]["reason"]
        for ledger in others:
            assert gone not in await members(factory, ledger.ledger_id)
            await check(client, ledger.ledger_id, 5)


@pytest.mark.long
async def test_a_ledger_that_somebody_else_repairs_is_waited_for(cluster: ForkedCluster) -> None:
    async with using(cluster) as (factory, client):
        ledgers = [await written(client, 5, 5, 3, 2) for _ in range(3)]
        gone, held = "bookie-0", ledgers[0].ledger_id
        await lost(cluster, factory, gone)
        # Five bookies are in each ensemble: another one is needed.
        await asyncio.to_thread(cluster.start, cluster.add())
        lock = await factory.replication_metadata.try_lock(held.low, "somebody")
        assert lock is not None
        async with started(cluster, "recover", gone) as recovering:
            await healing.until(lambda: only_left(factory, gone, held.low))
            assert recovering.returncode is None
            await factory.replication_metadata.release(lock)
            assert await recovering.wait() == 0
        assert gone not in await members(factory, held)
        for ledger in ledgers:
            await check(client, ledger.ledger_id, 5)


async def only_left(factory: LedgerManagerFactory, gone: str, number: int) -> bool:
    return await healing.naming(factory, {gone}) == {number}


@pytest.mark.long
async def test_single_ledgers_get_what_they_lack_where_they_lack_it(cluster: ForkedCluster) -> None:
    async with using(cluster) as (factory, client):
        ledger = await written(client, 20, 3, 3, 2)
        another = await written(client, 20, 3, 3, 2)
        index, lacking = 0, next(iter(cluster.bookies.keys() - ledger.metadata.bookies))
        for each in (ledger, another):
            if lacking not in each.metadata.bookies:
                await moved(factory, each.ledger_id, index, lacking)
        before = await factory.ledger_manager.read(ledger.ledger_id)
        done = await answer(cluster, "recover", "--ledger", str(ledger.ledger_id.low))
        assert (done["ledgers"], done["moved"], done["entries_copied"]) == (1, 1, 20)
        assert await factory.ledger_manager.read(ledger.ledger_id) == before
        assert "there is no ledger 4711" in await refusal(cluster, "recover", "--ledger", "4711")
        assert "name bookies, or ledgers" in await refusal(cluster, "recover")
        assert "there is no bookie bookie-9" in await refusal(cluster, "recover", "bookie-0", "bookie-9")


@pytest.mark.long
async def test_a_bookie_takes_the_place_of_another_one(cluster: ForkedCluster) -> None:
    async with using(cluster) as (factory, client):
        acknowledged = await healing.filled(client, 10)
        old, new = "bookie-3", cluster.add()
        await asyncio.to_thread(cluster.start, new)
        on_old = await healing.naming(factory, {old})
        # Where it is in the ensemble already it can't take a second place.
        on_both = next(iter(on_old))
        ensemble = (await factory.ledger_manager.read(LedgerId.of_number(on_both))).metadata.fragments[0].ensemble
        await moved(factory, LedgerId.of_number(on_both), (ensemble.index(old) + 1) % 3, new)
        await answer(cluster, "recover", "--ledger", ledger_name(on_both))
        done = await answer(cluster, "replace", old, new)
        assert (done["moved"], done["cookie_removed"]) == (len(on_old), False)
        assert await healing.naming(factory, {old}) == set()
        assert await healing.naming(factory, {new}) == on_old
        assert await find_bookie(factory, old) is not None, "it is registered"
        await lost(cluster, factory, old)
        assert any(ledger_id.scope_id and ledger_id.number in on_old for ledger_id in acknowledged)
        done = await answer(cluster, "replace", old, new)
        assert (done["ledgers"], done["cookie_removed"]) == (0, True)
        assert await find_bookie(factory, old) is None
        assert f"bookie {old} does not take writes" in await refusal(cluster, "replace", new, old)
        assert "its own place" in await refusal(cluster, "replace", new, new)
        assert await healing.audit(factory, client, acknowledged) == 10 * 20 * 3


@pytest.mark.long
async def test_a_bookie_that_an_unbounded_ledger_names_keeps_its_cookie(cluster: ForkedCluster) -> None:
    async with using(cluster) as (factory, client):
        await healing.filled(client, 4)
        old, new = "bookie-3", cluster.add()
        await asyncio.to_thread(cluster.start, new)
        written_there = create_unbounded(LedgerMetadata.new(("bookie-0", "bookie-1", old), 3, 2))
        ledger = await factory.ledger_manager.create(None, written_there)
        await lost(cluster, factory, old)
        left = await incomplete(cluster, "replace", old, new, "--grace", "0.2")
        assert left["cookie_removed"] is False
        assert [(each["ledger_id"], each["state"]) for each in left["left"]] == [
            (ledger.ledger_id.low, "still written")
        ]
        assert await find_bookie(factory, old) is not None
        assert (await factory.ledger_manager.read(ledger.ledger_id)).metadata.bookies == {"bookie-0", "bookie-1", old}
        await client.delete_ledger(ledger.ledger_id)
        assert (await answer(cluster, "replace", old, new))["cookie_removed"] is True


async def test_a_ledger_that_can_not_get_all_its_copies_fails_although_it_is_still_open(tmp_path: Path) -> None:
    """There are too few bookies for its complete fragment, so its end is never reached."""
    with healing.store_of("sqlite", tmp_path) as store, forked_cluster(tmp_path, 4, store.uri) as cluster:
        async with using(cluster) as (factory, client):
            ledger = await written(client, 10, 3, 3, 2, close=False)
            first = ledger.metadata.last_fragment.ensemble
            await lost(cluster, factory, first[2])
            while first[2] in ledger.metadata.last_fragment.ensemble:
                await ledger.append(b"more")
            await lost(cluster, factory, first[0])
            async with asyncio.timeout(60):
                said = await incomplete(cluster, "recover", first[0], first[2], "--grace", "1")
            ends = [(each["ledger_id"], each["state"]) for each in said["left"]]
            assert ends == [(ledger.ledger_id.low, "failed")]
