"""TLS on every port and tokens wherever they can be asked for, at once, and tokens that change."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.ledger.errors import BKException, LedgerIdTakenException
from bookgate.thinclient.client import BookKeeper
from bookgate.thinclient.commands.main import app
from bookgate.thinclient.config import ClientConfig
from bookgate.thinclient.spark.options.read_options import parse_options
from bookgate.thinclient.spark.worker_client import client_config
from tests.integration.bookie.certificates import Files

pytestmark = pytest.mark.asyncio

SETTINGS = """
tls_cert = "{certificate}"
tls_key = "{key}"
tls_required = true
auth_provider = "bookgate-token"
auth_options = {{ file = "{tokens}" }}
http_tls = true
http_token = "for http"
[gateway]
tls_cert = "{certificate}"
tls_key = "{key}"
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def cluster(files: Files, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    root = tmp_path_factory.mktemp("secured")
    config = root / "bookie.toml"
    config.write_text(SETTINGS.format(certificate=files.certificate, key=files.key, tokens=files.tokens))
    with StandaloneCluster(root / "cluster", bookie_options=(f"--config={config}",)) as running:
        yield running


def uri(cluster: StandaloneCluster) -> str:
    return cluster.gateway_uri.replace("grpc://", "grpcs://")


@pytest.fixture
def token(files: Files, tmp_path: Path) -> Iterator[Path]:
    """The client's token file; the bookies' list is put back afterwards."""
    before = files.tokens.read_text()
    file = tmp_path / "token"
    file.write_text(before.splitlines()[0] + "\n")
    yield file
    files.tokens.write_text(before)


def settings(cluster: StandaloneCluster, files: Files, token: Path) -> dict[str, Any]:
    return {
        "gateways": uri(cluster),
        "tls_ca": files.authority,
        "bookie_tls": "start-tls",
        "auth_provider": "bookgate-token",
        "auth_token_file": token,
        "add_timeout_seconds": 60,
        "read_timeout_seconds": 60,
    }


async def write_and_read(client: BookKeeper) -> int:
    async with await client.create_ledger(3, 3, 2, password=b"planted-secret") as handle:
        await handle.append(b"entry")
    async with await client.open_ledger(handle.ledger_id, b"planted-secret") as reader:
        assert [entry.payload async for entry in reader.read(0, 0)] == [b"entry"]
    return handle.ledger_id.low


def put(file: Path, token: str) -> None:
    file.write_text(f"{token}\n")


async def use(config: ClientConfig) -> None:
    async with await BookKeeper.connect(config=config) as client:
        await write_and_read(client)


@pytest.mark.parametrize("bookie_tls", ["start-tls", "native"])
async def test_the_client(cluster: StandaloneCluster, files: Files, token: Path, bookie_tls: str) -> None:
    config = ClientConfig(**settings(cluster, files, token) | {"bookie_tls": bookie_tls})
    async with await BookKeeper.connect(config=config) as client:
        await write_and_read(client)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bookie_tls": "off"}, "refuses the authentication"),
        ({"auth_provider": None, "auth_token_file": None}, "auth_provider"),
        ({"auth_token_file": None, "auth_token": "wrong"}, "refuses the authentication"),
        ({"tls_ca": None}, "tls_ca"),
        ({"gateways": "in clear"}, "grpcs"),
    ],
    ids=["entry port in clear", "no token", "wrong token", "no authority", "gateway in clear"],
)
async def test_what_is_missing_or_wrong_is_named(
    cluster: StandaloneCluster, files: Files, token: Path, change: dict[str, Any], message: str
) -> None:
    chosen = settings(cluster, files, token) | change | {"metadata_timeout_seconds": 3, "connect_timeout_seconds": 3}
    if chosen["gateways"] == "in clear":
        chosen |= {"gateways": cluster.gateway_uri, "tls_ca": None}
    with pytest.raises(BKException) as refused:
        await use(ClientConfig(**chosen))
    assert not isinstance(refused.value, LedgerIdTakenException) or "auth_provider" in message
    assert message.lower() in str(refused.value).lower()


async def test_a_token_that_changes(cluster: StandaloneCluster, files: Files, token: Path) -> None:
    """The order of operations.md: the new one is added, clients move, the old one goes. Connections stay."""
    config = ClientConfig(**settings(cluster, files, token))
    async with await BookKeeper.connect(config=config) as before:
        await write_and_read(before)
        files.tokens.write_text("open sesame\na new one\n")
        put(token, "a new one")
        async with await BookKeeper.connect(config=config) as after:
            await write_and_read(after)
        files.tokens.write_text("a new one\n")
        await write_and_read(before)
        async with await BookKeeper.connect(config=config) as after:
            await write_and_read(after)
        put(token, "open sesame")
        with pytest.raises(BKException, match="refuses the authentication"):
            await use(config)


async def test_spark_workers(cluster: StandaloneCluster, files: Files, token: Path) -> None:
    """Their client is made of the options of a query, without asking a gateway."""
    raw = {f"client.{key}": str(value) for key, value in settings(cluster, files, token).items() if key != "gateways"}
    options = parse_options({"gateways": uri(cluster), **raw}, {})
    async with BookKeeper.connect_lazily(options.gateways, client_config(options.client_settings)) as client:
        await write_and_read(client)


async def test_commands_doctor_and_http(
    cluster: StandaloneCluster, files: Files, token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in settings(cluster, files, token).items():
        monkeypatch.setenv(f"BOOKGATE_{key.upper()}", str(value))
    monkeypatch.setenv("SSL_CERT_FILE", str(files.authority))
    monkeypatch.setenv("BOOKGATE_HTTP_TOKEN", "for http")

    async def run(*arguments: str) -> tuple[int, str]:
        result = await asyncio.to_thread(CliRunner().invoke, app, list(arguments))
        return result.exit_code, result.output + result.stderr

    for arguments in (
        ["ledger", "simple-test", "-n", "5"],
        ["bookie", "info"],
        ["bookie", "sanity", "bookie-1"],
        ["gc", "trigger", "bookie-1"],
    ):
        code, output = await run(*arguments)
        assert code == 0, (arguments, output)
    code, output = await run("doctor", "--json")
    found = json.loads(output[output.index("{") :])["findings"]
    assert [each for each in found if each["level"] == "error" and "disks are" not in each["what"]] == []

    context = ssl.create_default_context(cafile=str(files.authority))
    async with httpx.AsyncClient(base_url=f"https://{cluster.http[0]}", verify=context) as http:
        assert (await http.get("/")).status_code == 200
        assert (await http.get("/metrics")).status_code == 200
        assert (await http.put("/api/v1/bookie/gc")).status_code == 401
        headers = {"Authorization": "Bearer for http"}
        assert (await http.put("/api/v1/bookie/gc", headers=headers)).status_code == 200
