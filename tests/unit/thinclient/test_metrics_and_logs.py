"""What a client counts and logs of what it did; and that its page names all of it."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from bookgate import BookKeeper, WriteHandle
from bookgate.ledger import errors
from bookgate.ledger.errors import BKException, NoSuchEntryException, NotEnoughBookiesException
from bookgate.ledger.wire.messages import AddRequest, Status, WriteLacRequest
from tests.unit.thinclient.fakes import FakeCluster, fake_cluster
from tests.unit.virtual_time import VirtualTime, until

PAGE = Path(__file__).parents[3] / "docs" / "client.md"


def test_the_page_names_every_event() -> None:
    root = Path(__file__).parents[3]
    # Certificate files are followed by the same code as in servers.
    sources = [*(root / "thinclient").rglob("*.py"), *(root / "runtime/tls").rglob("*.py")]
    calls = re.compile(r'log_(?:event|bug)\(\s*\w+,\s*"(\w+)"')
    written = {event for file in sources for event in calls.findall(file.read_text(encoding="utf-8"))}
    page = PAGE.read_text(encoding="utf-8").partition("### Logs")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == written


def counted(client: BookKeeper, name: str) -> tuple[int, int]:
    stats = client.metrics.operations[name]
    return stats.successes, stats.failures


async def ledger_of(client: BookKeeper, count: int, **settings: Any) -> WriteHandle:
    ledger = await client.create_ledger(password=b"planted-p", **settings)
    await ledger.append_all(b"%d" % i for i in range(count))
    return ledger


@pytest.mark.asyncio
async def test_adds_are_counted_one_by_one_and_every_sixteenth_is_timed() -> None:
    async with fake_cluster() as cluster:
        client = cluster.client()
        ledger = await ledger_of(client, 100)
        for _ in range(20):
            await ledger.append(b"x")
        assert counted(client, "ADD_ENTRY") == (120, 0)
        assert 1 <= client.metrics.add_entry.succeeded.count <= 120 // 16 + 1
        for bookie in cluster.bookies:
            bookie.holding = True
        pending = [ledger.append_nowait(b"x") for _ in range(3)]
        await asyncio.sleep(0)  # they begin at the end of the turn
        assert client.metrics.gauges["NUM_PENDING_ADD"]() == 3
        for bookie in cluster.bookies:
            bookie.let_go()
        await asyncio.gather(*pending)
        assert client.metrics.gauges["NUM_PENDING_ADD"]() == 0
        cluster.bookies[0].override = lambda request: Status.EFENCED if isinstance(request, AddRequest) else None
        with pytest.raises(BKException):
            await asyncio.gather(*(ledger.append_nowait(b"x") for _ in range(4)))
        assert sum(counted(client, "ADD_ENTRY")) == 127
        assert client.metrics.counters["ADD_ENTRY_UR"] >= 1


@pytest.mark.asyncio
async def test_changes_of_the_ensemble_are_counted_and_what_ends_a_writer_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "bookgate")
    async with fake_cluster(4) as cluster:
        client = cluster.client()
        ledger = await ledger_of(client, 5)
        assert counted(client, "bookie_watcher_NEW_ENSEMBLE_TIME") == (1, 0)
        await lose(cluster, ledger, 1)
        await ledger.append_all([b"x"] * 100)
        await ledger.append(b"x")
        assert counted(client, "bookie_watcher_REPLACE_BOOKIE_TIME")[0] == 1
        assert client.metrics.counters["NUM_ENSEMBLE_CHANGE"] == 1
        await lose(cluster, ledger, 2)
        with pytest.raises(NotEnoughBookiesException):
            await ledger.append_all([b"x"] * 100)
        with pytest.raises(BKException):
            await client.open_ledger(ledger.ledger_id, b"planted-p", recovery=True)
        assert counted(client, "LEDGER_RECOVER") == (0, 1)
    events = [record.getMessage().split()[0].removeprefix("event=") for record in caplog.records]
    about_the_ledger = [event for event in events if "bookie" not in event and event != "ensemble_not_changed"]
    assert about_the_ledger == [
        "ledger_created",
        "ensemble_changed",
        "writer_ended",
        "recovery_began",
        "recovery_failed",
    ]
    assert all("\n" not in record.getMessage() for record in caplog.records)


async def lose(cluster: FakeCluster, ledger: WriteHandle, bookies: int) -> None:
    for bookie in cluster.ensemble(ledger.metadata)[:bookies]:
        await bookie.stop()


@pytest.mark.asyncio
async def test_closing_and_recovering_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_cluster() as cluster:
        client = cluster.client()
        closed, left = await ledger_of(client, 2), await ledger_of(client, 3)
        caplog.set_level(logging.INFO, "bookgate")
        await closed.close()
        await client.open_ledger(left.ledger_id, b"planted-p", recovery=True)
    messages = [record.getMessage() for record in caplog.records]
    assert f"event=ledger_closed ledger={closed.ledger_id} last_entry=1 length=2" in messages
    assert f"event=ledger_recovered ledger={left.ledger_id} last_entry=2 length=3" in messages


async def test_explicit_lacs_and_forces_are_counted_by_their_outcome(virtual_time: VirtualTime) -> None:
    async with fake_cluster() as cluster:
        client = cluster.client(explicit_lac_interval_seconds=0.005)
        ledger = await client.create_ledger(password=b"planted-p")
        await ledger.append(b"x")
        await ledger.force()
        assert counted(client, "FORCE") == (1, 0)
        await until(lambda: counted(client, "WRITE_LAC") == (1, 0))
        for bookie in cluster.bookies:
            bookie.override = lambda request: Status.EIO if isinstance(request, WriteLacRequest) else None
        await ledger.append(b"x")
        await until(lambda: counted(client, "WRITE_LAC") == (1, 1))


@pytest.mark.asyncio
async def test_reads_are_counted_with_those_that_nobody_could_serve() -> None:
    async with fake_cluster() as cluster:
        client = cluster.client(batch_reads=False)
        ledger = await ledger_of(client, 40)
        await ledger.close()
        for bookie in cluster.bookies:
            del bookie.ledgers[0].entries[33]
        reader = await client.open_ledger(ledger.ledger_id, b"planted-p")
        with pytest.raises(NoSuchEntryException):
            async for _ in reader.read(0, 39):
                pass
        successes, failures = counted(client, "READ_ENTRY")
        assert (successes >= 33, failures) == (True, 1)
        assert client.metrics.read_entry.succeeded.count == 3


@pytest.mark.asyncio
async def test_ensembles_on_too_few_racks_are_counted() -> None:
    async with fake_cluster() as cluster:
        for policy, expected in (("rackaware", 1), ("default", 0)):
            client = cluster.client(placement_policy=policy)
            await client.create_ledger()
            name = "bookie_watcher_ENSEMBLE_NOT_ADHERING_TO_PLACEMENT_POLICY_TOTAL"
            assert client.metrics.counters[name] == expected


def test_the_page_names_errors_by_their_codes() -> None:
    rows = re.findall(r"^\| `(\w+Exception)` \| (-\d+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) > 15
    assert rows == [(name, str(getattr(errors, name).code)) for name, _ in rows]
