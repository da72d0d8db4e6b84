"""Auto-recovery over HTTP admin, in a store and where the server itself reaches the store through a gateway only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from prometheus_client import CollectorRegistry

from bookgate.gateway.config import GatewayConfig
from bookgate.gateway.process.http import HttpServer
from bookgate.gateway.server import GatewayServer
from bookgate.gateway.stores.drivers import create_factory
from bookgate.ledger import replication_control as control
from bookgate.ledger.bookie_info import BookieServiceInfo
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerManagerFactory
from bookgate.ledger.replication import PeriodicCheck
from bookgate.ledger.replication_progress import encode
from bookgate.ledger.replication_store import DelayChanged, RecordKind, ReplicationEvent, ReplicationMetadata
from bookgate.runtime.clock import now_ms
from tests.integration.gateway.conftest import unused_store
from tests.integration.gateway.recovery_told import GIVEN_UP, LOSS, told_by_a_worker
from tests.stores import made

pytestmark = pytest.mark.asyncio

TOKEN = "planted-letters"
API = "/api/v1/autorecovery"
LIST = f"{API}/list_under_replicated_ledger"


@dataclass
class Served:
    """A server, asked with its token, and the store behind it."""

    http: httpx.AsyncClient
    factory: LedgerManagerFactory

    @property
    def store(self) -> ReplicationMetadata:
        return self.factory.replication_metadata

    async def get(self, path: str, **query: str) -> Any:
        answer = await self.http.get(path, params=query or None)
        assert answer.status_code == 200, answer.text
        return answer.json() if answer.headers["content-type"] == "application/json" else answer.text

    async def put(self, path: str, body: Any = None, **query: str) -> Any:
        answer = await self.http.put(path, json=body, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json() if answer.headers["content-type"] == "application/json" else answer.text

    async def refused(self, verb: str, path: str, **more: Any) -> tuple[int, str]:
        answer = await self.http.request(verb, path, **more)
        assert list(answer.json()) == ["error"], answer.text
        return answer.status_code, answer.json()["error"]

    async def draining(self) -> set[str]:
        return set(await self.store.records(RecordKind.DRAINING_BOOKIE))

    async def add_cookie(self, bookie_id: str) -> None:
        await self.factory.registration_manager.write_cookie(bookie_id, b"4\n", None)


@asynccontextmanager
async def http_of(factory: LedgerManagerFactory, uri: str) -> AsyncIterator[httpx.AsyncClient]:
    settings = GatewayConfig.load(None, {"metadata_uri": uri, "http_token": TOKEN})
    server = HttpServer(settings, factory, CollectorRegistry(), asyncio.Event())
    port = await server.start("127.0.0.1", 0)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=30) as http:
            yield http
    finally:
        await server.stop()


@pytest_asyncio.fixture(params=["store", "gateway"])
async def served(request: pytest.FixtureRequest, metadata_uri: str) -> AsyncIterator[Served]:
    factory = create_factory(metadata_uri)
    await factory.initialize()
    try:
        if request.param == "store":
            async with http_of(factory, metadata_uri) as http:
                yield Served(http, factory)
            return
        gateway = GatewayServer(factory)
        through = create_factory(f"grpc://127.0.0.1:{await gateway.start()}")
        await through.initialize()
        async with http_of(through, metadata_uri) as http:
            yield Served(http, factory)
        await through.close()
        await gateway.stop(0)
    finally:
        await factory.close()


async def test_the_switch(served: Served) -> None:
    path = f"{API}/status"
    assert await served.get(path) == {"enabled": True}
    for _again in range(2):
        assert await served.put(path, enabled="false") == {"enabled": False}
        assert not await served.store.is_enabled()
    assert await served.get(path) == {"enabled": False}
    for _again in range(2):
        assert await served.put(path, enabled="true") == {"enabled": True}
    assert await served.store.is_enabled()
    assert await served.refused("PUT", path) == (400, "parameter enabled is missing; parameters of this path: enabled")
    assert (await served.refused("PUT", path, params={"enabled": "yes"}))[0] == 400


async def test_marks_are_listed_with_and_without_the_bookies_they_miss(served: Served) -> None:
    nothing = (404, "No under replicated ledgers found")
    assert await served.refused("GET", LIST) == nothing
    assert await served.refused("GET", LIST, params={"printmissingreplica": "true"}) == nothing
    await served.store.mark(7, ["a:1", "b:1"], 5)
    await served.store.mark(9, ["b:1"])
    await served.store.mark(2**40, [])
    assert await served.get(LIST) == [7, 9, 2**40]
    assert await served.get(LIST, missingreplica="b:1") == [7, 9]
    assert await served.get(LIST, excludingmissingreplica="a:1") == [9, 2**40]
    assert await served.get(LIST, missingreplica="b:1", excludingmissingreplica="a:1") == [9]
    assert await served.refused("GET", LIST, params={"missingreplica": "c:1"}) == nothing
    assert await served.get(LIST, missingreplica="", excludingmissingreplica=" ") == [7, 9, 2**40]
    everything = {"7": ["a:1", "b:1"], "9": ["b:1"], str(2**40): []}
    assert await served.get(f"{LIST}?printmissingreplica") == everything
    assert await served.get(LIST, printmissingreplica="true") == everything
    assert await served.get(LIST, printmissingreplica="false", missingreplica="a:1") == [7]
    status, problem = await served.refused("GET", LIST, params={"missing": "b:1"})
    assert (status, "missing is not known" in problem) == (400, True)
    assert (await served.get("/api/v1/bookie/cluster_info"))["clusterUnderReplicated"]


async def test_marks_are_listed_scope_by_scope(served: Served) -> None:
    """Who knows of no scopes, such as BookKeeper's tools, hears of scope 0 only."""
    await served.store.mark(7, ["a:1"])
    await served.store.mark(LedgerId(-9, 7).number, ["b:1"])
    await served.store.mark(LedgerId(-9, -1).number, ["b:1"])
    assert await served.get(LIST) == [7]
    assert await served.get(LIST, ledger_scope_id="-9") == [7, -1]
    assert await served.get(LIST, ledger_scope_id="-9", printmissingreplica="true") == {"7": ["b:1"], "-1": ["b:1"]}
    key = str(LedgerId(-9, 7).number)
    await served.store.write_record(RecordKind.UNRECOVERABLE_LEDGER, key, b"{}", None)
    told = await served.get(f"{API}/progress")
    assert [each["ledger_id"] for each in told["unrecoverable"]] == [LedgerId(-9, 7).qualified_name]


