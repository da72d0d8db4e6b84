"""Bookie processes killed, paused and cut off under a writer and a recovering client: nothing acknowledged is missing,
nothing hangs, and the ledger goes on or can be recovered."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from bookgate import BookKeeper, ClientConfig, ReadHandle, WriteHandle
from bookgate.gateway.stores.drivers import create_factory
from bookgate.ledger.errors import (
    BKException,
    LedgerFencedException,
    LedgerRecoveryException,
    NotEnoughBookiesException,
    TimeoutException,
)
from bookgate.ledger.metadata import LedgerState
from bookgate.thinclient.blocking import client as blocking
from bookgate.thinclient.tools.single_replica import batches_of_bookie
from tests.integration.cutting_proxy import CuttingConnector
from tests.integration.thinclient.forked_cluster import ForkedCluster, forked_cluster


@pytest.fixture
def four(tmp_path: Path) -> Iterator[ForkedCluster]:
    with forked_cluster(tmp_path, 4) as cluster:
        yield cluster


@pytest.fixture
def five(tmp_path: Path) -> Iterator[ForkedCluster]:
    with forked_cluster(tmp_path, 5) as cluster:
        yield cluster


def payload(entry_id: int) -> bytes:
    return b"entry %d" % entry_id


async def payloads(reader: ReadHandle) -> list[bytes]:
    return [entry.payload async for entry in reader.read(0, reader.last_add_confirmed)]


class Load:
    """Appends one entry after the other, many under way, until it is told to stop or an append fails."""

    def __init__(self, ledger: WriteHandle) -> None:
        self._ledger = ledger
        self._acknowledged = asyncio.Condition()
        self._stopping = False
        self.count = 0
        self.error: BKException | None = None
        self._tasks = [asyncio.create_task(self._run()) for _ in range(50)]
        self._next = 0

    async def _run(self) -> None:
        while not self._stopping and self.error is None:
            future = self._ledger.append_nowait(payload(self._next))
            self._next += 1
            try:
                await future
            except BKException as error:
                self.error = error
            async with self._acknowledged:
                self.count += self.error is None
                self._acknowledged.notify_all()

    async def until(self, more: int) -> None:
        """Returns once `more` entries were acknowledged from now on, or one has failed."""
        wanted = self.count + more
        async with asyncio.timeout(30), self._acknowledged:
            await self._acknowledged.wait_for(lambda: self.count >= wanted or self.error is not None)

    async def stop(self) -> None:
        self._stopping = True
        await asyncio.gather(*self._tasks)


@pytest.mark.asyncio
@pytest.mark.parametrize("fault", ["kill", "pause"])
@pytest.mark.parametrize("victims", [1, 2])
async def test_a_writer_goes_on_with_a_new_ensemble(five: ForkedCluster, fault: str, victims: int) -> None:
    async with await five.client() as client:
        ledger = await client.create_ledger(password=b"planted-p")
        load = Load(ledger)
        await load.until(300)
        lost = ledger.metadata.last_fragment.ensemble[:victims]
        for bookie_id in lost:
            (five.kill if fault == "kill" else five.pause)(bookie_id)
        async with asyncio.timeout(30):
            while set(lost) & set(ledger.metadata.last_fragment.ensemble):
                await load.until(50)
        await load.until(500)
        await load.stop()
        assert load.error is None
        await ledger.close()
        assert ledger.metadata.last_entry_id == load.count - 1
        assert len(ledger.metadata.fragments) >= 2
    async with await five.client() as other:
        reader = await other.open_ledger(ledger.ledger_id, b"planted-p")
        assert await payloads(reader) == [payload(i) for i in range(load.count)]


@pytest.mark.asyncio
@pytest.mark.parametrize("recovered", [False, True])
async def test_with_a_guaranteed_write_quorum_every_bookie_has_what_metadata_say(
    five: ForkedCluster, recovered: bool
) -> None:
    """Two members are killed, one after the other; then the writer closes the ledger, or somebody recovers it."""
    async with await five.client() as client:
        ledger = await client.create_ledger(password=b"planted-p", guaranteed_write_quorum=True)
        load = Load(ledger)
        victims = ledger.metadata.last_fragment.ensemble[:2]
        for bookie_id in victims:
            await load.until(300)
            five.kill(bookie_id)
            async with asyncio.timeout(30):
                while bookie_id in ledger.metadata.last_fragment.ensemble:
                    await load.until(50)
        await load.until(300)
        if not recovered:
            await load.stop()
            await ledger.close()
            assert ledger.metadata.last_entry_id == load.count - 1
    five.start(*victims)
    async with await five.client() as other:
        async with other.open_ledger(ledger.ledger_id, b"planted-p", recovery=True) as reader:
            record, last = reader.record, reader.last_add_confirmed
        assert last >= load.count - 1
        assert len(record.metadata.fragments) >= 3
        for bookie_id in record.metadata.bookies:
            held = batches_of_bookie(other, record, b"planted-p", bookie_id, 0, last)
            async with aclosing(held) as batches:
                async for batch in batches:
                    assert all(entry.payload == payload(entry.entry_id) for entry in batch)


@pytest.mark.asyncio
async def test_too_few_bookies_are_one_clear_error_within_the_timeout_and_the_ledger_is_recovered_later(
    four: ForkedCluster,
) -> None:
    async with await four.client() as client:
        ledger = await client.create_ledger(password=b"planted-p")
        load = Load(ledger)
        await load.until(300)
        lost = list(four.bookies)[:3]
        for bookie_id in lost:
            four.kill(bookie_id)
        await load.until(10_000_000)
        await load.stop()
        assert isinstance(load.error, NotEnoughBookiesException)
        assert load.error.ledger_id == ledger.ledger_id
        assert set(load.error.bookies) <= set(lost)
        with pytest.raises((LedgerRecoveryException, TimeoutException)):
            await client.open_ledger(ledger.ledger_id, b"planted-p", recovery=True)
    four.start(*lost)
    async with await four.client() as other:
        reader = await other.open_ledger(ledger.ledger_id, b"planted-p", recovery=True)
        read = await payloads(reader)
        assert len(read) >= load.count
        assert read == [payload(i) for i in range(len(read))]


@pytest.mark.asyncio
async def test_recovery_with_a_dead_member_writes_back_to_a_new_ensemble(four: ForkedCluster) -> None:
    async with await four.client() as client, await four.client() as other:
        ledger = await client.create_ledger(3, 3, 3, password=b"planted-p")
        await ledger.append_all(payload(i) for i in range(500))
        dead = ledger.metadata.last_fragment.ensemble[1]
        four.kill(dead)
        reader = await other.open_ledger(ledger.ledger_id, b"planted-p", recovery=True)
        assert dead not in reader.metadata.last_fragment.ensemble
        assert await payloads(reader) == [payload(i) for i in range(500)]
        with pytest.raises(LedgerFencedException):
            await ledger.append(b"late")


@pytest.mark.asyncio
async def test_a_recovering_client_that_dies_leaves_a_ledger_that_the_next_one_recovers(four: ForkedCluster) -> None:
    async with await four.client() as client:
        ledger = await client.create_ledger(password=b"planted-p", ledger_id=9)
        await asyncio.gather(*(ledger.append_nowait(payload(i)) for i in range(2000)))
        for delay in (0.001, 0.005, 0.02):
            # It goes away in the middle: every request of it that is under way is lost.
            async with await four.client() as dying:
                opening = asyncio.ensure_future(dying.open_ledger(9, b"planted-p", recovery=True))
                await asyncio.wait([opening], timeout=delay)
            await asyncio.gather(opening, return_exceptions=True)
        four.kill(ledger.metadata.last_fragment.ensemble[0])
        async with await four.client() as other:
            reader = await other.open_ledger(9, b"planted-p", recovery=True)
            assert reader.metadata.state is LedgerState.CLOSED
            assert await payloads(reader) == [payload(i) for i in range(2000)]


@pytest.mark.asyncio
async def test_several_recover_at_once_and_agree(four: ForkedCluster) -> None:
    async with await four.client() as client:
        ledger = await client.create_ledger(password=b"planted-p")
        await asyncio.gather(*(ledger.append_nowait(payload(i)) for i in range(1000)))
        clients = [await four.client() for _ in range(3)]
        readers = await asyncio.gather(*(c.open_ledger(ledger.ledger_id, b"planted-p", recovery=True) for c in clients))
        assert len({(reader.last_add_confirmed, reader.length) for reader in readers}) == 1
        assert await payloads(readers[0]) == [payload(i) for i in range(1000)]
        for each in clients:
            await each.close()


@pytest.mark.asyncio
async def test_a_writer_that_is_fenced_while_its_ensemble_changes_ends_and_loses_nothing(five: ForkedCluster) -> None:
    async with await five.client() as client, await five.client() as other:
        ledger = await client.create_ledger(password=b"planted-p")
        load = Load(ledger)
        await load.until(300)
        five.kill(ledger.metadata.last_fragment.ensemble[0])
        reader = await other.open_ledger(ledger.ledger_id, b"planted-p", recovery=True)
        await load.until(10_000_000)
        await load.stop()
        assert isinstance(load.error, LedgerFencedException)
        assert reader.last_add_confirmed >= load.count - 1
        read = await payloads(reader)
        assert read == [payload(i) for i in range(len(read))]
        with pytest.raises(LedgerFencedException):
            await ledger.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("seed", [1, 2])
async def test_connections_cut_in_the_middle_of_frames_lose_nothing(five: ForkedCluster, seed: int) -> None:
    rng = random.Random(seed)
    factory = create_factory(five.metadata_uri)
    await factory.initialize()
    config = ClientConfig(add_timeout_seconds=1.5, read_timeout_seconds=1.5, failed_bookie_interval_seconds=0.1)
    async with CuttingConnector(rng, 20_000, 200_000) as connector:
        client = BookKeeper(factory.ledger_manager, factory.service_discovery, config, connector=connector)
        ledger = await client.create_ledger(password=b"planted-p")
        load = Load(ledger)
        while connector.cuts < 8 and load.error is None:
            await load.until(100)
        await load.stop()
        await client.close()
        connector.cutting = False
        other = BookKeeper(factory.ledger_manager, factory.service_discovery, config, connector=connector)
        reader = await other.open_ledger(ledger.ledger_id, b"planted-p", recovery=True)
        read = await payloads(reader)
        assert len(read) >= load.count
        assert read[: load.count] == [payload(i) for i in range(load.count)]
        await other.close()
    await factory.close()


@pytest.mark.asyncio
async def test_deferred_sync_and_force_survive_the_death_of_all_bookies(four: ForkedCluster) -> None:
    async with await four.client() as client:
        ledger = await client.create_ledger(password=b"planted-p", deferred_sync=True)
        await ledger.append_all(payload(i) for i in range(100))
        await ledger.force()
        assert ledger.last_add_confirmed == 99
        for bookie_id in four.bookies:
            four.kill(bookie_id)
    four.start()
    async with await four.client() as other:
        reader = await other.open_ledger(ledger.ledger_id, b"planted-p", recovery=True)
        assert (await payloads(reader))[:100] == [payload(i) for i in range(100)]


@pytest.mark.asyncio
async def test_an_advanced_ledger_and_explicit_lacs_on_real_bookies(four: ForkedCluster) -> None:
    async with await four.client(explicit_lac_interval_seconds=0.05) as client, await four.client() as other:
        ledger = await client.create_advanced_ledger(password=b"planted-p", ledger_id=4711)
        ids = random.Random(3).sample(range(500), 500)
        await asyncio.gather(*(ledger.append_nowait(i, payload(i)) for i in ids))
        reader = await other.open_ledger(4711, b"planted-p")
        async with asyncio.timeout(20):
            while await reader.read_last_confirmed() < 499:  # noqa: ASYNC110 - a bookie's state, seen by asking
                await asyncio.sleep(0.02)
        assert await payloads(reader) == [payload(i) for i in range(500)]
        await ledger.close()


def test_the_blocking_facade_writes_these_ledgers_too(four: ForkedCluster) -> None:
    with blocking.BookKeeper.connect(four.metadata_uri) as client:
        with client.create_advanced_ledger(password=b"planted-p") as ledger:
            later = ledger.append_future(1, b"second")
            assert ledger.append(0, b"first") == 0
            assert later.result() == 1
        with client.open_ledger(ledger.ledger_id, b"planted-p") as reader:
            assert [entry.payload for entry in reader.read(0, 1)] == [b"first", b"second"]
        deferred = client.create_ledger(deferred_sync=True)
        deferred.append(b"x")
        assert deferred.last_add_confirmed == -1
        deferred.force()
        assert (deferred.last_add_confirmed, deferred.failed_bookies) == (0, {})
        deferred.append(b"cut off")
        deferred.close(force=False)
        assert client.read_record(deferred.ledger_id).metadata.last_entry_id == 0
