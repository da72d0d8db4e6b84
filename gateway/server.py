"""The gRPC server of the gateway: services, health, reflection, drain.

States: new → serving (`start`) → draining → stopped (`stop`). While serving, a monitor follows the store's connection:
health is NOT_SERVING and Watch streams are SUSPENDED while it is away. A drain says so in health and on the streams
first, lets calls under way finish within the grace, then ends. The factory belongs to the caller, who initialises it
before and closes it after. Runs on the event loop that calls it, beside whatever else lives there (a bookie).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from collections.abc import Sequence
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_reflection.v1alpha import reflection

from gateway.discovery_service import DiscoveryService
from gateway.metadata_service import MetadataService
from gateway.registration_service import DEFAULT_LEASE_SECONDS, RegistrationService
from gateway.watch_service import BOOKMARK_SECONDS, WatchService
from ledger.errors import BKException
from ledger.manager import LedgerManagerFactory
from protos.bookkeeper.gateway.v1 import ledger_metadata_service_pb2, registration_service_pb2, service_discovery_pb2
from protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2_grpc import add_LedgerMetadataServiceServicer_to_server
from protos.bookkeeper.gateway.v1.registration_service_pb2_grpc import add_RegistrationServiceServicer_to_server
from protos.bookkeeper.gateway.v1.service_discovery_pb2_grpc import add_ServiceDiscoveryServicer_to_server

_LOG = logging.getLogger(__name__)

MAX_REQUEST_BYTES = 4 * 1024 * 1024
_MONITOR_SECONDS = 0.1

SERVICES = (
    ledger_metadata_service_pb2.DESCRIPTOR.services_by_name["LedgerMetadataService"].full_name,
    service_discovery_pb2.DESCRIPTOR.services_by_name["ServiceDiscovery"].full_name,
    registration_service_pb2.DESCRIPTOR.services_by_name["RegistrationService"].full_name,
)
"""Full names; each has its own health entry, beside the empty name for the whole server."""

_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    # A response holds what a client asked for, which the methods bound themselves.
    ("grpc.max_send_message_length", -1),
    # Otherwise a second server on the same port would start without complaint and get half the calls.
    ("grpc.so_reuseport", 0),
    # Clients may ping idle Watch streams.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
)


class GatewayServer:
    """One gateway. Not reusable after `stop`."""

    def __init__(
        self,
        factory: LedgerManagerFactory,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        bookmark_seconds: float = BOOKMARK_SECONDS,
        max_subscriptions: int = 100_000,
        lease_seconds: float = DEFAULT_LEASE_SECONDS,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    ) -> None:
        """`factory` is initialised already. Port 0 lets the kernel choose. `interceptors` see every call."""
        self._factory = factory
        self._host = host
        self._port = port
        self._interceptors = interceptors
        self._bookmark_seconds = bookmark_seconds
        self._max_subscriptions = max_subscriptions
        self._lease_seconds = lease_seconds
        self._server: grpc.aio.Server | None = None
        self._health: Any = None
        self._monitor_task: asyncio.Task[None] | None = None
        self._draining = False

    @property
    def address(self) -> str:
        """`host:port` as bound, an IPv6 host in brackets."""
        return _address(self._host, self._port)

    async def start(self) -> int:
        """Serves; returns the port. Raises OSError (EADDRINUSE and the like) naming the address."""
        self.watches = WatchService(self._factory, self._bookmark_seconds, self._max_subscriptions)
        self._discovery = DiscoveryService(self._factory)
        self._registration = RegistrationService(self._factory, self._lease_seconds)
        self._health = health_aio.HealthServicer()
        server = grpc.aio.server(interceptors=list(self._interceptors), options=_OPTIONS)
        add_LedgerMetadataServiceServicer_to_server(
            MetadataService(self._factory, self.watches),
            server,
        )
        add_ServiceDiscoveryServicer_to_server(self._discovery, server)
        add_RegistrationServiceServicer_to_server(self._registration, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (*SERVICES, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
        self._port = await _bind(server, self._host, self._port)
        await self._set_health(self._factory.connected)
        await server.start()
        self._server = server
        self._monitor_task = asyncio.get_running_loop().create_task(self._monitor())
        _LOG.info("gateway serves at %s", self.address)
        return self._port

    async def stop(self, grace_seconds: float = 5.0) -> None:
        """Drains and stops; calls still under way after the grace are cancelled. A second call does nothing."""
        server, self._server = self._server, None
        if server is None:
            return
        self._draining = True
        if self._monitor_task is not None:
            self._monitor_task.cancel()
            await asyncio.gather(self._monitor_task, return_exceptions=True)
        await self._health.enter_graceful_shutdown()
        self.watches.drain()
        self._discovery.drain()
        self._registration.drain()
        await server.stop(grace_seconds)
        await self._registration.close()
        _LOG.info("gateway at %s has stopped", self.address)

    async def _monitor(self) -> None:
        """Follows the store's connection."""
        connected = True
        while True:
            await asyncio.sleep(_MONITOR_SECONDS)
            if not connected:
                await self._probe()
            if connected and not self._factory.connected:
                connected = False
                _LOG.warning("the metadata store is out of reach")
                self.watches.store_lost()
                await self._set_health(False)
            elif not connected and self._factory.connected:
                with contextlib.suppress(BKException):
                    await self.watches.store_regained()
                    connected = True
                    _LOG.info("the metadata store is back")
                    await self._set_health(True)

    async def _probe(self) -> None:
        """A store that only notices with a call that it is back gets one."""
        with contextlib.suppress(BKException):
            await self._factory.revision()

    async def _set_health(self, serving: bool) -> None:
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", *SERVICES):
            await self._health.set(name, status)


async def _bind(server: grpc.aio.Server, host: str, port: int) -> int:
    address = _address(host, port)
    await _check_bindable(host, port)
    try:
        return server.add_insecure_port(address)
    except RuntimeError as error:
        raise OSError(
            errno.EADDRINUSE, f"the gateway can't listen at {address}; try again or choose another port"
        ) from error


async def _check_bindable(host: str, port: int) -> None:
    """Binds a plain socket first: unlike gRPC it says what is wrong, and gRPC would print to standard error."""
    address = _address(host, port)
    try:
        probe = await asyncio.get_running_loop().create_server(asyncio.Protocol, host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            message = f"port {port} of {host} is in use; choose another or stop its owner"
            raise OSError(errno.EADDRINUSE, message) from error
        message = f"the gateway can't listen at {address}: {error.strerror or error}"
        raise OSError(error.errno or errno.EINVAL, message) from error
    probe.close()
    await probe.wait_closed()


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
