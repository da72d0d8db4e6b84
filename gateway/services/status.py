"""What becomes of an exception in an RPC handler.

A store out of reach is UNAVAILABLE, a limit RESOURCE_EXHAUSTED, and what nobody foresaw is logged and becomes INTERNAL
without details: the caller gets no traceback and the server goes on. Domain outcomes are answered by the handlers
themselves, in the response's code. Where the store had no connection, or is not the one that the client knows, trailing
metadata says that nothing was done: a client may then ask for a change elsewhere without having to find out first.
"""

from __future__ import annotations

import logging
from typing import Any, NoReturn

import grpc

from bookgate.ledger.errors import (
    BKException,
    MetaStoreException,
    StoreUnreachableException,
    TooManyRequestsException,
    WrongClusterException,
)
from bookgate.ledger.wire.gateway_headers import NOT_DONE
from bookgate.runtime.logs import log_bug

_LOG = logging.getLogger(__name__)

_NOT_DONE = ((NOT_DONE, "1"),)
"""Trailing metadata of a call that surely changed nothing."""

Context = grpc.aio.ServicerContext[Any, Any]


def grpc_status(error: Exception) -> tuple[grpc.StatusCode, str]:
    """The gRPC status of an exception that no response carries."""
    if isinstance(error, MetaStoreException):
        return grpc.StatusCode.UNAVAILABLE, str(error)
    if isinstance(error, TooManyRequestsException):
        return grpc.StatusCode.RESOURCE_EXHAUSTED, str(error)
    if isinstance(error, BKException):
        return grpc.StatusCode.INTERNAL, str(error)
    return grpc.StatusCode.INTERNAL, "the gateway failed on this request; its log says why"


async def abort_with(context: Context, method: str, error: Exception) -> NoReturn:
    """Ends the RPC with the exception's status; unforeseen ones are logged with their traceback."""
    if isinstance(error, (grpc.aio.AbortError, grpc.RpcError)):
        raise error
    code, details = grpc_status(error)
    if not isinstance(error, BKException):
        log_bug(_LOG, "call_failed", error, method=method)
    if isinstance(error, (StoreUnreachableException, WrongClusterException)):
        await abort_not_applied(context, code, details)
    await context.abort(code, details)
    raise AssertionError("abort returned")


async def abort_not_applied(context: Context, code: grpc.StatusCode, details: str) -> NoReturn:
    """Ends an RPC that surely changed nothing, and says so."""
    await context.abort(code, details, (*context.trailing_metadata(), *_NOT_DONE))
    raise AssertionError("abort returned")