async def test_the_progress_is_what_workers_tell(served: Served) -> None:
    path = f"{API}/progress"
    told = await served.get(path)
    assert (told["workers"], told["classes"], told["repairing"], told["unrecoverable"]) == (0, [], [], [])
    assert (told["ledgers_left"], told["seconds_left"], told["unrecoverable_ledgers"]) == (0, None, 0)
    await served.store.write_record(RecordKind.PROGRESS, "worker.1", encode(told_by_a_worker(now_ms())), None)
    await served.store.write_record(RecordKind.PROGRESS, "scrub", b"{}", None)
    await served.store.write_record(RecordKind.UNRECOVERABLE_LEDGER, "5", GIVEN_UP, None)
    told = await served.get(path)
    assert told["classes"] == [{"class": "last_copy", "ledgers": 3, "entries": 40, "bytes": 4000}]
    assert told["bookies"] == [{"bookie_id": "a:1", "ledgers_left": 3, "ledgers_done": 1, "seconds_left": 90.0}]
    assert [(each["ledger_id"], each["bytes"], each["holder"]) for each in told["repairing"]] == [(7, 1000, "worker7")]
    assert (told["bytes_left"], told["bytes_a_second"], told["seconds_left"]) == (3000, 10, 300)
    assert told["unrecoverable"] == [{"ledger_id": 5, **LOSS}]


async def test_the_auditor_and_the_order_to_audit(served: Served) -> None:
    heard: list[ReplicationEvent] = []
    status, problem = await served.refused("GET", f"{API}/who_is_auditor")
    assert (status, "no auditor" in problem) == (404, True)
    status, problem = await served.refused("PUT", f"{API}/trigger_audit")
    assert (status, "there is no auditor" in problem) == (409, True)
    await served.store.stand_for_auditor("b:1", lambda state: None)
    assert await served.get(f"{API}/who_is_auditor") == "Auditor: b:1"
    assert (await served.refused("PUT", f"{API}/trigger_audit"))[0] == 409
    await served.store.set_lost_bookie_delay(5)
    unwatch = served.store.watch(heard.append)
    async with asyncio.timeout(30):
        while heard.count(DelayChanged(5)) < 1:  # noqa: ASYNC110 - the list is no event
            await asyncio.sleep(0.01)
        assert await served.put(f"{API}/trigger_audit", check="replicas") == "Success trigger replicas check."
        assert await served.store.check_time(PeriodicCheck.ALL_LEDGERS) == 0
        assert (await served.refused("PUT", f"{API}/trigger_audit?check=all"))[0] == 400
        assert await served.put(f"{API}/trigger_audit") == "Success trigger audit."
        while heard.count(DelayChanged(5)) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    unwatch()
    told = await served.get("/api/v1/bookie/cluster_info")
    expected = {"auditorElected": True, "auditorId": "b:1", "ledgerReplicationEnabled": True}
    assert expected.items() <= told.items()
    await served.store.set_enabled(False)
    status, problem = await served.refused("PUT", f"{API}/trigger_audit")
    assert (status, "disabled" in problem) == (409, True)
    assert not (await served.get("/api/v1/bookie/cluster_info"))["ledgerReplicationEnabled"]


