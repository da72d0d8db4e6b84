"""Rules and dashboards against a cluster under load: every name, label and query means something there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, start_http_server

from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.ledger.errors import BKException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.thinclient.blocking.client import BookKeeper
from bookgate.thinclient.config import ClientConfig
from bookgate.thinclient.spark.options.read_options import parse_options
from bookgate.thinclient.spark.reading.batch import EntriesReader
from bookgate.thinclient.spark.worker_metrics import DIRECTORY_VARIABLE
from tests.deploy.prometheus_server import DEPLOY, ROOT, Prometheus, running_prometheus, selectors, tool
from tests.deploy.test_metrics_reference import gateway_alone

RULES = sorted((DEPLOY / "prometheus" / "rules").glob("*.yml"))
DASHBOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
GRAFANA_VARIABLES = {"$instance": ".*", "$__rate_interval": "30s"}
AFTER_A_LOSS = {"max by (bookie) (auditor_LEDGERS_TO_REPAIR)"}
"""Queries that a cluster without a loss has no answer to: no bookie is to be named."""


def rules() -> list[dict[str, Any]]:
    groups = [group for file in RULES for group in yaml.safe_load(file.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


def queries(*dashboards: str) -> set[str]:
    """Of all panels of these dashboards, or of all, as Grafana would send them."""
    found = set()
    for file in DASHBOARDS:
        if dashboards and file.stem not in dashboards:
            continue
        for panel in json.loads(file.read_text())["panels"]:
            for target in panel.get("targets", ()):
                expression = target["expr"]
                for name, value in GRAFANA_VARIABLES.items():
                    expression = expression.replace(name, value)
                found.add(expression)
    return found


class Load:
    """Writes, reads and misses until it is stopped, as an application whose client can be scraped and as Spark does."""

    def __init__(self, cluster: StandaloneCluster, gateways: list[str], directory: Path) -> None:
        self._client = BookKeeper.connect("grpc://" + ",".join([*gateways, *cluster.gateways]))
        self._gateways = [f"grpc://{address}" for address in (*gateways, *cluster.gateways)]
        self._config = ClientConfig()
        """Made here: on a thread it would read the environment while pytest changes it."""
        self._directory = directory
        self._stopped = threading.Event()
        registry = CollectorRegistry()
        registry.register(self._client.metrics.collector())
        self._exposed, _ = start_http_server(0, "127.0.0.1", registry)
        self._files = ThreadingHTTPServer(("127.0.0.1", 0), files_of(directory))
        self.addresses = {
            "client": f"127.0.0.1:{self._exposed.server_address[1]}",
            "spark": f"127.0.0.1:{self._files.server_address[1]}",
        }
        self._threads = [threading.Thread(target=self._files.serve_forever), threading.Thread(target=self._run)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(0.05):
            with self._client.create_ledger() as ledger:
                ledger.append_all([b"an entry"] * 300)
            reader = self._client.open_ledger(ledger.ledger_id)
            assert len(list(reader.read(0, 299))) == 300
            self._as_spark(ledger.ledger_id)
            for gateway in self._gateways:
                with BookKeeper.connect(gateway, self._config) as client, suppress(BKException):
                    list(client.list_ledgers())
                    client.open_ledger(LedgerId.unscoped(10**15))
            self._client.delete_ledger(ledger.ledger_id)

    def _as_spark(self, ledger_id: LedgerId) -> None:
        options = parse_options({"gateways": self._gateways[0], "ledgerIds": str(ledger_id.low)})
        reader = EntriesReader(options)
        assert sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part)) == 300

    def stop(self) -> None:
        self._stopped.set()
        self._files.shutdown()
        self._exposed.shutdown()
        for thread in self._threads:
            thread.join(60)
        self._files.server_close()
        self._exposed.server_close()
        self._client.close()


def files_of(directory: Path) -> type[BaseHTTPRequestHandler]:
    """What node_exporter's textfile collector does with a directory."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = b"".join(file.read_bytes() for file in directory.glob("*.prom"))
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@pytest.fixture(scope="module")
def prometheus(
    cluster_of_processes: StandaloneCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    """With deploy/'s configuration and rules on a cluster, a gateway beside it, a client and a Spark reader at work."""
    tool("prometheus")
    directory = tmp_path_factory.mktemp("prometheus")
    textfiles = directory / "textfiles"
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(file) for file in RULES]
    with ExitStack() as stack:
        environment = stack.enter_context(pytest.MonkeyPatch.context())
        environment.setenv(DIRECTORY_VARIABLE, str(textfiles))
        gateway = stack.enter_context(gateway_alone(cluster_of_processes.metadata_uri))
        load = Load(cluster_of_processes, [gateway["gateway"]], textfiles)
        stack.callback(load.stop)
        targets = {"bookie": cluster_of_processes.http, "gateway": gateway["http"]}
        targets |= {job: [address] for job, address in load.addresses.items()}
        config["scrape_configs"] = [
            {"job_name": job, "static_configs": [{"targets": addresses}]} for job, addresses in targets.items()
        ]
        yield stack.enter_context(running_prometheus(directory, config))


