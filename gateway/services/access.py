"""The interceptor that stands before every RPC of a gateway with security: who calls, and may they call this.

It authenticates each call (`authorization: Bearer …`, else the connection's certificate), takes it from the
principal's rate of calls, waits for its turn, and refuses what the table of actions denies:

* RPCs of the cluster, of bookies and of auto-recovery are decided here, from the request;
* RPCs of ledgers, and streams, are decided by the services, ledger by ledger (`caller`); here they need the action for
  something;
* an RPC that the table does not have is refused, whoever asks.

Not its job: what streams ask for under way, and everything that needs the ledger's owner.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, NoReturn

import grpc

from bookgate.gateway.services.caller import DOOR, AccessDeniedException, Caller, OverLimitException, set_caller
from bookgate.gateway.services.status import Context, abort_not_applied, abort_with
from bookgate.gateway.services.turns import Turns
from bookgate.ledger.replication_store import RecordKind
from bookgate.protos.bookkeeper.common.v1.status_pb2 import StatusCode
from bookgate.protos.bookkeeper.gateway.v1 import replication_service_pb2 as replication
from bookgate.runtime.security.access_control import AccessControl
from bookgate.runtime.security.actions import OPEN, RPC_ACTIONS, Action
from bookgate.runtime.security.authenticators import NotAuthenticatedException, bearer_of, is_loopback
from bookgate.runtime.security.decision import CLUSTER, Resource
from bookgate.runtime.security.principal import ANONYMOUS, CertificateNames, Principal
from bookgate.runtime.security.rate_limits import PrincipalLimits

_STREAM_RETRY_SECONDS = 1.0

_ADMINISTERED = (RecordKind.DRAINING_BOOKIE.value, RecordKind.SETTING.value)
"""Kinds of records that operators write; the others are auditors' and workers'."""


class AccessInterceptor(grpc.aio.ServerInterceptor):
    """The interceptor; see the module. One per gateway."""

    def __init__(self, access: AccessControl, limits: PrincipalLimits, turns: Turns) -> None:
        self._access = access
        self._limits = limits
        self._turns = turns
        self._streams: dict[Principal, int] = {}
        self._wrapped: dict[str, tuple[Any, Any]] = {}

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        if RPC_ACTIONS.get(method, ANONYMOUS) is OPEN:
            return handler
        known = self._wrapped.get(method)
        if known is None or known[0] is not handler:
            known = self._wrapped[method] = (handler, self._wrap(method, handler))
        return known[1]

    def _wrap(self, method: str, handler: Any) -> Any:
        action = RPC_ACTIONS.get(method)
        if handler.response_streaming:
            inner = handler.stream_stream if handler.request_streaming else handler.unary_stream
            make = (
                grpc.stream_stream_rpc_method_handler
                if handler.request_streaming
                else grpc.unary_stream_rpc_method_handler
            )
            stream = self._stream(method, action, inner, unary_request=not handler.request_streaming)
            return make(stream, handler.request_deserializer, handler.response_serializer)
        assert not handler.request_streaming, "no RPC of a gateway has this form"
        return grpc.unary_unary_rpc_method_handler(
            self._unary(method, action, handler.unary_unary), handler.request_deserializer, handler.response_serializer
        )

    def _unary(self, method: str, action: Action | None, inner: Any) -> Any:
        short = method.rpartition("/")[2]

        async def call(request: Any, context: Context) -> Any:
            who = await self._enter(method, action, request, context)
            began = time.perf_counter()
            try:
                await self._turns.enter(who.principal)
            except OverLimitException as error:
                await abort_with(context, short, error)
            try:
                response = inner(request, context)
                if asyncio.iscoroutine(response):
                    response = await response
            finally:
                self._turns.leave()
            if action is not None and not action.is_of_ledgers:
                self._write_down(who, short, action, request, response, time.perf_counter() - began)
            return response

        return call

    def _stream(self, method: str, action: Action | None, inner: Any, *, unary_request: bool) -> Any:
        async def call(request: Any, context: Context) -> AsyncIterator[Any]:
            who = await self._enter(method, action, request if unary_request else None, context)
            principal = who.principal
            await self._room_for_stream(who, context)
            self._streams[principal] = self._streams.get(principal, 0) + 1
            try:
                async with aclosing(inner(request, context)) as responses:
                    async for response in responses:
                        yield response
            finally:
                self._streams[principal] -= 1
                if not self._streams[principal]:
                    del self._streams[principal]

        return call

    async def _enter(self, method: str, action: Action | None, request: Any, context: Context) -> Caller:
        """The caller, who may begin this call. Otherwise the call ends here."""
        peer = context.peer()
        try:
            principal = self._authenticate(peer, context)
        except NotAuthenticatedException:
            await _unauthenticated(context)
        who = Caller(self._access, self._limits, principal, peer)
        set_caller(who)
        try:
            who.take("calls_per_second")
            self._authorise(who, method, action, request)
        except AccessDeniedException as error:
            if principal != ANONYMOUS:
                await abort_with(context, method, error)
            # Whoever has shown nothing is asked to: a client then looks for its token.
            await _unauthenticated(context)
        except OverLimitException as error:
            await abort_with(context, method, error)
        self._access.counts[DOOR, principal.kind, "allowed"] += 1
        return who

    def _authenticate(self, peer: str, context: Context) -> Principal:
        bearer = None
        for key, value in context.invocation_metadata() or ():
            if key == "authorization":
                bearer = bearer_of(value if isinstance(value, str) else value.decode("latin-1")) or ""
        certificate = None if bearer is not None else _certificate(context)
        shown = bearer is not None or certificate is not None
        return self._access.authenticate(
            door=DOOR, peer=peer, bearer=bearer, certificate=certificate, loopback=not shown and _is_local(peer)
        )

    def _authorise(self, who: Caller, method: str, action: Action | None, request: Any) -> None:
        if action is None:
            raise AccessDeniedException(f"{method} is not in the table of actions")
        if action.is_of_ledgers or request is None:
            # What it is done to, the service knows; whoever may not do it to anything is refused here.
            who.require_anywhere(action, *([Action.LEDGER_RECOVER] if action is Action.LEDGER_WRITE else []))
            return
        who.require(_action_of(action, request), _resource_of(action, request))

    async def _room_for_stream(self, who: Caller, context: Context) -> None:
        most = who.most("streams")
        if most is None or self._streams.get(who.principal, 0) < most:
            return
        error = OverLimitException(f"{who.principal} has {most} streams here, its limit", _STREAM_RETRY_SECONDS)
        await abort_with(context, "stream", error)

    def _write_down(self, who: Caller, method: str, action: Action, request: Any, response: Any, took: float) -> None:
        code = StatusCode.Name(getattr(response, "code", 0)) if not isinstance(response, bytes) else "SUCCESS"
        resource = _resource_of(action, request)
        named = Resource(bookie_id=resource.bookie_id, name=f"{resource} {method}")
        who.done(_action_of(action, request), named, code, took)


def _action_of(action: Action, request: Any) -> Action:
    """What a request of auto-recovery is, where that depends on its content."""
    if isinstance(request, replication.ChangeSettingsRequest):
        return Action.REPLICATION_WORK if request.HasField("check_ended") else Action.REPLICATION_ADMIN
    if isinstance(request, (replication.WriteRecordRequest, replication.RemoveRecordRequest)):
        return Action.REPLICATION_ADMIN if request.kind in _ADMINISTERED else Action.REPLICATION_WORK
    return action


def _resource_of(action: Action, request: Any) -> Resource:
    return Resource(bookie_id=request.bookie_id) if action.is_of_bookies else CLUSTER


async def _unauthenticated(context: Context) -> NoReturn:
    await abort_not_applied(context, grpc.StatusCode.UNAUTHENTICATED, NotAuthenticatedException.PUBLIC)


def _is_local(peer: str) -> bool:
    """`ipv4:127.0.0.1:5`, `ipv6:%5B::1%5D:5`, or a path of this machine."""
    family, _, rest = peer.partition(":")
    host = rest.rpartition(":")[0].replace("%5B", "").replace("%5D", "").strip("[]")
    return family == "unix" or is_loopback(host)


def _certificate(context: Context) -> CertificateNames | None:
    """The names of the client's certificate, which gRPC has verified; None without one."""
    found: Mapping[str, Any] = context.auth_context() or {}
    subject = _texts(found, "x509_subject")
    if not subject and "x509_pem_cert" not in found:
        return None
    return CertificateNames(next(iter(subject), ""), _texts(found, "peer_uri"), _texts(found, "peer_dns"))


def _texts(found: Mapping[str, Any], name: str) -> tuple[str, ...]:
    return tuple(value.decode("utf-8", "replace") for value in found.get(name, ()))
