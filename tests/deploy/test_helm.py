"""The Helm chart, rendered by Helm's own code: valid by the schemas, and the same cluster as the kustomization."""

from __future__ import annotations

import copy
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from bookgate.bookie.config.bookie import load_config
from bookgate.gateway.config import GatewayConfig
from bookgate.gateway.stores.zookeeper.uri import parse_zookeeper
from bookgate.runtime.version import own_version
from tests.deploy.prometheus_server import DEPLOY
from tests.deploy.test_kubernetes import NEWEST, OLDEST, Manifest
from tests.deploy.test_kubernetes import one as of_kustomization

helm = pytest.importorskip("helm_python.chart", reason="helm-python-sdk has no wheel for this machine")

CHART = DEPLOY / "helm" / "bookgate"
URI = "zk+hierarchical://zk-0.zk:2181;zk-1.zk:2181/ledgers"


def rendered(**values: Any) -> list[Manifest]:
    with helm.Chart.load(CHART) as chart:
        given = {"metadataUri": URI, **values}
        chart.validate_schema(given)
        files = chart.render(given, name="orders", namespace="storage")
    documents = (text for name, text in files.items() if not name.endswith(".txt"))
    return [each for text in documents for each in yaml.safe_load_all(text) if each]


def one(kind: str, **values: Any) -> Manifest:
    [found] = [each for each in rendered(**values) if each["kind"] == kind]
    return found


MORE: dict[str, Any] = {
    "clusterInit": True,
    "imagePullSecrets": [{"name": "pull"}],
    "nodeSelector": {"disk": "nvme"},
    "tolerations": [{"key": "storage", "operator": "Exists"}],
    "podAnnotations": {"team": "storage"},
    "extraEnv": [
        {"name": "BOOKGATE_BOOKIE_HTTP_TOKEN", "valueFrom": {"secretKeyRef": {"name": "console", "key": "token"}}}
    ],
    "extraVolumes": [{"name": "tls", "secret": {"secretName": "bookie-tls"}}],
    "extraVolumeMounts": [{"name": "tls", "mountPath": "/tls", "readOnly": True}],
    "storage": {"journal": {"storageClassName": "fast"}},
}


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize(
    "values",
    [{}, MORE, {"antiAffinity": False}, {"clusterInit": True}],
    ids=["defaults", "everything", "one node", "made"],
)
def test_what_it_renders_is_valid(values: dict[str, Any], version: str) -> None:
    found = rendered(**values)
    assert {each["kind"] for each in found} >= {"StatefulSet", "Service", "ConfigMap", "PodDisruptionBudget"}
    for manifest in found:
        kubernetes_validate.validate(manifest, version, strict=True)


def test_it_runs_bookies_as_the_kustomization_does() -> None:
    ours, theirs = one("StatefulSet")["spec"], copy.deepcopy(of_kustomization("bookies", "StatefulSet")["spec"])
    for each in ("replicas", "podManagementPolicy", "updateStrategy", "minReadySeconds", "volumeClaimTemplates"):
        assert ours[each] == theirs[each], each
    mine, other = ours["template"]["spec"], theirs["template"]["spec"]
    for each in ("securityContext", "terminationGracePeriodSeconds", "automountServiceAccountToken"):
        assert mine[each] == other[each], each
    [container], [expected] = mine["containers"], other["containers"]
    for each in ("args", "ports", "startupProbe", "livenessProbe", "readinessProbe", "resources", "securityContext"):
        assert container[each] == expected[each], each
    assert container["volumeMounts"] == expected["volumeMounts"]
    names = [each["name"] for each in container["env"]]
    assert names == [each["name"] for each in expected["env"]]


def test_its_settings_are_the_kustomizations_and_a_bookie_takes_them(tmp_path: Path) -> None:
    text = one("ConfigMap")["data"]["bookie.toml"]
    settings = tomllib.loads(text)
    expected = tomllib.loads((DEPLOY / "kubernetes" / "bookies" / "bookie.toml").read_text())
    assert settings == {**expected, "metadata_uri": URI}
    (tmp_path / "bookie.toml").write_text(text)
    assert load_config(tmp_path / "bookie.toml", tls_cert="c", tls_key="k").write_cache_mb == 128


def test_security_is_there_unless_it_is_said_otherwise() -> None:
    opened = {"security": {"enabled": False}, "settings": {"insecure": True}}
    text = yaml.dump(rendered(**opened))
    assert "bookgate-secure" not in text
    assert "HTTPS" not in text
    assert tomllib.loads(one("ConfigMap", **opened)["data"]["bookie.toml"])["insecure"] is True
    named = yaml.dump(one("StatefulSet", security={"secretName": "mine"}))
    assert "secretName: mine" in named


def test_a_setting_that_is_false_or_empty_counts_as_given() -> None:
    given = {"tls_required": False, "http_tls": False, "gc_wait_time": 0}
    told = {**given, "client": {"auth_provider": ""}, "ledger_directory": "/elsewhere"}
    settings = tomllib.loads(one("ConfigMap", settings=told)["data"]["bookie.toml"])
    assert {key: settings[key] for key in given} == given
    assert (settings["client"]["auth_provider"], settings["client"]["bookie_tls"]) == ("", "start-tls")
    assert settings["ledger_directory"] == "/var/lib/bookgate/ledgers/data", "where the volume is"


