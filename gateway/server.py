"""The gRPC server of the gateway: services, health, reflection, draining.

States: new → serving (`start`) → draining → stopped (`stop`). While serving, a monitor follows the store's connection:
while it is lost, health is NOT_SERVING and Watch streams are SUSPENDED. A drain first announces itself in health and on
the streams, lets running calls finish within the grace period, then ends the rest with UNAVAILABLE. The factory belongs
to the caller, who initialises it before and closes it afterwards. The server runs on the event loop that starts it,
together with whatever else runs there (a bookie).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from collections.abc import Callable, Sequence
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_reflection.v1alpha import reflection

from bookgate.gateway.limits import GatewayLimits
from bookgate.gateway.metrics import GatewayMetrics, Reading
from bookgate.gateway.services.access import Guard
from bookgate.gateway.services.discovery import DiscoveryService
from bookgate.gateway.services.freshness import RevisionBarrier
from bookgate.gateway.services.instance import Instance
from bookgate.gateway.services.interceptor import CallInterceptor
from bookgate.gateway.services.ledger_metadata import MetadataService
from bookgate.gateway.services.ledger_quotas import LedgerQuotas
from bookgate.gateway.services.metadata_cache import MetadataCache
from bookgate.gateway.services.registration import DEFAULT_LEASE_SECONDS, RegistrationService
from bookgate.gateway.services.replication import ReplicationService
from bookgate.gateway.services.store_budget import StoreBudget
from bookgate.gateway.services.turns import Turns
from bookgate.gateway.services.watch import BOOKMARK_SECONDS, WatchService
from bookgate.gateway.tls import ServerCertificates
from bookgate.ledger.addresses import address_of
from bookgate.ledger.errors import BKException
from bookgate.ledger.metadata_store import LedgerManagerFactory
from bookgate.protos.bookkeeper.gateway.v1 import (
    ledger_metadata_service_pb2,
    registration_service_pb2,
    replication_service_pb2,
    service_discovery_pb2,
)
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2_grpc import (
    add_LedgerMetadataServiceServicer_to_server,
)
from bookgate.protos.bookkeeper.gateway.v1.registration_service_pb2_grpc import (
    add_RegistrationServiceServicer_to_server,
)
from bookgate.protos.bookkeeper.gateway.v1.replication_service_pb2_grpc import add_ReplicationServiceServicer_to_server
from bookgate.protos.bookkeeper.gateway.v1.service_discovery_pb2_grpc import add_ServiceDiscoveryServicer_to_server
from bookgate.runtime.background import keep_running
from bookgate.runtime.listening import check_bindable
from bookgate.runtime.logs import log_event
from bookgate.runtime.security.access_control import AccessControl
from bookgate.runtime.tls.files import ServerTlsFiles

_LOG = logging.getLogger(__name__)

_MONITOR_SECONDS = 0.1

SERVICES = (
    ledger_metadata_service_pb2.DESCRIPTOR.services_by_name["LedgerMetadataService"].full_name,
    service_discovery_pb2.DESCRIPTOR.services_by_name["ServiceDiscovery"].full_name,
    registration_service_pb2.DESCRIPTOR.services_by_name["RegistrationService"].full_name,
    replication_service_pb2.DESCRIPTOR.services_by_name["ReplicationService"].full_name,
)
"""Full names; each has its own health entry, beside the empty name for the whole server."""

_HANDSHAKE_SECONDS = 10
"""From the connection to the client's first HTTP/2 settings, TLS included."""

IDLE_SECONDS = 600
"""How long a connection may stay without a call."""

_KEEPALIVE_SECONDS = 30
"""Without a word of a client after which it is pinged."""

_KEEPALIVE_TIMEOUT_SECONDS = 10
"""For its answer: a client whose machine is gone would hold its streams for hours."""

_PING_MILLISECONDS = 100
_PING_STRIKES = 20
"""Clients ping streams on which nothing comes, the thin client every 300 ms; one that pings faster than this, so many
times between two answers, is cut off."""

OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.server_handshake_timeout_ms", _HANDSHAKE_SECONDS * 1000),
    ("grpc.max_connection_idle_ms", IDLE_SECONDS * 1000),
    # A response holds what a client asked for, which the methods bound themselves.
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", _KEEPALIVE_SECONDS * 1000),
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_SECONDS * 1000),
    # A ping of another kind under way would stand in for it, with a timeout of a minute.
    ("grpc.http2.ping_timeout_ms", _KEEPALIVE_TIMEOUT_SECONDS * 1000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", _PING_MILLISECONDS),
    ("grpc.http2.max_ping_strikes", _PING_STRIKES),
)


