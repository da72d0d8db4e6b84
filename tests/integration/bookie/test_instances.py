"""`bookgate bookie start --instances N` as processes."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import termios
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bookgate.bookie.standalone.cluster import make_cluster
from bookgate.ledger.wire.messages import ReadResponse, Response, Status
from tests.held_ports import held_ports
from tests.integration.bookie.entry_client import EntryClient, add, packet, read

LEDGER = 4711
SECONDS = 60


class Host:
    """A supervisor: what it announced, and its log and its instances' line by line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        assert process.stderr is not None
        self._log = process.stderr
        self.announced = json.loads(process.stdout.readline() or "{}")

    @property
    def instances(self) -> list[dict[str, Any]]:
        """As the door shows them."""
        status, text = self.door("/api/v1/instances")
        assert status == 200
        shown: list[dict[str, Any]] = json.loads(text)
        return shown

    def log_line(self, *parts: str) -> dict[str, str]:
        """The fields of the next line of the log that has all parts."""
        for line in self._log:
            if all(part in line for part in parts):
                return dict(word.split("=", 1) for word in line.split() if "=" in word)
        raise AssertionError(f"the log ended without {parts}")

    def rest_of_the_log(self) -> str:
        """Ends with the last process that writes it."""
        return self._log.read()

    def door(self, path: str) -> tuple[int, str]:
        return over_http(self.announced["http"], path)


def entry_of(answer: Response) -> bytes:
    """What a read has found."""
    assert isinstance(answer, ReadResponse)
    assert answer.body is not None
    return bytes(answer.body)


def over_http(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=SECONDS) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def command(directory: Path, *options: str) -> list[str]:
    make_cluster(f"sqlite://{directory}/metadata.db")
    ports = () if any(option.startswith("--port") for option in options) else ("--port=0",)
    return [
        *(sys.executable, "-m", "bookgate", "bookie", "start", "--json", "--host=127.0.0.1", "--bookie-id=b"),
        *("--gateway-port=0", "--http-port=0", *ports, "--set=auto_recovery=false"),
        *(f"--metadata-uri=sqlite://{directory}/metadata.db", f"--data-dir={directory}/data", *options),
    ]


@contextmanager
def supervised(directory: Path, *options: str, terminal: int = subprocess.PIPE) -> Iterator[Host]:
    """`terminal`: a descriptor of the one that it runs in."""
    process = subprocess.Popen(
        command(directory, *options),
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=None if terminal == subprocess.PIPE else _take_terminal,
    )
    try:
        yield Host(process)
    finally:
        # The instances end with it.
        process.kill()
        process.communicate()


def _take_terminal() -> None:
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def refused(directory: Path, *options: str) -> str:
    result = subprocess.run(command(directory, *options), capture_output=True, text=True, timeout=SECONDS)
    assert result.returncode != 0
    assert "Traceback" not in result.stderr
    return result.stderr.splitlines()[-1]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    with supervised(tmp_path_factory.mktemp("host"), "--instances=2") as host:
        yield host


def test_door_shows_all_instances(host: Host) -> None:
    first, second = host.instances
    assert [(each["instance"], each["bookie_id"], each["state"]) for each in (first, second)] == [
        (1, "b-1", "serving"),
        (2, "b-2", "serving"),
    ]
    assert [each["bookie"] for each in host.announced["instances"]] == [first["bookie"], second["bookie"]]
    assert host.door("/heartbeat") == (200, "OK\n")
    assert host.door("/api/v1/bookie/is_ready") == (200, "OK")
    status, targets = host.door("/api/v1/instances/targets")
    assert (status, [each["targets"] for each in json.loads(targets)]) == (200, [[first["http"]], [second["http"]]])
    for each in json.loads(targets):
        assert "bookie_SERVER_STATUS 1.0" in over_http(each["targets"][0], "/metrics")[1]
    assert json.loads(targets)[1]["labels"] == {"__scheme__": "http", "bookie": "b-2", "number": "2"}
    assert "/api/v1/instances" in json.loads(host.door("/openapi.json")[1])["paths"]


def test_door_follows_the_mode_of_an_instance(host: Host) -> None:
    host.log_line("event=instances", "state=serving")
    second = host.instances[1]
    switch = urllib.request.Request(
        f"http://{second['http']}/api/v1/bookie/state/readonly",
        json.dumps({"readOnly": True}).encode(),
        {"Content-Type": "application/json"},
        method="PUT",
    )
    urllib.request.urlopen(switch, timeout=SECONDS).close()
    host.log_line("event=instance ", "state=read-only", "instance=2")
    assert host.instances[1]["state"] == "read-only"
    assert host.door("/api/v1/bookie/is_ready") == (200, "OK")
    switch.data = json.dumps({"readOnly": False}).encode()
    urllib.request.urlopen(switch, timeout=SECONDS).close()
    host.log_line("event=instance ", "state=serving", "instance=2")
    assert host.instances[1]["state"] == "serving"


def test_killed_instance_is_started_again_while_the_other_serves(host: Host) -> None:
    first, second = host.instances
    with EntryClient(first["bookie"]) as client:
        assert client.status(add(LEDGER, 0)) == Status.EOK
    with EntryClient(second["bookie"]) as client:
        os.kill(first["pid"], signal.SIGKILL)
        ended = host.log_line("event=instance", "state=ended", "instance=1")
        assert client.status(add(LEDGER, 0)) == Status.EOK
        assert ended["pause_seconds"] == "0.2"
        again = host.log_line("event=instance", "state=serving", "instance=1")
        assert client.status(add(LEDGER, 1)) == Status.EOK
    assert int(again["pid"]) != first["pid"]
    with EntryClient(again["address"]) as client:
        assert entry_of(client.ask(read(LEDGER, 0))) == packet(LEDGER, 0)
    assert [
        (each["restarts"], each["pid"] == before)
        for each, before in zip(host.instances, (int(again["pid"]), second["pid"]), strict=True)
    ] == [(1, True), (0, True)]
    metrics = host.door("/metrics")[1]
    assert 'bookgate_instance_restarts_total{number="1"} 1.0' in metrics
    assert 'bookgate_instance_up{number="2"} 1.0' in metrics


