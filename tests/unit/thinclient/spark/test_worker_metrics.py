"""What a worker of a Spark job counts, and its file for node_exporter."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families

from bookgate.thinclient.metrics import ClientMetrics
from bookgate.thinclient.spark import worker_metrics
from bookgate.thinclient.spark.worker_metrics import (
    DIRECTORY_VARIABLE,
    SCRAPED_WITHIN_SECONDS,
    JobMetrics,
    MetricsFile,
    counted,
    merged,
)


def batches(*rows: int) -> Iterator[pa.RecordBatch]:
    return iter([pa.record_batch({"n": pa.array(range(number), pa.int64())}) for number in rows])


def failing() -> Iterator[pa.RecordBatch]:
    yield from batches(1)
    raise OSError("no bookie")


def values(file: Path) -> dict[str, float]:
    return {
        " ".join([sample.name, *(f"{key}={value}" for key, value in sorted(sample.labels.items()))]): sample.value
        for family in text_string_to_metric_families(file.read_text())
        for sample in family.samples
    }


def test_rows_bytes_and_outcomes(tmp_path: Path) -> None:
    metrics = JobMetrics()
    assert [batch.num_rows for batch in metrics.task("entries", batches(2, 3), lambda: None)] == [2, 3]
    with pytest.raises(OSError, match="no bookie"):
        list(metrics.task("entries", failing(), lambda: None))
    stopped = metrics.task("ledgers", batches(7, 7), lambda: None)
    next(stopped)
    stopped.close()  # type: ignore[attr-defined]
    file = MetricsFile(tmp_path / "made", 7)
    file.write(metrics.snapshot())
    shown = values(file.path)
    assert shown["bookgate_spark_rows_total table=entries worker=7"] == 6
    assert shown["bookgate_spark_bytes_total table=entries worker=7"] == 6 * 8
    assert shown["bookgate_spark_batches_total table=entries worker=7"] == 3
    assert shown["bookgate_spark_tasks_total outcome=ok table=entries worker=7"] == 1
    assert shown["bookgate_spark_tasks_total outcome=failed table=entries worker=7"] == 1
    assert shown["bookgate_spark_tasks_total outcome=stopped table=ledgers worker=7"] == 1
    assert shown["bookgate_spark_rows_total table=ledgers worker=7"] == 7


def test_a_long_task_tells_now_and_then() -> None:
    clock = count(step=2)
    told: list[int] = []
    task = JobMetrics(lambda: next(clock)).task("entries", batches(1, 1, 1, 1), lambda: told.append(1))
    seen = [len(told) for _ in task]
    assert seen == [0, 0, 0, 1]
    assert len(told) == 2


def test_several_clients_share_the_names() -> None:
    one, other = ClientMetrics(), ClientMetrics()
    other.count("READ_ENTRY_DM")
    together = {metric.name: metric for metric in merged({0: one.snapshot(), 2: other.snapshot()})}
    assert len(together) == len(one.snapshot())
    samples = together["bookkeeper_client_READ_ENTRY_DM"].samples
    assert [(sample.labels, sample.value) for sample in samples] == [({"client": "0"}, 0), ({"client": "2"}, 1)]


def test_files_of_workers_that_ended_are_removed_and_no_others(tmp_path: Path) -> None:
    """Those that ended just now are not scraped yet: a task that failed is in them."""
    ended = [subprocess.Popen([sys.executable, "-c", ""]) for _ in range(2)]
    for each in ended:
        each.wait()
    gone, recent = (tmp_path / f"bookgate-spark-{each.pid}.prom" for each in ended)
    others = [tmp_path / "disk.prom", tmp_path / f"bookgate-spark-{os.getppid()}.prom"]
    for path in (gone, recent, *others):
        path.touch()
    for path in (gone, *others):
        os.utime(path, (0, time.time() - SCRAPED_WITHIN_SECONDS - 10))
    file = MetricsFile(tmp_path, os.getpid())
    file.write([])
    assert set(tmp_path.iterdir()) == {file.path, recent, *others}


def test_without_a_directory_nothing_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DIRECTORY_VARIABLE, raising=False)
    task = batches(1)
    assert counted("entries", task) is task


def test_a_directory_that_can_not_be_written_costs_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "file" / "below"))
    assert [batch.num_rows for batch in counted("entries", batches(4))] == [4]
    assert "not-written" in caplog.text


def test_a_forked_copy_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    list(counted("entries", batches(1)))
    worker = worker_metrics._worker
    assert worker is not None
    monkeypatch.setattr(worker, "pid", -1)
    list(counted("entries", batches(2)))
    name = f"bookgate_spark_rows_total table=entries worker={os.getpid()}"
    assert values(tmp_path / f"bookgate-spark-{os.getpid()}.prom")[name] == 2
