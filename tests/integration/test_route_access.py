"""Every HTTP route, of a bookie and of a gateway alone, by all who might ask: by credentials, role, scope and owner."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import jwt
import pytest
import pytest_asyncio
from cryptography.hazmat.primitives.asymmetric import ec
from prometheus_client import CollectorRegistry

from bookgate import BookKeeper, LedgerOptions
from bookgate.gateway.config import GatewayConfig
from bookgate.gateway.process.http import HttpServer
from bookgate.gateway.stores.drivers import create_factory
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import LedgerManager
from bookgate.runtime.security.actions import HTTP_ACTIONS, Action
from bookgate.streams import Streams
from bookgate.thinclient.config import ClientConfig
from tests.access_policy import policy_settings
from tests.integration.bookie.in_process import running_bookie
from tests.tokens import signed, token_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

_OPERATORS = {
    *(Action.HTTP_READ, Action.HTTP_CHANGE, Action.CLUSTER_ADMIN, Action.DISCOVERY_READ),
    *(Action.REPLICATION_READ, Action.REPLICATION_ADMIN),
}
MAY: Mapping[str, set[Action]] = {
    "admin": _OPERATORS,
    "operator": _OPERATORS,
    "scraper": {Action.HTTP_READ},
    "bookie": {Action.DISCOVERY_READ, Action.REPLICATION_READ},
    "lister": set(),
    "nobody": set(),
    **{key: {Action.DISCOVERY_READ} for key in ("reader", "owner", "stranger", "scoped")},
}
"""What is not done to ledgers."""

_READS = {Action.LEDGER_READ, Action.ENTRY_READ}
_WRITERS = {*_READS, Action.LEDGER_RECOVER, Action.LEDGER_DELETE}
_EVERYWHERE: Mapping[str, set[Action]] = {
    "admin": _WRITERS,
    "operator": {*_READS, Action.LEDGER_RECOVER},
    "bookie": {*_READS, Action.LEDGER_RECOVER},
    "reader": _READS,
    **{key: set() for key in ("scraper", "lister", "stranger", "nobody")},
}
OWNERS_LEDGER = {**_EVERYWHERE, "owner": _WRITERS, "scoped": set()}
SCOPED_LEDGER = {**_EVERYWHERE, "owner": set(), "scoped": _WRITERS}

API = "/api/v1"
STREAM, CURSOR = "owner's stream", "owner's cursor"
CREATE = ("POST", f"{API}/stream/create")
STREAM_CHANGES: Mapping[tuple[str, str], Mapping[str, str]] = {
    ("PUT", f"{API}/stream/trim"): {"name": STREAM},
    ("PUT", f"{API}/stream/retention"): {"name": STREAM},
    ("PUT", f"{API}/stream/cursor"): {"name": STREAM, "cursor": CURSOR},
    ("DELETE", f"{API}/stream/cursor"): {"name": STREAM, "cursor": CURSOR},
    ("DELETE", f"{API}/stream/delete"): {"name": STREAM},
}
STREAM_VIEWS = {
    ("GET", f"{API}/console/stream"): {"name": STREAM},
    ("GET", f"{API}/stream/cursor"): {"name": STREAM, "cursor": CURSOR},
}
BY_NAME = {CREATE, *STREAM_CHANGES, *STREAM_VIEWS}
"""Routes that name a ledger by the name of its stream."""
BODIES: Mapping[str, Any] = {
    f"{API}/bookie/state/readonly": {"readOnly": True},
    f"{API}/console/bookie/readonly": {"readOnly": True},
    f"{API}/bookie/gc/suspend_compaction": {"suspendMajor": True, "suspendMinor": True},
    f"{API}/bookie/gc/resume_compaction": {"resumeMajor": True},
    f"{API}/bookie/entry_location_compact": {"entryLocationRocksDBCompact": True},
    f"{API}/autorecovery/lost_bookie_recovery_delay": {"delay_seconds": 5},
    f"{API}/autorecovery/bookie": {"bookie_src": ["bookie"]},
    f"{API}/autorecovery/decommission": {"bookie_src": "bookie"},
    f"{API}/console/decode": {"format": "avro", "schema": '"string"', "payloads": []},
}
QUERIES: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("PUT", f"{API}/autorecovery/status"): {"enabled": "false"},
    ("GET", f"{API}/console/bookie"): {"bookie_id": "bookie"},
    ("GET", f"{API}/console/bookie/log"): {"bookie_id": "bookie"},
    ("PUT", f"{API}/console/bookie/readonly"): {"bookie_id": "bookie"},
    ("GET", f"{API}/console/ledgers_export"): {"format": "json"},
    **STREAM_CHANGES,
    **STREAM_VIEWS,
    CREATE: {"name": "another stream"},
    ("GET", f"{API}/console/entry"): {"entry_id": 0},
    ("GET", f"{API}/console/entry_payload"): {"entry_id": 0},
    ("GET", f"{API}/console/entry_search"): {"text": "x"},
}
_CHANGES_NOTHING = {("POST", f"{API}/console/decode"), ("GET", f"{API}/bookie/sanity")}
"""May be asked as a whole by who may: the second deletes what it has written."""


@dataclass(frozen=True)
class Ledgers:
    """One of each owner: with two entries, closed; and one that is open, of whose entries the first is confirmed."""

    owners: int
    scoped: int
    open: int


@dataclass(frozen=True)
class World:
    """Two servers on one store, by name, and their routes."""

    urls: Mapping[str, str]
    routes: Mapping[str, set[tuple[str, str]]]
    ledgers: Ledgers
    manager: LedgerManager

    def http(self, server: str, token: str | None) -> httpx.AsyncClient:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return httpx.AsyncClient(base_url=self.urls[server], headers=headers, timeout=60)

    def asked(self, server: str) -> Iterator[tuple[str, str, Action]]:
        """The routes of a server that have an action."""
        for verb, path in sorted(self.routes[server]):
            action = HTTP_ACTIONS[verb, path]
            if action is not None:
                yield verb, path, action

    def of_ledgers(self, server: str) -> Iterator[tuple[str, str, Action]]:
        """Those that name a ledger."""
        return (each for each in self.asked(server) if each[2] in _WRITERS and each[:2] not in BY_NAME)


async def routes_of(url: str) -> set[tuple[str, str]]:
    async with httpx.AsyncClient(base_url=url) as http:
        paths = (await http.get("/openapi.json")).json()["paths"]
    return {(verb.upper(), path) for path, verbs in paths.items() for verb in verbs}


async def written(gateway: str, who: str, *, closed: bool = True, scope_id: int = 0) -> int:
    """A ledger of this principal's."""
    config = ClientConfig(gateways=f"grpc://{gateway}", token=token_of(who), auth_provider="bookgate-token")
    async with await BookKeeper.connect(config=config) as client:
        ledger = await client.create_ledger(1, 1, 1, scope_id=scope_id)
        for _ in range(2):
            await ledger.append(b"x")
        if closed:
            await ledger.close()
        return ledger.ledger_id.low