class GatewayServer:
    """One gateway. It can't be started again after `stop`."""

    def __init__(
        self,
        factory: LedgerManagerFactory,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        bookmark_seconds: float = BOOKMARK_SECONDS,
        lease_seconds: float = DEFAULT_LEASE_SECONDS,
        limits: GatewayLimits | None = None,
        tls: ServerTlsFiles | None = None,
        share_port: bool = False,
        access: AccessControl | None = None,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
        make_server: Callable[..., grpc.aio.Server] = grpc.aio.server,
    ) -> None:
        """`factory` is initialised already. Port 0 lets the kernel choose. `interceptors` see every call first.

        `access`: who may do what; None: everybody everything. It belongs to the caller.

        `share_port`: several processes serve at this port, which the caller has made sure is free. `make_server`: what
        carries the calls; a simulator passes its own.
        """
        self._factory = factory
        self._host = host
        self._port = port
        self._access = access
        self._make_server = make_server
        self._bookmark_seconds = bookmark_seconds
        self._lease_seconds = lease_seconds
        self._limits = limits or GatewayLimits()
        self._tls = tls
        self._share_port = share_port
        self._instance = Instance()
        self._server: grpc.aio.Server | None = None
        self._health: Any = None
        self._tasks: list[asyncio.Task[None]] = []
        self.metrics = GatewayMetrics()
        """A collector, for the registry that the process shows; filled by `start`."""
        self._guard: Guard | None = None
        if access is not None:
            self._guard = Guard(access, Turns())
            self.metrics.access = access
        self._interceptors = tuple(interceptors)

    @property
    def address(self) -> str:
        """`host:port` as bound, an IPv6 host in brackets."""
        return address_of(self._host, self._port)

    async def start(self) -> int:
        """Serves; returns the port.

        Raises OSError (EADDRINUSE and the like) naming the address, IncorrectParameterException for TLS files.
        """
        credentials = ServerCertificates(self._tls).credentials() if self._tls else None
        calls = CallInterceptor(self.metrics, self._limits, self._instance, self._guard)
        options = (
            *OPTIONS,
            ("grpc.max_receive_message_length", self._limits.request_bytes),
            ("grpc.max_allowed_incoming_connections", self._limits.connections),
            ("grpc.so_reuseport", int(self._share_port)),
        )
        server = self._make_server(interceptors=[*self._interceptors, calls], options=options)
        self._add_services(server)
        self._port = await self._bind(server, credentials)
        self._show_metrics(calls)
        await self._set_health(self._factory.connected)
        await server.start()
        self._server = server
        self._tasks = [
            keep_running("health of the gateway", self._monitor),
            keep_running("upkeep of the cache", self._cache.run),
        ]
        if self._access is not None:
            self._tasks.append(keep_running("policy of watches", self.watches.follow_policy))
        if self.quotas is not None:
            self._tasks.append(keep_running("counts of ledgers for quotas", self.quotas.run))
        log_event(_LOG, "gateway", state="serving", address=self.address, tls=self._tls is not None)
        return self._port

    async def stop(self, grace_seconds: float = 5.0) -> None:
        """Drains and stops; calls still running after the grace period are cancelled. A second call does nothing."""
        server, self._server = self._server, None
        if server is None:
            return
        log_event(_LOG, "gateway", state="draining", address=self.address, grace_seconds=grace_seconds)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._health.enter_graceful_shutdown()
        self.watches.drain()
        self._discovery.drain()
        self.registrations.drain()
        self.replication.drain()
        await server.stop(grace_seconds)
        await self.registrations.close()
        await self.replication.close()
        await self._cache.close()
        log_event(_LOG, "gateway", state="stopped", address=self.address)

    def _add_services(self, server: grpc.aio.Server) -> None:
        limits = self._limits
        freshness = RevisionBarrier(self._factory)
        self._budget = StoreBudget(limits.store_calls, self.metrics.observe_store)
        self._cache = MetadataCache(self._factory, limits.cache_bytes, limits.cache_idle_seconds)
        self.watches = WatchService(self._factory, self._bookmark_seconds, limits, freshness)
        self._discovery = DiscoveryService(self._factory)
        self.registrations = RegistrationService(self._factory, self._lease_seconds)
        self.replication = ReplicationService(
            self._factory, self._budget, self._cache.changed_here, self._lease_seconds, limits.metadata_bytes
        )
        self._health = health_aio.HealthServicer()
        self.quotas = None if self._access is None else LedgerQuotas(self._factory, self._budget, self._access)
        metadata = MetadataService(
            self._factory, self.watches, self._cache, freshness, self._budget, limits, self._instance, self.quotas
        )
        add_LedgerMetadataServiceServicer_to_server(metadata, server)
        add_ServiceDiscoveryServicer_to_server(self._discovery, server)
        add_RegistrationServiceServicer_to_server(self.registrations, server)
        add_ReplicationServiceServicer_to_server(self.replication, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (*SERVICES, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)

    async def _bind(self, server: grpc.aio.Server, credentials: grpc.ServerCredentials | None) -> int:
        if not self._share_port:
            await check_bindable(self._host, self._port)
        try:
            if credentials is not None:
                return server.add_secure_port(self.address, credentials)
            return server.add_insecure_port(self.address)
        except RuntimeError as error:
            raise OSError(
                errno.EADDRINUSE, f"the gateway can't listen at {self.address}; try again or choose another port"
            ) from error

    def _show_metrics(self, calls: CallInterceptor) -> None:
        hub, cache, factory, guard = self.watches.hub, self._cache, self._factory, self._guard
        self.metrics.show(
            Reading("streams", "streaming calls under way", lambda: calls.stream_count),
            Reading(
                "watch_streams", "streams on which clients watch ledgers (Watch)", lambda: self.watches.stream_count
            ),
            Reading("subscriptions", "ledgers watched, counted by stream", lambda: hub.subscription_count),
            Reading("watched_ledgers", "ledgers watched, each once", lambda: hub.ledger_count),
            Reading(
                "watch_lag_seconds", "how long changes wait for the slowest Watch stream", self.watches.lag_seconds
            ),
            Reading(
                "bookie_watch_streams",
                "streams on which clients watch bookies (WatchBookies)",
                lambda: self._discovery.stream_count,
            ),
            Reading("bookie_leases", "bookies kept registered", lambda: self.registrations.leases),
            Reading("replication_leases", "auditors and workers with a session", lambda: self.replication.leases),
            Reading("store_sessions", "sessions with the metadata store that stand", lambda: int(factory.connected)),
            Reading("store_losses", "connections to the store lost", lambda: factory.connection_epoch, True),
            Reading(
                "store_client_restarts",
                "clients of the store made anew since the thread of the last had ended",
                lambda: factory.client_restarts,
                True,
            ),
            Reading(
                "calls_waiting",
                "calls that wait for their principal's turn",
                lambda: 0 if guard is None else guard.turns.waiting,
            ),
            Reading("store_calls", "calls to the store under way", lambda: self._budget.under_way),
            Reading("cache_ledgers", "ledgers in the cache", lambda: len(cache)),
            Reading("cache_bytes", "room that the ledgers in the cache take", lambda: cache.bytes),
            Reading("cache_hits", "reads answered from the cache", lambda: cache.counts.hits, True),
            Reading("cache_misses", "reads that needed the store", lambda: cache.counts.misses, True),
            Reading("cache_evictions", "ledgers dropped for want of room", lambda: cache.counts.evictions, True),
            Reading(
                "cache_hit_ratio",
                "part of all reads since the start that the cache answered",
                lambda: cache.counts.hit_ratio,
            ),
        )

    async def _monitor(self) -> None:
        """Follows the store's connection, including losses that were over before the next check."""
        connected, epoch = True, self._factory.connection_epoch
        while True:
            await asyncio.sleep(_MONITOR_SECONDS)
            if not connected:
                await self._probe()
            if connected and (not self._factory.connected or self._factory.connection_epoch != epoch):
                connected, epoch = False, self._factory.connection_epoch
                log_event(_LOG, "store", logging.WARNING, state="lost", epoch=epoch)
                self._cache.suspend()
                self.watches.store_lost()
                await self._set_health(False)
            if not connected and self._factory.connected:
                with contextlib.suppress(BKException):
                    epoch = self._factory.connection_epoch
                    await self.watches.store_regained()
                    connected = True
                    log_event(_LOG, "store", state="regained", epoch=epoch)
                    await self._set_health(True)

    async def _probe(self) -> None:
        """Calls the store once, for stores that notice only with a call that they are reachable again."""
        with contextlib.suppress(BKException):
            await self._factory.revision()

    async def _set_health(self, serving: bool) -> None:
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", *SERVICES):
            await self._health.set(name, status)
