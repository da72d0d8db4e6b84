"""A cluster of `bookgate security init`: who may what over HTTP and with a client, repair, console, no secret told."""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.bookie.tools.trial_security.files import TOKENS, make
from bookgate.ledger.errors import BKException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.runtime.security.actions import HTTP_ACTIONS, Action
from bookgate.thinclient.blocking.client import BookKeeper
from bookgate.thinclient.config import ClientConfig
from tests.integration.browser import chromium

BOOKIES = ("bookie-1", "bookie-2", "bookie-3")
PASSWORD = b"a-planted-password"


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("secure")
    make(directory, BOOKIES, ())
    return directory


@pytest.fixture(scope="module")
def cluster(secure: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    root = tmp_path_factory.mktemp("cluster")
    options = ("--set=auto_recovery=true", "--set=lost_bookie_recovery_delay_seconds=0")
    with StandaloneCluster(root, secure=secure, bookie_options=options) as running:
        yield running


def client(cluster: StandaloneCluster, secure: Path, name: str) -> BookKeeper:
    settings: dict[str, Any] = {"bookie_tls": "start-tls", "auth_provider": "bookgate-token"}
    files: dict[str, Any] = {"tls_ca": secure / "ca.crt", "token_file": secure / f"{name}.token"}
    return BookKeeper.connect(config=ClientConfig(gateways=cluster.gateway_uri, **settings, **files))


@pytest.fixture(scope="module")
def ledger(cluster: StandaloneCluster, secure: Path) -> LedgerId:
    """One of the writer's."""
    with client(cluster, secure, "writer") as bookkeeper, bookkeeper.create_ledger(3, 2, 2, password=PASSWORD) as made:
        made.append(b"an entry")
        return made.ledger_id


@pytest.fixture(scope="module")
def operators(cluster: StandaloneCluster, secure: Path) -> LedgerId:
    """One of the operator's."""
    with client(cluster, secure, "operator") as bookkeeper, bookkeeper.create_ledger(3, 2, 2) as made:
        made.append(b"another entry")
        return made.ledger_id


def http(cluster: StandaloneCluster, secure: Path, token: str | None) -> httpx.Client:
    context = ssl.create_default_context(cafile=str(secure / "ca.crt"))
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return httpx.Client(base_url=f"https://{cluster.http[0]}", verify=context, headers=headers, timeout=60)


def token_of(secure: Path, name: str) -> str:
    return (secure / f"{name}.token").read_text().strip()


def test_who_may_what_with_a_client(
    cluster: StandaloneCluster, secure: Path, ledger: LedgerId, operators: LedgerId
) -> None:
    with client(cluster, secure, "writer") as bookkeeper:
        with bookkeeper.open_ledger(ledger, password=PASSWORD) as handle:
            assert [bytes(entry.payload) for entry in handle.read(0, 0)] == [b"an entry"]
        with pytest.raises(BKException):
            bookkeeper.open_ledger(operators)
    with client(cluster, secure, "reader") as bookkeeper:
        with bookkeeper.open_ledger(operators) as handle:
            assert [bytes(entry.payload) for entry in handle.read(0, 0)] == [b"another entry"]
        with pytest.raises(BKException):
            bookkeeper.create_ledger(3, 2, 2)
        with pytest.raises(BKException):
            bookkeeper.delete_ledger(ledger)
    nobody = ClientConfig(gateways=cluster.gateway_uri, tls_ca=secure / "ca.crt")
    with pytest.raises(BKException), BookKeeper.connect(config=nobody) as bookkeeper:
        bookkeeper.create_ledger(3, 2, 2)


_NOT_HERE = {("GET", "/ready")}
_LEDGER_OF = {Action.LEDGER_READ, Action.LEDGER_DELETE, Action.ENTRY_READ}
_ALLOWED: dict[str, set[Action]] = {
    "operator": set(Action),
    "prometheus": {Action.HTTP_READ},
    "reader": {Action.LEDGER_LIST, Action.LEDGER_READ, Action.ENTRY_READ, Action.DISCOVERY_READ},
    "writer": {Action.LEDGER_LIST, Action.DISCOVERY_READ},
}
"""Of a ledger that is not theirs."""


@pytest.mark.parametrize("who", [*_ALLOWED, "nobody", "a wrong token"])
def test_every_route_is_for_those_of_the_policy_only(
    cluster: StandaloneCluster, secure: Path, operators: LedgerId, who: str
) -> None:
    token = {"nobody": None, "a wrong token": "wrong"}.get(who) if who not in _ALLOWED else token_of(secure, who)
    with http(cluster, secure, token) as asked:
        for (verb, path), action in HTTP_ACTIONS.items():
            # What would change something is asked without what it needs: who may not is told so before.
            if (verb, path) in _NOT_HERE or action is None or path.endswith("/sanity"):
                continue
            query: dict[str, Any] = {"unknown": "1"} if verb != "GET" and action not in _LEDGER_OF else {}
            if action in _LEDGER_OF:
                query = {"ledger_id": str(operators), **({"entry_id": 0} if path.endswith("/entry") else {})}
            if action is Action.LEDGER_DELETE:
                query["ledger_id"] = 10**12
            status = asked.request(verb, path, params=query).status_code
            if who == "writer" and status in (400, 404):
                # The writer has its own ledgers, and which one is meant is known once the request is whole.
                assert action.is_of_ledgers
                continue
            expected = action in _ALLOWED.get(who, set())
            assert (status not in (401, 403)) == expected, (who, verb, path, status)
            if not expected:
                assert status == (403 if who in _ALLOWED else 401)


def test_listings_show_what_may_be_listed(
    cluster: StandaloneCluster, secure: Path, ledger: LedgerId, operators: LedgerId
) -> None:
    shown = {}
    for who in ("writer", "reader"):
        with http(cluster, secure, token_of(secure, who)) as asked:
            everything = set(asked.get("/api/v1/ledger/list").json())
            paged = set(asked.get("/api/v1/ledger/list?print_metadata=true").json())
            console = {each["ledgerId"] for each in asked.get("/api/v1/console/ledgers").json()["ledgers"]}
            assert everything == paged == console
            shown[who] = everything
    assert str(ledger) in shown["writer"]
    assert str(operators) not in shown["writer"]
    assert {str(ledger), str(operators)} <= shown["reader"]
    with http(cluster, secure, token_of(secure, "writer")) as asked:
        assert asked.get(f"/api/v1/ledger/metadata?ledger_id={ledger}").status_code == 200
        assert asked.get(f"/api/v1/console/entries?ledger_id={ledger}").status_code == 200
        assert asked.delete(f"/api/v1/ledger/delete?ledger_id={operators}").status_code == 403
        assert asked.get(f"/api/v1/ledger/metadata?ledger_id={operators}").status_code == 403


def test_the_console_logs_in_and_shows_what_the_token_may_see(
    cluster: StandaloneCluster, secure: Path, operators: LedgerId
) -> None:
    origin = f"https://{cluster.http[0]}"
    with chromium() as browser:
        context = browser.new_context(ignore_https_errors=True)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.goto(origin)
        expect(page.get_by_role("heading", name="Log in")).to_be_visible()
        page.get_by_label("Token", exact=True).fill("wrong")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_contain_text("not a token of this server")
        page.get_by_label("Token", exact=True).fill(token_of(secure, "operator"))
        page.get_by_role("button", name="Log in").click()
        expect(page.locator("tr[data-bookie=bookie-1]")).to_be_visible()
        expect(page.locator("#server")).to_contain_text("token:operator")
        (cookie,) = context.cookies()
        assert (cookie["httpOnly"], cookie["secure"], cookie["sameSite"]) == (True, True, "Strict")
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_role("heading", name="Log in")).to_be_visible()


