"""`bookgate bench` and `bookgate ledger recover` against a real cluster."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

import pytest

from bookgate.bookie.standalone.cluster import StandaloneCluster
from tests.integration.cluster import standalone_cluster

__all__ = ["standalone_cluster"]


def bench(cluster: StandaloneCluster, *arguments: str) -> Any:
    command = [sys.executable, "-m", "bookgate", "bench", *arguments, "-g", cluster.gateway_uri, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_write_and_read(standalone_cluster: StandaloneCluster) -> None:
    written = bench(standalone_cluster, "write", "--entries", "2000", "--size", "100", "--outstanding", "50", "--keep")
    assert (written["entries"], written["bytes"], written["quorums"]) == (2000, 200_000, "3/3/2")
    assert 0 < written["p50_ms"] <= written["p99_ms"] <= written["max_ms"]
    ledger_id = str(written["ledger_id"])
    read = bench(standalone_cluster, "read", ledger_id, "--batch", "500")
    assert (read["entries"], read["bytes"]) == (2000, 200_000)
    read = bench(standalone_cluster, "read", ledger_id, "--order", "random", "--entries", "300", "--batch", "1")
    assert read["entries"] == 300


def test_an_interrupted_measurement_tells_what_it_has(standalone_cluster: StandaloneCluster) -> None:
    command = [sys.executable, "-m", "bookgate", "bench", "write", "--seconds", "600", "--keep", "--json"]
    process = subprocess.Popen(
        [*command, "-g", standalone_cluster.gateway_uri], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        assert process.stderr is not None
        ledger_id = int(process.stderr.readline().removeprefix("ledger "))
        process.send_signal(signal.SIGINT)
        told, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    result = json.loads(told)
    assert (result["interrupted"], result["ledger_id"]) == (True, ledger_id)
    assert bench(standalone_cluster, "read", str(ledger_id))["entries"] == result["entries"]


@pytest.mark.long
def test_a_ledger_that_is_not_kept_is_deleted(standalone_cluster: StandaloneCluster) -> None:
    def ledgers() -> Any:
        command = [sys.executable, "-m", "bookgate", "ledger", "list", "-g", standalone_cluster.gateway_uri]
        return json.loads(subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=60).stdout)

    before = ledgers()
    assert bench(standalone_cluster, "write", "--seconds", "0.3", "--outstanding", "1")["entries"] > 0
    assert ledgers() == before


@pytest.mark.long
def test_a_ledger_whose_writer_is_gone_is_recovered_by_command(standalone_cluster: StandaloneCluster) -> None:
    def ledger(*arguments: str) -> Any:
        command = [sys.executable, "-m", "bookgate", "ledger", *arguments, "-g", standalone_cluster.gateway_uri]
        done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    ledger_id = str(ledger("create")["ledger_id"])
    recovered = ledger("recover", ledger_id)
    assert (recovered["state"], recovered["last_entry_id"], recovered["recovered"]) == ("CLOSED", -1, True)
    assert ledger("recover", ledger_id)["recovered"] is False
