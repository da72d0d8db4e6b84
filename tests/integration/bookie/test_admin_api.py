"""The HTTP admin interface of a live bookie: every path, its shape, its refusals; and its own description of itself."""

from __future__ import annotations

import asyncio
import base64
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette

from bookgate import BookKeeper
from bookgate.bookie.config.bookie import load_config
from bookgate.bookie.instances.door import door_routes
from bookgate.bookie.server import BookieServer
from bookgate.bookie.tools.doctor.diagnosis import judge
from bookgate.bookie.tools.doctor.findings import FindingLevel
from bookgate.bookie.tools.doctor.probe import look
from bookgate.gateway.config import GatewayConfig
from bookgate.gateway.console.cluster_routes import Server
from bookgate.gateway.console.console import Console
from bookgate.gateway.console.pages import console_routes
from bookgate.gateway.http.access import Access
from bookgate.gateway.http.api import create_app
from bookgate.gateway.http.server import AdminServer
from bookgate.gateway.process.http import gateway_routes
from bookgate.gateway.stores.drivers import create_factory
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.runtime.security.actions import HTTP_ACTIONS
from bookgate.thinclient.config import ClientConfig
from tests.integration.bookie.in_process import running_bookie
from tests.stores import made

API = "/api/v1"
TOKEN = "planted-token of some length"
AUTHORISED = {"Authorization": f"Bearer {TOKEN}"}


@asynccontextmanager
async def served(root: Path, **settings: Any) -> AsyncIterator[tuple[BookieServer, httpx.AsyncClient]]:
    async with (
        running_bookie(root, **settings) as bookie,
        httpx.AsyncClient(base_url=f"http://{bookie.addresses['http']}", timeout=30) as client,
    ):
        yield bookie, client


async def write(bookie: BookieServer, *payloads: bytes) -> int:
    """A closed ledger's id."""
    async with await BookKeeper.connect(f"grpc://{bookie.addresses['gateway']}") as client:
        ledger = await client.create_ledger(
            1, 1, 1, password=b"planted-sesame", custom_metadata={"application": b"tests"}
        )
        for payload in payloads:
            await ledger.append(payload)
        await ledger.close()
        return ledger.ledger_id.low


async def make_ledgers(root: Path, scope_id: int, ids: range) -> None:
    """Metadata of ledgers, put into the store at its back door."""
    uri = made(f"sqlite://{root}/metadata.db")
    factory = create_factory(uri, GatewayConfig.load(None, {"metadata_uri": uri}))
    await factory.initialize()
    try:
        for number in ids:
            await factory.ledger_manager.create(LedgerId(scope_id, number), LedgerMetadata.new(["bookie"], 1, 1))
    finally:
        await factory.close()


def error(response: httpx.Response) -> str:
    assert list(response.json()) == ["error"], response.text
    return str(response.json()["error"])


@pytest.mark.asyncio
async def test_a_ledger_is_described_read_and_deleted(tmp_path: Path) -> None:
    async with served(tmp_path) as (bookie, http):
        number = await write(bookie, b"plain", b"\xff\x00", b"last")
        metadata = (await http.get(f"{API}/ledger/metadata", params={"ledger_id": number})).json()[str(number)]
        assert metadata["state"] == "CLOSED"
        assert (metadata["length"], metadata["lastEntryId"], metadata["closed"]) == (11, 2, True)
        assert metadata["allEnsembles"] == {"0": [{"id": "bookie"}]}
        assert metadata["customMetadata"] == {"application": base64.b64encode(b"tests").decode()}
        assert "sesame" not in str(metadata)
        assert base64.b64encode(b"planted-sesame").decode() not in str(metadata)

        async def read(**query: Any) -> httpx.Response:
            return await http.get(f"{API}/ledger/read", params={"ledger_id": number, **query})

        assert (await read()).json() == {"0": "plain", "1": "\ufffd\x00", "2": "last"}
        assert (await read(start_entry_id=1, end_entry_id=1, format="hex")).json() == {"1": "ff00"}
        assert (await read(start_entry_id=2, format="base64")).json() == {"2": base64.b64encode(b"last").decode()}
        assert (await read(page=1)).json()["Entries for page: "] == "1"
        assert (await read(start_entry_id=3)).json() == {}

        unknown = await http.get(f"{API}/ledger/read", params={"ledger_id": number + 1})
        assert unknown.status_code == 404
        deleted = await http.delete(f"{API}/ledger/delete", params={"ledger_id": number})
        assert (deleted.status_code, deleted.json()) == (200, f"Deleted ledger: {number}")
        again = await http.delete(f"{API}/ledger/delete", params={"ledger_id": number})
        assert again.status_code == 404
        assert str(number) in error(again)