def test_every_query_of_every_dashboard_has_an_answer(prometheus: Prometheus) -> None:
    assert len(queries()) > 80
    assert queries() > AFTER_A_LOSS
    assert prometheus.until_not_empty(queries() - AFTER_A_LOSS) == set()


def test_every_recording_rule_has_an_answer(prometheus: Prometheus) -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    assert recorded
    assert prometheus.until_not_empty(recorded) == set()


def test_every_selector_of_every_alert_finds_something(prometheus: Prometheus) -> None:
    """Codes of failures aside, which nothing had: that there is such a label is all that can be seen."""
    wanted = set()
    for rule in alerts():
        for selector in selectors(rule["expr"]):
            wanted.add(re.sub(r',?\s*code[!=]~?"[^"]*"', ', code!=""', selector).replace("{,", "{"))
    assert 'up{job="bookie"}' in wanted
    assert prometheus.until_not_empty(wanted) == set()


def test_no_alert_fires_where_all_is_well(prometheus: Prometheus) -> None:
    assert prometheus.until_not_empty({"instance:bookie_adds:rate5m > 0"}) == set()
    firing = {each["metric"]["alertname"] for each in prometheus.query('ALERTS{alertstate="firing"}')}
    # How full this machine's disk is, is not the cluster's doing.
    assert firing <= {"BookieDiskNearlyFull"}


def test_what_selectors_are_in_an_expression() -> None:
    found = selectors(
        'max by (a, b) (rate(x_total{c="d", e=~"f|g"}[5m])) / on (a) {__name__=~"y.+"} > 5400 or vector(0)'
    )
    assert found == {'x_total{c="d", e=~"f|g"}', '{__name__=~"y.+"}'}
    assert selectors("time() - process_start > 90 and changes(up[1h]) == 0") == {"process_start", "up"}


@pytest.mark.parametrize(
    "what",
    # The configuration's files of TLS and of the token are the cluster's.
    [("config", "--syntax-only", "prometheus.yml"), ("rules", *(str(file) for file in RULES))],
    ids=["configuration", "rules"],
)
def test_promtool_takes_configuration_and_rules(what: tuple[str, ...]) -> None:
    checked = subprocess.run(
        [tool("promtool"), "check", *what],
        cwd=DEPLOY / "prometheus",
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr
    assert "FAILED" not in checked.stdout + checked.stderr


def test_the_dashboards_are_up_to_date() -> None:
    subprocess.run([sys.executable, DEPLOY / "grafana" / "generate.py", "--check"], cwd=ROOT, check=True)


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_panels_have_a_title_a_place_and_a_source(file: Path) -> None:
    dashboard = json.loads(file.read_text())
    places: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        assert panel["title"]
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & places
        places |= cells
        for target in panel.get("targets", ()):
            assert target["datasource"]["uid"] == "${datasource}"
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_alerts_say_what_where_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["annotations"]["summary"]
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    assert anchor == rule["alert"].lower()
    headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(), re.MULTILINE)
    assert rule["alert"] in headings


def test_what_grafana_is_given_is_there() -> None:
    provisioning = DEPLOY / "grafana" / "provisioning"
    [provider] = yaml.safe_load((provisioning / "dashboards" / "bookgate.yml").read_text())["providers"]
    assert provider["type"] == "file"
    [source] = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert source["type"] == "prometheus"
