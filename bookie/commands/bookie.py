"""`bookgate bookie start`: one gateway-enabled bookie until SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bookgate.bookie.commands.inspect import inspect_app
from bookgate.bookie.commands.recover import recover, replace
from bookgate.bookie.config.bookie import BookieConfig
from bookgate.bookie.instances.directories import chosen_instance, is_supervised
from bookgate.bookie.instances.order import Sources
from bookgate.bookie.tools.configuration.schema import assignments
from bookgate.ledger.errors import IncorrectParameterException
from bookgate.runtime.command_line.groups import StartByDefault, new_group
from bookgate.runtime.command_line.output import AsJson, ends_in_the_log, print_json
from bookgate.runtime.event_loop import run_server
from bookgate.runtime.garbage import leave_out_what_is_there
from bookgate.runtime.logs import set_up_logging

if TYPE_CHECKING:
    from bookgate.bookie.instances.supervisor import Supervisor
    from bookgate.bookie.server import BookieServer

app = new_group("Bookies: start one, look at one, look at all. Without a command: start one.", StartByDefault)
app.add_typer(inspect_app, name="inspect")
app.command()(recover)
app.command()(replace)


@app.command()
def start(
    config: Annotated[Path | None, typer.Option(help="TOML file with any of the settings.")] = None,
    metadata_uri: Annotated[
        str | None,
        typer.Option(
            help="Metadata store: sqlite:///path or zk+hierarchical://host:2181/ledgers; or gateways: grpc://host:4181."
        ),
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Holds the journal and the ledgers.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default="0.0.0.0")] = None,
    advertised_address: Annotated[
        str | None, typer.Option(help="What clients are told to connect to.", show_default="this host's address")
    ] = None,
    port: Annotated[int | None, typer.Option(help="Entry protocol; 0 = a free one.", show_default="3181")] = None,
    gateway_port: Annotated[
        int | None, typer.Option(help="Metadata gateway; 0 = a free one.", show_default="4181")
    ] = None,
    http_port: Annotated[int | None, typer.Option(help="HTTP admin; 0 = a free one.", show_default="8080")] = None,
    bookie_id: Annotated[
        str | None, typer.Option(help="Name in the cluster.", show_default="advertised address and port")
    ] = None,
    instances: Annotated[
        str | None,
        typer.Option(
            metavar="N|auto",
            help="Bookies of this host under one supervisor, each with id, ports and directories of its own.",
            show_default="1",
        ),
    ] = None,
    insecure: Annotated[
        bool | None,
        typer.Option("--insecure", help="Serve other machines although nobody is authenticated.", show_default=False),
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.", show_default="info")] = None,
    log_format: Annotated[str | None, typer.Option(help="text (key=value) or json.", show_default="text")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Any other setting, as in the TOML file; may be given several times."
        ),
    ] = None,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            help="Start once although data that this bookie acknowledged are lost: what it lacks of the ledgers that "
            "there are now is unknown to it, not absent.",
        ),
    ] = False,
    as_json: AsJson = False,
    stop_with_parent: Annotated[
        bool, typer.Option("--stop-with-parent", hidden=True, help="Stop when standard input ends.")
    ] = False,
) -> None:
    """Runs a bookie that hosts a metadata gateway, until SIGTERM or Ctrl-C. `start` may be left out.

    Every setting can also stand in the TOML file or in the environment as BOOKGATE_BOOKIE_…

    With several instances, SIGHUP starts them again one by one, with the settings and the code there are then. One
    bookie alone ignores it. Both stop when the terminal that they run in is closed.

    JSON, once it serves: {"bookie_id", "bookie", "gateway", "http", "metadata_uri"}.

    JSON of several instances: {"http", "metadata_uri", "instances": [{"instance", "bookie_id", "bookie", …}]}.

    \b
    Example: bookgate bookie start --config /etc/bookgate/bookie.toml
    """
    # A plain install can't serve, and says so before it asks for settings.
    import starlette  # noqa: F401

    values = {
        "metadata_uri": metadata_uri,
        "data_dir": data_dir and str(data_dir),
        "host": host,
        "advertised_address": advertised_address,
        "port": port,
        "gateway_port": gateway_port,
        "http_port": http_port,
        "bookie_id": bookie_id,
        "instances": instances,
        "insecure": insecure,
        "log_level": log_level,
        "log_format": log_format,
    }
    sources = Sources(str(config) if config else None, values, assignments(settings or []))
    chosen = sources.load()
    set_up_logging(chosen.log_level, chosen.log_format)
    if not _has_terminal():
        # At once: until there is a handler a bookie would end by it, and not in order.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with ends_in_the_log(chosen.log_format):
        if is_supervised(chosen) and chosen.instance is None:
            run_server(_supervise(sources, chosen, accept_loss, as_json, stop_with_parent))
        else:
            # Here, since the other commands of a bookie do without.
            from bookgate.bookie.server import BookieServer

            server = BookieServer(chosen_instance(chosen), accept_loss=accept_loss)
            hang_up = (signal.SIGHUP,) if _has_terminal() else ()
            run_server(_serve(server, lambda: _announce(server.addresses, as_json), stop_with_parent, hang_up))


async def _supervise(
    sources: Sources, host: BookieConfig, accept_loss: bool, as_json: bool, stop_with_parent: bool
) -> None:
    from bookgate.bookie.instances.supervisor import Supervisor

    if accept_loss:
        raise IncorrectParameterException(
            "--accept-loss is for one bookie: name the instance that has lost data, with --set instance=NUMBER"
        )
    supervisor, had_terminal = Supervisor(sources), _has_terminal()

    def hang_up() -> None:
        """As one bookie alone, it ends with the terminal that it runs in."""
        if had_terminal and not _has_terminal():
            supervisor.request_stop()
        else:
            supervisor.request_renewal()

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hang_up)
    await _serve(supervisor, lambda: _announce_instances(supervisor, host, as_json), stop_with_parent)


async def _serve(
    server: BookieServer | Supervisor,
    announce: Callable[[], None],
    stop_with_parent: bool,
    hang_up: Sequence[signal.Signals] = (),
) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, *hang_up):
        loop.add_signal_handler(number, server.request_stop)
    if stop_with_parent:
        threading.Thread(target=_watch_parent, args=(loop, server), daemon=True).start()
    try:
        await server.start()
        announce()
        leave_out_what_is_there()
        await server.run_until_stopped()
    finally:
        await server.stop()


def _has_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _watch_parent(loop: asyncio.AbstractEventLoop, server: BookieServer | Supervisor) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    loop.call_soon_threadsafe(server.request_stop)


def _announce(addresses: Mapping[str, str | None], as_json: bool) -> None:
    if as_json:
        print_json(addresses)
        return
    print(f"bookie {addresses['bookie_id']} serves; stop it with Ctrl-C")
    for kind in ("bookie", "gateway", "http", "metadata_uri"):
        print(f"  {kind:12} {addresses[kind] or 'none: metadata through other gateways'}", flush=True)


def _announce_instances(supervisor: Supervisor, host: BookieConfig, as_json: bool) -> None:
    addresses = {"metadata_uri": host.metadata_uri, **supervisor.addresses}
    if as_json:
        print_json(addresses)
        return
    print(f"{len(addresses['instances'])} of {len(supervisor.slots)} instances serve; stop them with Ctrl-C")
    for each in addresses["instances"]:
        print(f"  {each['bookie_id']:24} {each['bookie']}, HTTP {each['http']}")
    print(f"  all of them: HTTP {addresses['http']}; metadata in {addresses['metadata_uri']}", flush=True)
