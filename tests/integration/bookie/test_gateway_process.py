"""A bookie whose gateway is a process of its own: what either notices of the other."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from bookgate.bookie.standalone.cluster import BookieProcess, ClusterException, StandaloneCluster
from bookgate.ledger.wire.messages import Status
from bookgate.protos.bookkeeper.gateway.v1 import service_discovery_pb2 as sd
from bookgate.protos.bookkeeper.gateway.v1.service_discovery_pb2_grpc import ServiceDiscoveryStub
from bookgate.thinclient.blocking.client import BookKeeper
from tests.integration.bookie.certificates import Files, authority
from tests.integration.bookie.entry_client import EntryClient, add

LEDGER = 4711


@contextmanager
def bookie(directory: Path, *options: str, gateway_port: int = 0) -> Iterator[BookieProcess]:
    cluster = StandaloneCluster(
        directory, bookies=1, gateway_port=gateway_port, bookie_options=("--set=gateway_process=true", *options)
    )
    with cluster:
        yield cluster.processes[0]


def of_the_gateway(**settings: Any) -> str:
    return f"--set=gateway={json.dumps(settings)}"


def gateway_pid(process: BookieProcess) -> int:
    """Of the one started last."""
    started = re.findall(r"event=gateway_process .*state=serving pid=(\d+)", process.log.read_text())
    return int(started[-1])


def over_http(process: BookieProcess, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{process.addresses['http']}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def metric(process: BookieProcess, name: str) -> float | None:
    found = re.search(rf"^{name} (\S+)$", over_http(process, "/metrics")[1], re.MULTILINE)
    return float(found[1]) if found else None


def wait_for(condition: Any, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    """Ended, be it that nobody has asked for its exit code yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


class Adds(threading.Thread):
    """Adds one entry after the other; `slowest` is the longest that one took."""

    def __init__(self, process: BookieProcess) -> None:
        super().__init__(daemon=True)
        self._client = EntryClient.to(process)
        self._over = threading.Event()
        self.done = 0
        self.slowest = 0.0
        self.refused: list[int] = []

    def run(self) -> None:
        while not self._over.is_set():
            begun = time.monotonic()
            status = self._client.status(add(LEDGER, self.done))
            self.slowest = max(self.slowest, time.monotonic() - begun)
            self.done += 1
            if status != Status.EOK:
                self.refused.append(status)

    def stop(self) -> None:
        self._over.set()
        self.join(60)
        self._client.close()
        assert self.done
        assert not self.refused


def test_clients_see_no_difference(tmp_path: Path) -> None:
    with bookie(tmp_path) as process:
        uri = f"grpc://{process.addresses['gateway']}"
        with BookKeeper.connect(uri) as client, client.create_ledger(1, 1, 1) as ledger:
            ledger.append(b"entry")
            number = str(ledger.ledger_id)
        status, listed = over_http(process, "/api/v1/ledger/list?print_metadata=true&limit=1")
        assert status == 200
        assert json.loads(listed)[number]["state"] == "CLOSED"
        assert over_http(process, "/api/v1/ledger/list?limit=none")[0] == 400
        assert number in over_http(process, "/api/v1/console/ledgers")[1]
        assert json.loads(over_http(process, "/api/v1/console/ledger_counts")[1])["error"] is None
        assert over_http(process, "/api/v1/autorecovery/list_under_replicated_ledger") == (
            404,
            '{"error":"No under replicated ledgers found"}',
        )
        assert json.loads(over_http(process, "/api/v1/console/autorecovery?limit=1")[1])["marks"] == []
        shown = json.loads(over_http(process, "/api/v1/console/cluster")[1])["gateway"]
        assert {"watch_streams", "cache_hits"} <= {each["name"] for each in shown}
        wait_for(
            lambda: re.search(
                r'gateway_requests_total{code="SUCCESS",method="\w+"} ', over_http(process, "/metrics")[1]
            )
        )
        assert metric(process, "bookie_SERVER_STATUS") == 1
        assert metric(process, "bookgate_gateway_store_sessions") == 1
        assert metric(process, "bookgate_gateway_process_up") == 1
        resident = metric(process, "bookgate_gateway_process_resident_memory_bytes")
        assert resident is not None
        assert resident > 1e6


def test_a_gateway_that_is_killed_comes_back_at_its_port_and_adds_do_not_notice(tmp_path: Path) -> None:
    with bookie(tmp_path) as process:
        adds = Adds(process)
        adds.start()
        first = gateway_pid(process)
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: metric(process, "bookgate_gateway_process_restarts_total") == 1)
        wait_for(lambda: metric(process, "bookgate_gateway_process_up") == 1)
        assert gateway_pid(process) != first
        with grpc.insecure_channel(process.addresses["gateway"]) as channel:
            assert len(_cluster_info(channel).instance_id) == 36
        assert over_http(process, "/api/v1/ledger/list")[0] == 200
        adds.stop()
        assert "event=gateway_process" in process.log.read_text()
        assert "state=ended code=-9" in process.log.read_text()


