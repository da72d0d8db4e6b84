"""`bookgate autorecovery` and `bookgate ledger under-replicated`, in a store and through a gateway."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from typer.testing import CliRunner, Result

from bookgate.gateway.server import GatewayServer
from bookgate.gateway.stores.drivers import create_factory
from bookgate.ledger.metadata_store import LedgerManagerFactory
from bookgate.ledger.replication import PeriodicCheck
from bookgate.ledger.replication_progress import encode
from bookgate.ledger.replication_store import RecordKind
from bookgate.runtime.clock import now_ms
from bookgate.thinclient.commands import main
from tests.integration.gateway.recovery_told import GIVEN_UP, LOSS, told_by_a_worker

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def store(metadata_uri: str) -> AsyncIterator[LedgerManagerFactory]:
    factory = create_factory(metadata_uri)
    await factory.initialize()
    yield factory
    await factory.close()


@pytest_asyncio.fixture(params=["store", "gateway"])
async def uri(request: pytest.FixtureRequest, store: LedgerManagerFactory, metadata_uri: str) -> AsyncIterator[str]:
    if request.param == "store":
        yield metadata_uri
        return
    server = GatewayServer(store)
    yield f"grpc://127.0.0.1:{await server.start()}"
    await server.stop(0)


async def ran(uri: str, *arguments: str) -> Result:
    """A command that succeeded."""
    result = await asyncio.to_thread(CliRunner().invoke, main.app, [*arguments, "--gateways", uri])
    assert result.exit_code == 0, result.output + str(result.exception)
    return result


async def run(uri: str, *arguments: str) -> str:
    """What a command prints."""
    return (await ran(uri, *arguments)).stdout


async def answer(uri: str, *arguments: str) -> Any:
    return json.loads(await run(uri, *arguments, "--json"))


SHOWN_LOSS = "unrecoverable: no copy of 3 entries (4, 5, 6); a:1: lost, b:1: lacks 3"


async def test_marks(uri: str, store: LedgerManagerFactory) -> None:
    replication = store.replication_metadata
    await replication.mark(7, ["a:1", "b:1"], 1_700_000_000_000)
    await replication.mark(9, ["b:1"])
    await replication.try_lock(9, "worker7")
    await replication.write_record(RecordKind.UNRECOVERABLE_LEDGER, "7", GIVEN_UP, None)
    corrupt = b'{"copies": {"d:1": [[0, 3]], "c:1": [[1, 1], [7, 9]]}, "time_ms": 5}'
    await replication.write_record(RecordKind.CORRUPT_LEDGER, "9", corrupt, None)
    first: dict[str, Any] = {
        "ledger_id": 7,
        "missing_replicas": ["a:1", "b:1"],
        "marked_ms": 1_700_000_000_000,
        "locked_by": None,
        "unrecoverable": True,
        "damaged": False,
        "corrupt_at": [],
        "loss": LOSS,
    }
    second = {"ledger_id": 9, "missing_replicas": ["b:1"], "marked_ms": None, "locked_by": "worker7"}
    second |= {"unrecoverable": False, "damaged": False, "corrupt_at": ["c:1", "d:1"], "loss": None}
    assert await answer(uri, "ledger", "under-replicated") == [first, second]
    assert await answer(uri, "ledger", "under-replicated", "--missing", "a:1") == [first]
    assert await answer(uri, "ledger", "under-replicated", "--not-missing", "a:1") == [second]
    shown = await ran(uri, "ledger", "under-replicated")
    for text in ("a:1, b:1", "2023-11-14T22:13:20Z", "worker7", "at c:1", "at d:1", SHOWN_LOSS):
        assert text in shown.stdout
    # The output is no terminal: what is no row does not stand among the rows.
    assert "2 ledgers" not in shown.stdout
    assert shown.stderr == "2 ledgers\n"


async def test_switch_and_delay(uri: str, store: LedgerManagerFactory) -> None:
    replication = store.replication_metadata
    assert await answer(uri, "autorecovery", "disable") == {"enabled": False, "changed": True}
    assert not await replication.is_enabled()
    assert await answer(uri, "autorecovery", "disable") == {"enabled": False, "changed": False}
    assert await run(uri, "autorecovery", "enable") == "auto-recovery is enabled\n"
    assert await run(uri, "autorecovery", "enable") == "auto-recovery is enabled already\n"
    assert await answer(uri, "autorecovery", "delay") == {"lost_bookie_delay_seconds": None}
    for seconds in (600, 0):
        assert await answer(uri, "autorecovery", "delay", str(seconds)) == {"lost_bookie_delay_seconds": seconds}
    assert await replication.lost_bookie_delay() == 0
    for mib in (1.5, 200.0, 0.0):
        assert await answer(uri, "autorecovery", "rate", str(mib)) == {"replication_rate_mb_per_second": mib}
        assert await answer(uri, "autorecovery", "rate") == {"replication_rate_mb_per_second": mib}


async def test_status(uri: str, store: LedgerManagerFactory) -> None:
    replication = store.replication_metadata
    # Of these, only the marks of ledgers 6 and 7 say that copies lack which can be made again.
    await replication.mark(3, ["a:1"], 1_000)
    await replication.mark(4, ["leaving:1"], 2_000)
    await replication.mark(5, [], 3_000)
    await replication.mark(6, ["leaving:1", "a:1"], 1_700_000_000_000)
    await replication.mark(7, ["gone:1"], 1_800_000_000_000)
    for leaving in ("leaving:1", "gone:1"):
        await replication.write_record(RecordKind.DRAINING_BOOKIE, leaving, b"", None)
    await replication.missed_since("gone:1", 6)
    await replication.try_lock(7, "h")
    await replication.stand_for_auditor("b:1", lambda state: None)
    await replication.missed_since("a:1", 5)
    await replication.write_record(RecordKind.UNRECOVERABLE_LEDGER, "3", b"", None)
    for ledger in ("4", "5"):
        await replication.write_record(RecordKind.CORRUPT_LEDGER, ledger, b"", None)
    await replication.set_check_time(PeriodicCheck.ALL_LEDGERS, 1_700_000_000_000)
    assert await answer(uri, "autorecovery", "status") == {
        "enabled": True,
        "auditor": "b:1",
        "under_replicated_ledgers": 5,
        "oldest_mark": "2023-11-14T22:13:20Z",
        "locked_ledgers": 1,
        "unrecoverable_ledgers": 1,
        "corrupt_ledgers": 2,
        "missed_bookies": ["a:1", "gone:1"],
        "draining_bookies": ["gone:1", "leaving:1"],
        "lost_bookie_delay_seconds": None,
        "ledgers_checked": "2023-11-14T22:13:20Z",
        "placement_checked": None,
        "replicas_checked": None,
        "workers": 0,
        "classes": [],
        "bookies": [],
        "repairing": [],
        "ledgers_left": 0,
        "entries_left": 0,
        "bytes_left": 0,
        "entries_a_second": 0,
        "bytes_a_second": 0,
        "ledgers_a_minute": None,
        "seconds_left": None,
        "unrecoverable": [{"ledger_id": 3, **UNTOLD_LOSS}],
    }


UNTOLD_LOSS = {
    "entries": 0,
    "first_entries": [],
    "end_is_lost": False,
    "lost_bookies": [],
    "given_up_with": [],
    "answers": {},
    "found_ms": None,
}


async def test_how_far_repairs_are(uri: str, store: LedgerManagerFactory) -> None:
    replication = store.replication_metadata
    at_ms = now_ms()
    await replication.write_record(RecordKind.PROGRESS, "worker.1", encode(told_by_a_worker(at_ms)), None)
    await replication.write_record(RecordKind.UNRECOVERABLE_LEDGER, "5", GIVEN_UP, None)
    told = await answer(uri, "autorecovery", "status")
    assert told["classes"] == [{"class": "last_copy", "ledgers": 3, "entries": 40, "bytes": 4000}]
    assert told["bookies"] == [{"bookie_id": "a:1", "ledgers_left": 3, "ledgers_done": 1, "seconds_left": 90.0}]
    assert told["repairing"] == [
        {
            "ledger_id": 7,
            "since_ms": at_ms - 60_000,
            "entries": 10,
            "bytes": 1000,
            "due_entries": 20,
            "due_bytes": 2000,
            "holder": "worker7",
        }
    ]
    rates = {"entries_a_second": 0.2, "bytes_a_second": 10, "ledgers_a_minute": 2.0, "seconds_left": 300}
    left = {"ledgers_left": 3, "entries_left": 30, "bytes_left": 3000, "workers": 1}
    assert told | rates | left == told
    assert told["unrecoverable"] == [{"ledger_id": 5, **LOSS}]
    shown = await run(uri, "autorecovery", "status")
    for text in ("class=last_copy ledgers=3", "seconds_left\t300", "ledger_id=7 ", "bookie_id=a:1 ", "ledger_id=5 "):
        assert text in shown


async def test_audit_is_triggered_only_where_there_is_an_auditor(uri: str, store: LedgerManagerFactory) -> None:
    replication = store.replication_metadata
    result = await asyncio.to_thread(CliRunner().invoke, main.app, ["autorecovery", "trigger", "--gateways", uri])
    assert result.exit_code == 1
    assert "there is no auditor" in result.stderr
    await replication.stand_for_auditor("b:1", lambda state: None)
    await replication.set_lost_bookie_delay(5)
    assert await answer(uri, "autorecovery", "trigger") == {"auditor": "b:1", "check": None}
    assert await replication.lost_bookie_delay() == 5
    await replication.set_check_time(PeriodicCheck.PLACEMENT_POLICY, 7000)
    for check in ("placement", "replicas", "scrub"):
        assert await answer(uri, "autorecovery", "trigger", "--check", check) == {"auditor": "b:1", "check": check}
    assert await replication.check_time(PeriodicCheck.PLACEMENT_POLICY) == 0
    assert await replication.check_time(PeriodicCheck.ALL_LEDGERS) == 0
    assert (await answer(uri, "autorecovery", "status"))["placement_checked"] is None