async def test_the_delay(served: Served) -> None:
    path = f"{API}/lost_bookie_recovery_delay"
    assert (await served.refused("GET", path))[0] == 404
    for seconds in (600, 0.0):
        answer = await served.put(path, {"delay_seconds": seconds})
        assert answer == f"Success set lostBookieRecoveryDelay to {int(seconds)}"
        assert await served.get(path) == f"lostBookieRecoveryDelay value: {int(seconds)}"
    assert await served.store.lost_bookie_delay() == 0
    wrong: tuple[Any, ...] = (
        {},
        {"delay_seconds": -1},
        {"delay_seconds": "5"},
        {"delay_seconds": 2**31},
        {"seconds": 5},
        [5],
    )
    for body in wrong:
        status, problem = await served.refused("PUT", path, json=body)
        assert (status, "delay_seconds" in problem) == (400, True), body
    assert (await served.refused("PUT", path))[0] == 400
    assert await served.store.lost_bookie_delay() == 0


async def test_bookies_are_emptied_by_a_record_that_the_auditor_finds(served: Served) -> None:
    await served.add_cookie("a:1")
    await served.add_cookie("b:1")
    await served.factory.ledger_manager.create(LedgerId(0, 5), LedgerMetadata.new(["forgotten:1", "a:1"], 2, 1))
    path = f"{API}/bookie"
    # A bookie without cookie that a ledger still names is one too.
    answer = await served.put(path, {"bookie_src": ["a:1", "forgotten:1"], "delete_cookie": False})
    assert answer.startswith("Success: to be emptied: a:1, forgotten:1.")
    assert "there is no auditor" in answer
    assert await served.draining() == {"a:1", "forgotten:1"}
    since = await served.store.read_record(RecordKind.DRAINING_BOOKIE, "a:1")
    await served.store.stand_for_auditor("b:1", lambda state: None)
    answer = await served.put(path, {"bookie_src": ["a:1"]})
    assert "auditor" not in answer.partition("The auditor marks")[2]
    assert await served.store.read_record(RecordKind.DRAINING_BOOKIE, "a:1") == since
    status, problem = await served.refused("PUT", path, json={"bookie_src": ["unknown:1"]})
    assert (status, "unknown:1" in problem) == (404, True)
    bodies: tuple[Any, ...] = (
        {},
        {"bookie_src": []},
        {"bookie_src": "b:1"},
        {"bookie_src": ["b/1"]},
        {"bookie_src": [1]},
    )
    for body in bodies:
        status, problem = await served.refused("PUT", path, json=body)
        assert (status, "bookie_src" in problem) == (400, True), body
    status, problem = await served.refused("PUT", path, json={"bookie_src": ["b:1"], "delete_cookie": "yes"})
    assert (status, "delete_cookie" in problem) == (400, True)
    assert await served.draining() == {"a:1", "forgotten:1"}
    assert await control.cookies_to_delete(served.store) == {}
    # Asked for later, too; the time at which it was asked for first stays.
    answer = await served.put(path, {"bookie_src": ["a:1"], "delete_cookie": True})
    assert "Cookies go when no ledger names their bookies" in answer
    assert await control.cookies_to_delete(served.store) == {"a:1": False}
    assert since is not None
    assert await control.draining_since(served.store, "a:1") == control.time_of(since.value)
    await served.put(path, {"bookie_src": ["a:1"]})
    assert await control.cookies_to_delete(served.store) == {"a:1": False}


