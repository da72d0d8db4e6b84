"""One gateway process: store, gRPC server and HTTP, until it is told to stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import NamedTuple

from bookgate.gateway.config import GatewayConfig
from bookgate.ledger.addresses import address_of
from bookgate.runtime.garbage import leave_out_what_is_there


class Addresses(NamedTuple):
    """Where a gateway serves; `http` is None where it does not."""

    grpc: str
    http: str | None


async def serve(
    settings: GatewayConfig, stop: asyncio.Event, serving: Callable[[Addresses], None], *, share_port: bool
) -> None:
    """Serves until `stop` is set, then drains. Raises BKException, OSError."""
    # Here, since the modules need the extra `bookgate[bookie]`.
    from prometheus_client import CollectorRegistry, ProcessCollector

    from bookgate.gateway.process.http import HttpServer
    from bookgate.gateway.server import GatewayServer
    from bookgate.gateway.stores.drivers import create_factory

    factory = create_factory(settings.metadata_uri, settings)
    http = None
    try:
        await factory.initialize()
        access = settings.access()
        server = GatewayServer(
            factory,
            settings.host,
            settings.port,
            bookmark_seconds=settings.bookmark_seconds,
            limits=settings.limits(),
            tls=settings.tls_files(),
            access=access,
            share_port=share_port,
        )
        await server.start()
        http_address = None
        if settings.http_port is not None:
            registry = CollectorRegistry()
            ProcessCollector(registry=registry)
            registry.register(server.metrics)
            http = HttpServer(settings, factory, registry, stop, server.metrics, access)
            http_address = address_of(settings.host, await http.start(settings.host, settings.http_port))
        serving(Addresses(server.address, http_address))
        leave_out_what_is_there()
        await stop.wait()
        await server.stop(settings.drain_seconds)
    finally:
        if http is not None:
            await http.stop()
        await factory.close()


def stop_event(*signals: signal.Signals) -> asyncio.Event:
    """An event that each of these signals sets."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in signals:
        loop.add_signal_handler(number, stop.set)
    return stop
