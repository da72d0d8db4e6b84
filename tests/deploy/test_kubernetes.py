"""The Kubernetes manifests: valid by the schemas, and what they say agrees with what the software does."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import urllib.request
from copy import deepcopy
from pathlib import Path
from typing import Any

import grpc
import kubernetes_validate
import pytest
import yaml
from cryptography import x509
from grpc_health.v1 import health_pb2, health_pb2_grpc
from typer.testing import CliRunner

from bookgate.bookie.commands.config import app as config_app
from bookgate.bookie.config.bookie import BookieConfig, load_config
from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.gateway.config import GatewayConfig
from bookgate.runtime.security.actions import Action
from bookgate.runtime.security.decision import Resource, decide
from bookgate.runtime.security.policy import parse_policy
from bookgate.runtime.security.principal import Kind, Principal
from bookgate.thinclient.commands.main import app as bookgate
from tests.deploy.prometheus_server import DEPLOY
from tests.deploy.test_metrics_reference import gateway_alone

FOLDER = DEPLOY / "kubernetes"
KINDS = ("bookies", "sidecar")
OLDEST, NEWEST = "1.29", kubernetes_validate.latest_version()
Manifest = dict[str, Any]


def manifests(kind: str) -> list[Manifest]:
    """The resources of a kustomization with its patches: what containers a patch has are added."""
    folder = FOLDER / kind
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    found = [each for file in kustomization["resources"] for each in documents(folder / file)]
    for patch in kustomization.get("patches", ()):
        for change in documents(folder / patch["path"]):
            [target] = [each for each in found if same(each, change)]
            merge(target, change)
    return found


def documents(file: Path) -> list[Manifest]:
    return [each for each in yaml.safe_load_all(file.read_text()) if each]


def same(one: Manifest, other: Manifest) -> bool:
    return (one["kind"], one["metadata"]["name"]) == (other["kind"], other["metadata"]["name"])


def merge(target: Manifest, change: Manifest) -> None:
    for key, value in change.items():
        if isinstance(value, dict):
            merge(target.setdefault(key, {}), value)
        elif isinstance(value, list):
            target[key] = [*target.get(key, []), *deepcopy(value)]
        else:
            target[key] = value


def one(kind: str, resource: str) -> Manifest:
    [found] = [each for each in manifests(kind) if each["kind"] == resource]
    return found


def pod(kind: str) -> Manifest:
    template: Manifest = one(kind, "StatefulSet")["spec"]["template"]
    return template


def container(kind: str, name: str) -> Manifest:
    [found] = [each for each in pod(kind)["spec"]["containers"] if each["name"] == name]
    assert isinstance(found, dict)
    return found


OURS = [("bookies", "bookie"), ("sidecar", "gateway")]


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("kind", KINDS)
def test_manifests_are_valid(kind: str, version: str) -> None:
    for manifest in manifests(kind):
        kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("kind", KINDS)
def test_kustomize_builds_the_same(kind: str) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("there is no kubectl here")
    built = subprocess.run([kubectl, "kustomize", FOLDER / kind], capture_output=True, text=True, check=True).stdout
    resources = [each for each in yaml.safe_load_all(built) if each["kind"] != "ConfigMap"]
    assert sorted((each["kind"], each["metadata"]["name"]) for each in resources) == sorted(
        (each["kind"], each["metadata"]["name"]) for each in manifests(kind)
    )
    [pods] = [each["spec"]["template"]["spec"] for each in resources if each["kind"] == "StatefulSet"]
    names = {each["name"] for each in pods["containers"]}
    assert names == {each["name"] for each in pod(kind)["spec"]["containers"]}
    if kind == "bookies":
        [settings] = [each["configMap"]["name"] for each in pods["volumes"] if "configMap" in each]
        assert settings.startswith("bookgate-bookie-"), "the generated name, so that a change rolls the pods"


@pytest.mark.parametrize("kind", KINDS)
def test_selectors_find_the_pods(kind: str) -> None:
    labels = pod(kind)["metadata"]["labels"].items()
    ports = {port["name"] for each in pod(kind)["spec"]["containers"] for port in each["ports"]}
    stateful = one(kind, "StatefulSet")["spec"]
    assert stateful["selector"]["matchLabels"].items() <= labels
    services = [each for each in manifests(kind) if each["kind"] == "Service"]
    for service in services:
        assert service["spec"]["selector"].items() <= labels
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    [governing] = [each for each in services if each["metadata"]["name"] == stateful["serviceName"]]
    assert governing["spec"]["clusterIP"] == "None"
    assert one(kind, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"].items() <= labels
    assert one(kind, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_the_cluster_is_made_once_where_the_bookies_look_for_it(version: str) -> None:
    [job] = documents(FOLDER / "cluster-init.yaml")
    kubernetes_validate.validate(job, version, strict=True)
    assert "ttlSecondsAfterFinished" not in job["spec"], "or applying it again would run it again"
    [only] = job["spec"]["template"]["spec"]["containers"]
    settings = bookie_settings()
    assert only["args"][:2] == ["cluster", "init"]
    assert only["args"][-1] == f"--metadata-uri={settings.metadata_uri}"
    assert CliRunner().invoke(bookgate, [*only["args"], "--help"]).exit_code == 0


def test_bookies_keep_apart() -> None:
    labels = pod("bookies")["metadata"]["labels"]
    [term] = pod("bookies")["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    assert term["labelSelector"]["matchLabels"] == labels


def test_ports_are_those_of_the_software() -> None:
    settings = load_config(metadata_uri="sqlite:///m", data_dir=Path("/d"))
    assert {port["name"]: port["containerPort"] for port in container("bookies", "bookie")["ports"]} == {
        "bookie": settings.port,
        "gateway": settings.gateway_port,
        "http": settings.http_port,
    }
    ports = {port["name"]: port["containerPort"] for port in container("sidecar", "gateway")["ports"]}
    environment = {each["name"]: each.get("value") for each in container("sidecar", "gateway")["env"]}
    assert ports["gateway"] == GatewayConfig.model_fields["port"].default
    assert str(ports["gateway-http"]) == environment["BOOKGATE_GATEWAY_HTTP_PORT"]


@pytest.mark.parametrize(("kind", "name"), OURS)
def test_scrapes_go_to_the_http_port(kind: str, name: str) -> None:
    annotations = pod(kind)["metadata"]["annotations"]
    [http] = [port for port in container(kind, name)["ports"] if port["name"].endswith("http")]
    assert annotations["prometheus.io/port"] == str(http["containerPort"])


@pytest.mark.parametrize(("kind", "name"), OURS)
def test_environment_and_arguments_are_understood(
    kind: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`config check` looks at the file together with the variables, as a start would."""
    for each in container(kind, name)["env"]:
        monkeypatch.setenv(each["name"], str(each.get("value", "bookie-0")).replace("$(POD_NAME)", "bookie-0"))
    file = FOLDER / kind / "bookie.toml"
    if kind == "sidecar":
        file = tmp_path / "gateway.toml"
        file.write_text("")
    result = CliRunner().invoke(config_app, ["check", str(file), "--for", name])
    assert result.exit_code == 0, result.output


