"""Observes a deployment: gateways, the bookies they know and the bookies' responses, auto-recovery. Judges nothing.

Anything that does not respond in time is recorded, and the rest continues: one reachable gateway suffices for a partial
picture. Every step takes at most `timeout` and all bookies are examined concurrently, so the whole takes a few times
that.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from email.utils import parsedate_to_datetime
from typing import Any

import grpc
from grpc.aio import AioRpcError

from bookgate.bookie.replication.audits.audit_rules import HELD_BACK, HeldBack
from bookgate.bookie.tools.doctor.certificates import validity, validity_after_start_tls
from bookgate.bookie.tools.doctor.http_get import get
from bookgate.bookie.tools.doctor.observations import (
    BookieView,
    Deployment,
    GatewayView,
    HttpView,
    RecoveryView,
    Validity,
)
from bookgate.ledger.addresses import host_and_port
from bookgate.ledger.bookie_info import BOOKIE_RPC, GATEWAY_GRPC, HTTP, TLS_EXTENSION
from bookgate.ledger.errors import BKException, BookieHandleNotAvailableException, SecurityException
from bookgate.ledger.metadata_store import BookieSet, BookiesListener, ClusterInfo, RegisteredBookie, ServiceDiscovery
from bookgate.ledger.replication_store import RecordKind, ReplicationMetadata
from bookgate.ledger.replication_survey import Survey, survey
from bookgate.ledger.wire.messages import FREE_DISK_SPACE, TOTAL_DISK_CAPACITY, GetBookieInfoRequest, Operation, Status
from bookgate.protos.bookkeeper.common.v1.status_pb2 import StatusCode
from bookgate.protos.bookkeeper.gateway.v1 import registration_service_pb2, service_discovery_pb2
from bookgate.runtime.clock import now_ms
from bookgate.runtime.version import own_version
from bookgate.thinclient.bookies.connection import tcp_connector
from bookgate.thinclient.bookies.pool import BookiePool
from bookgate.thinclient.bookies.tls import TlsContexts
from bookgate.thinclient.config import ClientConfig, TlsMode
from bookgate.thinclient.gateways.connection_diagnosis import context_of
from bookgate.thinclient.gateways.discovery import bookies_of
from bookgate.thinclient.gateways.factory import RpcLedgerManagerFactory
from bookgate.thinclient.gateways.gateway import Gateway
from bookgate.thinclient.gateways.tokens import TokenSource, may_carry_tokens
from bookgate.thinclient.gateways.uri import ClientTlsFiles, parse_gateways

_MAX_FILES = re.compile(rb"^process_max_fds (\S+)", re.MULTILINE)
_OPEN_FILES = re.compile(rb"^process_open_fds (\S+)", re.MULTILINE)
_DISK_USAGE = re.compile(rb"^bookie_ledger_dir_\w*_usage (\S+)", re.MULTILINE)
_REFUSED_FILES = re.compile(
    rb'^(?:bookie_ACCESS_FILE_REFUSED|bookgate_gateway_access_file_refused)\{file="(\w+)"\} 1(?:\.0)?$', re.MULTILINE
)
_TURNED_DOWN = (401, 403)

_HEALTH = "/grpc.health.v1.Health/Check"
"""Called without the package of its messages, which a plain install does not have; the request is empty."""
_SERVING = b"\x08\x01"
"""Its answer `status: SERVING`."""


async def look(
    config: ClientConfig, timeout: float, file_problems: Mapping[str, tuple[str, ...]] | None = None
) -> Deployment:
    """Makes all observations.

    Args:
        config: The client's settings, with the gateways to begin with.
        timeout: Seconds for each step.
        file_problems: Problems of each given configuration file.

    Raises:
        IncorrectParameterException: The URI or the TLS files can't be used.
        UnauthorizedAccessException: The token file can't be read.
    """
    uri = parse_gateways(config.gateways, config.tls)
    credentials = uri.tls.credentials() if uri.tls else None
    shown = _Shown(config.tokens if uri.token_file is None else TokenSource(file=uri.token_file))
    gateways: list[Gateway] = []

    async def look_at(addresses: Sequence[str], listed: bool) -> list[GatewayView]:
        made = [
            Gateway(address, credentials, tls=uri.tls, tokens=shown.to(address, tls=uri.tls is not None))
            for address in addresses
        ]
        gateways.extend(made)
        return list(await asyncio.gather(*(_look_at_gateway(gateway, uri.tls, listed, timeout) for gateway in made)))

    try:
        views = await look_at(uri.addresses, True)
        views += await look_at(_learnt(views), False)
        known = next((view for view in views if view.bookies is not None), None)
        bookies = known.bookies or () if known else ()
        present = [bookie for bookie in bookies if bookie.registered]
        asked = next((gateway for gateway in gateways if known and gateway.address == known.address), None)
        seen: list[BookieView] = []
        recovery = None
        if asked is not None:
            seen, recovery = await asyncio.gather(
                _look_at_bookies(present, asked, config, timeout, shown),
                _look_at_recovery(asked, uri.tls, config, timeout),
            )
    finally:
        await asyncio.gather(*(gateway.close() for gateway in gateways))
    absent = tuple(bookie.bookie_id for bookie in bookies if bookie not in present)
    return Deployment(tuple(views), tuple(seen), absent, dict(file_problems or {}), own_version(), recovery)


class _Shown:
    """The user's token, sent only over TLS or to this machine."""

    def __init__(self, tokens: TokenSource | None) -> None:
        """Raises UnauthorizedAccessException for a file that can't be read."""
        self._tokens = tokens
        if tokens is not None:
            tokens.current()

    def to(self, address: str, *, tls: bool) -> TokenSource | None:
        return self._tokens if may_carry_tokens(address, tls=tls) else None


