"""Bookies and gateways through failures that are to be expected: every line of their logs parses, none has a trace."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bookgate.bookie.standalone.cluster import BookieProcess, StandaloneCluster
from bookgate.bookie.standalone.local_zookeeper import LocalZooKeeper
from bookgate.ledger.wire.messages import Status
from tests.integration.bookie.entry_client import WRONG_KEY, EntryClient, add
from tests.integration.cluster import restart
from tests.stores import made
from tests.unit.runtime.log_lines import Line, parsed

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def events(process: BookieProcess) -> list[Line]:
    """What a bookie has logged since its last start; no line has a trace."""
    text = process.log.read_bytes()[process.log_begins :].decode()
    assert "Traceback" not in text
    # The last one may be half written.
    return parsed(text[: text.rfind("\n") + 1])


def has(process: BookieProcess, event: str, **fields: object) -> bool:
    return any(line.get("event") == event and fields.items() <= line.items() for line in events(process))


def wait_for(process: BookieProcess, event: str, **fields: object) -> None:
    until(lambda: has(process, event, **fields), f"{process.bookie_id} has not logged {event} {fields}")


@pytest.mark.long
def test_failures_to_be_expected(own_zookeeper: LocalZooKeeper, tmp_path: Path) -> None:
    cluster = StandaloneCluster(tmp_path / "cluster", bookies=2, metadata_uri=own_zookeeper.metadata_uri())
    json_bookie, text_bookie = cluster.processes
    json_bookie.arguments.append("--log-format=json")
    text_bookie.arguments.append("--log-format=text")
    with cluster:
        for bookie in cluster.processes:
            clients_that_misbehave(bookie)
            wait_for(bookie, "connection_closed", level="warning", bookie=bookie.bookie_id)
            closed = [line for line in events(bookie) if line.get("event") == "connection_closed"]
            assert all(str(line["peer"]).startswith("127.0.0.1:") for line in closed)
        text_bookie.kill()
        assert has(text_bookie, "bookie", state="serving")
        text_bookie.arguments += ["--set=disk_usage_threshold=0.001", "--set=disk_usage_warn_threshold=0.0005"]
        restart(text_bookie)
        wait_for(text_bookie, "journal_replayed", level="warning")
        wait_for(text_bookie, "disk", state="full, nothing is written to it any more", level="warning")
        own_zookeeper.stop()
        wait_for(json_bookie, "zookeeper_session", state="suspended")
        own_zookeeper.start()
        port_in_use(json_bookie, tmp_path)
        wait_for(json_bookie, "store", state="regained")
    for bookie in cluster.processes:
        assert has(bookie, "gateway", state="stopped")
        assert all(line["level"] != "critical" and "exception" not in line for line in events(bookie))
        assert all("bookie" in line for line in events(bookie))


def clients_that_misbehave(bookie: BookieProcess) -> None:
    """One says nothing sensible, one goes in the middle of a frame, one has a wrong password, others are lost."""
    with EntryClient.to(bookie) as client:
        assert client.status(add(1, 0)) == Status.EOK
        assert client.status(add(1, 1, key=WRONG_KEY)) == Status.EUA
    host, _, port = bookie.addresses["bookie"].rpartition(":")
    for sent in (b"\x7f\xff\xff\xff" + b"nonsense", b"\x00\x00\x01\x00half a frame"):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(sent)
    for kind in ("http", "gateway"):
        host, _, port = bookie.addresses[kind].rpartition(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(b"\x16\x03\x01 nonsense \r\n\r\n")


def port_in_use(bookie: BookieProcess, directory: Path) -> None:
    """A bookie and a gateway that want a port which is taken end with one line, in the form of the log."""
    uri = f"--metadata-uri={made(f'sqlite://{directory}/other.db')}"
    port = bookie.addresses["bookie"].rpartition(":")[2]
    others = (f"--data-dir={directory}/other", "--host=127.0.0.1", "--gateway-port=0", "--http-port=0")
    for command in (["bookie", "start", *others], ["gateway", "start"]):
        words = [sys.executable, "-m", "bookgate", *command, uri, f"--port={port}", "--log-format=json"]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE)
        assert (done.returncode, done.stdout) == (1, "")
        [line] = parsed(done.stderr)
        assert (line["event"], line["level"]) == ("process_failed", "critical")
        assert f"port {port}" in str(line["error"])
    text = subprocess.run(words[:-1], cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert text.stderr == f"error: {line['error']}\n"