async def make_stream(gateway: str) -> None:
    config = ClientConfig(gateways=f"grpc://{gateway}", token=token_of("owner"), auth_provider="bookgate-token")
    async with await BookKeeper.connect(config=config) as client:
        stream = await Streams(client).create(STREAM, LedgerOptions(1, 1, 1))
        await stream.cursor(CURSOR)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    root = tmp_path_factory.mktemp("routes")
    security = policy_settings(root)
    own_client = {"auth_provider": "bookgate-token", "auth_token": token_of("bookie")}
    async with running_bookie(root, **security, client=own_client) as bookie:
        config = GatewayConfig.load(None, {"metadata_uri": f"sqlite://{root}/metadata.db", **security})
        factory = create_factory(config.metadata_uri, config)
        await factory.initialize()
        alone = HttpServer(config, factory, CollectorRegistry(), asyncio.Event(), control=config.access())
        urls = {"bookie": f"http://{bookie.addresses['http']}"}
        urls["gateway"] = f"http://127.0.0.1:{await alone.start('127.0.0.1', 0)}"
        gateway = str(bookie.addresses["gateway"])
        made = Ledgers(
            await written(gateway, "owner"),
            await written(gateway, "scoped", scope_id=7),
            await written(gateway, "owner", closed=False),
        )
        await make_stream(gateway)
        routes = {server: await routes_of(url) for server, url in urls.items()}
        try:
            yield World(urls, routes, made, factory.ledger_manager)
        finally:
            await alone.stop()
            await factory.close()


SERVERS = ("bookie", "gateway")


def request(verb: str, path: str, ledger: int | None = None, scope_id: int = 0) -> dict[str, Any]:
    """All that a route needs."""
    query = dict(QUERIES.get((verb, path), {}))
    if ledger is not None and (verb, path) not in BY_NAME:
        query |= {"ledger_id": ledger, "ledger_scope_id": scope_id}
    return {"params": query, "json": BODIES.get(path, {}) if verb in ("PUT", "POST") else None}


def named(world: World, action: Action) -> int | None:
    return world.ledgers.owners if action in _WRITERS else None


