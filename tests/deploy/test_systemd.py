"""The systemd units and the example configurations."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bookgate.bookie.commands.config import app as config_app
from bookgate.bookie.config.bookie import BookieConfig, load_config
from bookgate.bookie.tools.trial_security.files import make
from bookgate.gateway.config import GatewayConfig
from bookgate.runtime.security.access_control import AccessControl
from bookgate.runtime.security.actions import Action
from bookgate.runtime.security.decision import Resource
from bookgate.runtime.security.principal import CertificateNames, Kind, Principal
from bookgate.thinclient.blocking.client import BookKeeper
from bookgate.thinclient.commands.main import app as bookgate
from tests.deploy.prometheus_server import DEPLOY, ROOT
from tests.stores import made

_PR_SET_MDWE, _PR_GET_MDWE = 65, 66
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
EXAMPLES = sorted((DEPLOY / "examples").glob("*.toml"))


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("there is no systemd-analyze here")
    return subprocess.run([tool, *arguments], capture_output=True, text=True, timeout=60, check=False)


def value(unit: Path, key: str) -> str:
    [found] = [line.partition("=")[2] for line in unit.read_text().splitlines() if line.startswith(f"{key}=")]
    return found


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_understands_the_unit(unit: Path, tmp_path: Path) -> None:
    here = tmp_path / unit.name
    here.write_text(unit.read_text().replace("/opt/bookgate/bin/bookgate", "/bin/true").replace("bookgate\n", "root\n"))
    result = analyze("verify", "--man=no", str(here))
    told = [line for line in result.stderr.splitlines() if unit.name in line]
    assert (result.returncode, told) == (0, [])


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_the_service_is_confined(unit: Path) -> None:
    """10 is nothing at all; below 2 systemd calls it OK."""
    result = analyze("security", "--offline=true", "--threshold=20", "--no-pager", str(unit))
    assert result.returncode == 0, result.stdout[-600:]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_the_command_exists(unit: Path) -> None:
    program, *arguments = value(unit, "ExecStart").split()
    assert program == "/opt/bookgate/bin/bookgate"
    part = arguments[0]
    assert arguments == [part, "start", "--config", f"/etc/bookgate/{part}.toml"]
    assert f"Settings: /etc/bookgate/{part}.toml" in unit.read_text()
    assert CliRunner().invoke(bookgate, [part, "start", "--help"]).exit_code == 0
    assert (DEPLOY / "examples" / f"{part}.toml") in EXAMPLES
    # The folder stays root's; as systemd makes it (0755) the service's user can enter it.
    assert "ConfigurationDirectoryMode" not in unit.read_text()


@pytest.mark.parametrize("storage", ["sorted", "db"])
def test_a_bookie_lives_without_memory_that_is_written_and_executed(tmp_path: Path, storage: str) -> None:
    """MemoryDenyWriteExecute=true, as the kernel does it for any process that asks (Linux 6.3)."""
    assert value(DEPLOY / "systemd" / "bookgate-bookie.service", "MemoryDenyWriteExecute") == "true"
    if ctypes.CDLL(None).prctl(_PR_GET_MDWE, 0, 0, 0, 0) < 0:
        pytest.skip("this kernel does not know it")
    confined = f"import ctypes, runpy; assert ctypes.CDLL(None).prctl({_PR_SET_MDWE}, 1, 0, 0, 0) == 0; "
    uri = made(f"sqlite://{tmp_path}/m")
    settings = [f"--data-dir={tmp_path}", f"--metadata-uri={uri}", "--port=0", "--gateway-port=0"]
    settings += ["--http-port=0", "--host=127.0.0.1", f"--set=storage_type={storage}", "--json", "--stop-with-parent"]
    command = [
        sys.executable,
        "-c",
        confined + "runpy.run_module('bookgate', run_name='__main__')",
        "bookie",
        *settings,
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        addresses = json.loads(process.stdout.readline())
        with BookKeeper.connect(f"grpc://{addresses['gateway']}") as client:
            with client.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1) as ledger:
                ledger.append(b"an entry")
            assert len(list(client.open_ledger(ledger.ledger_id).read(0, 0))) == 1
        process.terminate()
        assert process.wait(30) == 0


def test_the_user_is_made() -> None:
    user = (DEPLOY / "systemd" / "bookgate.sysusers.conf").read_text().splitlines()[-1].split()
    for unit in UNITS:
        assert user[:2] == ["u", value(unit, "User")]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_the_example_configuration_is_accepted(example: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOOKGATE_GATEWAY_ZOOKEEPER_AUTH", "bookgate:secret")
    result = CliRunner().invoke(config_app, ["check", str(example)])
    assert result.exit_code == 0, result.output


def settings_of_examples(tmp_path: Path) -> tuple[BookieConfig, GatewayConfig]:
    """The examples with the set that they name, made at another place."""
    hosts = ["bookie-1.example.net"]
    make(tmp_path / "secure", ["bookie-1", "bookie-2"], hosts)
    for example in EXAMPLES:
        text = example.read_text().replace("/etc/bookgate/secure", str(tmp_path / "secure"))
        (tmp_path / example.name).write_text(text.replace("/var/log/bookgate", str(tmp_path)))
    return load_config(tmp_path / "bookie.toml"), GatewayConfig.load(tmp_path / "gateway.toml", {})


def test_the_examples_use_what_security_init_makes(tmp_path: Path) -> None:
    """Each file that they name is there, and who may do what is the same at every door."""
    bookie, gateway = settings_of_examples(tmp_path)
    hosted = bookie.hosted_gateway()
    for files in (bookie.tls_cert, bookie.tls_key, bookie.tls_client_ca, gateway.tls_cert, gateway.tls_key):
        assert Path(str(files)).is_file()
    assert bookie.http_contexts() is not None
    assert gateway.http_contexts() is not None
    mine = CertificateNames("CN=bookie-1,O=Example")
    for each in (bookie, hosted, gateway):
        access = AccessControl.from_settings(each)
        assert access is not None
        assert access.has_policy
        assert access.authenticate(door="grpc", peer="p", bearer=token(tmp_path, "reader")).name == "reader"
        for who in (access.authenticate(door="grpc", peer="p"), Principal(Kind.TLS, "CN=anybody")):
            for action in Action:
                assert not access.decide(who, action, Resource(0)), (who, action)
        access.close()
    access = AccessControl.from_settings(bookie)
    assert access is not None
    known = access.authenticate(door="entry", peer="p", certificate=mine)
    assert str(known) == "tls:CN=bookie-1"
    assert access.decide(known, Action.BOOKIE_REGISTER, Resource(bookie_id="bookie-1"))
    assert not access.decide(known, Action.BOOKIE_REGISTER, Resource(bookie_id="bookie-2"))
    access.close()


def token(folder: Path, name: str) -> str:
    return (folder / "secure" / f"{name}.token").read_text().strip()


def test_the_units_let_the_examples_write_their_audit_trail() -> None:
    for example in EXAMPLES:
        audit = Path(tomllib.loads(example.read_text())["audit_file"])
        unit = DEPLOY / "systemd" / f"bookgate-{example.stem}.service"
        assert audit.parent == Path("/var/log") / value(unit, "LogsDirectory")


def test_the_examples_hold_no_secret() -> None:
    for example in EXAMPLES:
        for line in example.read_text().splitlines():
            key = line.partition("=")[0].strip()
            assert key not in ("http_token", "zookeeper_auth", "auth_token"), f"{example}: {line}"
