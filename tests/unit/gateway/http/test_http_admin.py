"""HTTP admin beside a gateway of its own: its paths over a real store, and how refusals become statuses."""

from __future__ import annotations

import asyncio
import itertools
import string
import time
from pathlib import Path
from typing import Annotated, Any

import httpx
import pytest
from prometheus_client import CollectorRegistry
from pydantic import BaseModel, SecretStr

from bookgate.gateway.config import GatewayConfig
from bookgate.gateway.http.access import Access, Need
from bookgate.gateway.http.api import AnyQuery, Body, Call, NoBody, change, create_app, get, status_of
from bookgate.gateway.http.errors import HttpError
from bookgate.gateway.http.host_names import is_known_name
from bookgate.gateway.http.routes.process import masked
from bookgate.gateway.http.routes.session import SESSION
from bookgate.gateway.http.settings import read_token
from bookgate.gateway.process.http import HttpServer
from bookgate.gateway.stores.drivers import create_factory
from bookgate.ledger import errors
from bookgate.ledger.errors import IncorrectParameterException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.runtime.security.authenticators import is_loopback
from bookgate.runtime.settings import SECRET, TableOf
from tests.stores import made

TOKEN = "planted-letters"


@pytest.mark.asyncio
async def test_gateway_serves_what_needs_no_bookie_until_its_store_is_gone(tmp_path: Path) -> None:
    uri = made(f"sqlite://{tmp_path}/metadata.db")
    settings = GatewayConfig.load(None, {"metadata_uri": uri, "http_token": TOKEN})
    factory, stopping = create_factory(uri, settings), asyncio.Event()
    await factory.initialize()
    server = HttpServer(settings, factory, CollectorRegistry(), stopping)
    try:
        await factory.ledger_manager.create(LedgerId(0, 5), LedgerMetadata.new(["b1", "b2"], 2, 1))
        port = await server.start("127.0.0.1", 0)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            paths = (await http.get("/openapi.json")).json()["paths"]
            assert "/api/v1/ledger/delete" in paths
            assert "/api/v1/bookie/state" not in paths
            for path in ("/heartbeat", "/ready", "/metrics"):
                assert (await http.get(path)).status_code == 200
            assert (await http.get("/api/v1/ledger/list")).json() == {"5": None}
            shown = (await http.get("/api/v1/ledger/metadata?ledger_id=5")).json()["5"]
            assert shown["allEnsembles"] == {"0": [{"id": "b1"}, {"id": "b2"}]}
            assert (await http.get("/api/v1/bookie/list_bookies")).json() == {}
            assert (await http.get("/api/v1/bookie/cluster_info")).json()["totalBookiesCount"] == 0
            assert (await http.get("/api/v1/config/server_config")).json()["http_token"] == "**********"
            delete = "/api/v1/ledger/delete?ledger_id=5"
            assert (await http.delete(delete)).status_code == 401
            assert (await http.delete(delete, headers={"Authorization": f"Bearer {TOKEN}"})).status_code == 200

            stopping.set()
            assert (await http.get("/ready")).status_code == 503
            await factory.close()
            for path in ("/ledger/list", "/ledger/metadata?ledger_id=5", "/bookie/list_bookies"):
                refused = await http.get(f"/api/v1{path}")
                assert (refused.status_code, list(refused.json())) == (503, ["error"])
    finally:
        await server.stop()
        await factory.close()


