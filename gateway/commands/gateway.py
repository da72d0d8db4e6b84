"""`bookgate gateway start`: the gateway alone, beside bookies of any implementation, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from bookgate.gateway.config import GatewayConfig
from bookgate.gateway.process.serve import Addresses, serve, stop_event
from bookgate.gateway.process.workers import serve_with_workers
from bookgate.runtime.command_line.groups import StartByDefault, new_group
from bookgate.runtime.command_line.output import AsJson, ends_in_the_log, print_json
from bookgate.runtime.event_loop import run_server
from bookgate.runtime.logs import set_up_logging

app = new_group("Metadata gateways. Without a command: start one.", StartByDefault)


@app.callback()
def group() -> None:
    """Keeps this a group."""


@app.command()
def start(
    metadata_uri: Annotated[
        str | None,
        typer.Option(help="Metadata store: zk+hierarchical://host:2181/ledgers or sqlite:///path/metadata.db"),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen at.", show_default="127.0.0.1")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 chooses a free one.", show_default="4181")] = None,
    workers: Annotated[
        int | None,
        typer.Option(help="Processes that share the port, each with its own store session.", show_default="1"),
    ] = None,
    http_port: Annotated[
        int | None,
        typer.Option(help="Port of the console, /metrics, /heartbeat and /ready; worker i serves at this plus i."),
    ] = None,
    tls_cert: Annotated[str | None, typer.Option(help="PEM file of the certificate shown to clients.")] = None,
    tls_key: Annotated[str | None, typer.Option(help="PEM file of that certificate's key.")] = None,
    tls_client_ca: Annotated[
        str | None, typer.Option(help="PEM file of the authorities that vouch for clients.")
    ] = None,
    tls_require_client_cert: Annotated[
        bool | None, typer.Option("--tls-require-client-cert", help="Serve only clients with a certificate.")
    ] = None,
    drain_seconds: Annotated[
        float | None, typer.Option(help="Grace for calls under way when stopping.", show_default="5")
    ] = None,
    insecure: Annotated[
        bool | None,
        typer.Option("--insecure", help="Serve other machines although nobody is authenticated.", show_default=False),
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.", show_default="info")] = None,
    log_format: Annotated[str | None, typer.Option(help="text (key=value) or json.", show_default="text")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with any of the settings.")] = None,
    as_json: AsJson = False,
) -> None:
    """Serves ledger metadata and discovery over gRPC from a metadata store. `start` may be left out.

    JSON, once it serves: {"gateway", "metadata_uri", "workers", "http": [addresses]}.

    \b
    Example: bookgate gateway start --metadata-uri zk+hierarchical://zk-1:2181/ledgers --port 4181
    """
    options = {
        "metadata_uri": metadata_uri,
        "host": host,
        "port": port,
        "workers": workers,
        "http_port": http_port,
        "tls_cert": tls_cert,
        "tls_key": tls_key,
        "tls_client_ca": tls_client_ca,
        "tls_require_client_cert": tls_require_client_cert,
        "drain_seconds": drain_seconds,
        "insecure": insecure,
        "log_level": log_level,
        "log_format": log_format,
    }
    settings = GatewayConfig.load(config, options)
    settings.check_exposure()
    set_up_logging(settings.log_level, settings.log_format)
    with ends_in_the_log(settings.log_format):
        run_server(_serve(settings, as_json))


async def _serve(settings: GatewayConfig, as_json: bool) -> None:
    stop = stop_event(signal.SIGTERM, signal.SIGINT)
    if settings.workers > 1:
        await serve_with_workers(settings, stop, lambda addresses: _announce(settings, addresses, as_json))
    else:
        await serve(settings, stop, lambda address: _announce(settings, [address], as_json), share_port=False)


def _announce(settings: GatewayConfig, addresses: list[Addresses], as_json: bool) -> None:
    address = addresses[0].grpc
    http = [each.http for each in addresses if each.http is not None]
    if as_json:
        line = {"gateway": address, "metadata_uri": settings.metadata_uri, "workers": settings.workers, "http": http}
        print_json(line)
        return
    web = "https" if settings.http_tls else "http"
    scheme = "grpcs" if settings.tls_cert else "grpc"
    shared = f" with {settings.workers} workers" if settings.workers > 1 else ""
    metrics = f", console and metrics at {', '.join(f'{web}://{each}/' for each in http)}" if http else ""
    print(
        f"gateway serves at {address}{shared} (clients: {scheme}://{address}), "
        f"metadata in {settings.metadata_uri}{metrics}",
        flush=True,
    )
