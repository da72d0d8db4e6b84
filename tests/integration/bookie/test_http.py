"""What a bookie answers over HTTP."""

from __future__ import annotations

import json
import urllib.request

from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.ledger.wire.messages import Status
from bookgate.thinclient.blocking.client import BookKeeper
from tests.integration.bookie.entry_client import EntryClient, add, read


def get(cluster: StandaloneCluster, path: str) -> str:
    with urllib.request.urlopen(f"http://{cluster.http[0]}{path}", timeout=10) as response:
        return str(response.read().decode())


def metric(cluster: StandaloneCluster, beginning: str) -> float:
    """The sum of the samples whose line begins so."""
    lines = [line for line in get(cluster, "/metrics").splitlines() if line.startswith(beginning)]
    assert lines, beginning
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def test_health_and_state(standalone_cluster: StandaloneCluster) -> None:
    assert get(standalone_cluster, "/heartbeat") == "OK\n"
    assert get(standalone_cluster, "/api/v1/bookie/is_ready") == "OK"
    state = json.loads(get(standalone_cluster, "/api/v1/bookie/state"))
    assert state == {
        "running": True,
        "readOnly": False,
        "shuttingDown": False,
        "availableForHighPriorityWrites": True,
        "registered": True,
    }
    info = json.loads(get(standalone_cluster, "/api/v1/bookie/info"))
    assert 0 < info["freeSpace"] <= info["totalSpace"]


def test_metrics_count_what_happens(standalone_cluster: StandaloneCluster) -> None:
    assert metric(standalone_cluster, "bookie_SERVER_STATUS ") == 1
    adds = metric(standalone_cluster, "bookkeeper_server_ADD_ENTRY_COUNT")
    reads = metric(standalone_cluster, "bookkeeper_server_READ_ENTRY_COUNT")
    refused = metric(standalone_cluster, "bookkeeper_server_READ_ENTRY_REFUSED")
    with EntryClient(standalone_cluster.bookies[0]) as client:
        assert client.status(add(77_000_001, 0)) == Status.EOK
        assert client.status(read(77_000_001, 0)) == Status.EOK
        assert client.status(read(77_000_001, 1)) == Status.ENOENTRY
    assert metric(standalone_cluster, "bookkeeper_server_ADD_ENTRY_COUNT") == adds + 1
    assert metric(standalone_cluster, "bookkeeper_server_READ_ENTRY_COUNT") == reads + 1
    assert metric(standalone_cluster, "bookkeeper_server_READ_ENTRY_REFUSED") == refused + 1


def test_metrics_of_the_gateway_it_hosts_are_there_too(standalone_cluster: StandaloneCluster) -> None:
    with BookKeeper.connect(f"grpc://{standalone_cluster.gateways[0]}") as bookkeeper:
        bookkeeper.bookies()
    assert metric(standalone_cluster, "bookgate_gateway_requests_total") > 0