def _learnt(views: Sequence[GatewayView]) -> list[str]:
    """Gateways that bookies have registered and the user did not name."""
    named = {view.address for view in views}
    endpoints = [endpoint for view in views for bookie in view.bookies or () for endpoint in bookie.info.endpoints]
    return sorted({each.address for each in endpoints if each.protocol == GATEWAY_GRPC} - named)


async def _look_at_gateway(gateway: Gateway, tls: ClientTlsFiles | None, listed: bool, timeout: float) -> GatewayView:
    if not await gateway.connect(timeout):
        return GatewayView(gateway.address, listed, error=(await gateway.why_not_connected(timeout)).reason)
    view = await _asked(gateway, listed, timeout)
    if tls is None:
        return view
    certificate = await _in_time(_gateway_certificate(gateway.address, tls), timeout)
    return replace(view, certificate=certificate if isinstance(certificate, Validity) else None)


async def _gateway_certificate(address: str, tls: ClientTlsFiles) -> Validity:
    return await validity(*host_and_port(address), context_of(tls))


async def _asked(gateway: Gateway, listed: bool, timeout: float) -> GatewayView:
    address = gateway.address
    try:
        if await gateway.channel.unary_unary(_HEALTH, bytes, bytes)(b"", timeout=timeout) != _SERVING:
            return GatewayView(address, listed, store_error="the gateway has lost it (health: not serving)")
        info = await gateway.discovery.GetClusterInfo(service_discovery_pb2.GetClusterInfoRequest(), timeout=timeout)
        request = service_discovery_pb2.ListBookiesRequest(bookie_set=service_discovery_pb2.BookieSet.ALL)
        bookies = await gateway.discovery.ListBookies(request, timeout=timeout)
    except AioRpcError as error:
        reason = f"{error.code().name}: {error.details()}"
        if error.code() in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAVAILABLE):
            return GatewayView(address, listed, error=f"it does not speak as a gateway ({reason})")
        if error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
            return GatewayView(address, listed, refused=reason)
        return GatewayView(address, listed, store_error=reason)
    for answer in (info, bookies):
        if answer.code != StatusCode.SUCCESS:
            return GatewayView(address, listed, store_error=answer.message or StatusCode.Name(answer.code))
    return GatewayView(
        address,
        listed,
        instance_id=info.instance_id,
        features=tuple(info.features),
        bookies=bookies_of(bookies.bookies),
    )


async def _look_at_recovery(
    gateway: Gateway, tls: ClientTlsFiles | None, config: ClientConfig, timeout: float
) -> RecoveryView:
    uri = f"{'grpcs' if tls else 'grpc'}://{gateway.address}"
    files, tokens = tls or ClientTlsFiles(), gateway.tokens
    factory = RpcLedgerManagerFactory(uri, timeout, tls=files, retries=config.retries, tokens=tokens)
    metadata = factory.replication_metadata
    try:
        state, counted = await asyncio.gather(_in_time(_office(metadata), timeout), _in_time(survey(metadata), timeout))
    finally:
        await factory.close()
    error = next((each for each in (state, counted) if isinstance(each, str)), None)
    enabled, auditor, held_back = state if isinstance(state, tuple) else (None, None, None)
    found = counted if isinstance(counted, Survey) else None
    return RecoveryView(now_ms(), error, enabled, auditor, found, held_back)


