"""What is in the way of a repair: the store is paused, the target's disk is full, nobody else can take the place."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from bookgate.ledger.digest import ledger_master_key
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import LedgerManagerFactory
from bookgate.ledger.replication_control import find_bookie
from bookgate.ledger.wire.messages import Request, Status
from tests.integration.bookie.entry_client import EntryClient, add, read
from tests.integration.bookie.replication import healing
from tests.integration.bookie.replication.healing import AT_LENGTH, SETTINGS, Store, audit, until, until_healed
from tests.integration.bookie.replication.test_worker import PASSWORD
from tests.integration.thinclient.forked_cluster import ForkedCluster, forked_cluster

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(3600 if AT_LENGTH else 900)]

PAUSES, LEDGERS = (10, 1000) if AT_LENGTH else (1, 60)
DISK_MIB, LEFT_MIB = 32, 12


@pytest.mark.long
async def test_the_store_is_paused_in_the_middle_of_repairs(store: Store, tmp_path: Path) -> None:
    """So long that sessions and leases end with it, and with them every lock, vote and registration.

    Then another bookie is lost, for which somebody has to be auditor again.
    """
    settings = {**SETTINGS, "replication_rate_mb_per_second": 0.5}
    with forked_cluster(tmp_path, 5, store.uri, **settings) as cluster:
        async with healing.healing(cluster) as (factory, client):
            acknowledged = await healing.filled(client, LEDGERS)
            lost = "bookie-0"
            left = await healing.naming(factory, {lost})
            await asyncio.to_thread(cluster.kill, lost)
            for _ in range(PAUSES):
                left = await healing.until_fewer(factory, lost, left)
                store.pause()
                try:
                    await until(lambda: store.has_noticed(factory))
                finally:
                    store.resume()
                assert left, "the last pause came too late"
            await until_healed(factory, {lost})
            await asyncio.to_thread(cluster.kill, "bookie-1")
            await until_healed(factory, {lost, "bookie-1"})
            assert await audit(factory, client, acknowledged) == LEDGERS * 20 * 3


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, part of which a file takes that a test may remove."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "none", str(disk)]
    try:
        result = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no mount command here")
    if result.returncode:
        pytest.skip(f"mounting a small file system is not permitted here: {result.stderr.strip()}")
    try:
        (disk / "filler").write_bytes(bytes((DISK_MIB - LEFT_MIB) << 20))
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)


@pytest.mark.long
@pytest.mark.parametrize("remedy", ["another bookie", "room"])
async def test_the_disk_of_the_target_is_full(tmp_path: Path, small_disk: Path, remedy: str) -> None:
    """The repair waits until another bookie is there to take the copies, or until there is room again."""
    with (
        healing.store_of("zookeeper", tmp_path) as store,
        forked_cluster(tmp_path, 3, store.uri, **SETTINGS) as cluster,
    ):
        async with healing.healing(cluster) as (factory, client):
            acknowledged = await healing.filled(client, 24, 16, 65536)
            target = cluster.add(data_dir=str(small_disk / "bookie"), **SMALL)
            await asyncio.to_thread(cluster.start, target)
            await asyncio.to_thread(cluster.kill, "bookie-0")

            async def is_full() -> bool:
                found = await find_bookie(factory, target)
                return found is not None and found.read_only

            await until(is_full)
            assert await healing.naming(factory, {target}), "it has taken some ledgers"
            assert await healing.naming(factory, {"bookie-0"}), "not all have found room"
            if remedy == "room":
                (small_disk / "filler").unlink()
            else:
                await asyncio.to_thread(cluster.start, cluster.add())
            await until_healed(factory, {"bookie-0"})
            assert await audit(factory, client, acknowledged) == 24 * 16 * 3


SMALL = {
    "journal_max_size_mb": 1,
    "entry_log_max_mb": 1,
    "write_cache_mb": 4,
    "flush_interval_seconds": 0.2,
    "journal_max_backups": 0,
    "disk_check_interval_seconds": 0.2,
    "min_usable_for_high_priority_writes_mb": 1,
    "min_usable_for_entry_log_mb": 1,
    "min_usable_for_index_mb": 1,
}


@pytest.mark.long
async def test_a_wiped_member_is_refilled_where_nobody_else_could_take_its_place(store: Store, tmp_path: Path) -> None:
    """As many bookies as an ensemble has: the one that was lost comes back without its data.

    Until it has them again it denies nothing, and it never takes what a writer adds to a ledger of its former life.
    """
    with forked_cluster(tmp_path, 3, store.uri, **SETTINGS, gc_wait_seconds=0.5) as cluster:
        async with healing.healing(cluster) as (factory, client):
            acknowledged = await healing.filled(client, 20)
            empty = await client.create_ledger(3, 3, 2, password=PASSWORD)
            await empty.close()
            ledgers = [empty.ledger_id, *acknowledged]
            before = [await factory.ledger_manager.read(ledger_id) for ledger_id in ledgers]
            lost = "bookie-1"
            await asyncio.to_thread(cluster.kill, lost)

            async def all_marked() -> bool:
                return len(await healing.marked(factory)) == len(ledgers)

            await until(all_marked)
            await factory.replication_metadata.set_enabled(False)
            await back_without_its_data(cluster, factory, lost)
            unknown = {Status.EUNKNOWNLEDGERSTATE}
            assert await asyncio.to_thread(answers, cluster, lost, ledgers, read) == unknown
            assert await asyncio.to_thread(answers, cluster, lost, ledgers, writers_add) == unknown
            await factory.replication_metadata.set_enabled(True)
            await until_healed(factory, ())
            assert [await factory.ledger_manager.read(ledger_id) for ledger_id in ledgers] == before
            assert await audit(factory, client, acknowledged) == 20 * 20 * 3

            async def out_of_limbo() -> bool:
                return not list(cluster.home(lost).rglob("bookie.limbo"))

            await until(out_of_limbo)
            assert await asyncio.to_thread(answers, cluster, lost, ledgers[1:], read) == {Status.EOK}
            assert await asyncio.to_thread(answers, cluster, lost, ledgers[:1], read) == {Status.ENOENTRY}
            assert await asyncio.to_thread(answers, cluster, lost, ledgers, writers_add) == {Status.EFENCED}


def writers_add(ledger_id: int, entry_id: int) -> Request:
    return add(ledger_id, entry_id, key=ledger_master_key(PASSWORD))


def answers(
    cluster: ForkedCluster, bookie_id: str, ledgers: Sequence[LedgerId], request: Callable[[int, int], Request]
) -> set[Status]:
    """What a bookie says of entry 5 of each ledger."""
    with EntryClient(cluster.bookies[bookie_id].addresses["bookie"]) as client:
        return {Status(client.status(request(ledger_id.number, 5))) for ledger_id in ledgers}


async def back_without_its_data(cluster: ForkedCluster, factory: LedgerManagerFactory, bookie_id: str) -> None:
    cluster.wipe(bookie_id)
    cookie = await factory.registration_manager.read_cookie(bookie_id)
    assert cookie is not None
    await factory.registration_manager.remove_cookie(bookie_id, cookie.version)
    await asyncio.to_thread(cluster.start, bookie_id)
