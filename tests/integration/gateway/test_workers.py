"""`bookgate gateway --workers N` as processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from bookgate.protos.bookkeeper.gateway.v1 import service_discovery_pb2 as sd
from bookgate.protos.bookkeeper.gateway.v1.service_discovery_pb2_grpc import ServiceDiscoveryStub
from tests.stores import made

COMMAND = [sys.executable, "-m", "bookgate", "gateway"]


class Command:
    """A command that serves: what it announced, and its log line by line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        assert process.stderr is not None
        self.announced = json.loads(process.stdout.readline())
        self._log = process.stderr

    def log_line(self, *parts: str) -> dict[str, str]:
        """The fields of the next line of the log that has all parts."""
        for line in self._log:
            if all(part in line for part in parts):
                return dict(word.split("=", 1) for word in line.split() if "=" in word)
        raise AssertionError(f"the log ended without {parts}")

    def answers(self) -> bool:
        """Whether a call over a new connection is answered."""
        with grpc.insecure_channel(
            self.announced["gateway"], options=[("grpc.use_local_subchannel_pool", 1)]
        ) as channel:
            stub: Any = ServiceDiscoveryStub(channel)
            info = stub.GetClusterInfo(sd.GetClusterInfoRequest(), timeout=30, wait_for_ready=True)
        return len(info.instance_id) == 36


@contextmanager
def gateway(*arguments: str) -> Iterator[Command]:
    command = [*COMMAND, "--json", "--port", "0", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield Command(process)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return made(f"sqlite://{tmp_path}/metadata.db")


def test_workers_share_a_port_and_drain_together(uri: str) -> None:
    with gateway("--metadata-uri", uri, "--workers", "2", "--http-port", "0") as command:
        pids = {command.log_line("event=worker", "state=serving")["pid"] for _ in range(2)}
        assert len(pids) == 2
        assert all(command.answers() for _ in range(8))
        for address in command.announced["http"]:
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
                assert b"bookgate_gateway_store_sessions 1.0" in answer.read()
        command.process.send_signal(signal.SIGTERM)
        assert command.process.wait(60) == 0
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(int(pid), 0)


def test_dead_worker_is_started_again(uri: str) -> None:
    with gateway("--metadata-uri", uri, "--workers", "2") as command:
        first = command.log_line("event=worker", "state=serving")
        command.log_line("event=worker", "state=serving")
        os.kill(int(first["pid"]), signal.SIGKILL)
        again = command.log_line("event=worker", "state=serving", f"worker={first['worker']}")
        assert again["pid"] != first["pid"]
        assert again["address"] == first["address"]
        assert all(command.answers() for _ in range(4))


def test_workers_do_not_outlive_their_parent(uri: str) -> None:
    with gateway("--metadata-uri", uri, "--workers", "2") as command:
        command.process.kill()
        command.process.wait(30)
        # Its end of the pipe is the workers' as well: it closes when the last of them has gone.
        command.log_line("event=gateway", "state=stopped")
        command.log_line("event=gateway", "state=stopped")


def test_port_of_somebody_else_is_named(uri: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        result = _failing("--metadata-uri", uri, "--workers", "2", "--port", port)
    assert result.endswith(f"error: port {port} of 127.0.0.1 is in use; choose another or stop its owner\n")


@pytest.mark.long
def test_second_gateway_does_not_join_the_workers_of_the_first(uri: str) -> None:
    with gateway("--metadata-uri", uri, "--workers", "2") as command:
        port = command.announced["gateway"].rpartition(":")[2]
        for workers in ("1", "2"):
            assert "in use" in _failing("--metadata-uri", uri, "--workers", workers, "--port", port)


def test_what_stops_a_worker_is_the_commands_error(tmp_path: Path) -> None:
    result = _failing("--metadata-uri", f"sqlite://{tmp_path}/no/such/directory/m.db", "--workers", "2", "--port", "0")
    assert "/no/such/directory" in result.splitlines()[-1]
    assert "Traceback" not in result


def _failing(*arguments: str) -> str:
    result = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    return result.stderr
