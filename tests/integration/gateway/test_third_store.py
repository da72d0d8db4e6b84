"""A metadata store that is no part of Bookgate, used by its processes: all they know of it are its entry points."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from bookgate.thinclient.client import BookKeeper
from tests.forked_commands import COMMAND
from tests.integration.gateway.conftest import THIRD_STORE

PASSWORD = {"BOOKGATE_GATEWAY_TINY_PASSWORD": "hushhush"}
PRODUCT = Path(__file__).parents[3]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=60, env={**os.environ, **environment}
    )


@contextmanager
def serving(*arguments: str, **environment: str) -> Iterator[dict[str, Any]]:
    """A process that announces itself in JSON; it must stop cleanly when told to."""
    command = [*COMMAND, *arguments, "--host", "127.0.0.1", "--port", "0", "--http-port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()
            assert process.wait(60) == 0


@pytest.fixture
def uri(tmp_path: Path, third_store: None) -> str:
    """A cluster that was made with a password, by the command."""
    uri = f"tiny://{tmp_path}/tiny"
    made = run("cluster", "init", "--metadata-uri", uri, "--json", **PASSWORD)
    assert json.loads(made.stdout)["ledger_manager"] == "tiny_store.TinyLedgerManager", made.stderr
    return uri


def test_gateway_and_bookie_serve_a_client_over_it(uri: str, tmp_path: Path) -> None:
    """The gateway learns the password from its environment, the bookie from the table of its file."""
    file = tmp_path / "bookie.toml"
    file.write_text('[gateway]\ntiny_password = "hushhush"\ntiny_look_seconds = 0.01\n')
    bookie_options = ("--metadata-uri", uri, "--data-dir", f"{tmp_path}/data", "--gateway-port", "0")
    with (
        serving("gateway", "--metadata-uri", uri, **PASSWORD) as gateway,
        serving("bookie", "start", "--config", str(file), *bookie_options) as bookie,
    ):
        asyncio.run(write_and_read(gateway["gateway"], bookie["gateway"]))
        for settings in (gateway["http"][0], bookie["http"]):
            shown = httpx.get(f"http://{settings}/api/v1/config/server_config")
            assert "tiny_password" in shown.text
            assert "hushhush" not in shown.text
        summary = json.loads(run("cluster", "info", "--metadata-uri", uri, "--json", **PASSWORD).stdout)
        assert (summary["ledgers"], summary["writable_bookies"], summary["known_bookies"]) == (1, 1, 1)
        refused = run("cluster", "nuke", "--metadata-uri", uri, "--yes", **PASSWORD)
        assert (refused.returncode, "while bookies are registered" in refused.stderr) == (1, True)
    assert run("cluster", "nuke", "--metadata-uri", uri, "--yes", **PASSWORD).returncode == 0


async def write_and_read(gateway: str, other_gateway: str) -> None:
    """Written by way of one process, read by way of the other."""
    async with (
        await BookKeeper.connect(f"grpc://{gateway}") as writing,
        await BookKeeper.connect(f"grpc://{other_gateway}") as reading,
    ):
        ledger = await writing.create_ledger(
            ensemble_size=1, write_quorum_size=1, ack_quorum_size=1, password=b"planted-pw"
        )
        for number in range(20):
            await ledger.append(b"%d" % number)
        await ledger.close()
        pages = [page async for page in reading.list_ledgers()]
        assert [record.metadata.last_entry_id for page in pages for record in page] == [19]
        async with await reading.open_ledger(ledger.ledger_id, password=b"planted-pw") as reader:
            assert [entry.payload async for entry in reader.read(0, 19)] == [b"%d" % number for number in range(20)]


@pytest.mark.long
def test_its_settings_are_checked_like_all_others(uri: str, tmp_path: Path) -> None:
    without = run("gateway", "--metadata-uri", uri, "--port", "0")
    assert without.stderr.splitlines()[-1].startswith("error: tiny_password is not that of the cluster")
    file = tmp_path / "gateway.toml"
    file.write_text(f'metadata_uri = "{uri}"\ntiny_look_seconds = 0\ntiny_pasword = "x"\n')
    wrong = run("config", "check", str(file))
    assert "did you mean tiny_password?" in wrong.stdout
    assert "tiny_look_seconds" in wrong.stdout
    migrated = tmp_path / "bk.conf"
    migrated.write_text(f"metadataServiceUri={uri}\n")
    assert f'metadata_uri = "{uri}"' in run("config", "migrate", str(migrated)).stdout


def test_without_its_package_neither_scheme_nor_keys_are_known(tmp_path: Path) -> None:
    refused = run("gateway", "--metadata-uri", f"tiny://{tmp_path}")
    assert "no driver for scheme 'tiny'; installed are grpc, grpcs, sqlite, zk" in refused.stderr
    assert "BOOKGATE_GATEWAY_TINY_PASSWORD" in run("gateway", "--metadata-uri", "sqlite:///m", **PASSWORD).stderr


def test_nothing_in_bookgate_names_it() -> None:
    folders = ("protos", "ledger", "runtime", "thinclient", "gateway", "bookie", "bookgate")
    sources = [file for folder in folders for file in (PRODUCT / folder).glob("**/*.py")]
    assert len(sources) > 300
    assert not [file for file in sources if "tiny_" in file.read_text() or "tiny:" in file.read_text()]
    assert "tiny" not in (PRODUCT / "pyproject.toml").read_text()
    assert (THIRD_STORE / "tiny_store-1.0.dist-info" / "entry_points.txt").is_file()
