"""The cluster that `make run` starts, scraped: every query of the dashboards has an answer there too."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from bookgate.bookie.standalone.main_job.job import Cluster, MainJob
from bookgate.bookie.standalone.main_job.report import Report
from bookgate.bookie.standalone.main_job.text import TextSource, select_text
from bookgate.ledger.bookie_info import HTTP
from bookgate.ledger.ledger_id import LedgerId
from bookgate.thinclient.blocking.client import BookKeeper
from bookgate.thinclient.spark.worker_metrics import DIRECTORY_VARIABLE
from tests.deploy.prometheus_server import DEPLOY, Prometheus, running_prometheus
from tests.deploy.test_monitoring import RULES, files_of, queries

# Nothing is ever missed in a job that goes well.
ONLY_OF_FAILURES = 'code!="SUCCESS"'


@contextmanager
def scraping(directory: Path, job: str, targets: list[str]) -> Iterator[Prometheus]:
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(file) for file in RULES]
    config["scrape_configs"] = [{"job_name": job, "static_configs": [{"targets": targets}]}]
    with running_prometheus(directory, config) as prometheus:
        yield prometheus


@pytest.mark.timeout(400)
@pytest.mark.skipif(not os.environ.get("BOOKGATE_DEPLOY"), reason="make test-deploy scrapes the main job")
def test_the_main_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "text"
    text.mkdir()
    (text / "words.txt").write_text("to be or not to be\n" * 5000)
    workers = tmp_path / "workers"
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(workers))
    unanswered: list[set[str]] = []

    def look(cluster: Cluster, _ledgers: Mapping[LedgerId, TextSource]) -> None:
        with BookKeeper.connect(cluster.gateway_uri) as client:
            infos = [each.info for each in client.bookies()]
            list(client.list_ledgers())
        http = [f"{each.host}:{each.port}" for info in infos for each in info.endpoints if each.protocol == HTTP]
        assert len(http) == 3
        with scraping(tmp_path / "bookies", "bookie", http) as prometheus:
            wanted = {query for query in queries("bookie", "gateway") if ONLY_OF_FAILURES not in query}
            unanswered.append(prometheus.until_not_empty(wanted))

    report = Report(console=Console(file=(tmp_path / "printed").open("w"), width=200))
    assert MainJob(select_text(text), tmp_path / "data", report, after_ingest=look).run().equal
    assert unanswered == [set()]

    files = ThreadingHTTPServer(("127.0.0.1", 0), files_of(workers))
    thread = threading.Thread(target=files.serve_forever)
    thread.start()
    try:
        with scraping(tmp_path / "spark", "spark", [f"127.0.0.1:{files.server_address[1]}"]) as prometheus:
            assert prometheus.until_not_empty(queries("spark")) == set()
            assert rows(prometheus) >= 5000
    finally:
        files.shutdown()
        thread.join()
        files.server_close()


def rows(prometheus: Prometheus) -> float:
    [found] = prometheus.query('sum(bookgate_spark_rows_total{table="entries"})')
    return float(found["value"][1])
