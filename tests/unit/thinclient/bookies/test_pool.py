"""Connections that nobody uses: which ones are kept, and what becomes of the handles that hold others."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from itertools import pairwise
from typing import Any

import pytest

from bookgate import BookKeeper
from bookgate.ledger.errors import BKException, TimeoutException, WriteException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import Fragment, LedgerMetadata
from bookgate.ledger.wire.messages import Operation, ReadLacRequest, Response
from bookgate.ledger.wire.v3 import encode_request
from bookgate.thinclient.bookies.connection import BookieConnection, ConnectionSettings
from bookgate.thinclient.bookies.pool import LET_GO_AFTER, V2, BookiePool
from bookgate.thinclient.bookies.reconnect_backoff import LONGEST_PAUSE
from tests.unit.thinclient.fakes import FakeBookie, FakeDiscovery, fake_cluster
from tests.unit.thinclient.inside import pool_of
from tests.unit.virtual_time import until

pytestmark = pytest.mark.usefixtures("virtual_time")

_REST = LET_GO_AFTER + 1


class Attempts:
    """A connector: nobody is there, or nobody answers."""

    def __init__(self, *, endless: bool = False) -> None:
        self.count, self._endless = 0, endless

    async def __call__(self, _factory: object, _host: str, _port: int) -> None:
        self.count += 1
        if self._endless:
            await asyncio.get_running_loop().create_future()
        raise ConnectionRefusedError("refused")


def pool_over(attempts: Attempts, connect_timeout: float = 5) -> BookiePool:
    settings = ConnectionSettings(connect_timeout, 1 << 20, 1 << 16)
    return BookiePool(FakeDiscovery([]), settings, attempts, rng=random.Random(1))


async def ask(pool: BookiePool, connection: BookieConnection, timeout: float = 5) -> object:
    """The response to a request on this connection, or its error."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[object] = loop.create_future()

    def sink(_token: object, response: Response | None, error: BKException | None) -> None:
        outcome.set_result(response or error)

    request = ReadLacRequest(pool.next_txn_id(), 1)
    frame = encode_request(request)
    connection.send(Operation.READ_LAC, request.txn_id, frame, loop.time() + timeout, sink, None)
    return await outcome


async def test_nothing_is_kept_of_bookies_that_do_not_exist() -> None:
    """Any client can create ledgers on as many as it likes."""
    async with fake_cluster(3) as cluster:
        client = cluster.client()
        names = tuple(f"no-such-{index}" for index in range(50))
        metadata = LedgerMetadata(50, 50, 2, fragments=(Fragment(0, names),), password=b"")
        await cluster.metadata.create(LedgerId.unscoped(1000), metadata)
        with pytest.raises(BKException):
            await client.open_ledger(1000)
        asked = {weakref.ref(pool_of(client).connection(name, 1000)) for name in names}
        await asyncio.sleep(_REST)
        gc.collect()
        assert not [each() for each in asked if each() is not None]


async def test_open_connections_are_kept() -> None:
    async with fake_cluster(1) as cluster:
        pool, (bookie,) = pool_of(cluster.client()), cluster.bookies
        connections = [pool.connection(bookie.bookie_id), pool.batch_connection(bookie.bookie_id)]
        for connection in connections:
            await ask(pool, connection)
        kept = list(map(weakref.ref, connections))
        del connections, connection
        await asyncio.sleep(2 * _REST)
        assert [each() for each in kept] == [pool.connection(bookie.bookie_id), pool.batch_connection(bookie.bookie_id)]
        assert (pool.connected_count(), len(bookie.writers)) == (2, 2)