@pytest.mark.long
def test_a_gateway_that_is_stopped_holds_up_neither_adds_nor_what_watches_the_bookie(tmp_path: Path) -> None:
    with bookie(tmp_path) as process:
        pid = gateway_pid(process)
        os.kill(pid, signal.SIGSTOP)
        try:
            wait_for(lambda: metric(process, "bookgate_gateway_process_up") == 0)
            with EntryClient.to(process) as client:
                assert client.status(add(LEDGER, 0)) == Status.EOK
            assert over_http(process, "/heartbeat") == (200, "OK\n")
            assert metric(process, "bookie_SERVER_STATUS") == 1
            status, text = over_http(process, "/api/v1/ledger/list")
            assert status == 503
            assert "try again" in json.loads(text)["error"]
        finally:
            os.kill(pid, signal.SIGCONT)
        wait_for(lambda: metric(process, "bookgate_gateway_process_up") == 1)
        assert gateway_pid(process) == pid
        assert over_http(process, "/api/v1/ledger/list")[0] == 200


@pytest.mark.long
def test_no_byte_of_a_listing_passes_through_the_bookie(tmp_path: Path) -> None:
    with bookie(tmp_path) as process:
        with BookKeeper.connect(f"grpc://{process.addresses['gateway']}") as client:
            for _ in range(20):
                client.create_ledger(1, 1, 1, custom_metadata={"k": bytes(600_000)}).close()
        assert process.process is not None
        connection = http.client.HTTPConnection(process.addresses["http"], timeout=60)
        with contextlib.closing(connection):
            connection.connect()
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
            connection.request("GET", "/api/v1/ledger/list?print_metadata=true")
            answer = connection.getresponse()
            begun = answer.read(1)
            os.kill(process.process.pid, signal.SIGSTOP)
            try:
                listed = json.loads(begun + answer.read())
            finally:
                os.kill(process.process.pid, signal.SIGCONT)
        assert len(listed) == 20
        assert over_http(process, "/heartbeat") == (200, "OK\n")


@pytest.mark.long
@pytest.mark.parametrize("stopped", [False, True])
def test_a_bookie_that_is_killed_leaves_no_gateway_and_comes_back_at_its_ports(
    tmp_path: Path, *, stopped: bool
) -> None:
    with bookie(tmp_path) as process:
        pid = gateway_pid(process)
        if stopped:
            os.kill(pid, signal.SIGSTOP)
        port = int(process.addresses["gateway"].rpartition(":")[2])
        process.kill()
        wait_for(lambda: is_gone(pid))
    with bookie(tmp_path, gateway_port=port) as again:
        assert again.addresses["gateway"] == f"127.0.0.1:{port}"


def test_a_stop_ends_both_and_says_no_error(tmp_path: Path) -> None:
    with bookie(tmp_path) as process:
        pid = gateway_pid(process)
        # As a service manager may do to all processes of a service.
        os.kill(pid, signal.SIGTERM)
        process.terminate()
        process.wait()
        assert is_gone(pid)
        log = process.log.read_text()
        assert "state=draining" in log
        assert "level=error" not in log


def test_a_port_in_use_is_the_bookies_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with (
            pytest.raises(ClusterException, match=f"port {port} of 127.0.0.1 is in use"),
            bookie(tmp_path, gateway_port=port),
        ):
            pass


def test_what_is_wrong_with_the_gateways_settings_is_the_bookies_error(tmp_path: Path) -> None:
    missing = f"{tmp_path}/nobody.pem"
    options = (of_the_gateway(tls_cert=missing, tls_key=missing),)
    with pytest.raises(ClusterException, match=re.escape(missing)), bookie(tmp_path, *options):
        pass


@pytest.mark.long
def test_tls_is_passed_on_and_no_secret_stands_where_others_read(tmp_path: Path) -> None:
    files = Files(tmp_path)
    options = of_the_gateway(
        tls_cert=str(files.certificate),
        tls_key=str(files.key),
        tls_client_ca=str(files.authority),
        tls_require_client_cert=True,
        http_token="hush-hush",
    )
    with bookie(tmp_path / "data", options) as process:
        address = process.addresses["gateway"]
        known = authority.issue_cert("client")
        chain = b"".join(pem.bytes() for pem in known.cert_chain_pems)
        roots = authority.cert_pem.bytes()
        identified = grpc.ssl_channel_credentials(roots, known.private_key_pem.bytes(), chain)
        with grpc.secure_channel(address, identified) as channel:
            assert len(_cluster_info(channel).instance_id) == 36
        with grpc.secure_channel(address, grpc.ssl_channel_credentials(roots)) as channel, pytest.raises(grpc.RpcError):
            _cluster_info(channel, wait=False)
        place = Path(f"/proc/{gateway_pid(process)}")
        assert b"hush" not in (place / "cmdline").read_bytes() + (place / "environ").read_bytes()
        assert "hush" not in process.log.read_text()


def _cluster_info(channel: grpc.Channel, *, wait: bool = True) -> Any:
    stub: Any = ServiceDiscoveryStub(channel)
    return stub.GetClusterInfo(sd.GetClusterInfoRequest(), timeout=30, wait_for_ready=wait)