@pytest.mark.asyncio
async def test_what_is_read_at_once_is_bounded_and_the_rest_is_linked(tmp_path: Path) -> None:
    async with served(tmp_path) as (bookie, http):
        large = [bytes([65 + number]) * 400_000 for number in range(5)]
        number = await write(bookie, *large)
        found: dict[str, str] = {}
        url, answers = f"{API}/ledger/read?ledger_id={number}&format=text", 0
        while url:
            response = await http.get(url)
            found.update(response.json())
            url, answers = response.links.get("next", {}).get("url", ""), answers + 1
        assert answers == 3
        assert [found[str(entry)] for entry in range(5)] == [payload.decode() for payload in large]

        number = await write(bookie, *(b"x" for _ in range(1001)))
        response = await http.get(f"{API}/ledger/read", params={"ledger_id": number})
        assert len(response.json()) == 1000
        assert (await http.get(response.links["next"]["url"])).json() == {"1000": "x"}
        second_page = (await http.get(f"{API}/ledger/read", params={"ledger_id": number, "page": 2})).json()
        assert second_page == {"1000": "x", "Entries for page: ": "2"}


@pytest.mark.asyncio
async def test_ledgers_of_a_scope_are_listed_and_their_copies_shown(tmp_path: Path) -> None:
    """All routes of a bookie that concern single ledgers; one without a scope has the same id."""
    async with served(tmp_path) as (bookie, http):
        number = await write(bookie, b"unscoped")
        async with await BookKeeper.connect(f"grpc://{bookie.addresses['gateway']}") as client:
            for each in (-1, number, number + 1):
                async with await client.create_ledger(1, 1, 1, ledger_id=each, scope_id=-9) as ledger:
                    await ledger.append(b"in a scope")

        async def held(**query: int) -> Any:
            return (await http.get(f"{API}/bookie/ledgers", params=query)).json()

        assert await held() == {"ledgers": [number], "next": None}
        assert await held(ledger_scope_id=8) == {"ledgers": [], "next": None}
        assert await held(ledger_scope_id=-9) == {"ledgers": [number, number + 1, -1], "next": None}
        assert await held(ledger_scope_id=-9, limit=2) == {"ledgers": [number, number + 1], "next": number + 1}
        assert await held(ledger_scope_id=-9, start_after=number + 1) == {"ledgers": [-1], "next": None}

        async def scopes(**query: int) -> Any:
            return (await http.get(f"{API}/bookie/scopes", params=query)).json()

        told = await scopes()
        async with asyncio.timeout(60):
            while len(told["scopes"]) < 2 or not all(each["bytes"] for each in told["scopes"]):
                await asyncio.sleep(0.1)
                told = await scopes()
        assert [(each["ledger_scope_id"], each["ledgers"]) for each in told["scopes"]] == [(0, 1), (-9, 3)]
        assert told["scopes"][1]["bytes"] > told["scopes"][0]["bytes"]
        assert await scopes(limit=1) == {"scopes": told["scopes"][:1], "next": 0}
        assert await scopes(start_after=0) == {"scopes": told["scopes"][1:], "next": None}
        assert await scopes(start_after=-9) == {"scopes": [], "next": None}
    # The log of before has no map: it counts once collection has looked at it.
    async with served(tmp_path) as (bookie, http):
        assert (await http.put(f"{API}/bookie/gc", json={})).status_code == 200
        again = (await http.get(f"{API}/bookie/scopes")).json()
        async with asyncio.timeout(60):
            while not all(each["bytes"] for each in again["scopes"]):
                assert [each["ledgers"] for each in again["scopes"]] == [1, 3]
                await asyncio.sleep(0.05)
                again = (await http.get(f"{API}/bookie/scopes")).json()
        for scope_id, payload in ((0, b"unscoped"), (-9, b"in a scope")):
            named = {"ledger_id": number, "ledger_scope_id": scope_id}
            [first] = (await http.get(f"{API}/console/entries", params=named)).json()["entries"]
            one = (await http.get(f"{API}/console/entry", params={**named, "entry_id": 0})).json()
            assert base64.b64decode(first["payload"]) == base64.b64decode(one["payload"]) == payload
            assert one["copies"] == [{"bookie": "bookie", "state": "ok"}]