def test_hangup_renews_one_after_the_other(host: Host) -> None:
    before = [each["pid"] for each in host.instances]
    host.process.send_signal(signal.SIGHUP)
    for number in ("1", "2"):
        host.log_line("event=instance ", "state=renewing", f"instance={number}")
        host.log_line("event=instance ", "state=serving", f"instance={number}")
    host.log_line("event=instances", "state=renewed")
    assert not {*before} & {each["pid"] for each in host.instances}
    assert host.door("/api/v1/bookie/is_ready") == (200, "OK")


def test_hangup_of_all_processes_renews_one_after_the_other_too(host: Host) -> None:
    """`systemctl kill -s HUP` sends it to each of them; the instances would all end at once, and not in order."""
    before = [(each["pid"], each["restarts"]) for each in host.instances]
    for pid, _ in before:
        os.kill(pid, signal.SIGHUP)
    host.process.send_signal(signal.SIGHUP)
    host.log_line("event=instances", "state=renewing")
    assert host.log_line("event=instances")["state"] == "renewed"
    assert [each["restarts"] for each in host.instances] == [restarts for _, restarts in before]


@pytest.mark.parametrize("instances", ["--instances=2", "--instances=1"])
def test_the_end_of_its_terminal_stops_it_in_order(tmp_path: Path, instances: str) -> None:
    ours, its = pty.openpty()
    with supervised(tmp_path, instances, terminal=its) as host:
        os.close(its)
        os.close(ours)
        assert host.process.wait(SECONDS) == 0
        assert "state=renewing" not in host.rest_of_the_log()


def children_of(pid: int) -> list[int]:
    of_threads = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(each) for children in of_threads for each in children.read_text().split()]


def test_one_bookie_alone_ignores_a_hangup(tmp_path: Path) -> None:
    """Meant for a supervisor, and sent to the wrong host, it would end the bookie, not in order, for good."""
    with supervised(tmp_path, "--set=gateway_process=true") as host:
        (gateway,) = children_of(host.process.pid)
        os.kill(gateway, signal.SIGHUP)
        host.process.send_signal(signal.SIGHUP)
        with EntryClient(host.announced["bookie"]) as client:
            assert client.status(add(LEDGER, 0)) == Status.EOK
        assert "bookgate_gateway_process_restarts_total 0.0" in over_http(host.announced["http"], "/metrics")[1]
        assert children_of(host.process.pid) == [gateway]
        host.process.send_signal(signal.SIGTERM)
        assert host.process.wait(SECONDS) == 0


def test_stop_ends_all_and_a_restart_keeps_what_they_had(tmp_path: Path) -> None:
    with supervised(tmp_path, "--instances=2") as host:
        pids = [each["pid"] for each in host.instances]
        for index, each in enumerate(host.announced["instances"]):
            with EntryClient(each["bookie"]) as client:
                assert client.status(add(LEDGER + index, 0)) == Status.EOK
        host.process.send_signal(signal.SIGTERM)
        assert host.process.wait(SECONDS) == 0
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)

    told = refused(tmp_path, "--instances=1")
    assert "holds data of instance 2" in told
    assert "decommission instance 2 first" in told
    assert "--set instance=NUMBER" in refused(tmp_path, "--instances=2", "--accept-loss")

    with supervised(tmp_path, "--instances=auto") as host:
        assert [each["bookie_id"] for each in host.instances] == ["b-1", "b-2"]
        for index, each in enumerate(host.announced["instances"]):
            with EntryClient(each["bookie"]) as client:
                assert entry_of(client.ask(read(LEDGER + index, 0))) == packet(LEDGER + index, 0)
        host.process.kill()
        host.process.wait(SECONDS)
        assert host.rest_of_the_log().count("event=gateway ") >= 2


def test_instance_that_can_not_start_leaves_the_other_alone(tmp_path: Path) -> None:
    with (
        held_ports(2) as (own, taken),
        socket.create_server(("127.0.0.1", taken)) as other,
        supervised(tmp_path, "--instances=2", f"--port={own}") as host,
    ):
        assert [each["instance"] for each in host.announced["instances"]] == [1]
        status, told = host.door("/api/v1/bookie/is_ready")
        assert status == 503
        assert "of 2 instances 2 is " in told
        assert f"port {taken} on 127.0.0.1 is in use" in str(host.instances[1]["error"])
        before = host.instances[0]
        host.process.send_signal(signal.SIGHUP)
        host.log_line("event=instances", "state=renewal_broken_off", "away=2")
        assert host.instances[0] == before
        other.close()
        host.log_line("event=instance ", "state=serving", "instance=2")
        assert host.door("/api/v1/bookie/is_ready") == (200, "OK")


def test_where_none_starts_their_reasons_are_told(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for number in (1, 2):
        (tmp_path / "data" / f"instance-{number}").write_text("in the way")
    told = refused(tmp_path, "--instances=2")
    assert "instance 1: " in told
    assert "instance 2: " in told
    assert "Not a directory" in told


def test_one_instance_alone_is_a_bookie(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command(tmp_path, "--instances=2", "--set=instance=2"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["bookie_id"] == "b-2"
        assert (tmp_path / "data" / "instance-2" / "journal" / "current" / "VERSION").is_file()
    finally:
        process.terminate()
        process.communicate()