async def _office(metadata: ReplicationMetadata) -> tuple[bool, str | None, HeldBack | None]:
    stored = await metadata.read_record(RecordKind.PROGRESS, HELD_BACK)
    held_back = None if stored is None else HeldBack.decode(stored.value)
    return await metadata.is_enabled(), await metadata.auditor(), held_back


class _Known(ServiceDiscovery):
    """Discovery of the bookies that a gateway has already reported."""

    def __init__(self, bookies: Sequence[RegisteredBookie]) -> None:
        self._bookies = {bookie.bookie_id: bookie for bookie in bookies}

    async def bookies(self, bookie_set: BookieSet) -> Sequence[RegisteredBookie]:
        return tuple(self._bookies.values())

    async def bookie_service_info(self, bookie_id: str) -> RegisteredBookie:
        if bookie_id not in self._bookies:
            raise BookieHandleNotAvailableException(f"bookie {bookie_id} is not registered")
        return self._bookies[bookie_id]

    async def watch_bookies(self, bookie_set: BookieSet, listener: BookiesListener) -> Callable[[], None]:
        raise NotImplementedError("nobody watches here")

    async def cluster_info(self) -> ClusterInfo:
        raise NotImplementedError("the gateways are asked themselves")


async def _look_at_bookies(
    bookies: Sequence[RegisteredBookie], gateway: Gateway, config: ClientConfig, timeout: float, shown: _Shown
) -> list[BookieView]:
    # Only protocol v3 has a request for disk space, whatever protocol the client uses otherwise.
    changes: dict[str, Any] = {
        "connect_timeout_seconds": timeout,
        "bookie_tls_timeout_seconds": timeout,
        "wire_protocol": "v3",
    }
    config = config.model_copy(update=changes)
    pools = {
        mode: BookiePool.of(
            config.model_copy(update={"bookie_tls": mode}), _Known(bookies), tcp_connector, random.SystemRandom()
        )
        for mode in {config.bookie_tls, TlsMode.START_TLS}
    }
    try:
        views = [_look_at_bookie(bookie, gateway, pools, config, timeout, shown) for bookie in bookies]
        return list(await asyncio.gather(*views))
    finally:
        await asyncio.gather(*(pool.close_and_wait() for pool in pools.values()))


async def _look_at_bookie(
    bookie: RegisteredBookie,
    gateway: Gateway,
    pools: Mapping[TlsMode, BookiePool],
    config: ClientConfig,
    timeout: float,
    shown: _Shown,
) -> BookieView:
    space, tls, cookie, http, certificates = await asyncio.gather(
        _in_time(_space(pools[config.bookie_tls], bookie.bookie_id, timeout), timeout),
        _tls(bookie, pools[TlsMode.START_TLS], config, timeout),
        _in_time(_cookie(gateway, bookie.bookie_id, timeout), timeout),
        _in_time(_http(bookie, config, shown), timeout),
        _certificates(bookie, config, timeout),
    )
    total, free = space if isinstance(space, tuple) else (None, None)
    return BookieView(
        bookie,
        entry_error=space if isinstance(space, str) else None,
        total_bytes=total,
        free_bytes=free,
        tls=tls,
        certificates=certificates,
        cookie=cookie if isinstance(cookie, bytes) else None,
        cookie_error=cookie if isinstance(cookie, str) else None,
        http=http if isinstance(http, HttpView) else None,
        http_error=http if isinstance(http, str) else None,
    )


async def _in_time(work: Awaitable[Any], timeout: float) -> Any:
    """The result of `work`, or a description of why there is none."""
    try:
        # A request has a time limit of its own, which begins once there is a connection.
        async with asyncio.timeout(2 * timeout):
            return await work
    except TimeoutError:
        return f"no answer within {2 * timeout:g} s"
    except AioRpcError as error:
        return f"{error.code().name}: {error.details()}"
    except (BKException, OSError, EOFError, ValueError) as error:
        return str(error) or type(error).__name__