@pytest.mark.asyncio
async def test_listings_come_whole_or_in_pages_by_number_and_by_id(tmp_path: Path) -> None:
    async with served(tmp_path) as (_bookie, http):
        assert (await http.get(f"{API}/ledger/list")).json() == {}
        await make_ledgers(tmp_path, 0, range(250))
        await make_ledgers(tmp_path, 7, range(3))
        everything = [str(number) for number in range(250)]

        async def listed(**query: Any) -> httpx.Response:
            return await http.get(f"{API}/ledger/list", params=query)

        assert (await listed()).json() == dict.fromkeys(everything)
        assert list((await listed(start_after=247)).json()) == ["248", "249"]
        assert list((await listed(page=3)).json()) == everything[200:]
        assert (await listed(page=4)).json() == {}
        assert list((await listed(ledger_scope_id=7)).json()) == ["0", "1", "2"]

        found: list[str] = []
        url = f"{API}/ledger/list?print_metadata=true"
        sizes = []
        while url:
            response = await http.get(url)
            assert all(value["ensembleSize"] == 1 for value in response.json().values())
            found.extend(response.json())
            sizes.append(len(response.json()))
            url = response.links.get("next", {}).get("url", "")
        assert (found, sizes) == (everything, [100, 100, 50])

        stored = (await listed(print_metadata="true", decode_meta="false", limit=1)).json()
        assert base64.b64decode(stored["0"]).startswith(b"BookieMetadataFormatVersion")


@pytest.mark.asyncio
async def test_the_bookie_tells_of_itself_and_of_the_cluster(tmp_path: Path) -> None:
    async with served(tmp_path) as (bookie, http):

        async def get(path: str, **query: Any) -> Any:
            response = await http.get(path, params=query)
            assert response.status_code == 200, response.text
            return response.json()

        assert (await http.get("/heartbeat")).text == "OK\n"
        assert "bookie_SERVER_STATUS" in (await http.get("/metrics", params={"any": "thing"})).text
        config = await get(f"{API}/config/server_config")
        assert (config["bookie_id"], config["http_token"]) == ("bookie", None)
        assert await get(f"{API}/bookie/list_bookies") == {"bookie": None}
        assert await get(f"{API}/bookie/list_bookies", print_hostnames="true") == {"bookie": "127.0.0.1"}
        assert await get(f"{API}/bookie/list_bookies", type="ro") == {}
        spaces = await get(f"{API}/bookie/list_bookie_info")
        assert re.fullmatch(r": \{Free: \d+\(\d+.*B\), Total: \d+\(\d+.*B\)\},", spaces["bookie"])
        assert re.fullmatch(r"\{Free: \d+\(.*\), Total: \d+\(.*\)\}", spaces["ClusterInfo: "])
        counts = await get(f"{API}/bookie/cluster_info")
        assert (counts["totalBookiesCount"], counts["writableBookiesCount"], counts["auditorElected"]) == (1, 1, False)
        ((mark, position),) = (await get(f"{API}/bookie/last_log_mark")).items()
        assert re.fullmatch(r"LastLogMark: Journal Id - \d+\([0-9a-f]+\.txn\)", mark)
        assert re.fullmatch(r"Pos - \d+", position)

        assert await get(f"{API}/bookie/sanity") == {"passed": True, "readOnly": False}
        assert await get(f"{API}/ledger/list") == {}
        await asyncio.to_thread(bookie.storage.checkpoint)
        files = await get(f"{API}/bookie/list_disk_file")
        assert re.fullmatch(r"([0-9a-f]+\.txn\t)+", files["journal files"])
        assert re.fullmatch(r"([0-9a-f]+\.log\t)+", files["entrylog files"])
        assert re.fullmatch(r"([0-9a-f]+\.idx\t)+", files["index files"])
        assert list(await get(f"{API}/bookie/list_disk_file", file_type="index")) == ["index files"]
        assert await get(f"{API}/bookie/entry_location_compact") == {}

        refused = await http.put(f"{API}/bookie/entry_location_compact", json={"entryLocationRocksDBCompact": True})
        assert (refused.status_code, "RocksDB" in error(refused)) == (409, True)
        refused = await http.put(f"{API}/bookie/expand_storage")
        assert (refused.status_code, "allow_storage_expansion" in error(refused)) == (409, True)
        assert (await http.put(f"{API}/bookie/state/readonly", json={"readOnly": True})).json() == {"readOnly": True}
        assert await get(f"{API}/bookie/sanity") == {"passed": False, "readOnly": True}