@pytest.mark.asyncio
async def test_nobody_says_which_address_they_come_from(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever can would guess tokens without an end, and keep others from logging in."""
    uri = made(f"sqlite://{tmp_path}/metadata.db")
    settings = GatewayConfig.load(None, {"metadata_uri": uri, "http_token": TOKEN})
    factory = create_factory(uri, settings)
    await factory.initialize()
    server = HttpServer(settings, factory, CollectorRegistry(), asyncio.Event())
    try:
        await factory.ledger_manager.create(LedgerId(0, 5), LedgerMetadata.new(["b1", "b2"], 2, 1))
        port = await server.start("127.0.0.1", 0)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            login = {"X-Forwarded-For": "192.0.2.7", "X-Forwarded-Proto": "https"}
            answer = await http.post(SESSION, json={"token": TOKEN}, headers=login)
            assert "secure" in answer.headers["set-cookie"].lower(), "the browser speaks TLS with a proxy"
            http.cookies.clear()
            token = {"Authorization": f"Bearer {TOKEN}", "X-Forwarded-For": "192.0.2.7"}
            with caplog.at_level("INFO"):
                assert (await http.delete("/api/v1/ledger/delete?ledger_id=5", headers=token)).status_code == 200
            assert "peer=127.0.0.1" in caplog.text
            for number in range(10):
                other = {"X-Forwarded-For": f"192.0.2.{number}"}
                assert (await http.post(SESSION, json={"token": "wrong"}, headers=other)).status_code == 401
            other = {"X-Forwarded-For": "192.0.2.99"}
            assert (await http.post(SESSION, json={"token": "wrong"}, headers=other)).status_code == 429
    finally:
        await server.stop()
        await factory.close()


@pytest.mark.asyncio
async def test_what_a_handler_did_not_expect_is_answered_as_json() -> None:
    async def fail(_call: Call[AnyQuery, NoBody]) -> Any:
        raise RuntimeError("inside")

    app = create_app([get("/fail", "Fails", fail)], Access(None, loopback=True), {})
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        answer = await http.get("/fail")
        assert answer.status_code == 500
        assert "RuntimeError" in answer.json()["error"]
        assert "inside" not in answer.text


LOCAL = {"host": "127.0.0.1:8080"}
"""What each request has."""


@pytest.mark.parametrize("loopback", [True, False])
@pytest.mark.parametrize(
    ("headers", "taken"),
    [
        ({}, True),
        ({"sec-fetch-site": "same-origin", "origin": "http://127.0.0.1:8080"}, True),
        ({"sec-fetch-site": "none"}, True),
        ({"origin": "http://127.0.0.1:8080"}, True),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "same-site", "origin": "http://127.0.0.1:8081"}, False),
        ({"origin": "http://evil.example"}, False),
        ({"origin": "null"}, False),
    ],
)
def test_pages_of_other_origins_get_nothing_that_needs_anything(
    headers: dict[str, str], taken: bool, loopback: bool
) -> None:
    access = Access(None, loopback=loopback)
    if taken:
        access.check(Need.CONTENT, {**LOCAL, **headers}, None)
    else:
        with pytest.raises(HttpError, match="another origin") as refused:
            access.check(Need.CONTENT, {**LOCAL, **headers}, None)
        assert refused.value.status == 403
    access.check(Need.NOTHING, {**LOCAL, **headers}, None)
    # No page can send the token that it does not know.
    Access("token", loopback=loopback).check(Need.CONTENT, headers, "token")


@pytest.mark.parametrize(
    ("host", "taken"),
    [
        ("[::1]", True),
        ("[::1]:8080", True),
        ("localhost:8080", True),
        ("10.0.0.1", True),
        ("", True),
        ("[::1].evil.example", False),
        ("[::1]evil.example:80", False),
        ("[evil.example]:80", False),
        ("127.0.0.1.evil.example", False),
    ],
)
def test_names_of_this_host(host: str, taken: bool) -> None:
    assert is_known_name(host, ()) is taken


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("token", "shown", "status"),
    [
        (None, None, 403),
        (None, "whatever", 403),
        ("secret", None, 403),
        ("secret", "whatever", 401),
        ("secret", "secret", 200),
    ],
)
@pytest.mark.parametrize("need", list(Need))
async def test_under_another_name_a_token_that_counts_is_served_and_no_other(
    token: str | None, shown: str | None, status: int, need: Need
) -> None:
    """A page whose name was led to this machine is of the same origin to its browser, and can make up any header."""

    async def answer(_call: Call[AnyQuery, NoBody]) -> Any:
        return {}

    app = create_app([get("/json", "JSON", answer, need=need)], Access(token, loopback=True), {})
    origin = "http://evil.example"
    headers = {"Origin": origin, "Sec-Fetch-Site": "same-origin"}
    if shown is not None:
        headers["Authorization"] = f"Bearer {shown}"
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=origin) as http:
        assert (await http.get("/json", headers=headers)).status_code == status


@pytest.mark.asyncio
async def test_where_there_is_no_token_showing_one_changes_nothing() -> None:
    async def answer(_call: Call[AnyQuery, NoBody]) -> Any:
        return {}

    app = create_app([get("/json", "JSON", answer, need=Need.CONTENT)], Access(None, loopback=True), {})
    token = {"Authorization": "Bearer whatever"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
        assert (await http.get("/json", headers=token)).status_code == 200
        assert (await http.get("/json", headers={**token, "Origin": "http://evil.example"})).status_code == 403


@pytest.mark.asyncio
async def test_every_answer_says_what_browsers_may_do_with_it() -> None:
    async def answer(_call: Call[AnyQuery, NoBody]) -> Any:
        return {}

    async def text(_call: Call[AnyQuery, NoBody]) -> str:
        return "OK"

    async def refuse(_call: Call[AnyQuery, NoBody]) -> Any:
        raise HttpError(409, "no")

    rows = [get("/json", "JSON", answer), get("/text", "Text", text, answer=None), get("/no", "Refuses", refuse)]
    app = create_app(rows, Access(None, loopback=True), {})
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
        for path in ("/json", "/text", "/no", "/nothing", "/openapi.json"):
            headers = (await http.get(path)).headers
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
            assert headers["Referrer-Policy"] == "no-referrer"
            assert headers["Cache-Control"] == "no-store"


@pytest.mark.asyncio
async def test_many_parameters_take_no_longer_than_they_are_many() -> None:
    """Anybody may send as many as a request has room for, and each other request waits for the look at them."""

    async def text(_call: Call[AnyQuery, NoBody]) -> str:
        return "OK"

    app = create_app([get("/text", "Text", text, query=AnyQuery, answer=None)], Access(None, loopback=True), {})
    many = "&".join(map("".join, itertools.product(string.ascii_letters, repeat=3)))[:60_000]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
        began = time.process_time()
        assert (await http.get(f"/text?{many}")).status_code == 200
        assert time.process_time() - began < 2.0
        twice = await http.get(f"/text?{many}&aac=1")
        assert (twice.status_code, twice.json()["error"]) == (400, "parameter aac is given 2 times; give it once")


class Named(Body):
    name: str


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b'{"name": "\\ud83d\\ude00"}', 200),
        (b'{"name": "\\ud83d"}', 400),
        (b'{"name": "\xed\xa0\xbd"}', 400),
        (b'{"\\ud83d": 1}', 400),
    ],
)
async def test_a_body_with_half_a_character_is_a_bad_request(content: bytes, status: int) -> None:
    async def put(call: Call[AnyQuery, Named]) -> Any:
        return {"size": len(call.body.name.encode())}

    rows = [change("PUT", "/thing", "Takes a name", put, query=AnyQuery, body=Named)]
    app = create_app(rows, Access(None, loopback=True), {})
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        assert (await http.put("/thing", content=content)).status_code == status


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["other", "bookgate_session_80"])
async def test_what_a_cookie_says_takes_no_time(name: str) -> None:
    """Anybody may send one, and each other request waits meanwhile. Earlier versions of Python unquote it slowly."""

    async def text(_call: Call[AnyQuery, NoBody]) -> str:
        return "OK"

    app = create_app([get("/text", "Text", text, answer=None)], Access("planted-letters", loopback=True), {})
    headers = {"Cookie": f'{name}="{60_000 * chr(92)}"'}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
        began = time.process_time()
        assert (await http.get("/text", headers=headers)).status_code == 200
        assert time.process_time() - began < 2.0


@pytest.mark.asyncio
@pytest.mark.parametrize("host", ["127.0.0.1:80/other?x=", "127.0.0.1:80/other#"])
async def test_the_log_has_the_path_of_the_request_whatever_host_it_names(
    host: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Earlier versions of Starlette take the path of `request.url` from such a host."""

    async def delete(_call: Call[AnyQuery, NoBody]) -> Any:
        return {}

    rows = [change("DELETE", "/thing", "Deletes", delete, query=AnyQuery)]
    app = create_app(rows, Access(None, loopback=True), {})
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
        with caplog.at_level("INFO"):
            assert (await http.delete("/thing?ledger_id=7", headers={"Host": host})).status_code == 200
    assert 'path="/thing ledger:7"' in caplog.text


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.NoSuchLedgerExistsOnMetadataServerException(), 404),
        (errors.IncorrectParameterException(), 400),
        (errors.MetadataVersionException(), 409),
        (errors.StoreUnreachableException(), 503),
        (errors.NotEnoughBookiesException(), 503),
        (errors.MetadataFormatException(), 500),
    ],
)
def test_errors_have_statuses(error: errors.BKException, status: int) -> None:
    assert status_of(error) == status


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False)],
)
def test_loopback_addresses(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback
    assert not is_loopback("bookie.example")


def test_token_files_that_can_not_be_used_are_refused(tmp_path: Path) -> None:
    empty, good = tmp_path / "empty", tmp_path / "good"
    empty.write_text(" \n")
    good.write_text(" secret\n")
    assert read_token(None, good) == "secret"
    for token, file, problem in (("a", good, "not both"), (None, empty, "empty"), (None, tmp_path / "no", "read")):
        with pytest.raises(IncorrectParameterException, match=problem):
            read_token(token, file)


class _Inner(BaseModel):
    login: SecretStr | None = None
    port: int = 0


class _Settings(BaseModel):
    http_token_file: str = "/etc/token"
    auth_options: Annotated[dict[str, str], SECRET]
    gateway: Annotated[dict[str, Any], TableOf(_Inner)]
    metadata_uri: str = "other://user:word@host/path"
    http_token: SecretStr | None = None
    plain: Annotated[str | None, SECRET] = "word"


def test_secrets_are_masked_as_the_settings_declare_them() -> None:
    shown = masked(_Settings(auth_options={"tokens": "a b"}, gateway={"login": "user:word", "port": 1}))
    assert "word" not in str(shown)
    assert "a b" not in str(shown)
    assert (shown["http_token_file"], shown["gateway"]["port"], shown["http_token"]) == ("/etc/token", 1, None)
    assert shown["metadata_uri"].endswith("@host/path")
