"""The HTTP door of a host with several instances: that they serve, what each does, and where each has its own HTTP.

It passes nothing on. Whatever concerns one bookie (its console, its switches, its metrics) is asked at that bookie;
Prometheus finds them all by `/api/v1/instances/targets`.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator, Sequence
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bookgate.bookie.config.bookie import BookieConfig
from bookgate.bookie.instances.slot import Slot
from bookgate.gateway.http.access import Access
from bookgate.gateway.http.api import TEXT, AnyQuery, Call, NoBody, NoQuery, Route, create_app, get
from bookgate.gateway.http.errors import HttpError
from bookgate.gateway.http.openapi import document
from bookgate.gateway.http.routes.process import process_routes
from bookgate.gateway.http.server import AdminServer
from bookgate.ledger.addresses import address_of
from bookgate.runtime.background import keep_running
from bookgate.runtime.listening import listen
from bookgate.runtime.security.authenticators import is_loopback
from bookgate.runtime.version import own_version


class InstanceCollector(Collector):
    """The supervisor's own metrics."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._slots = slots

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily(
            "bookgate_instance_up", "1: the instance serves, if only for reading; 0: it does not", labels=["number"]
        )
        restarts = CounterMetricFamily(
            "bookgate_instance_restarts",
            "times that the instance ended unasked, or could not start, and was started again",
            labels=["number"],
        )
        for slot in self._slots:
            up.add_metric([str(slot.number)], int(slot.serves))
            restarts.add_metric([str(slot.number)], slot.restarts)
        yield up
        yield restarts


def door_routes(host: BookieConfig, slots: Sequence[Slot]) -> list[Route]:
    """Everything that the door answers."""
    scheme = "https" if host.http_tls else "http"
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(InstanceCollector(slots))

    async def is_ready(_call: Call[AnyQuery, NoBody]) -> str:
        if away := [f"{slot.number} is {slot.state}" for slot in slots if not slot.serves]:
            raise HttpError(503, f"of {len(slots)} instances {', '.join(away)}; /api/v1/instances says more")
        return "OK"

    async def instances(_call: Call[NoQuery, NoBody]) -> Any:
        return [_shown(slot) for slot in slots]

    async def targets(_call: Call[NoQuery, NoBody]) -> Any:
        return [_target(slot, scheme) for slot in slots if slot.addresses.get("http")]

    return [
        *process_routes(host, lambda: generate_latest(registry), CONTENT_TYPE_LATEST),
        get(
            "/api/v1/bookie/is_ready",
            "Whether all instances serve",
            is_ready,
            query=AnyQuery,
            answer=None,
            media_type=TEXT,
            failures={503: "one does not serve, or is not registered"},
        ),
        get("/api/v1/instances", "What each instance does", instances, answer=_LIST),
        get(
            "/api/v1/instances/targets",
            "Where the instances have their metrics, for Prometheus' http_sd_configs",
            targets,
            answer=_LIST,
        ),
    ]


_LIST = {"type": "array", "items": {"type": "object"}}


def _shown(slot: Slot) -> dict[str, Any]:
    return {
        "instance": slot.number,
        "state": slot.state,
        "pid": slot.pid,
        "restarts": slot.restarts,
        "error": slot.error,
        **dict.fromkeys(("bookie_id", "bookie", "gateway", "http")),
        **slot.addresses,
    }


def _target(slot: Slot, scheme: str) -> dict[str, Any]:
    labels = {"__scheme__": scheme, "bookie": slot.addresses["bookie_id"], "number": str(slot.number)}
    return {"targets": [slot.addresses["http"]], "labels": labels}


class Door:
    """Serves the routes at the host's HTTP port."""

    def __init__(self, host: BookieConfig, slots: Sequence[Slot]) -> None:
        """Raises IncorrectParameterException for files of no use."""
        self._host = host
        names = (host.advertised_host(), socket.gethostname(), *host.http_host_names)
        access = Access(
            host.http_bearer_token(), loopback=is_loopback(host.host), names=names, control=host.access_control()
        )
        rows = door_routes(host, slots)
        self._app = create_app(rows, access, document("Bookgate bookies of a host", rows, access))
        self._contexts = host.http_contexts()
        self._server: AdminServer | None = None
        self._task: asyncio.Task[None] | None = None
        self.address: str | None = None
        """Known after `start`."""

    async def start(self) -> None:
        """Raises OSError naming the port and the setting."""
        host, port = self._host.host, self._host.http_port
        try:
            listener = listen(host, port)
        except OSError as error:
            raise OSError(
                error.errno, f"can't listen on {host}, port {port}: {error.strerror}; see --http-port"
            ) from error
        self.address = address_of(self._host.advertised_host(), listener.getsockname()[1])
        limit = self._host.descriptor_shares().http
        self._server = AdminServer(self._app, listener, own_version(), self._contexts, max_connections=limit)
        self._task = keep_running("HTTP server", self._server.run_until_stopped)

    async def stop(self) -> None:
        """Also after a start that failed."""
        if self._server is None or self._task is None:
            return
        self._server.should_exit = True
        await self._task
