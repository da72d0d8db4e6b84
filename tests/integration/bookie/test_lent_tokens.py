"""Where a token of the HTTP admin goes: over TLS, or to this machine, and nowhere that an answer sends it.

`127.1` is an address of this machine that is not written as one: what is asked there is asked of another machine, as
far as the rule can know, and is answered nevertheless.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bookgate.bookie.http.console_peers import Peers
from bookgate.gateway.http.errors import HttpError
from bookgate.ledger.bookie_info import HTTP, TLS_EXTENSION, VERSION_PROPERTY, BookieServiceInfo, Endpoint
from bookgate.ledger.bookie_registry import RegisteredBookie
from bookgate.ledger.metadata_store import BookieSet
from bookgate.thinclient.config import ClientConfig
from bookgate.thinclient.tools.admin_client import AdminHttp, AdminRefusedException, endpoint_url

TOKEN = "planted-token of an operator"
REMOTE = "127.1"
REFUSED = "a token is sent over TLS only"


class Admin:
    """An HTTP server that writes down what it was asked with, and sends on what asks for `/moved`."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str | None]] = []
        admin = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"] or 0))
                admin.asked.append((f"{self.command} {self.path}", self.headers["Authorization"]))
                moved = self.path == "/moved"
                self.send_response(302 if moved else 200)
                if moved:
                    self.send_header("Location", f"http://127.0.0.1:{admin.port}/elsewhere")
                body = b"" if moved else json.dumps({"readOnly": True}).encode()
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_PUT(self) -> None:
                self.do_GET()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]


@pytest.fixture
def admin() -> Iterator[Admin]:
    admin = Admin()
    thread = Thread(target=admin.server.serve_forever, args=(0.01,))
    thread.start()
    yield admin
    admin.server.shutdown()
    thread.join()
    admin.server.server_close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_to_this_machine_a_token_goes_in_clear(admin: Admin, host: str) -> None:
    assert AdminHttp(f"http://{host}:{admin.port}", TOKEN).get("/state") == {"readOnly": True}
    assert admin.asked == [("GET /state", f"Bearer {TOKEN}")]


def test_to_another_machine_it_does_not(admin: Admin) -> None:
    asked = AdminHttp(f"http://{REMOTE}:{admin.port}", TOKEN)
    for ask in (asked.get, asked.put):
        with pytest.raises(AdminRefusedException, match=REFUSED) as refused:
            ask("/state")
        assert TOKEN not in str(refused.value)
    assert admin.asked == []
    assert AdminHttp(f"http://{REMOTE}:{admin.port}").get("/state") == {"readOnly": True}
    assert admin.asked == [("GET /state", None)]


@pytest.mark.parametrize(
    ("url", "may"),
    [
        ("http://127.0.0.1:8080", True),
        ("http://127.0.0.1", True),
        ("http://[::1]:8080", True),
        ("http://[::1]", True),
        ("http://localhost:8080", True),
        ("HTTPS://bookie-1:8080", True),
        ("https://192.0.2.1", True),
        ("http://bookie-1:8080", False),
        ("http://192.0.2.1", False),
        ("http://[2001:db8::1]:8080", False),
        ("http://127.0.0.1@bookie-1:8080", False),
        ("http://bookie-1?@127.0.0.1:8080", False),
        ("http://bookie-1#@127.0.0.1:8080", False),
        ("http://localhost.example:8080", False),
        ("http:///", False),
    ],
)
def test_which_addresses_may_have_it(url: str, may: bool) -> None:
    assert AdminHttp(url).may_carry_token == may


@pytest.mark.parametrize("token", [TOKEN, None])
def test_a_redirection_is_not_followed(admin: Admin, token: str | None) -> None:
    asked = AdminHttp(f"http://127.0.0.1:{admin.port}", token)
    for ask in (asked.get, asked.put):
        with pytest.raises(AdminRefusedException, match="answers 302: it sends to another address"):
            ask("/moved")
    assert [path for path, _ in admin.asked] == ["GET /moved", "PUT /moved"]


class Discovery:
    """Bookies at these hosts, each under its host's name."""

    def __init__(self, port: int, *hosts: str) -> None:
        self._bookies = [
            RegisteredBookie(
                BookieServiceInfo(host, (Endpoint(HTTP, host, port, HTTP),), {VERSION_PROPERTY: "1"}), True, False
            )
            for host in hosts
        ]

    async def bookies(self, which: BookieSet) -> list[RegisteredBookie]:
        return self._bookies if which is BookieSet.WRITABLE else []


@pytest.mark.asyncio
async def test_the_console_lends_its_callers_token_to_no_bookie_without_tls(admin: Admin) -> None:
    factory = cast(Any, SimpleNamespace(service_discovery=Discovery(admin.port, REMOTE, "localhost")))
    peers = Peers(factory, ClientConfig)
    try:
        rates = await peers.rates(TOKEN)
        # Without security it tells everybody, and so it does here; with security it is not known what it does.
        assert rates == {REMOTE: {"readOnly": True}, "localhost": {"readOnly": True}}
        assert sorted(header is None for _, header in admin.asked) == [False, True]
        admin.asked.clear()
        assert (await peers.details(REMOTE, TOKEN))["state"] == {"readOnly": True}
        assert {header for _, header in admin.asked} == {None}
        admin.asked.clear()
        with pytest.raises(HttpError, match=REFUSED) as refused:
            await peers.set_read_only(REMOTE, True, TOKEN)
        assert (refused.value.status, admin.asked) == (502, [])
        assert await peers.set_read_only("localhost", True, TOKEN) == {"readOnly": True}
        assert admin.asked == [("PUT /api/v1/bookie/state/readonly", f"Bearer {TOKEN}")]
    finally:
        await peers.close()


def test_a_bookie_that_registers_tls_is_asked_over_it() -> None:
    clear, secret = (Endpoint(HTTP, "bookie-1", 8080, HTTP, extensions=each) for each in ((), (TLS_EXTENSION,)))
    assert [AdminHttp(endpoint_url(each)).may_carry_token for each in (clear, secret)] == [False, True]