async def test_a_bookie_is_decommissioned_only_once_it_is_stopped(served: Served) -> None:
    await served.add_cookie("a:1")
    path, body = f"{API}/decommission", {"bookie_src": "a:1", "delete_cookie": "false"}
    manager = served.factory.registration_manager
    for read_only in (False, True):
        await manager.register_bookie(BookieServiceInfo("a:1"), read_only=read_only)
        status, problem = await served.refused("PUT", path, json=body)
        assert (status, "stop it" in problem) == (409, True)
    assert await served.draining() == set()
    await manager.unregister_bookie("a:1")
    assert (await served.put(path, body)).startswith("Success: to be emptied: a:1.")
    assert await served.draining() == {"a:1"}
    assert (await served.refused("PUT", path, json={"bookie_src": "unknown:1"}))[0] == 404
    assert await control.cookies_to_delete(served.store) == {}
    assert "Cookies go when" in await served.put(path, {**body, "delete_cookie": "true"})
    assert await control.cookies_to_delete(served.store) == {"a:1": False}
    for wrong in ({}, {"bookie_src": ["a:1"]}, {**body, "delete_cookie": "yes"}, {"bookie_src": "readonly"}):
        assert (await served.refused("PUT", path, json=wrong))[0] == 400
    status, problem = await served.refused("PUT", path, json={**body, "force": True})
    assert (status, "it goes with delete_cookie" in problem) == (400, True)
    await served.put(path, {**body, "delete_cookie": "true", "force": True})
    assert await control.cookies_to_delete(served.store) == {"a:1": True}


async def test_the_console_is_told_what_stands_in_the_way_and_who_is_away(served: Served) -> None:
    path = "/api/v1/console/autorecovery"
    told = await served.get(path)
    assert (told["supported"], told["enabled"], told["auditor"], told["delaySeconds"]) == (True, True, None, None)
    assert "there is no auditor" in told["obstacle"]
    assert (told["counts"]["marked"], told["counts"]["oldestMark"], told["marks"], told["losses"]) == (0, None, [], [])
    await served.add_cookie("a:1")
    await control.begin_draining(served.factory, "a:1", 5000)
    await served.store.missed_since("b:1", 6000)
    await served.store.stand_for_auditor("b:1", lambda state: None)
    await served.store.set_lost_bookie_delay(60)
    told = await served.get(path)
    assert (told["auditor"], told["delaySeconds"], told["obstacle"]) == ("b:1", 60, None)
    assert told["draining"] == [{"bookie": "a:1", "since": 5000}]
    assert told["missed"] == [{"bookie": "b:1", "since": 6000}]
    await served.store.set_enabled(False)
    told = await served.get(path)
    assert (told["enabled"], "disabled" in told["obstacle"]) == (False, True)


async def test_changes_need_the_token(served: Served) -> None:
    paths = (await served.get("/openapi.json"))["paths"]
    rows = [(verb, path) for path, verbs in paths.items() if path.startswith(API) for verb in verbs]
    assert len(rows) == 10
    for verb, path in rows:
        answer = await served.http.request(verb, path, headers={"Authorization": "Bearer wrong"})
        assert (answer.status_code == 401) is (verb == "put"), path
        assert ("security" in paths[path][verb]) is (verb == "put")
    assert await served.draining() == set()


@pytest.mark.parametrize("store_uri", ["tiny"], indirect=True)
async def test_a_store_without_a_place_for_it_is_said(store_uri: str) -> None:
    factory = create_factory(store_uri)
    await factory.initialize()
    async with http_of(factory, store_uri) as http:
        for verb, path, body in (
            ("GET", "status", None),
            ("PUT", "status?enabled=true", None),
            ("GET", "list_under_replicated_ledger", None),
            ("GET", "progress", None),
            ("GET", "who_is_auditor", None),
            ("PUT", "trigger_audit", None),
            ("GET", "lost_bookie_recovery_delay", None),
            ("PUT", "lost_bookie_recovery_delay", {"delay_seconds": 5}),
            ("PUT", "bookie", {"bookie_src": ["a:1"]}),
            ("PUT", "decommission", {"bookie_src": "a:1"}),
        ):
            answer = await http.request(verb, f"{API}/{path}", json=body)
            assert (answer.status_code, "no place for auto-recovery" in answer.text) == (409, True), path
        told = (await http.get("/api/v1/bookie/cluster_info")).json()
        assert (told["auditorElected"], told["ledgerReplicationEnabled"]) == (False, False)
        told = (await http.get("/api/v1/console/autorecovery")).json()
        assert (told["supported"], "no place for auto-recovery" in told["reason"]) == (False, True)
        assert (await http.get("/api/v1/console/cluster")).json()["problems"][0]["subject"] == "cluster"
    await factory.close()


@pytest.fixture
def store_uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return made(unused_store(request, tmp_path))