def test_the_settings_lie_where_the_volumes_are() -> None:
    mounts = {each["name"]: each["mountPath"] for each in container("bookies", "bookie")["volumeMounts"]}
    claims = {each["metadata"]["name"] for each in one("bookies", "StatefulSet")["spec"]["volumeClaimTemplates"]}
    volumes = {each["name"] for each in pod("bookies")["spec"]["volumes"]}
    assert set(mounts) == claims | volumes
    settings = bookie_settings()
    [ledgers] = settings.ledgers
    [journal] = settings.journals
    # Below the mount: a fresh file system has a lost+found of its own.
    assert journal.parent == Path(mounts["journal"])
    assert ledgers.parent == Path(mounts["ledgers"])
    assert f"{mounts['settings']}/bookie.toml" in container("bookies", "bookie")["args"]


@pytest.mark.parametrize(
    ("kind", "bookies", "name"), [("bookies", "bookie", "bookie"), ("sidecar", "java-bookie", "gateway")]
)
def test_what_security_init_makes_is_what_the_pods_are_secured_by(
    kind: str, bookies: str, name: str, tmp_path: Path
) -> None:
    """By the commands that the kustomization tells; all certificates are good at the names that clients use."""
    [command] = re.findall(r"#   (bookgate security init .*?)\n#   kubectl", kustomization(kind), re.DOTALL)
    arguments = shlex.split(command.replace("\\\n#", "").replace(" secure ", f" {tmp_path} "))[1:]
    assert CliRunner().invoke(bookgate, arguments).exit_code == 0
    [copied] = re.findall(r"(kubectl create secret .*?)\n(?!#     )", kustomization(kind), re.DOTALL)
    sources = [tmp_path / each for each in re.findall(r"--from-file=secure/(\S+)", copied)]
    secret = {file.name for each in sources for file in (each.iterdir() if each.is_dir() else [each])}
    text = yaml.dump(container(kind, name)["env"]) + (bookies_toml() if kind == "bookies" else "")
    named = set(re.findall(r"/etc/bookgate-secure/([^\s\"]+)", text.replace("$(POD_NAME)", f"{bookies}-0")))
    assert {"tokens", "policy.toml", f"{bookies}-0.crt", f"{bookies}-0.key"} <= named <= secret
    assert "ca.key" not in secret
    certificate = x509.load_pem_x509_certificate((tmp_path / "bookies" / f"{bookies}-0.crt").read_bytes())
    hosts = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    namespace = one("bookies", "Namespace")["metadata"]["name"] if kind == "bookies" else "bookkeeper"
    assert {f"*.{bookies}.{namespace}.svc", "bookgate-gateway"} <= set(hosts.get_values_for_type(x509.DNSName))
    policy = parse_policy((tmp_path / "policy.toml").read_text())
    principal = Principal(Kind.TOKEN, f"{bookies}-0")
    assert decide(policy, principal, Action.BOOKIE_REGISTER, Resource(bookie_id=f"{bookies}-0"))
    assert not decide(policy, principal, Action.BOOKIE_REGISTER, Resource(bookie_id=f"{bookies}-1"))


