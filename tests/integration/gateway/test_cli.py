"""`bookgate gateway` as a process."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from bookgate.protos.bookkeeper.gateway.v1 import service_discovery_pb2 as sd
from bookgate.protos.bookkeeper.gateway.v1.service_discovery_pb2_grpc import ServiceDiscoveryStub
from tests.stores import made

COMMAND = [sys.executable, "-m", "bookgate", "gateway"]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environment}
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60, env=env)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_serves_until_told_to_stop(metadata_uri: str, how: signal.Signals) -> None:
    arguments = [*COMMAND, "--metadata-uri", metadata_uri, "--port", "0", "--json"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        announced = json.loads(process.stdout.readline())
        assert announced["metadata_uri"] == metadata_uri
        with grpc.insecure_channel(announced["gateway"]) as channel:
            info = ServiceDiscoveryStub(channel).GetClusterInfo(sd.GetClusterInfoRequest(), timeout=30)
        assert len(info.instance_id) == 36
        process.send_signal(how)
        assert process.wait(30) == 0
        assert process.stdout.read() == ""
        assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize(
    ("arguments", "hint", "code"),
    [
        ([], "--metadata-uri", 2),
        (["--metadata-uri", "etcd://h/x"], "etcd", 2),
        (["--metadata-uri", "sqlite:///no/such/dir/m.db"], "/no/such/dir", 1),
        (["--metadata-uri", "zk://127.0.0.1:1/ledgers"], "127.0.0.1:1", 1),
        (["--metadata-uri", "sqlite:///tmp/m.db", "--port", "70000"], "port", 2),
        (["--config", "/no/such/file.toml"], "/no/such/file.toml", 2),
    ],
    ids=["no-store", "scheme", "directory", "store-down", "port", "config"],
)
def test_errors_are_one_line(arguments: list[str], hint: str, code: int) -> None:
    """Wrong usage, settings and addresses included, is 2; what could not be done is 1."""
    result = run(*arguments)
    assert result.returncode == code
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert hint in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        result = run("--metadata-uri", made(f"sqlite://{tmp_path}/m.db"), "--port", port)
    assert result.returncode == 1
    assert result.stderr == f"error: port {port} of 127.0.0.1 is in use; choose another or stop its owner\n"


def test_options_win_over_environment_over_file(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text('metadata_uri = "from-file"\nhost = "127.0.0.2"\nport = 70000\n')
    result = run("--config", str(file), BOOKGATE_GATEWAY_METADATA_URI="environment://x", BOOKGATE_GATEWAY_PORT="1")
    assert "'environment'" in result.stderr
    result = run("--config", str(file), "--metadata-uri", "option://x", "--port", "1")
    assert "'option'" in result.stderr
    assert "port" in run("--config", str(file)).stderr


def test_unknown_key_in_the_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text('metadata_url = "sqlite:///x/y"\n')
    assert "metadata_url" in run("--config", str(file)).stderr
