"""What the rendered manifests start: it becomes ready by their own probes, and is secured without anything more."""

from __future__ import annotations

import re
import shlex
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from typer.testing import CliRunner

from bookgate.bookie.standalone.local_zookeeper import LocalZooKeeper
from bookgate.protos.bookkeeper.gateway.v1 import service_discovery_pb2 as discovery
from bookgate.protos.bookkeeper.gateway.v1.service_discovery_pb2_grpc import ServiceDiscoveryStub
from bookgate.thinclient.commands.main import app as bookgate
from tests.deploy.pods import Manifest, Pod
from tests.deploy.test_kubernetes import FOLDER, documents, kustomization, manifests
from tests.integration.bookie.entry_client import EntryClient, read

SECRET = "bookgate-security"
Render = Callable[[str], list[Manifest]]


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalZooKeeper]:
    with LocalZooKeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


def kustomized(kind: str) -> list[Manifest]:
    """With the ConfigMap that kustomize would generate, and the job that makes the cluster."""
    found = manifests(kind)
    made = yaml.safe_load((FOLDER / kind / "kustomization.yaml").read_text())
    for each in made.get("configMapGenerator", ()):
        data = {name: (FOLDER / kind / name).read_text() for name in each["files"]}
        found.append({"kind": "ConfigMap", "metadata": {"name": each["name"]}, "data": data})
    return [*found, *documents(FOLDER / "cluster-init.yaml")]


def charted(uri: str) -> list[Manifest]:
    pytest.importorskip("helm_python.chart", reason="helm-python-sdk has no wheel for this machine")
    from tests.deploy.test_helm import rendered

    return rendered(metadataUri=uri, clusterInit=True)


def one(found: list[Manifest], kind: str) -> Manifest:
    [only] = [each for each in found if each["kind"] == kind]
    return only


@dataclass(frozen=True)
class Case:
    """A container of a deployment. `hosts`: the service whose names its certificate is good at."""

    render: Render
    container: str
    listen_on: str
    ports: tuple[str, str]
    reads: str
    """A path of HTTP that needs an action."""
    hosts: str

    @property
    def namespace(self) -> str:
        return self.hosts.split(".")[1]


BOOKIE = ("bookie", "BOOKGATE_BOOKIE_HOST", ("gateway", "http"), "/api/v1/bookie/info")
CASES = {
    "kustomize": Case(lambda _: kustomized("bookies"), *BOOKIE, "bookie.bookgate.svc"),
    "helm": Case(charted, *BOOKIE, "orders-bookie.storage.svc"),
    "sidecar": Case(
        lambda _: kustomized("sidecar"),
        "gateway",
        "BOOKGATE_GATEWAY_HOST",
        ("gateway", "gateway-http"),
        "/api/v1/ledger/list",
        "java-bookie.bookkeeper.svc",
    ),
}


def written_uris(found: list[Manifest]) -> set[str]:
    """The addresses of ZooKeeper that the deployment has, which are those of somebody's cluster."""
    return set(re.findall(r"zk\+hierarchical://[\w.:;-]+/ledgers", yaml.dump(found, width=10_000)))


def trial_files(root: Path, pod: Pod, hosts: str) -> Path:
    """The Secret, as the kustomizations tell how to make it."""
    command = re.findall(r"#   (bookgate security init .*?)\n#   kubectl", kustomization("bookies"), re.DOTALL)[0]
    words = shlex.split(command.replace("\\\n#", ""))
    made = root / "secure"
    assert words[:3] == ["bookgate", "security", "init"]
    arguments = [*words[1:3], str(made), "--bookie", pod.name, "--host", f"*.{hosts}", "--host", "bookgate-gateway"]
    assert CliRunner().invoke(bookgate, arguments).exit_code == 0
    secret = root / "secret"
    secret.mkdir()
    for file in (made / "ca.crt", made / "tokens", made / "policy.toml", *(made / "bookies").iterdir()):
        (secret / file.name).write_bytes(file.read_bytes())
    return secret


@pytest.mark.parametrize("name", CASES)
def test_a_pod_becomes_ready_and_is_secured(name: str, zookeeper: LocalZooKeeper, tmp_path: Path) -> None:
    case, here = CASES[name], zookeeper.metadata_uri(f"/{name}/ledgers")
    found = case.render(here)
    stores = dict.fromkeys(written_uris(found) - {here}, here)
    with Pod(tmp_path / "init", found, one(found, "Job"), "cluster-init", case.namespace) as job:
        (tmp_path / "init").mkdir()
        job.start({}, "BOOKGATE_NONE", stores)
        assert job.wait() == 0, job.log
    with Pod(tmp_path / "pod", found, one(found, "StatefulSet"), case.container, case.namespace) as pod:
        (tmp_path / "pod").mkdir()
        secret = trial_files(tmp_path, pod, case.hosts)
        pod.start({SECRET: secret}, case.listen_on, stores)
        pod.wait_until_ready()
        assert pod.probe("livenessProbe") == 200
        is_secured(pod, case, tmp_path / "secure")
        assert pod.end() == 0, pod.log
        assert pod.written_elsewhere() == []


def is_secured(pod: Pod, case: Case, secure: Path) -> None:
    """Nobody gets anything without a token, at any port; who has one finds the certificate good at the pod's name."""
    gateway, http = case.ports
    host = f"{pod.name}.{case.hosts}"
    token = (secure / "operator.token").read_text().strip()
    assert status(f"https://{pod.address}:{pod.port(http)}{case.reads}", None) == 401
    assert status(f"https://{pod.address}:{pod.port(http)}{case.reads}", token) == 200
    with pytest.raises((OSError, urllib.error.URLError)):
        urllib.request.urlopen(f"http://{pod.address}:{pod.port(http)}{case.reads}", timeout=5)
    target, authority = f"{pod.address}:{pod.port(gateway)}", (secure / "ca.crt").read_bytes()
    assert call(target, authority, host, None) is grpc.StatusCode.UNAUTHENTICATED
    assert call(target, authority, host, token) is None
    with grpc.insecure_channel(target) as channel:
        assert answer(channel, token) is grpc.StatusCode.UNAVAILABLE, "in clear"
    if case.container == "bookie":
        refuses_in_clear(f"{pod.address}:{pod.port('bookie')}")


def status(url: str, token: str | None) -> int:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10, context=ssl._create_unverified_context()) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def call(target: str, authority: bytes, host: str, token: str | None) -> grpc.StatusCode | None:
    trusted = grpc.ssl_channel_credentials(root_certificates=authority)
    with grpc.secure_channel(target, trusted, [("grpc.ssl_target_name_override", host)]) as channel:
        return answer(channel, token)


def answer(channel: grpc.Channel, token: str | None) -> grpc.StatusCode | None:
    """The status of a refusal; None: it is answered."""
    shown: Any = () if token is None else (("authorization", f"Bearer {token}"),)
    try:
        stub = ServiceDiscoveryStub(channel)
        stub.GetClusterInfo(discovery.GetClusterInfoRequest(), metadata=shown, timeout=10)
    except grpc.RpcError as error:
        code = error.code()
        assert isinstance(code, grpc.StatusCode)
        return code
    return None


def refuses_in_clear(address: str) -> None:
    with EntryClient(address) as client:
        try:
            assert client.ask(read(1, 0)).status != 0
        except ConnectionError:
            return
