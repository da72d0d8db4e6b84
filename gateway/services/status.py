"""Converts exceptions of an RPC handler to gRPC statuses.

An unreachable store becomes UNAVAILABLE, an exceeded limit RESOURCE_EXHAUSTED. An unexpected error is logged and
becomes INTERNAL without details: the caller gets no traceback and the server keeps running. Handlers report domain
outcomes themselves, in the response's code. If the store had no connection, or is not the one the client knows,
trailing metadata states that nothing was done, so that a client can send a change to another gateway without first
finding out what happened.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, NoReturn

import grpc

from bookgate.gateway.services.caller import AccessDeniedException, OverLimitException, QuotaReachedException
from bookgate.gateway.services.messages import status_code
from bookgate.ledger.errors import (
    BKException,
    MetaStoreException,
    StoreUnreachableException,
    TooManyRequestsException,
    UnknownOutcomeException,
    WrongClusterException,
)
from bookgate.ledger.wire.gateway_headers import NOT_DONE, QUOTA, RETRY_AFTER_MS
from bookgate.protos.bookkeeper.common.v1.status_pb2 import StatusCode
from bookgate.runtime.logs import log_bug

_LOG = logging.getLogger(__name__)

SUCCESS = StatusCode.Name(StatusCode.SUCCESS)

_NOT_DONE = ((NOT_DONE, "1"),)
"""Trailing metadata of a call that certainly changed nothing."""

Context = grpc.aio.ServicerContext[Any, Any]


def grpc_status(error: BaseException) -> tuple[grpc.StatusCode, str]:
    """The gRPC status of an exception that no response code expresses."""
    if isinstance(error, AccessDeniedException):
        return grpc.StatusCode.PERMISSION_DENIED, str(error)
    if isinstance(error, MetaStoreException):
        return grpc.StatusCode.UNAVAILABLE, str(error)
    if isinstance(error, TooManyRequestsException):
        return grpc.StatusCode.RESOURCE_EXHAUSTED, str(error)
    if isinstance(error, BKException):
        return grpc.StatusCode.INTERNAL, str(error)
    return grpc.StatusCode.INTERNAL, "the gateway failed on this request; its log says why"


def outcome_of(error: BaseException, status: str = "UNKNOWN") -> str:
    """The outcome, for the audit trail, of a call that raised this; `status` if the exception does not determine it."""
    if isinstance(error, grpc.aio.AbortError) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, asyncio.CancelledError):
        # The store may still carry it out.
        return "CANCELLED"
    if isinstance(error, UnknownOutcomeException):
        return "UNKNOWN_OUTCOME"
    if isinstance(error, grpc.aio.AbortError):
        return status
    if isinstance(error, BKException) and not isinstance(error, (MetaStoreException, TooManyRequestsException)):
        return StatusCode.Name(status_code(error))
    return grpc_status(error)[0].name


async def abort_with(context: Context, method: str, error: Exception) -> NoReturn:
    """Aborts the RPC with the exception's status; logs an unexpected exception with its traceback."""
    if isinstance(error, (grpc.aio.AbortError, grpc.RpcError)):
        raise error
    try:
        await _abort(context, method, error)
    except grpc.aio.AbortError as abort:
        # The status says less than the exception (`outcome_of`).
        raise abort from error


async def _abort(context: Context, method: str, error: Exception) -> NoReturn:
    code, details = grpc_status(error)
    if not isinstance(error, BKException):
        log_bug(_LOG, "call_failed", error, method=method)
    if isinstance(error, OverLimitException):
        wait = (RETRY_AFTER_MS, str(max(int(error.retry_after_seconds * 1000), 1)))
        reached = ((QUOTA, "1"),) if isinstance(error, QuotaReachedException) else ()
        await abort_not_applied(context, code, details, (wait, *reached))
    if isinstance(error, (StoreUnreachableException, WrongClusterException, AccessDeniedException)):
        await abort_not_applied(context, code, details)
    await context.abort(code, details)
    raise AssertionError("abort returned")


async def abort_not_applied(
    context: Context, code: grpc.StatusCode, details: str, more: tuple[tuple[str, str], ...] = ()
) -> NoReturn:
    """Aborts an RPC that certainly changed nothing, and says so in the trailing metadata, beside `more`."""
    await context.abort(code, details, (*context.trailing_metadata(), *_NOT_DONE, *more))
    raise AssertionError("abort returned")
