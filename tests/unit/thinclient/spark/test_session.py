"""What a command sets up before Spark starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bookgate.thinclient.spark.session import _prepare_workers, reason


@pytest.mark.parametrize(
    ("master", "named", "used"),
    [
        ("local[2]", "./environment/bin/python", sys.executable),
        ("spark://host:7077", "./environment/bin/python", "./environment/bin/python"),
        ("spark://host:7077", None, sys.executable),
        (None, "./environment/bin/python", "./environment/bin/python"),
    ],
)
def test_executors_of_a_cluster_run_the_python_that_is_named(
    monkeypatch: pytest.MonkeyPatch, master: str | None, named: str | None, used: str
) -> None:
    for name in ("PYSPARK_DRIVER_PYTHON", "PYTHONPATH", "PYTHONSAFEPATH"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("PYSPARK_PYTHON", named or "")
    if named is None:
        monkeypatch.delenv("PYSPARK_PYTHON")
    _prepare_workers(master)
    assert os.environ["PYSPARK_PYTHON"] == used
    assert os.environ["PYSPARK_DRIVER_PYTHON"] == sys.executable


def test_workers_import_nothing_from_the_working_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON", "PYTHONPATH", "PYTHONSAFEPATH"):
        monkeypatch.setenv(name, "")
    (tmp_path / "resource.py").write_text("raise SystemExit(7)\n")
    _prepare_workers("local[2]")
    # As with `-m`, the working directory is where Python looks first unless it is told not to.
    worker = [os.environ["PYSPARK_PYTHON"], "-c", "import resource"]
    assert subprocess.run(worker, cwd=tmp_path, capture_output=True, check=False).returncode == 0


def test_the_reason_is_the_last_thing_that_was_raised() -> None:
    wrapped = Exception("[PYTHON_ERROR] failed\n  File x\na.b.FirstError: one\nledger.errors.BKException: two\n at y")
    assert reason(wrapped) == "two"
    assert reason(Exception("plain\nmore")) == "plain"
    lost = "An error occurred while calling save.\n: org.apache.spark.SparkException: Job aborted\n\tat a.b(c.scala:1)"
    assert reason(Exception(lost)) == "Job aborted"
