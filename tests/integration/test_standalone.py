"""`bookgate standalone` as a user runs it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.thinclient.blocking.client import BookKeeper
from tests.held_ports import held_port

ROOT = Path(__file__).parents[2]
FREE_PORTS = ("--bookie-port=0", "--gateway-port=0", "--http-port=0")


@contextmanager
def standalone(data_dir: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Runs the command; stops it as Ctrl-C would, unless the test did."""
    command = [sys.executable, "-m", "bookgate", "standalone", f"--data-dir={data_dir}", *FREE_PORTS, *options]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=data_dir.parent,
    ) as process:
        yield process
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_one_line_of_json_and_nothing_else(tmp_path: Path) -> None:
    with standalone(tmp_path / "data", "--json", "--bookies=2") as process:
        printed = json.loads(first_line(process))
        assert list(printed) == ["gateways", "bookies", "http", "metadata_uri"]
        assert [len(printed[key]) for key in ("gateways", "bookies", "http")] == [2, 2, 2]
        assert printed["metadata_uri"] == f"sqlite://{tmp_path}/data/metadata.sqlite"
        for address in printed["gateways"] + printed["bookies"] + printed["http"]:
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), 10).close()
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
        assert (process.returncode, output, errors) == (0, "", "")


def test_data_is_kept_over_restarts(tmp_path: Path) -> None:
    with standalone(tmp_path / "data", "--json") as process:
        gateways = ",".join(json.loads(first_line(process))["gateways"])
        with BookKeeper.connect(f"grpc://{gateways}") as bookkeeper, bookkeeper.create_ledger() as ledger:
            ledger.append_all([b"one", b"two"])
    with standalone(tmp_path / "data", "--json") as process:
        gateways = ",".join(json.loads(first_line(process))["gateways"])
        with BookKeeper.connect(f"grpc://{gateways}") as bookkeeper:
            reader = bookkeeper.open_ledger(ledger.ledger_id)
            assert [entry.payload for entry in reader.read(0, 1)] == [b"one", b"two"]


@pytest.mark.long
def test_the_addresses_are_told_to_a_person(tmp_path: Path) -> None:
    with standalone(tmp_path / "data", "--bookies=1") as process:
        assert "Ctrl-C" in first_line(process)
        assert "grpc://127.0.0.1:" in first_line(process)


@pytest.mark.long
def test_two_clusters_do_not_share_a_data_directory(tmp_path: Path) -> None:
    with standalone(tmp_path / "data", "--json") as first:
        first_line(first)
        log = tmp_path / "data/bookie-1/bookie.log"
        said = log.read_bytes()
        assert said
        with standalone(tmp_path / "data") as second:
            output, errors = second.communicate(timeout=60)
            assert (second.returncode, output) == (1, "")
            assert errors.startswith("error: ")
            assert errors.count("\n") == 1
            assert "in use" in errors
            assert "{" not in errors
        assert log.read_bytes().startswith(said)


@pytest.mark.parametrize("option", ["--bookie-port", "--gateway-port", "--http-port"])
def test_a_port_in_use_is_named(tmp_path: Path, option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with standalone(tmp_path / "data", f"{option}={port}", "--bookies=1") as process:
            output, errors = process.communicate(timeout=60)
            assert (process.returncode, output) == (1, "")
            assert str(port) in errors
            assert "in use" in errors


def test_a_bookie_that_ends_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    with standalone(tmp_path / "data", "--json") as process:
        printed = json.loads(first_line(process))
        [children] = Path(f"/proc/{process.pid}/task").glob(f"{process.pid}/children")
        victim = next(
            int(pid)
            for pid in children.read_text().split()
            if "--bookie-id=bookie-2" in Path(f"/proc/{pid}/cmdline").read_text()
        )
        os.kill(victim, signal.SIGKILL)
        assert process.stderr is not None
        assert process.stderr.readline().startswith("bookie-2 has ended")
        with BookKeeper.connect("grpc://" + ",".join(printed["gateways"])) as bookkeeper:
            assert len(bookkeeper.bookies()) == 3


def test_metadata_that_can_not_be_reached_is_named(tmp_path: Path) -> None:
    with (
        held_port() as port,
        standalone(tmp_path / "data", f"--metadata-uri=zk+hierarchical://127.0.0.1:{port}/ledgers") as process,
    ):
        output, errors = process.communicate(timeout=90)
        assert (process.returncode, output) == (1, "")
        assert f"127.0.0.1:{port}" in errors
        assert "Traceback" not in errors


def test_bookies_run_no_code_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "typer.py").write_text("raise SystemExit(7)\n")
    monkeypatch.chdir(tmp_path)
    # Started as everywhere but in tests, which fork: nothing is imported yet.
    monkeypatch.setenv("PYTHONNOUSERSITE", "1")
    with StandaloneCluster(tmp_path / "data", 1) as cluster:
        assert cluster.processes[0].addresses["bookie_id"] == "bookie-1"
