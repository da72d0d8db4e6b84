"""Counters of the Spark source in a Python worker, and the file through which Prometheus reads them.

Spark's own metrics do not cover a Python data source, and a worker has no port that could be scraped: there are many on
a machine, and they come and go. So each worker process keeps one file of Prometheus' text format in a directory of its
machine, `bookgate-spark-<pid>.prom`, where node_exporter's textfile collector finds it. It holds the counters below and
those of the worker's clients (`bookgate.thinclient.metrics`), each with the label `worker`, the process id. The file is
replaced as a whole, after each task and every few seconds within one; running workers remove the files of workers that
have ended, some minutes later: a task that fails ends its worker, and Prometheus is to see its count. If the directory
can't be written, the metrics are lost, never the task.

The environment variable BOOKGATE_SPARK_METRICS_DIRECTORY of the worker names the directory; without it nothing is
counted. Not its job: Spark's own metrics of stages and executors.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bookgate.runtime.clock import monotonic, time_of_day
from bookgate.runtime.latency import Sample
from bookgate.runtime.logs import log_event
from bookgate.runtime.process_exists import process_exists
from bookgate.thinclient.metrics import ClientMetric
from bookgate.thinclient.spark.worker_client import clients

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)

PREFIX = "bookgate_spark_"
DIRECTORY_VARIABLE = "BOOKGATE_SPARK_METRICS_DIRECTORY"
WRITE_EVERY_SECONDS = 5.0
SCRAPED_WITHIN_SECONDS = 180.0
"""After its last change nobody waits for the file of a worker that has ended."""
_FILE = re.compile(r"bookgate-spark-(\d+)\.prom")

_COUNTERS = {
    "tasks_total": "tasks that ended, by outcome: ok, failed, or stopped (Spark wanted no more rows)",
    "task_seconds_total": "time in tasks, until Spark had taken their last row",
    "rows_total": "rows handed to Spark",
    "bytes_total": "bytes of Arrow data handed to Spark",
    "batches_total": "Arrow batches handed to Spark",
}


class _Table:
    """Counts of one table of the source."""

    def __init__(self) -> None:
        self.tasks = {"ok": 0, "failed": 0, "stopped": 0}
        self.seconds = 0.0
        self.rows = 0
        self.bytes = 0
        self.batches = 0


class JobMetrics:
    """The counters of one worker process."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._tables: dict[str, _Table] = {}

    def task(self, table: str, batches: Iterable[pa.RecordBatch], told: Callable[[], None]) -> Iterator[pa.RecordBatch]:
        """Counts the batches and yields them unchanged. `told` is called from time to time, and when the task has
        ended.
        """
        counts = self._tables.setdefault(table, _Table())
        began = last = self._clock()
        outcome = "failed"
        try:
            for batch in batches:
                counts.rows += batch.num_rows
                counts.bytes += batch.nbytes
                counts.batches += 1
                yield batch
                if (now := self._clock()) - last >= WRITE_EVERY_SECONDS:
                    last = now
                    told()
            outcome = "ok"
        except GeneratorExit:
            outcome = "stopped"
            raise
        finally:
            counts.tasks[outcome] += 1
            counts.seconds += self._clock() - began
            told()

    def snapshot(self) -> list[ClientMetric]:
        """All metrics as they stand."""
        samples: dict[str, list[Sample]] = {name: [] for name in _COUNTERS}
        for table, counts in self._tables.items():
            labels = {"table": table}
            for outcome, count in counts.tasks.items():
                samples["tasks_total"].append(Sample("", {**labels, "outcome": outcome}, count))
            samples["task_seconds_total"].append(Sample("", labels, counts.seconds))
            samples["rows_total"].append(Sample("", labels, counts.rows))
            samples["bytes_total"].append(Sample("", labels, counts.bytes))
            samples["batches_total"].append(Sample("", labels, counts.batches))
        return [ClientMetric(PREFIX + name, "counter", text, samples[name]) for name, text in _COUNTERS.items()]


class MetricsFile(NamedTuple):
    """The file of one worker process."""

    directory: Path
    pid: int

    @property
    def path(self) -> Path:
        return self.directory / f"bookgate-spark-{self.pid}.prom"

    def write(self, metrics: Iterable[ClientMetric]) -> None:
        """Replaces the file, and removes those of workers that have ended."""
        new = self.path.with_suffix(".new")
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            new.write_text(render(metrics, {"worker": str(self.pid)}), encoding="utf-8")
            new.replace(self.path)
            self._remove_others()
        except OSError as error:
            log_event(_log, "spark_metrics", logging.WARNING, state="not-written", path=self.path, error=error)

    def _remove_others(self) -> None:
        for file in self.directory.iterdir():
            found = _FILE.fullmatch(file.name)
            if not found or int(found[1]) == self.pid or process_exists(int(found[1])):
                continue
            with suppress(FileNotFoundError):  # another worker was faster
                if time_of_day() - file.stat().st_mtime > SCRAPED_WITHIN_SECONDS:
                    file.unlink()


class _Worker:
    """The state of this process, created when it first counts something."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.metrics = JobMetrics()

    def write(self, directory: str) -> None:
        of_clients = {number: client.snapshot() for number, client in clients.metrics().items()}
        MetricsFile(Path(directory), self.pid).write([*self.metrics.snapshot(), *merged(of_clients)])


_worker: _Worker | None = None


def counted(table: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields a task's batches unchanged; counts them if the environment names a directory."""
    global _worker
    directory = os.environ.get(DIRECTORY_VARIABLE)
    if not directory:
        return batches
    if _worker is None or _worker.pid != os.getpid():
        # A forked copy begins with its own counts.
        _worker = _Worker()
    worker = _worker
    return worker.metrics.task(table, batches, lambda: worker.write(directory))


def merged(snapshots: Mapping[int, Sequence[ClientMetric]]) -> list[ClientMetric]:
    """The metrics of several clients under one name each, distinguished by the label `client`."""
    together: dict[str, ClientMetric] = {}
    for number, snapshot in snapshots.items():
        for metric in snapshot:
            samples = together.setdefault(metric.name, metric._replace(samples=[])).samples
            samples += [sample._replace(labels={**sample.labels, "client": str(number)}) for sample in metric.samples]
    return list(together.values())


def render(metrics: Iterable[ClientMetric], labels: dict[str, str]) -> str:
    """Prometheus' text format (0.0.4); `labels` are added to each sample's own, and their values must need no
    escaping.
    """
    lines = []
    for metric in metrics:
        lines.append(f"# HELP {metric.name} {metric.text}\n# TYPE {metric.name} {metric.kind}\n")
        for sample in metric.samples:
            shown = ",".join(f'{name}="{value}"' for name, value in {**sample.labels, **labels}.items())
            lines.append(f"{metric.name}{sample.suffix}{{{shown}}} {float(sample.value)!r}\n")
    return "".join(lines)