async def test_a_connection_that_a_handle_holds_stays_the_only_one_and_its_requests_end() -> None:
    attempts = Attempts(endless=True)
    pool = pool_over(attempts, connect_timeout=1000)
    held = pool.connection("b:1", 3)
    await asyncio.sleep(_REST)
    began = asyncio.get_running_loop().time()
    assert isinstance(await ask(pool, held, 2), TimeoutException)
    assert asyncio.get_running_loop().time() - began < 3
    # It is being connected still: it is kept, whoever holds it.
    there = weakref.ref(held)
    del held
    await asyncio.sleep(_REST)
    assert pool.connection("b:1", 3) is there()
    assert attempts.count == 1
    pool.close()


async def test_a_handle_and_the_pool_mean_the_same_connection_after_a_rest() -> None:
    pool = pool_over(Attempts())
    held = pool.connection("b:1")
    await ask(pool, held)
    await asyncio.sleep(_REST)
    assert pool.connection("b:1") is held
    await asyncio.sleep(_REST)
    assert pool.connection("b:1") is held
    pool.close()


async def test_a_writer_at_rest_goes_on_with_a_bookie_that_was_away() -> None:
    async with fake_cluster(3) as cluster:
        client = cluster.client(add_timeout_seconds=1, delay_ensemble_change=True)
        async with client.create_ledger(3, 3, 2) as ledger:
            await ledger.append(b"0")
            away = cluster.ensemble(ledger.metadata)[2]
            await away.stop()
            await until(lambda: pool_of(client).connected_count() == 2)
            await asyncio.sleep(_REST)
            await away.start()
            await ledger.append(b"1")
            await away.until_requested(2)
            assert pool_of(client).connected_count() == 3
            assert sum(len(bookie.writers) for bookie in cluster.bookies) == 3


async def test_losses_are_known_of_connections_that_were_let_go() -> None:
    """While the number is the same, so is the process that answers."""
    async with fake_cluster(2) as cluster:
        client = cluster.client()
        pool, (bookie, _) = pool_of(client), cluster.bookies
        told = set[int]()
        for turn in range(4):
            told.add(pool.losses(bookie.bookie_id))
            await ask(pool, pool.connection(bookie.bookie_id))
            told.add(pool.losses(bookie.bookie_id))
            assert len(told) == turn + 1
            await restart(bookie, client)
            await asyncio.sleep(_REST)


async def restart(bookie: FakeBookie, client: BookKeeper) -> None:
    await bookie.stop()
    await until(lambda: pool_of(client).connected_count() == 0)
    await bookie.start()


async def test_a_loss_before_a_rest_still_ends_entries_that_are_not_forced() -> None:
    async with fake_cluster(3) as cluster:
        client = cluster.client()
        ledger = await client.create_ledger(3, 3, 3, deferred_sync=True)
        await ledger.append(b"0")
        bookie = cluster.ensemble(ledger.metadata)[0]
        await bookie.stop()
        await until(lambda: pool_of(client).connected_count() == 2)
        await bookie.start()
        await asyncio.sleep(_REST)
        with pytest.raises(WriteException, match="was lost while entries were not forced"):
            await ledger.force()


async def test_a_bookie_that_is_asked_again_and_again_is_not_tried_again_and_again() -> None:
    attempts = Attempts()
    pool = pool_over(attempts)
    tried = list[float]()
    for _ in range(int(4 * LET_GO_AFTER)):
        before = attempts.count
        await ask(pool, pool.connection("b:1"))
        if attempts.count > before:
            tried.append(asyncio.get_running_loop().time())
        await asyncio.sleep(1)
    pauses = [after - before for before, after in pairwise(tried) if before > tried[0] + LET_GO_AFTER / 2]
    assert min(pauses) >= LONGEST_PAUSE / 2
    pool.close()


@pytest.mark.parametrize("protocol", ["v3", V2])
async def test_a_closed_pool_closes_connections_that_were_let_go(protocol: str) -> None:
    pool = BookiePool(FakeDiscovery([]), ConnectionSettings(5, 1 << 20, 1 << 16), wire_protocol=protocol)
    held: Any = pool.connection("b:1")
    await asyncio.sleep(_REST)
    await pool.close_and_wait()
    assert "the client is closed" in str(await ask(pool, held))