@pytest.mark.asyncio
async def test_rocksdb_indexes_are_compacted_and_storage_may_be_checked_for_expansion(tmp_path: Path) -> None:
    async with served(tmp_path, storage_type="db") as (_bookie, http):
        path = f"{API}/bookie/entry_location_compact"
        (known,) = (await http.get(path)).json()
        assert known.endswith("locations")
        wrong = {"entryLocationRocksDBCompact": True, "entryLocations": "/nowhere"}
        refused = await http.put(path, json=wrong)
        assert (refused.status_code, known in error(refused)) == (400, True)
        assert known in (await http.put(path, json={"entryLocationRocksDBCompact": True})).json()
        async with asyncio.timeout(20):
            while (await http.get(path)).json()[known]:
                pass


@pytest.mark.asyncio
async def test_storage_expansion_runs_the_check_of_the_cookies(tmp_path: Path) -> None:
    async with served(tmp_path, allow_storage_expansion=True) as (_bookie, http):
        assert (await http.put(f"{API}/bookie/expand_storage")).status_code == 200


@pytest.mark.asyncio
async def test_bad_requests_are_told_what_is_wrong(tmp_path: Path) -> None:
    async with served(tmp_path) as (_bookie, http):
        document = (await http.get("/openapi.json")).json()
        for path, verbs in document["paths"].items():
            for verb in {"get", "put", "post", "delete", "patch"} - set(verbs):
                refused = await http.request(verb, path)
                assert refused.status_code == 405, (verb, path)
                assert set(verbs) <= {name.strip().lower() for name in refused.headers["allow"].split(",")}
                assert path in error(refused)
        assert error(await http.get("/api/v1/nothing")).startswith("there is nothing")

        async def complaint(verb: str, path: str, **more: Any) -> str:
            refused = await http.request(verb, f"{API}{path}", **more)
            assert refused.status_code == 400, refused.text
            return error(refused)

        assert "ledger_id is missing" in await complaint("GET", "/ledger/metadata")
        assert "whole number" in await complaint("GET", "/ledger/metadata?ledger_id=1_0")
        assert "given 2 times" in await complaint("GET", "/ledger/metadata?ledger_id=1&ledger_id=2")
        assert "leger_id is not known" in await complaint("DELETE", "/ledger/delete?ledger_id=1&leger_id=1")
        assert "true or false" in await complaint("GET", "/ledger/list?print_metadata=maybe")
        assert "format" in await complaint("GET", "/ledger/read?ledger_id=1&format=octal")
        assert "readOnly is missing" in await complaint("PUT", "/bookie/state/readonly", json={})
        assert "valid boolean" in await complaint("PUT", "/bookie/state/readonly", json={"readOnly": "false"})
        assert "JSON" in await complaint("PUT", "/bookie/state/readonly", content=b"{")
        assert "\\ud800" not in await complaint("PUT", "/bookie/gc", content=b'{"\\ud800": true}')
        too_large = await http.put(f"{API}/bookie/gc", content=b" " * 70_000)
        assert too_large.status_code == 413
        assert (await http.get(f"{API}/ledger/metadata?ledger_id=-1")).status_code == 404


