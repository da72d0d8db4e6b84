"""`bookgate autorecovery start`: auto-recovery in a process of its own, beside bookies that do not run it."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from pathlib import Path
from typing import Annotated

import typer
from prometheus_client import CollectorRegistry, start_http_server
from pydantic import Field
from pydantic_settings import SettingsConfigDict

from bookgate.bookie.config.auto_recovery import AutoRecoverySettings
from bookgate.bookie.config.own_client import OwnClientSettings
from bookgate.bookie.replication.auto_recovery import AutoRecovery
from bookgate.bookie.replication.statistics import AutoRecoveryCollector
from bookgate.gateway.config import GatewayConfig
from bookgate.gateway.stores.drivers import create_factory
from bookgate.ledger.metadata_store import LedgerManagerFactory
from bookgate.runtime.command_line.groups import new_group
from bookgate.runtime.command_line.output import AsJson, print_json
from bookgate.runtime.event_loop import run_async
from bookgate.runtime.logs import LogSettings, log_event, set_up_logging
from bookgate.thinclient.config import ClientConfig

_log = logging.getLogger(__name__)

app = new_group("Auto-recovery in a process of its own.")


class AutoRecoveryConfig(AutoRecoverySettings, OwnClientSettings, LogSettings):
    """Everything that can be set of the process. Raises pydantic's ValidationError for a value out of range."""

    model_config = SettingsConfigDict(env_prefix="BOOKGATE_AUTORECOVERY_", frozen=True, extra="forbid")

    metadata_uri: str = Field(
        description="metadata store: sqlite:///path or zk+hierarchical://host:port/ledgers; or gateways: grpc://host:port,…"
    )
    name: str = Field(
        default_factory=socket.gethostname, description="what the process calls itself in its votes; default: its host"
    )
    metrics_port: int = Field(0, ge=0, le=65535, description="serves /metrics; 0: nothing is served")
    metrics_host: str = Field("127.0.0.1", description="address to serve /metrics on")


@app.callback()
def group() -> None:
    """Keeps this a group."""


@app.command()
def start(
    config: Annotated[Path | None, typer.Option(help="TOML file with any of the settings.")] = None,
    metadata_uri: Annotated[
        str | None,
        typer.Option(
            help="Metadata store: sqlite:///path or zk+hierarchical://host:2181/ledgers; or gateways: grpc://host:4181."
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name in votes.", show_default="this host")] = None,
    metrics_port: Annotated[int | None, typer.Option(help="Serves /metrics.", show_default="not served")] = None,
    as_json: AsJson = False,
) -> None:
    """Runs a candidate for auditor and a worker until SIGTERM or Ctrl-C; repairs under way end where they are.

    Not needed where bookies have auto_recovery = true. Every setting can also stand in the TOML file or in the
    environment as BOOKGATE_AUTORECOVERY_…; those of its connections to bookies are the client's, in the
    table `[client]` or the environment.

    JSON, once it works: {"name", "metadata_uri"}.

    \b
    Example: bookgate autorecovery start --metadata-uri zk+hierarchical://zk-1:2181/ledgers
    """
    given = {"metadata_uri": metadata_uri, "name": name, "metrics_port": metrics_port}
    chosen = AutoRecoveryConfig.load(config, given)
    set_up_logging(chosen.log_level, chosen.log_format)
    run_async(_run(chosen, as_json))


async def _run(config: AutoRecoveryConfig, as_json: bool) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    client = config.own_client()
    factory = create_factory(config.metadata_uri, GatewayConfig.load(None, {"metadata_uri": config.metadata_uri}))
    try:
        await factory.initialize()
        await _work(config, factory, client, stopping, as_json)
    finally:
        await factory.close()


async def _work(
    config: AutoRecoveryConfig,
    factory: LedgerManagerFactory,
    client: ClientConfig,
    stopping: asyncio.Event,
    as_json: bool,
) -> None:
    running = AutoRecovery(factory, config.name, config.auto_recovery_options(), client)
    if config.metrics_port:
        registry = CollectorRegistry()
        registry.register(AutoRecoveryCollector(running))
        start_http_server(config.metrics_port, config.metrics_host, registry)
    await running.start()
    try:
        log_event(_log, "autorecovery", state="working", name=config.name, metadata_uri=config.metadata_uri)
        if as_json:
            print_json({"name": config.name, "metadata_uri": config.metadata_uri})
        await stopping.wait()
    finally:
        await running.stop()
