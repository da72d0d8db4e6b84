"""Real clusters for tests: bookies as processes, each with its gateway."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bookgate.bookie.standalone.cluster import BookieProcess, StandaloneCluster
from tests.told_secrets import assert_nothing_told


@pytest.fixture(scope="session", autouse=True)
def logs_of_clusters_tell_no_secret() -> Iterator[None]:
    """Of every cluster of the run, these and those that tests start themselves: looked at when it has stopped."""
    stop = StandaloneCluster.stop

    def stop_and_look(cluster: StandaloneCluster) -> None:
        stop(cluster)
        # Audit trails lie beside the logs.
        assert_nothing_told(log for process in cluster.processes for log in process.data_dir.glob("*.log"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StandaloneCluster, "stop", stop_and_look)
        yield


@pytest.fixture(scope="session")
def standalone_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """Three bookies for the whole run. Tests that stop, kill or fill a bookie take `own_cluster`."""
    with StandaloneCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def cluster_of_processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """The same with gateways that are processes of their own, and auto-recovery with all of its checks."""
    # The placement check is off by default.
    options = ("--set=gateway_process=true", "--set=auto_recovery=true", "--set=placement_check_interval_seconds=3600")
    with StandaloneCluster(tmp_path_factory.mktemp("processes"), bookie_options=options) as cluster:
        yield cluster


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[StandaloneCluster]:
    """Three bookies for one test, which may do to them what it likes."""
    with StandaloneCluster(tmp_path / "cluster") as cluster:
        yield cluster


@pytest.fixture
def own_bookie(tmp_path: Path) -> Iterator[BookieProcess]:
    """One bookie for one test."""
    with StandaloneCluster(tmp_path / "cluster", bookies=1) as cluster:
        yield cluster.processes[0]


def restart(process: BookieProcess) -> None:
    """Starts a bookie that was stopped or killed, on whatever ports are free."""
    process.start()
    process.wait_until_serving()
