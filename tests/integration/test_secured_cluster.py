"""A cluster of `bookgate security init`: who may what over HTTP and with a client, repair, console, no secret told."""

from __future__ import annotations

import base64
import re
import ssl
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect
from typer.testing import CliRunner

from bookgate.bookie.standalone.cluster import BookieProcess, ClusterException, StandaloneCluster
from bookgate.bookie.tools.trial_security.files import TOKENS, make
from bookgate.ledger.errors import BKException, IncorrectParameterException, UnauthorizedAccessException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.thinclient.blocking.client import BookKeeper
from bookgate.thinclient.commands.main import app
from bookgate.thinclient.config import ClientConfig
from bookgate.thinclient.spark.options.read_options import parse_options
from bookgate.thinclient.spark.reading.batch import LedgersReader
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
    options = ("--set=auto_recovery=true", "--set=lost_bookie_recovery_delay_seconds=0", "--set=audit_reads=true")
    cluster = StandaloneCluster(root, secure=secure, bookie_options=options)
    for process in cluster.processes:
        process.arguments.append(f"--set=audit_file={process.data_dir}/audit.log")
    # One gateway is a process of its own, under the same policy.
    cluster.processes[-1].arguments.append("--set=gateway_process=true")
    with cluster:
        yield cluster


def settings_of(cluster: StandaloneCluster, secure: Path, name: str) -> dict[str, Any]:
    """A client's with this token."""
    chosen: dict[str, Any] = {"bookie_tls": "start-tls", "auth_provider": "bookgate-token"}
    files: dict[str, Any] = {"tls_ca": secure / "ca.crt", "token_file": secure / f"{name}.token"}
    return {"gateways": cluster.gateway_uri, **chosen, **files}


def client(cluster: StandaloneCluster, secure: Path, name: str) -> BookKeeper:
    return BookKeeper.connect(config=ClientConfig(**settings_of(cluster, secure, name)))


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


def http(cluster: StandaloneCluster, secure: Path, token: str | None, which: int = 0) -> httpx.Client:
    context = ssl.create_default_context(cafile=str(secure / "ca.crt"))
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return httpx.Client(base_url=f"https://{cluster.http[which]}", verify=context, headers=headers, timeout=60)


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