def kustomization(kind: str) -> str:
    return (FOLDER / kind / "kustomization.yaml").read_text()


def bookies_toml() -> str:
    return (FOLDER / "bookies" / "bookie.toml").read_text()


def bookie_settings() -> BookieConfig:
    """With what the pod's environment says."""
    return load_config(FOLDER / "bookies" / "bookie.toml", tls_cert="c", tls_key="k", data_dir=Path("/d"))


@pytest.mark.parametrize(("kind", "name"), OURS)
def test_nothing_is_left_open(kind: str, name: str) -> None:
    assert "insecure" not in yaml.dump(manifests(kind)).lower() + bookies_toml()
    assert container(kind, name)["livenessProbe"]["httpGet"]["scheme"] == "HTTPS"


@pytest.mark.parametrize(("kind", "name"), OURS)
def test_containers_are_confined(kind: str, name: str) -> None:
    security = {**pod(kind)["spec"].get("securityContext", {}), **container(kind, name)["securityContext"]}
    assert security["runAsNonRoot"] is True
    assert security["runAsUser"] == 10001, "the user of the image"
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod(kind)["spec"]["automountServiceAccountToken"] is False


def test_probes_of_a_bookie_are_answered(standalone_cluster: StandaloneCluster) -> None:
    for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
        path = container("bookies", "bookie")[kind]["httpGet"]["path"]
        with urllib.request.urlopen(f"http://{standalone_cluster.http[0]}{path}", timeout=10) as response:
            assert response.status == 200


def test_probes_of_a_gateway_are_answered(standalone_cluster: StandaloneCluster) -> None:
    gateway = container("sidecar", "gateway")
    with gateway_alone(standalone_cluster.metadata_uri) as addresses:
        for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
            path = gateway[kind]["httpGet"]["path"]
            with urllib.request.urlopen(f"http://{addresses['http'][0]}{path}", timeout=10) as response:
                assert response.status == 200
        with grpc.insecure_channel(addresses["gateway"]) as channel:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
