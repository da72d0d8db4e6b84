"""A whole cluster on one machine: bookies as child processes, each with its gateway, around one metadata store.

Every child is the public command `bookgate bookie --json`, which prints its addresses once it serves. Bookies are named
`bookie-1`, `bookie-2`, … and not by their addresses, so a cluster can be restarted from its data directory on any free
ports. Children end with their parent, however that ends, because they watch their standard input.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from bookgate.gateway.stores.drivers import ensure_cluster
from bookgate.ledger.errors import BKException
from bookgate.runtime.child_process import own_environment, python_command

START_TIMEOUT_SECONDS = 60.0
STOP_TIMEOUT_SECONDS = 30.0


def bookie_settings(directory: Path, bookie_id: str) -> Path:
    """The settings that `bookgate security init` has made for a bookie."""
    return directory.absolute() / "bookies" / f"{bookie_id}.toml"


class ClusterException(Exception):
    """A bookie of the cluster did not start; the message has its own words."""


@dataclass
class BookieProcess:
    """One bookie as a child process."""

    bookie_id: str
    data_dir: Path
    arguments: list[str]
    process: subprocess.Popen[bytes] | None = None
    addresses: dict[str, str] = field(default_factory=dict)
    log_begins: int = 0
    """Where in the log this start's lines begin."""

    @property
    def log(self) -> Path:
        return self.data_dir / "bookie.log"

    def start(self) -> None:
        """Starts the process; `wait_until_serving` waits for it."""
        self.data_dir.mkdir(0o750, parents=True, exist_ok=True)
        # Behind what is there: another process may have the directory, and this log.
        with open(self.log, "ab", opener=partial(os.open, mode=0o640)) as log:
            self.log_begins = log.tell()
            self.process = subprocess.Popen(
                python_command("bookgate", "bookie", *self.arguments),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env=own_environment(),
            )

    def wait_until_serving(self, timeout_seconds: float = START_TIMEOUT_SECONDS) -> None:
        """Returns once the bookie serves. Raises ClusterException with what the bookie said when it does not."""
        process = self._running()
        line = _read_line(process, timeout_seconds)
        if line is None:
            self.kill()
            raise ClusterException(f"{self.bookie_id} did not start in {timeout_seconds:.0f} s; its log is {self.log}")
        if not line:
            code = process.wait()
            self.process = None
            raise ClusterException(f"{self.bookie_id} did not start (exit code {code}): {self._last_words()}")
        self.addresses = json.loads(line)

    def _last_words(self) -> str:
        with self.log.open("rb") as log:
            log.seek(self.log_begins)
            lines = log.read().decode(errors="replace").strip().splitlines()
        return _message(lines[-1]) if lines else f"it said nothing; its log is {self.log}"

    def terminate(self) -> None:
        """Asks the process to stop; `wait` waits for it."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def wait(self, timeout_seconds: float = STOP_TIMEOUT_SECONDS) -> None:
        """Returns once the process has ended; kills it after the timeout."""
        if self.process is None:
            return
        try:
            self.process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._close_pipes()
        self.process = None

    def kill(self) -> None:
        """SIGKILL: what a crash looks like."""
        if self.process is not None:
            self.process.kill()
            self.wait()

    def _running(self) -> subprocess.Popen[bytes]:
        if self.process is None:
            raise ClusterException(f"{self.bookie_id} was not started")
        return self.process

    def _close_pipes(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout) if self.process else ():
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def _message(line: str) -> str:
    """What a failure of the command with `--json` says; any other line as it is."""
    try:
        return str(json.loads(line)["error"])
    except (ValueError, KeyError, TypeError):
        return line


def _read_line(process: subprocess.Popen[bytes], timeout_seconds: float) -> bytes | None:
    """The first line of a child's output; empty when it ended, None after the timeout."""
    result: list[bytes] = []
    output = process.stdout
    assert output is not None, "started with a pipe"

    def read(pipe: IO[bytes]) -> None:
        with contextlib.suppress(ValueError, OSError):
            result.append(pipe.readline())

    reader = threading.Thread(target=read, args=(output,), daemon=True)
    reader.start()
    reader.join(timeout_seconds)
    return result[0] if result else None


def make_cluster(metadata_uri: str) -> None:
    """Makes a cluster in a metadata store where nothing is. Raises ClusterException."""
    if metadata_uri.startswith(("grpc:", "grpcs:")):
        return
    try:
        with ThreadPoolExecutor(1) as thread:  # the caller may have an event loop
            thread.submit(lambda: asyncio.run(ensure_cluster(metadata_uri))).result()
    except BKException as error:
        raise ClusterException(str(error)) from error


class StandaloneCluster:
    """A cluster in a data directory; as a context manager it starts and stops with the block. The first start makes it.

    `metadata_uri` None keeps the metadata in the data directory. A port of 0 chooses free ones; another is the first
    bookie's, the next bookies taking the next. Raises ClusterException.
    """

    def __init__(
        self,
        data_dir: Path,
        bookies: int = 3,
        metadata_uri: str | None = None,
        *,
        host: str = "127.0.0.1",
        bookie_port: int = 0,
        gateway_port: int = 0,
        http_port: int = 0,
        bookie_options: tuple[str, ...] = (),
        secure: Path | None = None,
    ) -> None:
        """`secure`: a directory that `bookgate security init` has made."""
        self.data_dir = data_dir.absolute()
        self._secure = secure is not None
        self.metadata_uri = metadata_uri or f"sqlite://{self.data_dir}/metadata.sqlite"
        ports = {"--port": bookie_port, "--gateway-port": gateway_port, "--http-port": http_port}
        self.processes = [
            BookieProcess(
                f"bookie-{index + 1}",
                self.data_dir / f"bookie-{index + 1}",
                [
                    "--json",
                    "--stop-with-parent",
                    f"--bookie-id=bookie-{index + 1}",
                    f"--metadata-uri={self.metadata_uri}",
                    f"--data-dir={self.data_dir / f'bookie-{index + 1}'}",
                    f"--host={host}",
                    *(f"{option}={port + index if port else 0}" for option, port in ports.items()),
                    *([f"--config={bookie_settings(secure, f'bookie-{index + 1}')}"] if secure else []),
                    *bookie_options,
                ],
            )
            for index in range(bookies)
        ]

    @property
    def bookies(self) -> list[str]:
        """`host:port` of the entry protocol, a bookie each."""
        return self._addresses("bookie")

    @property
    def gateways(self) -> list[str]:
        """`host:port` of the metadata gateway, a bookie each."""
        return self._addresses("gateway")

    @property
    def http(self) -> list[str]:
        """`host:port` of the HTTP admin, a bookie each."""
        return self._addresses("http")

    @property
    def gateway_uri(self) -> str:
        """What a client connects to."""
        return f"{'grpcs' if self._secure else 'grpc'}://" + ",".join(self.gateways)

    def _addresses(self, kind: str) -> list[str]:
        return [process.addresses[kind] for process in self.processes]

    def start(self) -> None:
        """Starts all bookies; when one does not start, stops the others again."""
        try:
            self.data_dir.mkdir(0o750, parents=True, exist_ok=True)
        except OSError as error:
            raise ClusterException(
                f"the data directory {self.data_dir} can't be made: {error.strerror or error}"
            ) from error
        make_cluster(self.metadata_uri)
        try:
            for process in self.processes:
                process.start()
            for process in self.processes:
                process.wait_until_serving()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stops all bookies, each with a last checkpoint."""
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait()

    def ended(self) -> list[BookieProcess]:
        """The bookies that have ended by themselves."""
        return [process for process in self.processes if process.process and process.process.poll() is not None]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