@pytest.mark.asyncio
async def test_the_page_of_paths_is_that_of_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = made(f"sqlite://{tmp_path}/metadata.db")
    settings = GatewayConfig.load(None, {"metadata_uri": uri})
    factory = create_factory(uri, settings)
    await factory.initialize()
    stopping = asyncio.Event()
    server = Server("gateway", "gateway", "1", uri, stopping.is_set, None)
    access = Access(None, loopback=True)
    console = Console(server, factory, access)
    rows_of_gateway = gateway_routes(settings, factory, CollectorRegistry(), stopping, console, access)
    of_gateway = {(row.verb, row.path): row for row in rows_of_gateway}
    await factory.close()
    rows_of_door = door_routes(load_config(metadata_uri=uri, data_dir=tmp_path), ())
    of_door = {(row.verb, row.path) for row in rows_of_door}
    applications = [create_app(rows_of_gateway, access, {}, console_routes()), create_app(rows_of_door, access, {})]
    make = AdminServer.__init__

    def kept(self: AdminServer, app: Starlette, *given: Any, **named: Any) -> None:
        applications.append(app)
        make(self, app, *given, **named)

    monkeypatch.setattr(AdminServer, "__init__", kept)
    async with served(tmp_path) as (_bookie, http):
        paths = (await http.get("/openapi.json")).json()["paths"]
    of_bookie = {(verb.upper(), path): row for path, verbs in paths.items() for verb, row in verbs.items()}
    page = (Path(__file__).parents[3] / "docs" / "admin.md").read_text()
    rows = re.findall(r"^\| ([A-Z]+) \| `(/[^`]*)` \| (\w+) \|([^|]*)\|", page, re.MULTILINE)
    places = {(True, True): "both", (True, False): "bookie", (False, True): "gateway"}
    served_at = {row: places[row in of_bookie, row in of_gateway] for row in {*of_bookie, *of_gateway}}
    served_at |= dict.fromkeys(of_door - served_at.keys(), "supervisor")
    assert {(verb, path): place for verb, path, place, _ in rows} == served_at
    # Whatever is routed says in the one table what a policy must allow.
    routes: list[Any] = [route for app in applications for route in app.routes]
    assert len(applications) == 3
    assert {(verb, route.path) for route in routes for verb in {*route.methods} - {"HEAD"}} == set(HTTP_ACTIONS)
    assert {path for _, path in HTTP_ACTIONS} - {path for _, path in served_at} == {
        "/",
        "/console/{name}",
        "/openapi.json",
    }
    for verb, path, _place, asked in rows:
        for parameter in of_bookie.get((verb, path), {}).get("parameters", ()):
            assert f"`{parameter['name']}`" in asked, (path, parameter["name"])


@pytest.mark.asyncio
async def test_the_cluster_tells_of_its_auditor(tmp_path: Path) -> None:
    """The rest of auto-recovery's paths is tested at a gateway (test_http_autorecovery), which has the same."""
    async with served(tmp_path, auto_recovery=True) as (_bookie, http):
        async with asyncio.timeout(30):
            while (await http.get(f"{API}/autorecovery/who_is_auditor")).status_code == 404:
                pass
        assert (await http.get(f"{API}/autorecovery/who_is_auditor")).text == "Auditor: bookie"
        counts = (await http.get(f"{API}/bookie/cluster_info")).json()
        assert (counts["auditorElected"], counts["auditorId"]) == (True, "bookie")
        refused = await http.put(f"{API}/autorecovery/decommission", json={"bookie_src": "bookie"})
        assert (refused.status_code, "stop it" in error(refused)) == (409, True)