async def test_the_two_servers_have_all_routes(world: World) -> None:
    pages = {("GET", path) for path in ("/", "/console/{name}", "/openapi.json")}
    of_supervisors = {("GET", path) for path in ("/api/v1/instances", "/api/v1/instances/targets")}
    assert world.routes["bookie"] | world.routes["gateway"] == set(HTTP_ACTIONS) - pages - of_supervisors


@pytest.mark.parametrize("server", SERVERS)
async def test_without_valid_credentials_nothing_is_answered(world: World, server: str) -> None:
    foreign = ec.generate_private_key(ec.SECP256R1())
    claims = {"sub": "admin", "iss": "idp", "aud": "bookgate", "exp": int(time.time()) + 60}
    wrong = {
        "nobody": None,
        "a wrong token": "wrong",
        "an expired JWT": signed(exp=int(time.time()) - 60),
        "another audience": signed(aud="another"),
        "no audience": signed(aud=None),
        "another issuer": signed(iss="another"),
        "no issuer": signed(iss=None),
        "not valid yet": signed(nbf=int(time.time()) + 600),
        "another's key": jwt.encode(claims, foreign, "ES256"),
        "no signature": jwt.encode(claims, "", "none"),
    }
    for name, token in wrong.items():
        async with world.http(server, token) as http:
            for verb, path, action in world.asked(server):
                answer = await http.request(verb, path, **request(verb, path, named(world, action)))
                assert answer.status_code == 401, (name, verb, path)
                assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("server", SERVERS)
async def test_probes_need_no_credentials(world: World, server: str) -> None:
    open_paths = {path for verb, path in world.routes[server] if HTTP_ACTIONS[verb, path] is None and verb == "GET"}
    assert {"bookie": f"{API}/bookie/is_ready", "gateway": "/ready"}[server] in open_paths
    for token in (None, "wrong", signed(exp=1), token_of("nobody")):
        async with world.http(server, token) as http:
            for path in open_paths:
                assert (await http.get(path)).status_code == 200, path


@pytest.mark.parametrize("server", SERVERS)
async def test_an_administrator_with_a_jwt_reads_everything(world: World, server: str) -> None:
    names = ("who_is_auditor", "lost_bookie_recovery_delay", "list_under_replicated_ledger")
    nothing_yet = {f"{API}/autorecovery/{name}" for name in names}
    async with world.http(server, signed()) as http:
        for verb, path, action in world.asked(server):
            if verb == "GET":
                answer = await http.get(path, params=request(verb, path, named(world, action))["params"])
                assert answer.status_code == (404 if path in nothing_yet else 200), (path, answer.text)


@pytest.mark.parametrize("who", MAY)
@pytest.mark.parametrize("server", SERVERS)
async def test_roles(world: World, server: str, who: str) -> None:
    async with world.http(server, token_of(who)) as http:
        for verb, path, action in world.asked(server):
            if action.is_of_ledgers:
                continue
            wanted = request(verb, path)
            if action not in MAY[who]:
                assert (await http.request(verb, path, **wanted)).status_code == 403, path
                continue
            changes = verb != "GET" and (verb, path) not in _CHANGES_NOTHING
            if changes:
                # Who may is told what is wrong with the request, and nothing is done.
                wanted["params"]["unknown"] = 1
            status = (await http.request(verb, path, **wanted)).status_code
            assert status in ((400,) if changes else (200, 404)), path


@pytest.mark.parametrize("who", OWNERS_LEDGER)
@pytest.mark.parametrize("server", SERVERS)
async def test_scopes_and_owners(world: World, server: str, who: str) -> None:
    """Each route that names a ledger, for one of an owner's, and one of a scope."""
    ledgers = world.ledgers
    cases = ((OWNERS_LEDGER, 0, ledgers.owners), (OWNERS_LEDGER, 0, ledgers.open), (SCOPED_LEDGER, 7, ledgers.scoped))
    async with world.http(server, token_of(who)) as http:
        for may, scope_id, ledger in cases:
            before = await world.manager.read(LedgerId(scope_id, ledger))
            for verb, path, action in world.of_ledgers(server):
                wanted = request(verb, path, ledger, scope_id)
                allowed = action in may[who]
                if allowed and verb != "GET":
                    wanted["params"]["unknown"] = 1
                answer = await http.request(verb, path, **wanted)
                expected = 403 if not allowed else 400 if verb != "GET" else 200
                assert answer.status_code == expected, (path, ledger, answer.text)
            assert await world.manager.read(LedgerId(scope_id, ledger)) == before, "nothing was changed"