async def _space(pool: BookiePool, bookie_id: str, timeout: float) -> tuple[int | None, int | None]:
    """Total and free bytes."""
    request = GetBookieInfoRequest(pool.next_txn_id(), TOTAL_DISK_CAPACITY | FREE_DISK_SPACE)
    response = await pool.request(bookie_id, Operation.GET_BOOKIE_INFO, request, timeout)
    if response.status != Status.EOK:
        raise BookieHandleNotAvailableException(f"it refuses to tell its space (status {response.status})")
    return getattr(response, "total_disk_capacity", None), getattr(response, "free_disk_space", None)


async def _tls(bookie: RegisteredBookie, pool: BookiePool, config: ClientConfig, timeout: float) -> str | None:
    """The result of START_TLS if it is announced and the client does not use TLS anyway."""
    endpoint = bookie.info.endpoint(BOOKIE_RPC)
    if endpoint is None or TLS_EXTENSION not in endpoint.extensions or config.bookie_tls is not TlsMode.OFF:
        return None
    outcome = await _in_time(_space(pool, bookie.bookie_id, timeout), timeout)
    if not isinstance(outcome, str):
        return "ok"
    no_authorities = config.bookie_tls_ca is None and config.tls_ca is None
    return "unverified" if no_authorities and "certificate is not accepted" in outcome else outcome


async def _certificates(bookie: RegisteredBookie, config: ClientConfig, timeout: float) -> tuple[Validity, ...]:
    async def at(protocol: str) -> Validity | None:
        endpoint = bookie.info.endpoint(protocol)
        if endpoint is None or TLS_EXTENSION not in endpoint.extensions:
            return None
        if protocol == HTTP:
            return await validity(endpoint.host, endpoint.port, _http_context(config))
        context = TlsContexts(config.tls_to_bookies).current()
        return await validity_after_start_tls(endpoint.host, endpoint.port, context)

    found = await asyncio.gather(*(_in_time(at(protocol), timeout) for protocol in (BOOKIE_RPC, HTTP)))
    return tuple(each for each in found if isinstance(each, Validity))


async def _cookie(gateway: Gateway, bookie_id: str, timeout: float) -> bytes | None:
    request = registration_service_pb2.ReadCookieRequest(bookie_id=bookie_id)
    answer = await gateway.registration.ReadCookie(request, timeout=timeout)
    if answer.code != StatusCode.SUCCESS:
        raise SecurityException(answer.message or StatusCode.Name(answer.code))
    return answer.cookie if answer.HasField("cookie") else None


async def _http(bookie: RegisteredBookie, config: ClientConfig, shown: _Shown) -> HttpView | None:
    endpoint = bookie.info.endpoint(HTTP)
    if endpoint is None:
        return None
    context = _http_context(config) if TLS_EXTENSION in endpoint.extensions else None
    tokens = shown.to(endpoint.address, tls=context is not None)
    token = None if tokens is None else tokens.current()
    before = time.time()
    answer = await get(endpoint.host, endpoint.port, "/api/v1/bookie/state", context, token)
    after = time.time()
    metrics = await get(endpoint.host, endpoint.port, "/metrics", context, token)
    settings = await get(endpoint.host, endpoint.port, "/api/v1/config/server_config", context, token)
    state = json.loads(answer.body) if answer.status == 200 else {}
    said = json.loads(settings.body) if settings.status == 200 else {}
    date = answer.headers.get("Date")
    # A date has whole seconds, so it is half a second behind on average.
    offset = parsedate_to_datetime(date).timestamp() + 0.5 - (before + after) / 2 if date else None
    server = answer.headers.get("Server")
    return HttpView(
        offset,
        server if server and server.startswith("bookgate/") else None,
        state.get("running") if isinstance(state, dict) else None,
        _gauge(_MAX_FILES, metrics.body),
        _gauge(_OPEN_FILES, metrics.body),
        said.get("insecure") if isinstance(said, dict) else None,
        tuple(sorted({name.decode() for name in _REFUSED_FILES.findall(metrics.body)})),
        max((float(percent) / 100 for percent in _DISK_USAGE.findall(metrics.body)), default=None),
        any(each.status in _TURNED_DOWN for each in (answer, metrics, settings)),
    )


def _http_context(config: ClientConfig) -> ssl.SSLContext:
    """The context for HTTP, which trusts the same authorities as the client does for the entry port."""
    authorities = config.bookie_tls_ca or config.tls_ca
    return ssl.create_default_context(cafile=authorities and str(authorities))


def _gauge(pattern: re.Pattern[bytes], metrics: bytes) -> int | None:
    found = pattern.search(metrics)
    return int(float(found.group(1))) if found else None
