"""Everything through which a bookie reaches the outside world, as one value: disks, threads and clocks, the network,
the metadata store, and the servers that it hosts besides the entry protocol.

The defaults are the real ones. A simulator passes its own, and omits what it does not simulate.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from bookgate.bookie.gateway_process import GatewayProcess
from bookgate.bookie.system.files import REAL_FILE_SYSTEM, FileSystem
from bookgate.bookie.system.threads import REAL_THREADS, Threads
from bookgate.gateway.config import GatewayConfig
from bookgate.gateway.metrics import GatewayNumbers
from bookgate.gateway.server import GatewayServer
from bookgate.gateway.stores.drivers import create_factory
from bookgate.ledger.metadata_store import LedgerManagerFactory
from bookgate.runtime.listening import listen
from bookgate.runtime.security.rate_limits import PrincipalLimits


class HostedGateway(Protocol):
    """The metadata gateway as the bookie that hosts it sees it."""

    @property
    def metrics(self) -> GatewayNumbers: ...

    async def start(self) -> int:
        """Starts serving; returns the port. Raises OSError, BKException."""

    async def stop(self, grace: float) -> None: ...


def make_gateway(factory: LedgerManagerFactory, config: GatewayConfig, rates: PrincipalLimits | None) -> HostedGateway:
    """A gateway in this process, not yet serving. `rates`: what principals have used of their limits at the bookie."""
    return GatewayServer(
        factory,
        config.host,
        config.port,
        bookmark_seconds=config.bookmark_seconds,
        limits=config.limits(),
        tls=config.tls_files(),
        access=config.access(rates),
    )


MakesGateway = Callable[[LedgerManagerFactory, GatewayConfig, PrincipalLimits | None], HostedGateway]


@dataclass(frozen=True, slots=True)
class Environment:
    """See the module."""

    files: FileSystem = REAL_FILE_SYSTEM
    threads: Threads = REAL_THREADS
    listen: Callable[[str, int], socket.socket] = listen
    """Given to the event loop's `create_server`."""
    metadata: Callable[[str, GatewayConfig], LedgerManagerFactory] = create_factory
    gateway: MakesGateway | None = make_gateway
    """None: no gateway is hosted, as where the metadata itself is behind gateways."""
    gateway_process: Callable[[GatewayConfig, str], GatewayProcess] | None = GatewayProcess
    """The same in a process of its own, for the bookie of this id; None where there are no processes."""
    http: bool = True
    """Whether HTTP admin is served."""


SYSTEM_ENVIRONMENT = Environment()
