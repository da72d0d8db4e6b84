"""`bookgate bookie drain` and `decommission` on real bookies: what they begin, what ends them, what they refuse."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from bookgate import ClientConfig
from bookgate.bookie.replication.audits.auditor import AuditorOptions
from bookgate.bookie.replication.auto_recovery import AutoRecovery, AutoRecoveryOptions
from bookgate.bookie.replication.copies.budget import CopyLimits
from bookgate.bookie.replication.repairs.marks import note_unrecoverable
from bookgate.bookie.replication.repairs.worker import WorkerOptions
from bookgate.bookie.standalone.local_zookeeper import LocalZooKeeper
from bookgate.ledger.errors import IllegalOpException
from bookgate.ledger.metadata_store import BookieSet, LedgerManagerFactory
from bookgate.ledger.replication_control import find_bookie, given_up_with, loss_of
from bookgate.ledger.replication_store import RecordKind
from bookgate.thinclient.administration.admin import Admin
from bookgate.thinclient.tools.draining import Emptied
from tests.integration.bookie.replication.test_auto_recovery import members, metadata_of, until_auditor
from tests.integration.bookie.replication.test_worker import check, written
from tests.integration.thinclient.forked_cluster import ForkedCluster, forked_cluster
from tests.stores import made

pytestmark = pytest.mark.asyncio


@pytest.fixture(params=[pytest.param("sqlite", marks=pytest.mark.long), "zookeeper"])
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ForkedCluster]:
    uri = None
    if request.param == "zookeeper":
        server: LocalZooKeeper = request.getfixturevalue("zookeeper")
        uri = made(server.metadata_uri(f"/{tmp_path.name}/ledgers"))
    with forked_cluster(tmp_path, 4, uri) as running:
        yield running


@contextlib.asynccontextmanager
async def recovering(factory: LedgerManagerFactory) -> AsyncIterator[AutoRecovery]:
    """Auto-recovery in this process, which calls the roll all the time."""
    auditor = AuditorOptions(lost_bookie_delay_seconds=0, roll_call_seconds=0.2)
    config = ClientConfig(add_timeout_seconds=1.5, read_timeout_seconds=1.5, connect_timeout_seconds=1.5)
    running = AutoRecovery(factory, "here", AutoRecoveryOptions(auditor, WorkerOptions(), CopyLimits()), config)
    await running.start()
    try:
        await until_auditor(factory)
        yield running
    finally:
        await running.stop()


@contextlib.asynccontextmanager
async def started(cluster: ForkedCluster, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """`bookgate bookie …` as a process, since one that waits for too long has to be ended."""
    command = ["-m", "bookgate", "bookie", *arguments, "--json", "--gateways", cluster.metadata_uri]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(90):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def answer(cluster: ForkedCluster, *arguments: str) -> Any:
    async with started(cluster, *arguments) as process:
        output, complaints = await process.communicate()
    assert process.returncode == 0, complaints.decode()
    return json.loads(output)


async def refusal(cluster: ForkedCluster, *arguments: str) -> str:
    async with started(cluster, *arguments) as process:
        output, complaints = await process.communicate()
    # 2 where what was given is wrong in itself.
    assert process.returncode in (1, 2), output.decode() + complaints.decode()
    return str(json.loads(complaints.splitlines()[-1])["error"])


async def until_unregistered(factory: LedgerManagerFactory, bookie_id: str) -> None:
    async with asyncio.timeout(60):
        while any(  # noqa: ASYNC110 - polled, as the lease that ends is told to nobody
            each.bookie_id == bookie_id and (each.writable or each.read_only)
            for each in await factory.service_discovery.bookies(BookieSet.ALL)
        ):
            await asyncio.sleep(0.05)


async def draining(factory: LedgerManagerFactory) -> set[str]:
    return set(await factory.replication_metadata.records(RecordKind.DRAINING_BOOKIE))


async def test_a_bookie_is_drained_while_it_serves_and_then_decommissioned(cluster: ForkedCluster) -> None:
    async with metadata_of(cluster) as factory, await cluster.client() as client:
        closed = [(await written(client, 30, 3, 2, 2)).ledger_id for _ in range(6)]
        leaving = (await factory.ledger_manager.read(closed[0])).metadata.fragments[0].ensemble[0]
        on_it = [each for each in closed if leaving in await members(factory, each)]
        begun = await answer(cluster, "drain", leaving)
        assert (begun["draining"], begun["changed"], begun["ledgers_left"]) == (True, True, len(on_it))
        assert "there is no auditor" in begun["problems"][0]
        assert f"read-only on {leaving}" in begun["problems"][1]
        assert "there is no auditor" in await refusal(cluster, "drain", leaving, "--wait")
        async with recovering(factory):
            shown = await answer(cluster, "drain", leaving, "--wait")
            assert (shown["changed"], shown["ledgers_left"], shown["still_written"]) == (False, 0, 0)
            for ledger_id in closed:
                assert leaving not in await members(factory, ledger_id)
                await check(client, ledger_id, 30)
            assert "stop it" in await refusal(cluster, "decommission", leaving)
            assert await draining(factory) == {leaving}
            await asyncio.to_thread(cluster.kill, leaving)
            await until_unregistered(factory, leaving)
            expected = {"bookie_id": leaving, "ledgers_moved": 0, "ledgers_given_up": [], "cookie_removed": True}
            assert await answer(cluster, "decommission", leaving) == expected
        assert await find_bookie(factory, leaving) is None
        assert await draining(factory) == set()
        assert f"there is no bookie {leaving}" in await refusal(cluster, "decommission", leaving)


async def test_a_bookie_that_is_gone_is_decommissioned_when_its_ledgers_have_their_copies(
    cluster: ForkedCluster,
) -> None:
    async with metadata_of(cluster) as factory, await cluster.client() as client:
        ledger = await written(client, 30, 3, 3, 2)
        gone = ledger.metadata.fragments[0].ensemble[0]
        await asyncio.to_thread(cluster.kill, gone)
        await until_unregistered(factory, gone)
        async with recovering(factory):
            found = await answer(cluster, "decommission", gone)
        # How many it has seen go is a race with the worker.
        assert (found["bookie_id"], found["cookie_removed"]) == (gone, True)
        assert gone not in await members(factory, ledger.ledger_id)
        assert await find_bookie(factory, gone) is None
        await check(client, ledger.ledger_id, 30)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[ForkedCluster]:
    with forked_cluster(tmp_path, 4) as running:
        yield running


@pytest.mark.long
async def test_without_anybody_to_do_it_only_an_empty_bookie_is_decommissioned(small: ForkedCluster) -> None:
    async with metadata_of(small) as factory, await small.client() as client:
        ledger = await written(client, 3, 3, 3, 2)
        (empty,) = small.bookies.keys() - ledger.metadata.bookies
        gone = ledger.metadata.fragments[0].ensemble[0]
        for bookie_id in (empty, gone):
            await asyncio.to_thread(small.kill, bookie_id)
            await until_unregistered(factory, bookie_id)
        problem = await refusal(small, "decommission", gone)
        assert f"1 ledgers are on bookie {gone}, and there is no auditor" in problem
        await factory.replication_metadata.set_enabled(False)
        assert "disabled; `bookgate autorecovery enable`" in await refusal(small, "decommission", gone)
        assert await find_bookie(factory, gone) is not None
        assert await draining(factory) == {gone}
        expected = {"bookie_id": empty, "ledgers_moved": 0, "ledgers_given_up": [], "cookie_removed": True}
        assert await answer(small, "decommission", empty) == expected


@pytest.mark.long
async def test_a_drain_is_undone_and_unknown_bookies_are_refused(small: ForkedCluster) -> None:
    async with metadata_of(small) as factory:
        assert (await answer(small, "drain", "bookie-1"))["changed"] is True
        assert (await answer(small, "drain", "bookie-1"))["changed"] is False
        undone = {
            "bookie_id": "bookie-1",
            "draining": False,
            "changed": True,
            "ledgers_left": None,
            "still_written": None,
            "problems": [],
        }
        assert await answer(small, "drain", "bookie-1", "--undo") == undone
        assert await answer(small, "drain", "bookie-1", "--undo") == {**undone, "changed": False}
        assert await draining(factory) == set()
        for command in (["drain"], ["drain", "--wait"], ["decommission"]):
            assert "there is no bookie bookie-9" in await refusal(small, *command, "bookie-9")
        for command in (["drain"], ["drain", "--undo"], ["decommission"]):
            assert "not valid" in await refusal(small, *command, "bookie/1")
        assert "do not go together" in await refusal(small, "drain", "bookie-1", "--wait", "--undo")
        assert await draining(factory) == set()


@pytest.mark.long
async def test_what_has_no_copy_left_keeps_the_cookie_until_it_is_given_up(small: ForkedCluster) -> None:
    async with metadata_of(small) as factory, await small.client() as client:
        ledger = await written(client, 5, 1, 1, 1)
        (gone,) = ledger.metadata.bookies
        await asyncio.to_thread(small.kill, gone)
        await until_unregistered(factory, gone)
        store, kind, key = factory.replication_metadata, RecordKind.UNRECOVERABLE_LEDGER, str(ledger.ledger_id)
        async with recovering(factory):
            async with asyncio.timeout(60):
                # Found out before anybody asks.
                while not await store.records(kind):  # noqa: ASYNC110 - a store has no event for it
                    await asyncio.sleep(0.05)
            problem = await refusal(small, "decommission", gone)
            assert f"1 ledgers can't leave bookie {gone}" in problem
            assert key in problem
            assert f"`bookgate bookie decommission {gone} --force`" in problem
            assert await factory.registration_manager.read_cookie(gone) is not None
            number = ledger.ledger_id.low
            expected = {"bookie_id": gone, "ledgers_moved": 0, "ledgers_given_up": [number], "cookie_removed": True}
            assert await answer(small, "decommission", gone, "--force") == expected
        assert await factory.registration_manager.read_cookie(gone) is None
        assert await draining(factory) == set()
        assert gone in await members(factory, ledger.ledger_id)
        record = await store.read_record(kind, key)
        assert record is not None
        since = given_up_with(record.value)[gone]
        assert loss_of(record.value).entries == 5
        # Found unrecoverable once more, it is given up still.
        await note_unrecoverable(store, number, {"entries": 5})
        record = await store.read_record(kind, key)
        assert record is not None
        assert given_up_with(record.value) == {gone: since}


async def test_a_ledger_that_is_written_on_the_bookie_leaves_it_once_it_is_closed(small: ForkedCluster) -> None:
    async with metadata_of(small) as factory, await small.client() as client:
        ledger = await written(client, 10, 3, 3, 2, close=False)
        leaving = ledger.metadata.fragments[0].ensemble[0]
        async with recovering(factory) as running, started(small, "drain", leaving, "--wait") as waiting:
            assert waiting.stdout is not None
            assert waiting.stderr is not None
            while b"1 of 1 ledgers left, 1 of them still written" not in await waiting.stderr.readline():
                assert not waiting.stderr.at_eof()
            # The worker has looked at it, found nothing to move, and taken the mark away.
            while running.worker.statistics.ledgers_repaired == 0:  # noqa: ASYNC110 - a counter is no event
                await asyncio.sleep(0.05)
            assert leaving in await members(factory, ledger.ledger_id)
            await ledger.close()
            assert await waiting.wait() == 0
            assert json.loads(await waiting.stdout.read())["ledgers_left"] == 0
        assert leaving not in await members(factory, ledger.ledger_id)
        await check(client, ledger.ledger_id, 10)


@pytest.mark.long
async def test_an_operators_program_gives_up_what_has_no_copy_left_only_when_told(small: ForkedCluster) -> None:
    async with (
        metadata_of(small) as factory,
        await small.client() as client,
        await Admin.connect(small.metadata_uri) as admin,
    ):
        ledger = await written(client, 5, 1, 1, 1)
        (gone,) = ledger.metadata.bookies
        with pytest.raises(IllegalOpException, match="stop it"):
            await admin.decommission(gone, force=True)
        await asyncio.to_thread(small.kill, gone)
        await until_unregistered(factory, gone)
        async with recovering(factory):
            async with asyncio.timeout(60):
                while not (await admin.draining(gone)).unrecoverable:  # noqa: ASYNC110 - as above
                    await asyncio.sleep(0.05)
            with pytest.raises(IllegalOpException, match="--force"):
                await admin.decommission(gone)
            assert await admin.decommission(gone, force=True) == Emptied(0, (ledger.ledger_id,))
        assert await find_bookie(factory, gone) is None
        record = await factory.replication_metadata.read_record(
            RecordKind.UNRECOVERABLE_LEDGER, str(ledger.ledger_id.low)
        )
        assert record is not None
        assert list(given_up_with(record.value)) == [gone]
