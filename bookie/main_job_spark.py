"""The Spark side of the main job: a session on this machine, its progress, and the census as plain values.

Nothing here is imported before it is known that PySpark and a fitting Java are there.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bookie.main_job_report import Update
from bookie.main_job_text import Census
from ledger.ledger_id import LedgerId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL_SECONDS = 0.2
_JVM_STOP_SECONDS = 15.0
_TASKS_A_CORE = 4
_OLDEST_JAVA = 17
_MODULE = "jdk.incubator.vector"
_INSTALL_JAVA = (
    f"Spark needs a JDK of version {_OLDEST_JAVA} or later: install one (Debian and Ubuntu: apt install "
    "openjdk-17-jre-headless, macOS: brew install openjdk), or point JAVA_HOME at one"
)


class SparkUnavailable(Exception):
    """Spark can't be started; the message says what to install."""


def require_spark() -> None:
    """Raises SparkUnavailable when PySpark or a fitting Java is missing. Starts nothing that stays."""
    try:
        import pyspark  # noqa: F401
    except ImportError as error:
        raise SparkUnavailable("PySpark is not installed: pip install 'bookgate[bookie,spark]'") from error
    java = _java()
    if java is None:
        raise SparkUnavailable(f"no Java was found. {_INSTALL_JAVA}")
    listed = subprocess.run([java, "--list-modules"], capture_output=True, text=True, check=False)
    modules = dict(line.partition("@")[::2] for line in listed.stdout.split())
    version = modules.get("java.base", "")
    if listed.returncode != 0 or not version or int(version.split(".")[0].split("-")[0]) < _OLDEST_JAVA:
        raise SparkUnavailable(f"{java} is too old ({version or 'before 9'}). {_INSTALL_JAVA}")
    if _MODULE not in modules:
        raise SparkUnavailable(f"{java} lacks the module {_MODULE}. {_INSTALL_JAVA}")


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return str(Path(home) / "bin" / "java")
    return shutil.which("java")


@contextmanager
def local_spark(data_dir: Path) -> Iterator[SparkSession]:
    """A session on all cores of this machine, stopped with its JVM at the end. What the JVM says goes to spark.log."""
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    data_dir.mkdir(parents=True, exist_ok=True)
    log = data_dir / "spark.log"
    _prepare_workers()
    builder: Any = SparkSession.builder.master("local[*]").appName("bookgate main job")
    for key, value in _settings(data_dir).items():
        builder = builder.config(key, value)
    try:
        with _standard_error_in(log), _own_interrupt_handler():
            session: SparkSession = builder.getOrCreate()
    except PySparkException as error:
        raise SparkUnavailable(f"Spark did not start: {error}; its log is {log}") from error
    try:
        session.sparkContext.setLogLevel("ERROR")
        yield session
    finally:
        _stop(session)


@contextmanager
def _own_interrupt_handler() -> Iterator[None]:
    """Keeps this process's handler of Ctrl-C: Spark's would call the JVM from within whatever call it interrupts."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)


def _settings(data_dir: Path) -> Mapping[str, str]:
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # A short job: the JVM's second compiler would take more time than it saves.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(data_dir / "local"),
        "spark.sql.warehouse.dir": str(data_dir / "warehouse"),
        "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
    }


def _prepare_workers() -> None:
    """Workers run this interpreter and import the same packages as this process."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    own = str(Path(__file__).parents[1])
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != own]
    os.environ["PYTHONPATH"] = os.pathsep.join([own, *paths])


@contextmanager
def _standard_error_in(log: Path) -> Iterator[None]:
    """Children started inside write their standard error to a file; this process gets its own back."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _stop(session: SparkSession) -> None:
    """Stops the session and the JVM that PySpark started for it, which would live as long as this process."""
    from pyspark import SparkContext

    session.stop()
    gateway: Any = SparkContext._gateway
    if gateway is None:
        return
    process = gateway.proc
    gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    with suppress(OSError):
        process.stdin.close()
    try:
        process.wait(_JVM_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def run_census(spark: SparkSession, options: Mapping[str, str], update: Update) -> dict[LedgerId, Census]:
    """The census of the ledgers that the options select, with the progress of Spark's tasks."""
    from thinclient.spark.jobs.text_census import text_census

    tasks = _TASKS_A_CORE * spark.sparkContext.defaultParallelism
    census = text_census(spark, options, min_partitions=tasks)
    with _watched(spark, update):
        rows = census.collect()
    return {
        LedgerId(row["scope_id"], row["ledger_id"]): Census(
            row["entries"], row["bytes"], row["distinct_words"], row["longest_line"]
        )
        for row in rows
    }


@contextmanager
def _watched(spark: SparkSession, update: Update) -> Iterator[None]:
    """Tells of finished tasks, from a thread of its own, while the block runs."""
    tracker = spark.sparkContext.statusTracker()
    ended = threading.Event()
    tasks: dict[int, tuple[int, int]] = {}

    def look() -> None:
        for stage_id in set(tasks) | set(tracker.getActiveStageIds()):
            stage = tracker.getStageInfo(stage_id)
            if stage is not None:
                tasks[stage_id] = (stage.numCompletedTasks, stage.numTasks)
        update(sum(done for done, _ in tasks.values()), sum(of for _, of in tasks.values()))

    def watch() -> None:
        while not ended.wait(_POLL_SECONDS):
            look()
        look()

    watcher = threading.Thread(target=watch, name="spark progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