def test_the_cluster_is_made_as_the_gateways_reach_its_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made without their authentication and ACL, it would be everybody's who reaches ZooKeeper."""
    store = {"zookeeper_acl": "creator", "zookeeper_tls": True, "zookeeper_tls_ca": "/tls/ca.crt"}
    store["zookeeper_max_request_bytes"] = 4194304
    secret = {"name": "BOOKGATE_GATEWAY_ZOOKEEPER_AUTH", "valueFrom": {"secretKeyRef": {"name": "zk", "key": "auth"}}}
    values = {**MORE, "settings": {"gateway": {**store, "max_batch": 8}}, "extraEnv": [secret]}
    pod = one("Job", **values)["spec"]["template"]["spec"]
    assert (pod["nodeSelector"], pod["tolerations"]) == (MORE["nodeSelector"], MORE["tolerations"])
    assert pod["volumes"] == MORE["extraVolumes"]
    [container] = pod["containers"]
    assert container["volumeMounts"] == MORE["extraVolumeMounts"]
    assert secret in container["env"]
    for each in container["env"]:
        monkeypatch.setenv(each["name"], each.get("value", "user:password"))
    config = GatewayConfig.load(values={"metadata_uri": URI})
    assert {key: getattr(config, key) for key in store} == store
    assert getattr(config, "zookeeper_auth", None) is not None
    assert config.max_batch != 8, "what else a gateway is told is not the job's"


def test_a_change_of_settings_rolls_the_pods() -> None:
    def checksum(**settings: Any) -> str:
        annotations = one("StatefulSet", settings=settings)["spec"]["template"]["metadata"]["annotations"]
        return str(annotations["checksum/settings"])

    assert checksum() != checksum(write_cache_mb=256)


def test_services_find_the_pods_and_bookies_register_names_that_resolve() -> None:
    found = rendered()
    [stateful] = [each for each in found if each["kind"] == "StatefulSet"]
    labels = stateful["spec"]["template"]["metadata"]["labels"].items()
    services = {each["metadata"]["name"]: each["spec"] for each in found if each["kind"] == "Service"}
    assert all(each["selector"].items() <= labels for each in services.values())
    assert services[stateful["spec"]["serviceName"]]["clusterIP"] == "None"
    env = {each["name"]: each.get("value") for each in stateful["spec"]["template"]["spec"]["containers"][0]["env"]}
    expected = f"$(POD_NAME).{stateful['spec']['serviceName']}.$(POD_NAMESPACE).svc"
    assert env["BOOKGATE_BOOKIE_ADVERTISED_ADDRESS"] == expected


def test_values_that_make_no_cluster_are_refused() -> None:
    with helm.Chart.load(CHART) as chart:
        for wrong in ({}, {"metadataUri": "sqlite:///m"}, {"metadataUri": URI, "replicas": 0}):
            with pytest.raises(Exception, match=r"metadataUri|replicas"):
                chart.validate_schema(wrong)


def test_ports_that_the_pods_do_not_have_are_refused() -> None:
    assert tomllib.loads(one("ConfigMap", settings={"http_port": 8080})["data"]["bookie.toml"])["http_port"] == 8080
    for each in ("port", "gateway_port", "http_port"):
        with pytest.raises(Exception, match=rf"{each}.*(3181|4181|8080)"):
            one("ConfigMap", settings={each: 9000})


@pytest.mark.parametrize("manager", ["", *(f"+{each}" for each in ("flat", "hierarchical", "ms", "null"))])
def test_every_uri_of_a_zookeeper_is_taken(manager: str) -> None:
    uri = f"zk{manager}://zk-0.zk:2181/ledgers"
    assert parse_zookeeper(uri).servers == ("zk-0.zk:2181",)
    assert uri in one("ConfigMap", metadataUri=uri)["data"]["bookie.toml"]


def test_clients_are_sent_to_gateways_that_there_are() -> None:
    """A bookie whose metadata are behind gateways hosts none."""

    def told(uri: str) -> tuple[set[str], str]:
        with helm.Chart.load(CHART) as chart:
            files = chart.render({"metadataUri": uri}, name="orders", namespace="storage")
        services = [each for each in rendered(metadataUri=uri) if each["kind"] == "Service"]
        [notes] = [text for name, text in files.items() if name.endswith("NOTES.txt")]
        return {each["metadata"]["name"] for each in services}, notes

    services, notes = told(URI)
    assert services == {"orders-bookie", "orders-gateway"}
    assert "grpcs://orders-gateway.storage:4181" in notes
    assert "cluster init" in notes
    services, notes = told("grpcs://gw-1:4181?ca=/etc/bookgate-secure/ca.crt")
    assert services == {"orders-bookie"}
    assert "begin at grpcs://gw-1:4181\n" in notes
    assert "cluster init" not in notes


def test_its_version_is_the_projects() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert f"bookgate/{chart['version']}" == own_version()
    assert chart["appVersion"] == chart["version"]
