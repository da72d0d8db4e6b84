"""A Spark session for a command: checks that it can start, starts it, watches it and ends it with its JVM.

Nothing is imported here before it is known that PySpark and a suitable Java are installed. Executors on this machine
run this interpreter and import the same packages; those of a cluster run the interpreter that PYSPARK_PYTHON names
there.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Progress = Callable[[int, int], None]
"""Called with the number of tasks done and the number in all."""

_POLL_SECONDS = 0.2
_JVM_STOP_SECONDS = 15.0
_OLDEST_JAVA = 17
_MODULE = "jdk.incubator.vector"
_INSTALL_JAVA = (
    f"Spark needs a JDK of version {_OLDEST_JAVA} or later: install one (Debian and Ubuntu: apt install "
    "openjdk-17-jre-headless, macOS: brew install openjdk), or point JAVA_HOME at one"
)
_RAISED = re.compile(r"^(?:: )?(?:\w+\.)+\w*(?:Exception|Error): (.+)$", re.MULTILINE)
"""Matches the line of a traceback that names the exception."""


class SparkUnavailable(Exception):
    """Spark can't be started; the message says what to install."""


def require_spark() -> None:
    """Raises SparkUnavailable when PySpark or a suitable Java is missing. Leaves no process running."""
    try:
        import pyspark  # noqa: F401
    except ImportError as error:
        raise SparkUnavailable("PySpark is not installed: pip install 'bookgate[bookie,spark-local]'") from error
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
def spark_session(
    app_name: str, master: str | None, log: Path | None, settings: Mapping[str, str]
) -> Iterator[SparkSession]:
    """A session, stopped at the end with its JVM, unless that is spark-submit's.

    Args:
        app_name: Name of the application.
        master: None: as the environment says (`spark-submit` sets it), else all cores of this machine.
        log: File for the JVM's output; None: standard error.
        settings: Spark's configuration.

    Raises:
        SparkUnavailable: PySpark or a suitable Java is missing, or the session can't be started.
    """
    from pyspark.sql import SparkSession

    _prepare_workers(master)
    builder: Any = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        with _standard_error_in(log), _own_interrupt_handler():
            session: SparkSession = builder.getOrCreate()
    except job_errors() as error:
        # The text of an error of the JVM comes from there.
        why, seen = reason(error), f"; its log is {log}" if log else ""
        _stop_jvm()
        raise SparkUnavailable(f"Spark did not start: {why}{seen}") from None
    try:
        session.sparkContext.setLogLevel("ERROR")
        yield session
    finally:
        session.stop()
        _stop_jvm()


@contextmanager
def _own_interrupt_handler() -> Iterator[None]:
    """Keeps this process's handler of Ctrl-C: Spark's would call the JVM from within the interrupted call."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)


def _prepare_workers(master: str | None) -> None:
    """Makes workers run this interpreter and import this process's packages; on a cluster PYSPARK_PYTHON decides."""
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if master is not None and master.startswith("local"):
        os.environ["PYSPARK_PYTHON"] = sys.executable
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    own = str(Path(__file__).parents[3])
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != own]
    os.environ["PYTHONPATH"] = os.pathsep.join([own, *paths])
    # Workers on this machine are started with `-m`, and would import what the working directory has of any name.
    os.environ["PYTHONSAFEPATH"] = "1"


@contextmanager
def _standard_error_in(log: Path | None) -> Iterator[None]:
    """Child processes started inside write their standard error to a file; this process's own is restored."""
    if log is None:
        yield
        return
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _stop_jvm() -> None:
    """Stops the JVM that PySpark started for a session, which would live as long as this process. That of spark-submit,
    which has started this process, is not ours.
    """
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    if gateway is None or gateway.proc is None:
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


def job_errors() -> tuple[type[Exception], ...]:
    """The exceptions that a failed job may raise: PySpark passes those it does not know, such as lost workers, as
    Py4J's.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    return PySparkException, Py4JJavaError


def reason(error: Exception) -> str:
    """The message of the exception in a Python worker, taken from the tracebacks around it; else the error's first
    line.
    """
    raised = _RAISED.findall(str(error))
    return str(raised[-1]) if raised else str(error).strip().partition("\n")[0]


@contextmanager
def watched(spark: SparkSession, progress: Progress) -> Iterator[None]:
    """Reports finished tasks while the block runs, from a thread of its own."""
    tracker = spark.sparkContext.statusTracker()
    ended = threading.Event()
    tasks: dict[int, tuple[int, int]] = {}

    def look() -> None:
        for stage_id in set(tasks) | set(tracker.getActiveStageIds()):
            stage = tracker.getStageInfo(stage_id)
            if stage is not None:
                tasks[stage_id] = (stage.numCompletedTasks, stage.numTasks)
        progress(sum(done for done, _ in tasks.values()), sum(of for _, of in tasks.values()))

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
