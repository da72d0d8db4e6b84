"""docs/reference/metrics.md is what running processes show: same names, types, labels and words."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2 import LedgerMetadataRequest
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2_grpc import LedgerMetadataServiceStub
from bookgate.runtime import background
from bookgate.thinclient.blocking.client import BookKeeper
from bookgate.thinclient.metrics import ClientMetrics

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| `(\w+)` \| (\w+) \| (.*?) \| (.*) \|$", re.MULTILINE)


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_metrics", ROOT / "docs" / "generate_metrics.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


generator = _generator()
PAGE = generator.PAGE.read_text(encoding="utf-8")


def documented(*sections: str) -> set[tuple[str, ...]]:
    """The rows of these sections: name, type, labels, meaning."""
    return {row for title in sections for row in ROW.findall(PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0])}


def shown(scrape: str) -> set[tuple[str, ...]]:
    return set(ROW.findall("\n".join(generator._rows(generator.families(scrape)))))


def auditor_of(cluster: StandaloneCluster) -> int:
    """The place of the bookie that is the auditor; whatever it alone tells is documented too."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for place, http in enumerate(cluster.http):
            if "\nauditor_IS_AUDITOR 1.0\n" in generator.scrape(f"http://{http}/metrics"):
                return place
        time.sleep(0.1)
    raise AssertionError("no bookie is the auditor")


@contextmanager
def gateway_alone(metadata_uri: str) -> Iterator[dict[str, Any]]:
    command = [
        sys.executable,
        "-m",
        "bookgate",
        "gateway",
        "--metadata-uri",
        metadata_uri,
        "--port=0",
        "--http-port=0",
        "--json",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()


def test_the_page_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    # Other tests of this process may have had tasks that failed; `make reference` has none.
    monkeypatch.setattr(background, "RESTARTS", Counter())
    page = generator.render_page(*asyncio.run(generator.measured()))
    assert page == PAGE, "run: make reference"


@pytest.mark.parametrize("of_its_own", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_bookie_of_a_cluster_shows_what_is_documented(request: pytest.FixtureRequest, *, of_its_own: bool) -> None:
    """With a gateway in the bookie's process, and in one of its own beside auto-recovery, at the auditor."""
    cluster: StandaloneCluster = request.getfixturevalue("cluster_of_processes" if of_its_own else "standalone_cluster")
    bookie = auditor_of(cluster) if of_its_own else 0
    url = f"http://{cluster.http[bookie]}/metrics"
    # A client chooses among the gateways; this one is asked here, so that it has series of every label.
    with grpc.insecure_channel(cluster.gateways[bookie]) as channel:
        LedgerMetadataServiceStub(channel).Read(LedgerMetadataRequest(ledger_id=10**15), timeout=10)
    found = shown(generator.settled(url))
    assert found == documented(
        "Bookie", "Gateway", "Process", *(["Gateway's process", "Auto-recovery"] if of_its_own else [])
    )
    names = {name for name, *_ in found}
    assert {"bookie_WRITE_BYTES", "bookie_gc_DELETED_LEDGER_TOTAL"} <= names, (
        "BookKeeper's names, with nothing at the end"
    )


def test_a_gateway_alone_shows_what_is_documented(standalone_cluster: StandaloneCluster) -> None:
    with gateway_alone(standalone_cluster.metadata_uri) as addresses:
        with BookKeeper.connect(f"grpc://{addresses['gateway']}") as client:
            for _ in range(8):  # it learns of the bookies' gateways, and asks each in its turn
                client.create_ledger().close()
        assert shown(generator.scrape(f"http://{addresses['http'][0]}/metrics")) == documented("Gateway", "Process")


def test_prometheus_client_shows_those_of_a_client() -> None:
    """Counters as untyped: prometheus-client would rename them otherwise."""
    registry = CollectorRegistry()
    registry.register(ClientMetrics().collector())
    scrape = generate_latest(registry).decode()
    found = {
        (name, kind.replace("counter", "unknown").replace("untyped", "unknown")) for name, kind, *_ in shown(scrape)
    }
    assert found == {(name, kind.replace("counter", "unknown")) for name, kind, *_ in documented("Client")}


@pytest.mark.parametrize(
    "section",
    [
        *("Bookie", "Auto-recovery", "Gateway", "Gateway's process", "Host with several bookies", "Process", "Client"),
        "Spark job",
    ],
)
def test_every_metric_has_a_meaning(section: str) -> None:
    rows = documented(section)
    assert rows
    assert all(meaning.strip() for *_, meaning in rows)