@pytest.mark.parametrize("who", OWNERS_LEDGER)
async def test_a_stream_is_seen_and_changed_by_whom_its_ledgers_are(world: World, who: str) -> None:
    """By what the policy says of the record, the ledger and the cursor, not by whether the route may be asked."""
    changes = who in ("admin", "owner")
    async with world.http("bookie", token_of(who)) as http:
        for verb, path in (*STREAM_VIEWS, *STREAM_CHANGES):
            wanted = request(verb, path)
            reads = verb == "GET"
            if changes and not reads:
                wanted["params"]["unknown"] = 1
            expected = (400 if not reads else 200) if changes else 403
            if reads and who in ("operator", "bookie", "reader"):
                expected = 200
            answer = await http.request(verb, path, **wanted)
            assert answer.status_code == expected, (path, answer.text)
        may = (await http.get(f"{API}/console/stream", params={"name": STREAM})).json().get("may")
        assert may in (None, dict.fromkeys(("trim", "retention", "delete"), changes))
        # Whose ledgers are its own makes streams of its own; another scope's has none to make here.
        creates = who in ("admin", "owner", "stranger")
        wanted = request(*CREATE)
        wanted["params"]["unknown"] = 1
        assert (await http.request(*CREATE, **wanted)).status_code == (400 if creates else 403)


@pytest.mark.parametrize("server", SERVERS)
async def test_listings_show_what_may_be_listed_and_read(world: World, server: str) -> None:
    mine = {str(world.ledgers.owners), str(world.ledgers.open)}
    scoped = {str(world.ledgers.scoped)}
    nothing: set[str] = set()
    shown: dict[str, tuple[set[str] | None, set[str] | None]] = {
        "admin": (mine, scoped),
        "reader": (mine, scoped),
        "owner": (mine, nothing),
        "stranger": (nothing, nothing),
        "scoped": (None, scoped),
        # Ids are part of the metadata: a listing shows what may be read.
        "lister": (None, None),
        "scraper": (None, None),
    }
    for who, of_scopes in shown.items():
        async with world.http(server, token_of(who)) as http:
            for scope_id, expected in zip((0, 7), of_scopes, strict=True):
                query = {"ledger_scope_id": scope_id}
                answers = [
                    await http.get(f"{API}/ledger/list", params=query),
                    await http.get(f"{API}/ledger/list", params={**query, "print_metadata": "true"}),
                    await http.get(f"{API}/console/ledgers", params=query),
                    await http.get(f"{API}/console/ledgers_export", params={**query, "format": "json"}),
                ]
                if expected is None:
                    assert [each.status_code for each in answers] == [403] * 4, who
                    continue
                whole, paged, console, exported = [each.json() for each in answers]
                assert set(whole) == set(paged) == {each["ledgerId"] for each in console["ledgers"]} == expected, who
                assert {each["ledgerId"] for each in exported} == expected, who


async def test_the_denied_have_changed_nothing(world: World) -> None:
    """Runs behind all that were denied."""
    async with world.http("bookie", token_of("admin")) as http:

        async def told(path: str) -> Any:
            return (await http.get(f"{API}/{path}")).json()

        assert await told("bookie/state/readonly") == {"readOnly": False}
        assert await told("bookie/gc/suspend_compaction") == dict.fromkeys(
            ("isMajorGcSuspended", "isMinorGcSuspended"), "false"
        )
        assert await told("bookie/gc/suspend_ledgers") == {"isLedgerCollectionSuspended": "false"}
        assert await told("autorecovery/status") == {"enabled": True}
        assert (await told("console/autorecovery"))["draining"] == []
        assert (await http.get(f"{API}/autorecovery/lost_bookie_recovery_delay")).status_code == 404


async def test_owners_recover_and_delete_over_http(world: World) -> None:
    """Runs last."""
    query = {"ledger_id": world.ledgers.open}
    async with world.http("bookie", token_of("owner")) as http:
        recovered = await http.put(f"{API}/console/ledger/recover", params=query)
        assert (recovered.status_code, recovered.json()["state"]) == (200, "CLOSED")
        for ledger in (world.ledgers.open, world.ledgers.owners):
            assert (await http.delete(f"{API}/ledger/delete", params={"ledger_id": ledger})).status_code == 200
        for (verb, path), named_stream in STREAM_CHANGES.items():
            answer = await http.request(verb, path, params=named_stream, json={} if verb == "PUT" else None)
            assert answer.status_code == 200, (path, answer.text)
    async with world.http("gateway", token_of("scoped")) as http:
        query = {"ledger_id": world.ledgers.scoped, "ledger_scope_id": 7}
        assert (await http.delete(f"{API}/ledger/delete", params=query)).status_code == 200
