"""The gateway of a bookie in a process of its own. Started by `bookgate.bookie.gateway_process` only.

The process serves the gRPC services, at the port that the bookie holds for it, and the listings of the bookie's HTTP
interface, which the bookie passes on: over connections that the bookie hands over, or at an inherited listening socket,
and only with the secret that came with the order, because the bookie decides who may see them. Once a second it reports
its metrics, which also shows that its event loop is alive.

It ends when its standard input ends. It ignores signals meant for the whole service, because the bookie reacts to them;
when the bookie dies the kernel kills it, since its port belongs to the next bookie. When memory is short, the kernel
kills it before the bookie.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

from prometheus_client import ProcessCollector
from pydantic import BaseModel

from bookgate.gateway.config import GatewayConfig
from bookgate.gateway.console.auto_recovery import RecoveryPanel, auto_recovery_route
from bookgate.gateway.console.ledger_census import LedgerStateCounts, census_route
from bookgate.gateway.console.ledger_routes import console_ledger_routes
from bookgate.gateway.http.access import Access, Need
from bookgate.gateway.http.api import create_app
from bookgate.gateway.http.routes.autorecovery import auto_recovery_routes
from bookgate.gateway.http.routes.ledgers import ledger_routes
from bookgate.gateway.http.server import AdminServer
from bookgate.gateway.process.handed_over import HandedOver
from bookgate.gateway.process.passed_on import LISTINGS
from bookgate.gateway.process.reported_metrics import REPORT_SECONDS, report
from bookgate.gateway.server import GatewayServer
from bookgate.gateway.stores.drivers import create_factory
from bookgate.ledger.errors import BKException
from bookgate.ledger.metadata_store import LedgerManagerFactory
from bookgate.runtime.background import keep_running
from bookgate.runtime.child_process import die_with_parent, read_order, report_to_parent, stop_with_parent
from bookgate.runtime.command_line.output import error_text
from bookgate.runtime.event_loop import run_server
from bookgate.runtime.garbage import leave_out_what_is_there
from bookgate.runtime.logs import add_to_every_line, set_up_logging
from bookgate.runtime.security.access_control import AccessControl
from bookgate.runtime.version import own_version

_OOM_SCORE = "500"


class Order(BaseModel):
    """The configuration that the bookie sends. It contains secrets: for a pipe, never for a log."""

    settings: dict[str, Any]
    bookie_id: str
    listener: int
    """The inherited descriptor at which listings are asked for."""
    connections: int
    """The inherited descriptor through which client connections are handed over."""
    secret: str

    def as_line(self) -> bytes:
        return json.dumps(self.model_dump()).encode() + b"\n"


@dataclass(frozen=True)
class _Listings:
    """What is passed on of the bookie's HTTP."""

    factory: LedgerManagerFactory
    ledger_counts: LedgerStateCounts
    recovery: RecoveryPanel
    order: Order
    control: AccessControl | None

    def server(self) -> AdminServer:
        rows = [
            *ledger_routes(self.factory),
            *auto_recovery_routes(self.factory),
            *console_ledger_routes(self.factory),
            census_route(self.ledger_counts),
            auto_recovery_route(self.recovery),
        ]
        served = [replace(row, need=Need.CONTENT) for row in rows if row.path in LISTINGS]
        listener = socket.socket(fileno=self.order.listener)
        access = Access(self.order.secret, loopback=True, control=self.control, passed_on=True)
        app = create_app(served, access, {})
        return AdminServer(app, listener, own_version())


async def _serve(order: Order, settings: GatewayConfig) -> None:
    """Serves until it is told to stop, then drains. Raises BKException, OSError."""
    stop = asyncio.Event()
    stop_with_parent(stop)
    factory = create_factory(settings.metadata_uri, settings)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(factory.close)
        await factory.initialize()
        # Not even while the bookie has no registration may somebody else take its name here.
        factory.registration_manager.reserve(order.bookie_id)
        access = settings.access()
        server = GatewayServer(
            factory,
            settings.host,
            settings.port,
            bookmark_seconds=settings.bookmark_seconds,
            limits=settings.limits(),
            tls=settings.tls_files(),
            access=access,
            share_port=True,
        )
        await server.start()
        stack.push_async_callback(server.stop, settings.drain_seconds)
        ledger_counts = LedgerStateCounts(factory.ledger_manager, asyncio.get_running_loop().time)
        stack.push_async_callback(ledger_counts.close)
        recovery = RecoveryPanel(factory, asyncio.get_running_loop().time)
        stack.push_async_callback(recovery.close)
        admin = _Listings(factory, ledger_counts, recovery, order, access).server()
        listings = keep_running("HTTP listings", admin.run_until_stopped)
        handed_over = HandedOver(order.connections, admin)
        handed_over.start()

        async def stop_listings() -> None:
            handed_over.close()
            admin.should_exit = True
            await listings

        stack.push_async_callback(stop_listings)
        leave_out_what_is_there()
        await _report_until(stop, server)


async def _report_until(stop: asyncio.Event, server: GatewayServer) -> None:
    process = ProcessCollector(namespace="bookgate_gateway", registry=None)
    while not stop.is_set():
        report_to_parent({"grpc": server.address, "report": report(server.metrics, process)})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REPORT_SECONDS):
                await stop.wait()


def _go_before_the_bookie() -> None:
    """Asks the kernel to kill this process before the bookie when memory is short; the system may forbid that."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write(_OOM_SCORE)


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    die_with_parent()
    _go_before_the_bookie()
    order = Order.model_validate_json(read_order())
    settings = GatewayConfig.model_validate(order.settings)
    set_up_logging(settings.log_level, settings.log_format)
    add_to_every_line(bookie=order.bookie_id, process="gateway")
    try:
        run_server(_serve(order, settings))
    except (BKException, OSError) as error:
        report_to_parent({"error": error_text(error)})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