def test_a_lost_bookie_is_repaired_by_bookies_that_authenticate(cluster: StandaloneCluster, secure: Path) -> None:
    with client(cluster, secure, "writer") as bookkeeper, bookkeeper.create_ledger(2, 2, 2) as made:
        for entry_id in range(100):
            made.append(f"entry {entry_id}".encode())
        number, ensemble = made.ledger_id, set(made.metadata.fragments[0].ensemble)
    lost = next(process for process in cluster.processes[1:] if process.bookie_id in ensemble)
    lost.kill()
    with http(cluster, secure, token_of(secure, "operator")) as asked:
        deadline = time.monotonic() + 90
        while True:
            shown = asked.get(f"/api/v1/ledger/metadata?ledger_id={number.ledger_id}").json()[str(number.ledger_id)]
            if not any(each["id"] == lost.bookie_id for each in shown["allEnsembles"]["0"]):
                break
            assert time.monotonic() < deadline, shown
    lost.start()
    lost.wait_until_serving()
    with client(cluster, secure, "reader") as bookkeeper, bookkeeper.open_ledger(number) as handle:
        assert [bytes(entry.payload) for entry in handle.read(99, 99)] == [b"entry 99"]


def test_no_secret_is_told(cluster: StandaloneCluster, secure: Path, ledger: LedgerId) -> None:
    """Runs last: of all that was said until now."""
    secrets = [PASSWORD.decode(), *(token_of(secure, name) for name in TOKENS)]
    with http(cluster, secure, token_of(secure, "operator")) as asked:
        told = [asked.get(path).text for path in ("/metrics", "/api/v1/config/server_config", "/openapi.json")]
        told.append(asked.get(f"/api/v1/ledger/metadata?ledger_id={ledger}").text)
        told.append(asked.get("/api/v1/ledger/list?print_metadata=true&decode_meta=false").text)
    denied = re.search(
        r'^bookie_ACCESS\{door="http",outcome="denied",principal="token"\} (\S+)$', told[0], re.MULTILINE
    )
    assert denied is not None
    assert float(denied[1]) > 0
    logs = [process.log.read_text() for process in cluster.processes]
    assert any("event=audit" in log and "principal=token:writer" in log for log in logs)
    for secret in secrets:
        assert not any(secret in each for each in (*told, *logs)), secret[:6]
    for path in (*secure.glob("*.token"), secure / "tokens", *secure.rglob("*.key")):
        assert re.fullmatch("0o100600", oct(path.stat().st_mode)), path
