"""`bookgate standalone`: a whole cluster on this machine until Ctrl-C."""

from __future__ import annotations

import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from bookgate.bookie.standalone.cluster import BookieProcess, ClusterException, StandaloneCluster
from bookgate.runtime.child_process import Pauses
from bookgate.runtime.command_line.groups import new_group
from bookgate.runtime.command_line.output import AsJson, fail, print_json

app = new_group(None, asks_for_a_command=False)

_LOOK_EVERY_SECONDS = 1.0
_DEFAULT_ENSEMBLE = 3
_PORTS = 65536


@app.callback(invoke_without_command=True)
def standalone(
    data_dir: Annotated[
        Path, typer.Option(help="Where the cluster keeps its data, over restarts.", show_default=True)
    ] = Path("bookgate-data"),
    bookies: Annotated[int, typer.Option(min=1, max=100, help="How many bookies.")] = 3,
    metadata_uri: Annotated[
        str | None, typer.Option(help="Metadata store, such as zk+hierarchical://host:2181/ledgers. Default: embedded.")
    ] = None,
    bookie_port: Annotated[int, typer.Option(min=0, max=65535, help="First entry port; 0 = choose free ones.")] = 3181,
    gateway_port: Annotated[
        int, typer.Option(min=0, max=65535, help="First gateway port; 0 = choose free ones.")
    ] = 4181,
    http_port: Annotated[int, typer.Option(min=0, max=65535, help="First HTTP port; 0 = choose free ones.")] = 8080,
    restart: Annotated[
        bool, typer.Option("--restart", help="Start a bookie again that has ended before the cluster.")
    ] = False,
    secure: Annotated[
        Path | None,
        typer.Option(
            "--secure",
            metavar="DIR",
            help="With TLS, tokens and a policy from this directory, as `bookgate security init` makes it.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Runs a whole cluster on this machine until Ctrl-C: bookies, each with a metadata gateway and HTTP admin.

    JSON, once it serves: {"gateways": [addresses], "bookies": [addresses], "http": [addresses], "metadata_uri"}.

    \b
    Example: bookgate standalone --data-dir ./cluster --bookies 3
    """
    # So that a package that is missing is told here, and not by each of the bookies.
    import_module("bookgate.bookie.server")
    if secure is not None:
        _make_secure(secure, bookies)
    cluster = StandaloneCluster(
        data_dir,
        bookies,
        metadata_uri,
        bookie_port=bookie_port,
        gateway_port=gateway_port,
        http_port=http_port,
        bookie_options=("--set=auto_recovery=true",),
        secure=secure,
    )
    for option, first in (("--bookie-port", bookie_port), ("--gateway-port", gateway_port), ("--http-port", http_port)):
        _check_ports(option, first, bookies)
    stop = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    try:
        cluster.start()
    except (ClusterException, OSError) as error:
        fail(str(error))
    try:
        _announce(cluster, as_json, secure)
        _watch(cluster, stop, restart)
    finally:
        cluster.stop()


def _make_secure(directory: Path, bookies: int) -> None:
    try:
        from bookgate.bookie.tools.trial_security.files import make
    except ImportError as error:
        fail(f"certificates are made by the package {error.name}; install bookgate[security]")
    try:
        make(directory, [f"bookie-{index + 1}" for index in range(bookies)], ())
    except (OSError, ValueError) as error:
        fail(f"{directory} can't be used: {error}")


def _announce(cluster: StandaloneCluster, as_json: bool, secure: Path | None = None) -> None:
    if as_json:
        addresses = {"gateways": cluster.gateways, "bookies": cluster.bookies, "http": cluster.http}
        print_json({**addresses, "metadata_uri": cluster.metadata_uri})
        return
    print(f"The cluster serves; its data is in {cluster.data_dir}. Stop it with Ctrl-C.")
    print(f"  clients    {cluster.gateway_uri}")
    print(f"  bookies    {', '.join(cluster.bookies)}")
    web = "https" if secure else "http"
    print(f"  HTTP       {', '.join(f'{web}://{address}/' for address in cluster.http)}")
    if secure:
        print(f"  settings   {secure / 'client.toml'} for clients; tokens beside it, operator.token for the console")
    print(f"  metadata   {cluster.metadata_uri}", flush=True)
    bookies = len(cluster.bookies)
    if bookies < _DEFAULT_ENSEMBLE:
        print(
            f"  ledgers    need --ensemble-size {bookies} (ensemble_size={bookies}); the default is for 3", flush=True
        )


def _check_ports(option: str, first: int, count: int) -> None:
    """Raises CommandFailed for a port that another process has, before anything is started."""
    if first + count > _PORTS:
        fail(f"{count} ports from {first} on end above {_PORTS - 1}; choose a lower one with {option}, 0 for free ones")
    for port in range(first, first + count) if first else ():
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind(("127.0.0.1", port))
            except OSError as error:
                fail(f"port {port} can't be used ({error.strerror}); choose others with {option}, 0 for free ones")


def _watch(cluster: StandaloneCluster, stop: threading.Event, restart: bool) -> None:
    """Waits for the end, telling of bookies that end before, and starting them again where that is wanted."""
    away: dict[str, _Away] = {}
    while not stop.wait(_LOOK_EVERY_SECONDS):
        for process in cluster.ended():
            if process.bookie_id not in away:
                away[process.bookie_id] = _Away(process)
                _tell_of_end(process, restart)
        for each in [each for each in away.values() if restart and each.is_due()]:
            if _starts(each.process):
                del away[each.process.bookie_id]
        if not restart and len(away) == len(cluster.processes):
            fail("all bookies have ended")


@dataclass(slots=True)
class _Away:
    """A bookie that has ended, and was not started again since."""

    process: BookieProcess
    _pauses: Pauses = field(default_factory=Pauses)
    _due: float = 0.0

    def is_due(self) -> bool:
        """Whether it is to be started now; should that fail, the pause until the next time is longer."""
        now = time.monotonic()
        if now < self._due:
            return False
        self._due = now + self._pauses.after(0)
        return True


def _tell_of_end(process: BookieProcess, restart: bool) -> None:
    what = f"{process.bookie_id} has ended; its log is {process.log}"
    if not restart:
        print(
            f"{what}. The others go on; it comes back with the cluster, or with --restart", file=sys.stderr, flush=True
        )
        return
    print(f"{what}. It is started again", file=sys.stderr, flush=True)


def _starts(process: BookieProcess) -> bool:
    try:
        process.start()
        process.wait_until_serving()
    except (ClusterException, OSError) as error:
        print(f"{error}. It is tried again", file=sys.stderr, flush=True)
        return False
    return True
