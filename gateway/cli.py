"""`bookgate gateway`: the gateway alone, beside bookies of any implementation. Serves until SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.config import GatewayConfig
from ledger.errors import BKException

app = typer.Typer(invoke_without_command=True, no_args_is_help=False, rich_markup_mode=None)


@app.callback()
def gateway(
    metadata_uri: Annotated[
        str | None,
        typer.Option(help="Metadata store: zk+hierarchical://host:2181/ledgers or sqlite:///path/metadata.db"),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen at. [default: 127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 chooses a free one. [default: 4181]")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with any of the settings.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON line once the gateway serves.")] = False,
) -> None:
    """Serve ledger metadata and discovery over gRPC from a metadata store."""
    try:
        settings = GatewayConfig.load(config, {"metadata_uri": metadata_uri, "host": host, "port": port})
        _run(serve(settings, as_json))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except ModuleNotFoundError as error:
        typer.echo(f"error: the gateway needs {error.name}; install it with: pip install 'bookgate[bookie]'", err=True)
        raise typer.Exit(1) from None
    except (BKException, OSError) as error:
        typer.echo(f"error: {_message(error)}", err=True)
        raise typer.Exit(1) from None


async def serve(settings: GatewayConfig, as_json: bool) -> None:
    """Serves until a signal asks to stop. Raises BKException, OSError."""
    # Here, since the modules need the extra `bookgate[bookie]`.
    from gateway.drivers import create_factory
    from gateway.server import GatewayServer

    factory = create_factory(settings.metadata_uri, settings)
    stop = _stop_event()
    try:
        await factory.initialize()
        server = GatewayServer(
            factory,
            settings.host,
            settings.port,
            bookmark_seconds=settings.bookmark_seconds,
        )
        await server.start()
        _announce(server.address, settings.metadata_uri, as_json)
        await stop.wait()
        await server.stop(settings.drain_seconds)
    finally:
        await factory.close()


def _announce(address: str, metadata_uri: str, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"gateway": address, "metadata_uri": metadata_uri}), flush=True)
    else:
        print(f"gateway serves at {address} (clients: grpc://{address}), metadata in {metadata_uri}", flush=True)


def _stop_event() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


def _run(main: Coroutine[Any, Any, None]) -> None:
    if sys.platform != "win32" and sys.implementation.name == "cpython":
        import uvloop

        uvloop.run(main)
    else:
        asyncio.run(main)


def _message(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)


if __name__ == "__main__":
    app()
