"""A bookie that may have 256 files open, and clients that want all of them: it goes on, whichever port they come to."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from bookgate.bookie.standalone.cluster import make_cluster
from bookgate.ledger.wire.messages import Status
from bookgate.protos.bookkeeper.gateway.v1 import service_discovery_pb2 as sd
from bookgate.protos.bookkeeper.gateway.v1.service_discovery_pb2_grpc import ServiceDiscoveryStub
from tests.integration.bookie.certificates import Files
from tests.integration.bookie.entry_client import EntryClient, add, read

LIMIT = 256
WAVES, SOCKETS = 2, 250
_LIMITED = 'ulimit -n "$0"; exec "$@"'


class LimitedBookie:
    """A bookie's process with a checkpoint every fifth of a second and few descriptors."""

    def __init__(self, root: Path, *options: str) -> None:
        self.ledgers = root / "ledgers"
        self.log = root / "bookie.log"
        make_cluster(f"sqlite://{root}/metadata.db")
        settings = [f"--metadata-uri=sqlite://{root}/metadata.db", f"--data-dir={root}", "--host=127.0.0.1"]
        settings += ["--port=0", "--gateway-port=0", "--http-port=0", "--set", "flush_interval_seconds=0.2"]
        command = ["bash", "-c", _LIMITED, str(LIMIT), sys.executable, "-m", "bookgate", "bookie", "start", "--json"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, *settings, *options], stdout=subprocess.PIPE, stderr=log, cwd=Path(__file__).parents[3]
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log.read_text()
        self.addresses: dict[str, str] = json.loads(line)

    @property
    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    @property
    def mark(self) -> bytes:
        """It moves with each checkpoint; empty before the first."""
        path = self.ledgers / "current" / "lastMark"
        return path.read_bytes() if path.exists() else b""


def greet_entry(connection: socket.socket) -> None:
    connection.sendall(b"\0\0")


def greet_http(connection: socket.socket) -> None:
    connection.sendall(b"GET /heartbeat HTTP/1.1\r\nHost: loc")


def say_nothing(_connection: socket.socket) -> None:
    pass


def crowd(address: str, greet: Callable[[socket.socket], None], sockets: contextlib.ExitStack) -> None:
    """As many connections as there are to be; what becomes of each is the bookie's affair."""
    host, _, port = address.rpartition(":")
    waiting = []
    for _ in range(SOCKETS):
        connection = sockets.enter_context(socket.socket())
        connection.setblocking(False)
        connection.connect_ex((host, int(port)))
        waiting.append(connection)
    # Those that find the queue full are taken in later, while the bookie is looked at.
    while waiting and (ready := select.select([], waiting, [], 0.5)[1]):
        for connection in ready:
            waiting.remove(connection)
            with contextlib.suppress(OSError):
                greet(connection)


def checkpoints_go_on(bookie: LimitedBookie, client: EntryClient, entry_ids: Iterator[int]) -> None:
    for _ in range(3):
        mark, entry_id = bookie.mark, next(entry_ids)
        deadline = time.monotonic() + 30
        assert client.status(add(1, entry_id)) == Status.EOK
        while bookie.mark == mark:
            assert bookie.process.poll() is None, bookie.log.read_text()
            assert time.monotonic() < deadline, bookie.log.read_text()
            assert client.status(read(1, entry_id)) == Status.EOK


def entry_serves(bookie: LimitedBookie) -> None:
    with EntryClient(bookie.addresses["bookie"]) as client:
        assert client.status(read(1, 0)) == Status.EOK


def gateway_serves(bookie: LimitedBookie) -> None:
    """Once those that said nothing have had their time."""
    with grpc.insecure_channel(bookie.addresses["gateway"]) as channel:
        stub: Any = ServiceDiscoveryStub(channel)
        assert stub.GetClusterInfo(sd.GetClusterInfoRequest(), timeout=60, wait_for_ready=True).instance_id


def http_serves(bookie: LimitedBookie) -> None:
    with urllib.request.urlopen(f"http://{bookie.addresses['http']}/heartbeat", timeout=20) as answer:
        assert answer.status == 200


PORTS = {
    "bookie": (greet_entry, entry_serves),
    "gateway": (say_nothing, gateway_serves),
    "http": (greet_http, http_serves),
}


@pytest.mark.parametrize("port", ["bookie", "http", pytest.param("gateway", marks=pytest.mark.long)])
def test_no_port_takes_the_descriptors_of_storage(tmp_path: Path, port: str) -> None:
    greet, serves = PORTS[port]
    bookie = LimitedBookie(tmp_path)
    entry_ids = iter(range(1000))
    try:
        with EntryClient(bookie.addresses["bookie"]) as client, contextlib.ExitStack() as sockets:
            assert client.status(add(1, next(entry_ids))) == Status.EOK
            for _ in range(WAVES):
                crowd(bookie.addresses[port], greet, sockets)
                checkpoints_go_on(bookie, client, entry_ids)
                assert bookie.descriptors < LIMIT - 16
            serves(bookie)
    finally:
        bookie.process.terminate()
    assert bookie.process.wait(60) == 0, bookie.log.read_text()
    assert "Too many open files" not in bookie.log.read_text()


def test_nor_do_handshakes_of_tls_at_http(tmp_path: Path) -> None:
    files = Files(tmp_path)
    tls = ["--set", f"tls_cert={files.certificate}", "--set", f"tls_key={files.key}", "--set", "http_tls=true"]
    bookie = LimitedBookie(tmp_path, *tls)
    try:
        with EntryClient(bookie.addresses["bookie"]) as client, contextlib.ExitStack() as sockets:
            crowd(bookie.addresses["http"], say_nothing, sockets)
            checkpoints_go_on(bookie, client, iter(range(1000)))
            assert bookie.descriptors < LIMIT - 16
    finally:
        bookie.process.terminate()
    assert bookie.process.wait(60) == 0, bookie.log.read_text()
    assert "Too many open files" not in bookie.log.read_text()