@pytest.mark.asyncio
async def test_changes_and_entries_need_the_token(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    async with served(tmp_path, http_token_file=file) as (bookie, http):
        number = await write(bookie, b"private")
        calls = [
            ("PUT", "/bookie/gc"),
            ("DELETE", f"/ledger/delete?ledger_id={number}"),
            ("GET", f"/ledger/read?ledger_id={number}"),
            ("GET", "/bookie/sanity"),
        ]
        for verb, path in calls:
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}):
                refused = await http.request(verb, f"{API}{path}", headers=headers)
                assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
                assert TOKEN not in refused.text
        assert (await http.get(f"{API}/ledger/metadata?ledger_id={number}")).status_code == 200
        for verb, path in reversed(calls):
            assert (await http.request(verb, f"{API}{path}", headers=AUTHORISED)).status_code == 200
        assert TOKEN not in (await http.get(f"{API}/config/server_config")).text


@pytest.mark.asyncio
async def test_without_a_token_changes_are_taken_on_loopback_only(tmp_path: Path) -> None:
    async with served(tmp_path) as (_bookie, http):
        for verb, path in (("PUT", "/bookie/gc"), ("GET", "/ledger/read?ledger_id=0"), ("GET", "/bookie/sanity")):
            by_another_name = await http.request(verb, f"{API}{path}", headers={"Host": "rebound.example:8080"})
            assert (by_another_name.status_code, "localhost" in error(by_another_name)) == (403, True)
        assert (await http.get(f"{API}/bookie/state", headers={"Host": "rebound.example"})).status_code == 403
        # Probes and Prometheus ask by whatever name they found.
        for path in ("/heartbeat", "/metrics", f"{API}/bookie/is_ready"):
            assert (await http.get(path, headers={"Host": "rebound.example"})).status_code == 200
        assert (await http.get("/", headers={"Host": "rebound.example"})).status_code == 200
        assert (await http.put(f"{API}/bookie/gc", headers={"Host": "localhost:1"})).status_code == 200
    open_root = tmp_path / "open"
    open_root.mkdir()
    async with served(open_root, host="0.0.0.0", advertised_address="127.0.0.1", insecure=True) as (bookie, http):
        # What was said once is told all the time, by the console and by the doctor.
        [told] = [
            p for p in (await http.get("/api/v1/console/cluster")).json()["problems"] if p["subject"] == "security"
        ]
        assert "nobody is authenticated at: entry, gateway, http (insecure = true)" in told["text"]
        seen = judge(await look(ClientConfig(gateways=f"grpc://{bookie.addresses['gateway']}"), 10.0))
        assert [each.level for each in seen if "insecure = true" in each.what] == [FindingLevel.WARNING]
        refused = await http.put(f"{API}/bookie/gc")
        assert (refused.status_code, "http_token" in error(refused)) == (403, True)
        assert (await http.get(f"{API}/bookie/state")).status_code == 200


@pytest.mark.asyncio
async def test_secrets_are_masked_in_the_settings(tmp_path: Path) -> None:
    settings = {"http_token": TOKEN, "gateway": {"zookeeper_auth": "user:hidden"}}
    async with served(tmp_path, **settings) as (_bookie, http):
        shown = await http.get(f"{API}/config/server_config")
        assert TOKEN not in shown.text
        assert "hidden" not in shown.text
        assert shown.json()["http_token"] == "**********"


@pytest.mark.asyncio
async def test_the_document_holds_for_whatever_is_asked(tmp_path: Path) -> None:
    """Requests made from the document, right and wrong ones, and answers checked against it."""
    async with served(tmp_path, http_token=TOKEN) as (_bookie, http):
        process = await asyncio.create_subprocess_exec(
            str(Path(sys.executable).with_name("schemathesis")),
            "run",
            str(http.base_url.join("/openapi.json")),
            "--phases=fuzzing",
            "--max-examples=4",
            "--seed=1",
            f"--header=Authorization: Bearer {TOKEN}",
            "--no-color",
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()[-8000:]
