"""The compose file's services, started by hand as processes with the same configuration: a cluster that works."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tomllib
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bookgate.bookie.commands.config import app as config_app
from bookgate.thinclient.blocking.client import BookKeeper
from bookgate.thinclient.config import ClientConfig
from tests.deploy.compose_cluster import COMPOSE, FOLDER, SERVICES, ComposeCluster
from tests.deploy.prometheus_server import ROOT, Prometheus

CONTAINERFILE = (ROOT / "deploy" / "container" / "Containerfile").read_text()
NETWORK_PORTS = {
    "zookeeper": {2181},
    "bookie": {3181, 3182, 3183, 4181, 4182, 4183, 8080},
    "prometheus": {9090},
    "grafana": {3000},
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComposeCluster]:
    with ComposeCluster(tmp_path_factory.mktemp("compose")) as running:
        zookeepers = running.names("zookeeper")
        running.start(*zookeepers)
        for name in zookeepers:
            running.wait_until(name, lambda name=name: "Mode: " in srvr(running.addresses[name]))
        assert running.run("security-init") == 0
        assert running.run("cluster-init") == 0
        bookies = running.names("bookie")
        running.start(*bookies, "prometheus")
        for name in bookies:
            running.wait_until(name, lambda name=name: get(running, name, "/api/v1/bookie/is_ready") == "OK")
        yield running


def srvr(address: str) -> str:
    with socket.create_connection((address, 2181), 5) as connection:
        connection.sendall(b"srvr")
        return b"".join(iter(lambda: connection.recv(4096), b"")).decode()


def get(cluster: ComposeCluster, name: str, path: str) -> str:
    trusted = ssl.create_default_context(cafile=str(cluster.secure / "ca.crt"))
    url = f"https://{cluster.addresses[name]}:8080{path}"
    with urllib.request.urlopen(url, timeout=10, context=trusted) as response:
        return str(response.read().decode()).strip()


def client_of(cluster: ComposeCluster) -> BookKeeper:
    """As the service `client` is one: by the settings that `security-init` made."""
    settings = tomllib.loads((cluster.secure / "client.toml").read_text())
    return BookKeeper.connect(config=ClientConfig(gateways=cluster.gateway_uri, **settings))


def write_and_read(cluster: ComposeCluster, *, bookies: int) -> None:
    with client_of(cluster) as client:
        assert len(client.bookies()) == 3
        with client.create_ledger(ensemble_size=bookies, write_quorum_size=2, ack_quorum_size=2) as ledger:
            ledger.append_all([b"one", b"two"])
        read = [entry.payload for entry in client.open_ledger(ledger.ledger_id).read(0, 1)]
        assert read == [b"one", b"two"]


def test_a_cluster_that_serves_and_outlives_a_bookie(cluster: ComposeCluster) -> None:
    assert {
        line
        for name in cluster.names("zookeeper")
        for line in srvr(cluster.addresses[name]).splitlines()
        if "Mode" in line
    } == {
        "Mode: leader",
        "Mode: follower",
    }
    write_and_read(cluster, bookies=3)
    prometheus = Prometheus(f"{cluster.addresses['prometheus']}:9090")
    assert prometheus.until_not_empty({'count(up{job="bookie"} == 1) == 3'}, 60) == set()

    cluster.end("bookie-3", signal.SIGKILL)
    write_and_read(cluster, bookies=2)
    assert prometheus.until_not_empty({f'up{{instance="{cluster.addresses["bookie-3"]}:8080"}} == 0'}, 60) == set()

    cluster.start("bookie-3")
    cluster.wait_until("bookie-3", lambda: get(cluster, "bookie-3", "/api/v1/bookie/is_ready") == "OK")
    write_and_read(cluster, bookies=3)
    assert cluster.end("bookie-3") == 0, "a stop in order, within the grace period"


@pytest.mark.skipif(not os.environ.get("BOOKGATE_DEPLOY"), reason="make test-deploy restarts ZooKeeper's servers")
def test_zookeeper_is_restarted_server_by_server(cluster: ComposeCluster) -> None:
    """As the operations page has it: an open ledger is written on, and the store is there again after each."""
    if "bookie-3" not in cluster.running():
        cluster.start("bookie-3")
        cluster.wait_until("bookie-3", lambda: get(cluster, "bookie-3", "/api/v1/bookie/is_ready") == "OK")
    with client_of(cluster) as client, client.create_ledger() as ledger:
        for name in cluster.names("zookeeper"):
            cluster.end(name)
            ledger.append_all([b"while a server is away"] * 100)
            cluster.start(name)
            cluster.wait_until(name, lambda name=name: "Mode: " in srvr(cluster.addresses[name]))
            write_and_read(cluster, bookies=3)
        assert len(client.bookies()) == 3


def test_the_bookies_settings_are_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in SERVICES["bookie-1"]["environment"].items():
        monkeypatch.setenv(key, value)
    assert "insecure" not in (FOLDER / "bookie.toml").read_text()
    result = CliRunner().invoke(config_app, ["check", str(FOLDER / "bookie.toml")])
    assert result.exit_code == 0, result.output


def test_what_is_mounted_is_there_and_every_volume_is_used() -> None:
    sources = [volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", ())]
    for source in sources:
        assert (FOLDER / source).exists() if source.startswith(".") else source in COMPOSE["volumes"]
    assert {source for source in sources if not source.startswith(".")} == set(COMPOSE["volumes"])


def test_ports_are_published_on_loopback_only_each_once() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", ())]
    outside = [port.rpartition(":")[0] for port in published]
    assert len(set(outside)) == len(outside)
    for name, service in SERVICES.items():
        for port in service.get("ports", ()):
            host, _, inside = port.split(":")
            assert host == "127.0.0.1"
            assert int(inside) in NETWORK_PORTS[name.partition("-")[0]]


def test_a_client_on_this_machine_reaches_bookies_at_the_ports_that_they_tell() -> None:
    """What bookies register is a name, which /etc/hosts may have, and a port: it must be the one that is published."""
    for name in (each for each in SERVICES if each.startswith("bookie")):
        environment = SERVICES[name]["environment"]
        assert environment["BOOKGATE_BOOKIE_ADVERTISED_ADDRESS"] == name
        for key, default in (("PORT", "3181"), ("GATEWAY_PORT", "4181")):
            port = environment.get(f"BOOKGATE_BOOKIE_{key}", default)
            assert f"127.0.0.1:{port}:{port}" in SERVICES[name]["ports"]


def test_images_are_named_without_a_registry() -> None:
    for service in SERVICES.values():
        assert "." not in service["image"].partition("/")[0].partition(":")[0]
        assert service["image"] == "bookgate" or ":" in service["image"], "of a version that somebody has tried"


@pytest.mark.skipif(not os.environ.get("BOOKGATE_DEPLOY"), reason="make test-deploy builds what the image installs")
def test_what_the_image_copies_is_enough_to_install(tmp_path: Path) -> None:
    """The build step of the container file, without the container: only what it copies is there."""
    source = tmp_path / "src"
    source.mkdir()
    for line in CONTAINERFILE.splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            *copied, target = line.split()[1:]
            for each in copied:
                if (ROOT / each).is_dir():
                    shutil.copytree(
                        ROOT / each, source / target, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
                    )
                else:
                    shutil.copy(ROOT / each, source)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(source)]
    subprocess.run(pip, check=True, timeout=110)
    [wheel] = tmp_path.glob("bookgate-*.whl")
    inside = set(zipfile.ZipFile(wheel).namelist())
    for package in ("protos", "ledger", "runtime", "thinclient", "gateway", "bookie"):
        for file in (ROOT / package).rglob("*"):
            if file.is_file() and file.suffix in (".py", ".html", ".css", ".js"):
                assert f"bookgate/{file.relative_to(ROOT)}" in inside, f"{file} is not installed"


def test_the_image_has_all_packages_and_runs_as_nobody_else() -> None:
    text = CONTAINERFILE
    copied = {
        line.split()[1].rstrip("/") for line in text.splitlines() if line.startswith("COPY") and "/src" not in line
    }
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "benchmarks"}
    assert packages <= copied
    ignored = (ROOT / "deploy" / "container" / "Containerfile.dockerignore").read_text().splitlines()
    assert packages <= {line[1:] for line in ignored if line.startswith("!")}
    assert "USER 10001:10001" in text
    assert set(text.partition("EXPOSE ")[2].partition("\n")[0].split()) == {"3181", "4181", "8080"}