@pytest.mark.parametrize(
    "command",
    ["bookie state bookie-1", "gc status bookie-1", "ledger orphans", "ledger largest-held"],
)
def test_a_command_that_asks_over_http_shows_a_token(
    cluster: StandaloneCluster, secure: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    for key, value in settings_of(cluster, secure, "operator").items():
        monkeypatch.setenv(f"BOOKGATE_{key.upper()}", str(value))
    refused = CliRunner().invoke(app, [*command.split(), "--json"])
    assert refused.exit_code == 1
    assert "401" in refused.output + refused.stderr
    shown = CliRunner().invoke(app, [*command.split(), "--json", "--token-file", str(secure / "operator.token")])
    assert shown.exit_code == 0, shown.output + shown.stderr


@pytest.mark.parametrize("which", [0, -1], ids=["hosted", "a process of its own"])
def test_each_gateway_keeps_to_the_policy(
    cluster: StandaloneCluster, secure: Path, operators: LedgerId, which: int
) -> None:
    """Also over HTTP, where a bookie passes on what its gateway's process answers."""
    settings = {"gateways": f"grpcs://{cluster.gateways[which]}"}
    with BookKeeper.connect(config=ClientConfig(**settings_of(cluster, secure, "reader") | settings)) as bookkeeper:
        assert bookkeeper.read_record(operators).ledger_id == operators
        with pytest.raises(UnauthorizedAccessException):
            bookkeeper.delete_ledger(operators)
    with BookKeeper.connect(config=ClientConfig(**settings_of(cluster, secure, "writer") | settings)) as bookkeeper:
        with pytest.raises(UnauthorizedAccessException):
            bookkeeper.read_record(operators)
        assert operators not in [each.ledger_id for run in bookkeeper.list_ledgers() for each in run]
    for who, shows in (("reader", True), ("writer", False)):
        with http(cluster, secure, token_of(secure, who), which) as asked:
            assert (str(operators) in asked.get("/api/v1/ledger/list").json()) == shows
            assert asked.delete(f"/api/v1/ledger/delete?ledger_id={operators}").status_code == 403
    with http(cluster, secure, None, which) as asked:
        assert asked.get("/api/v1/ledger/list").status_code == 401


def test_a_bookie_registers_at_gateways_under_its_own_name_only(
    cluster: StandaloneCluster, secure: Path, tmp_path: Path
) -> None:
    make(secure, ("bookie-4", "bookie-5"), ())

    def bookie(bookie_id: str, shown: str) -> BookieProcess:
        files = f"?ca={secure}/ca.crt&token_file={secure}/bookies/{shown}.token"
        named = [f"--bookie-id={bookie_id}", f"--data-dir={tmp_path / bookie_id}", "--host=127.0.0.1"]
        named += [f"--metadata-uri={cluster.gateway_uri}{files}", f"--config={secure}/bookies/{shown}.toml"]
        return BookieProcess(
            bookie_id, tmp_path / bookie_id, ["--json", "--stop-with-parent", *named, "--port=0", "--http-port=0"]
        )

    own = bookie("bookie-4", "bookie-4")
    anothers = bookie("bookie-4", "bookie-5")
    try:
        anothers.start()
        with pytest.raises(ClusterException, match=r"token:bookie-5 may not do cookie\.\w+ to bookie:bookie-4"):
            anothers.wait_until_serving()
        own.start()
        own.wait_until_serving()
        with client(cluster, secure, "reader") as bookkeeper:
            assert "bookie-4" in {each.bookie_id for each in bookkeeper.bookies()}
    finally:
        for process in (own, anothers):
            process.terminate()
            process.wait()


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


@pytest.mark.long
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
            shown = asked.get(f"/api/v1/ledger/metadata?ledger_id={number.low}").json()[str(number.low)]
            if not any(each["id"] == lost.bookie_id for each in shown["allEnsembles"]["0"]):
                break
            assert time.monotonic() < deadline, shown
    lost.start()
    lost.wait_until_serving()
    with client(cluster, secure, "reader") as bookkeeper, bookkeeper.open_ledger(number) as handle:
        assert [bytes(entry.payload) for entry in handle.read(99, 99)] == [b"entry 99"]


def test_no_secret_is_told(
    cluster: StandaloneCluster, secure: Path, ledger: LedgerId, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs last: of all that was said until now, and of what commands, Spark and exceptions say."""
    secrets = [PASSWORD.decode(), *(path.read_text().strip() for path in secure.rglob("*.token"))]
    assert len(secrets) > len(TOKENS) + len(BOOKIES)
    told = [
        *_told_over_http(cluster, secure, ledger),
        *_told_by_commands(cluster, secure, ledger, tmp_path, monkeypatch),
    ]
    told += [*_told_by_spark(cluster, secure, ledger), *_told_by_exceptions(cluster, secure, ledger)]
    logs = [process.log.read_text() for process in cluster.processes]
    audits = [(process.data_dir / "audit.log").read_text() for process in cluster.processes]
    assert any("event=audit" in log and "principal=token:writer" in log for log in logs)
    assert any('"action": "ledger.read"' in audit for audit in audits)
    for secret in secrets:
        for form in (secret, secret.encode().hex(), base64.b64encode(secret.encode()).decode().rstrip("=")):
            assert [each for each in (*told, *logs, *audits) if form in each] == [], secret[:6]
    assert PASSWORD in (tmp_path / "operator.dump").read_bytes()
    assert not (tmp_path / "reader.dump").exists()
    for path in (*secure.rglob("*.token"), secure / "tokens", *secure.rglob("*.key"), *tmp_path.glob("*.dump")):
        assert re.fullmatch("0o100600", oct(path.stat().st_mode)), path


def _told_over_http(cluster: StandaloneCluster, secure: Path, ledger: LedgerId) -> Iterator[str]:
    with http(cluster, secure, token_of(secure, "operator")) as asked:
        metrics = asked.get("/metrics").text
        denied = re.search(r'^bookie_ACCESS\{door="http",outcome="denied",principal="token"\} (\S+)$', metrics, re.M)
        assert denied is not None
        assert float(denied[1]) > 0
        yield metrics
        for path in ("/api/v1/config/server_config", "/openapi.json", "/api/v1/console/cluster"):
            yield asked.get(path).text
        for path in ("/api/v1/ledger/metadata", "/api/v1/console/ledger"):
            yield asked.get(f"{path}?ledger_id={ledger}").text
        yield asked.get("/api/v1/ledger/list?print_metadata=true&decode_meta=false").text


def _told_by_commands(
    cluster: StandaloneCluster, secure: Path, ledger: LedgerId, directory: Path, environment: pytest.MonkeyPatch
) -> Iterator[str]:
    for name in ("operator", "reader"):
        for key, value in settings_of(cluster, secure, name).items():
            environment.setenv(f"BOOKGATE_{key.upper()}", str(value))
        for arguments in (
            ("ledger", "show", str(ledger), "--json"),
            ("ledger", "show", str(ledger)),
            ("ledger", "list", "--json"),
            # A dump has the password, as it says, and is its owner's file; what is printed of it has none.
            ("ledger", "metadata", "dump", str(ledger), str(directory / f"{name}.dump"), "--json"),
            ("ledger", "read", str(ledger), "--password", "wrong", "--json"),
            ("doctor", "--json"),
            ("config", "show", "--json"),
            ("cluster", "info", "--json"),
        ):
            result = CliRunner().invoke(app, list(arguments))
            yield f"{arguments}: {result.output} {result.stderr}"


def _told_by_spark(cluster: StandaloneCluster, secure: Path, ledger: LedgerId) -> Iterator[str]:
    """The table of ledgers, what a plan shows of a reader, and what goes to tasks that need no password."""
    settings = settings_of(cluster, secure, "operator")
    raw = {f"client.{key}": str(value) for key, value in settings.items() if key != "gateways"}
    options = parse_options({"gateways": cluster.gateway_uri, "table": "ledgers", "password": PASSWORD.decode(), **raw})
    reader = LedgersReader(options)
    yield repr(options)
    yield repr(reader)
    for part in reader.partitions():
        for batch in reader.read(part):
            yield str(batch.to_pylist())


def _told_by_exceptions(cluster: StandaloneCluster, secure: Path, ledger: LedgerId) -> Iterator[str]:
    for name in ("writer", "reader"):
        with client(cluster, secure, name) as bookkeeper:
            asked: list[Callable[[], object]] = [
                partial(bookkeeper.open_ledger, ledger, password=PASSWORD + b"x"),
                partial(bookkeeper.create_ledger, 5, 5, 5, password=PASSWORD),
            ]
            for ask in asked:
                with pytest.raises(BKException) as refused:
                    ask()
                yield "".join(traceback.format_exception(refused.value))
            yield repr(bookkeeper.config)
    wrong = {"token": [token_of(secure, "writer")], "auth_token": {"a": token_of(secure, "reader")}}
    with pytest.raises(IncorrectParameterException, match="auth_token") as caught:
        ClientConfig(**settings_of(cluster, secure, "writer") | wrong)
    yield str(caught.value)
