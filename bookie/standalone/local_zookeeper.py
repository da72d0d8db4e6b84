"""A real ZooKeeper server on this machine, without a download: PySpark ships its jars.

For trying things out and for tests; one server, no ensemble, loopback only. States: stopped → starting → serving →
stopped (`stop`, `kill`); a stopped one may be started again, on the same port and data. It ends with the process that
started it, even one that is killed (Linux only). Its output goes to a log file in the data directory.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from bookgate.bookie.standalone.guard import Guard

_MAIN_CLASS = "org.apache.zookeeper.server.ZooKeeperServerMain"
_HOST = "127.0.0.1"
_JARS = (
    "zookeeper-*.jar",
    "netty-buffer-*.jar",
    "netty-codec-*.jar",
    "netty-common-*.jar",
    "netty-handler-*.jar",
    "netty-resolver-*.jar",
    "netty-tcnative-classes-*.jar",
    "netty-transport-*.jar",
    "slf4j-api-*.jar",
    "log4j-slf4j2-impl-*.jar",
    "log4j-api-*.jar",
    "log4j-core-*.jar",
    "metrics-core-*.jar",
    "snappy-java-*.jar",
    "commons-io-*.jar",
    "commons-cli-*.jar",
)
_LOG_TAIL_BYTES = 2000
_START_ATTEMPTS = 3


class LocalZooKeeperError(Exception):
    """The server can't be started; the message says what is missing or where its log is."""


class LocalZooKeeper:
    """One server. Blocking; from asyncio code use it in a thread."""

    def __init__(
        self,
        data_dir: str | Path,
        port: int = 0,
        tick_time_ms: int = 500,
        heap_mib: int = 256,
        settings: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        """Port 0 chooses a free one at the first start. Session timeouts lie between 2 and 20 ticks.

        `heap_mib`: a node of a few hundred bytes takes about a KiB of it. `settings`: further lines of zoo.cfg.
        """
        self._settings = settings
        self.data_dir = Path(data_dir)
        self.port = port
        self._tick_time_ms = tick_time_ms
        self._heap_mib = heap_mib
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: Guard | None = None

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"{_HOST}:{self.port}"

    @property
    def log_path(self) -> Path:
        return self.data_dir / "zookeeper.log"

    def metadata_uri(self, ledgers_root: str = "/ledgers", manager: str = "hierarchical") -> str:
        """A metadata URI on this server."""
        return f"zk+{manager}://{self.address}{ledgers_root}"

    def start(self, timeout_seconds: float = 30.0) -> Self:
        """Returns once the server serves. Raises LocalZooKeeperError."""
        if self._process is not None:
            return self
        java, class_path = _find_java(), _class_path()
        self.data_dir.mkdir(parents=True, exist_ok=True)
        chosen_here = self.port == 0
        deadline = time.monotonic() + timeout_seconds
        for attempt in range(_START_ATTEMPTS):
            if chosen_here:
                self.port = _free_port()
            self._process = self._launch(java, class_path)
            self._guard = Guard(self._process.pid)
            if self._wait_until_serving(deadline):
                return self
            self.kill()
            # Somebody may have taken the port between its choice and its use.
            if not chosen_here or attempt == _START_ATTEMPTS - 1 or time.monotonic() >= deadline:
                break
        raise LocalZooKeeperError(f"ZooKeeper did not start at {self.address}; its log ends with:\n{self._log_tail()}")

    def stop(self) -> None:
        """Ends the server in good order; its data stays."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Ends the server at once (SIGKILL); its data stays."""
        self._end(signal.SIGKILL)

    def suspend(self) -> None:
        """Stops the server's clock (SIGSTOP) until `resume`; once this returns it answers nothing."""
        process = self._require()
        process.send_signal(signal.SIGSTOP)
        # The signal is on its way only; WNOWAIT leaves an end to be seen by whoever waits for the process.
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        self._require().send_signal(signal.SIGCONT)

    def command(self, four_letters: str, timeout_seconds: float = 5.0) -> str:
        """The answer to one of ZooKeeper's four-letter commands."""
        with socket.create_connection((_HOST, self.port), timeout_seconds) as connection:
            connection.sendall(four_letters.encode())
            parts = []
            while part := connection.recv(65536):
                parts.append(part)
        return b"".join(parts).decode(errors="replace")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _require(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise LocalZooKeeperError("this ZooKeeper is not running")
        return self._process

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        # A suspended process only sees a signal other than SIGKILL when it goes on.
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.release()

    def _launch(self, java: str, class_path: str) -> subprocess.Popen[bytes]:
        config = self.data_dir / "zoo.cfg"
        config.write_text(
            f"tickTime={self._tick_time_ms}\n"
            f"dataDir={self.data_dir / 'data'}\n"
            f"clientPort={self.port}\n"
            f"clientPortAddress={_HOST}\n"
            "admin.enableServer=false\n"
            "maxClientCnxns=0\n"
            "4lw.commands.whitelist=*\n" + "".join(f"{key}={value}\n" for key, value in self._settings.items())
        )
        command = [java, f"-Xmx{self._heap_mib}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command += ["-Dorg.apache.logging.log4j.level=INFO", "-Dzookeeper.4lw.commands.whitelist=*"]
        command += ["-cp", class_path, _MAIN_CLASS, str(config)]
        with self.log_path.open("ab") as log:
            # A session of its own: Ctrl-C in the terminal ends whoever started it, who then ends it in order.
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def _wait_until_serving(self, deadline: float) -> bool:
        process = self._require()
        while time.monotonic() < deadline and process.poll() is None:
            try:
                if self.command("srvr", timeout_seconds=1.0).startswith("Zookeeper version"):
                    return process.poll() is None
            except OSError:
                pass
            time.sleep(0.05)
        return False

    def _log_tail(self) -> str:
        try:
            return self.log_path.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
        except OSError as error:
            return str(error)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _find_java() -> str:
    home = os.environ.get("JAVA_HOME")
    candidates = [str(Path(home) / "bin" / "java")] if home else []
    for candidate in (*candidates, "java"):
        found = shutil.which(candidate)
        if found:
            return found
    raise LocalZooKeeperError(
        "a local ZooKeeper needs Java 17 or newer; install it and put java on the PATH, or set JAVA_HOME"
    )


def _class_path() -> str:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise LocalZooKeeperError(
            "a local ZooKeeper uses the jars that PySpark ships; install it with: pip install 'bookgate[spark-local]'"
        )
    directory = Path(spec.origin).parent / "jars"
    jars = sorted({str(jar) for pattern in _JARS for jar in directory.glob(pattern)})
    if not any(Path(jar).name.startswith("zookeeper-") for jar in jars):
        raise LocalZooKeeperError(f"{directory} holds no zookeeper-*.jar; reinstall pyspark")
    return os.pathsep.join(jars)
