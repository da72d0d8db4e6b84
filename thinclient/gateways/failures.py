"""Classifies a gateway's failure: whether a retry may help, and whether a change was certainly not carried out."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
from grpc.aio import AioRpcError, Metadata, UsageError

from bookgate.ledger.errors import (
    BKException,
    MetaStoreException,
    TooManyRequestsException,
    UnauthorizedAccessException,
    UnknownOutcomeException,
)
from bookgate.ledger.wire.gateway_headers import NOT_DONE, QUOTA, RETRY_AFTER_MS
from bookgate.thinclient.gateways.gateway import Gateway

REFUSED = grpc.StatusCode.RESOURCE_EXHAUSTED
"""The gateway has no capacity for the call, and has not begun it."""
NO_GATEWAY = grpc.StatusCode.UNIMPLEMENTED
"""The server is not a gateway, or a proxy returned 404: the next gateway is tried, and nothing was begun here."""
_TRANSIENT = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.ABORTED,
    REFUSED,
    NO_GATEWAY,
)
_NEVER_SENT = ("failed to connect to all addresses", "DNS resolution failed")
"""gRPC's message texts for a call that found no connection."""

_DENIED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


class LostAnswerException(UnknownOutcomeException):
    """A change was sent to a gateway and its response lost. A running gateway recognises the change by its token."""

    def __init__(self, message: str, gateway: Gateway) -> None:
        super().__init__(message)
        self.gateway = gateway


@contextmanager
def unasked_cancellations() -> Iterator[None]:
    """Wraps a call or stream: gRPC cancels those of a channel that is closed, though nobody has cancelled the caller,
    and takes no further ones.

    Raises AioRpcError with CANCELLED for both, a transient failure. A cancellation of the task itself passes.
    """
    try:
        yield
    except UsageError:
        trailing = Metadata((NOT_DONE, "1"))
        details = "its channel was closed on this side"
        raise AioRpcError(grpc.StatusCode.CANCELLED, Metadata(), trailing, details) from None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        details = "the call was cancelled on this side"
        raise AioRpcError(grpc.StatusCode.CANCELLED, Metadata(), Metadata(), details) from None


def surely_not_done(error: AioRpcError) -> bool:
    """True for a change that the gateway rejected, or that never reached it."""
    if error.code() in (REFUSED, NO_GATEWAY, grpc.StatusCode.UNAUTHENTICATED):
        return True
    if any(key == NOT_DONE for key, _ in error.trailing_metadata() or ()):
        return True
    details = error.details() or ""
    return error.code() is grpc.StatusCode.UNAVAILABLE and details.startswith(_NEVER_SENT)


def check_transient(gateway: Gateway, what: str, error: AioRpcError, *, changes: bool = False) -> str:
    """Describes the failure if a retry may help. Raises the typed error otherwise."""
    reason = f"{error.code().name}: {error.details() or 'no details'}"
    if error.code() is REFUSED and any(key == QUOTA for key, _ in error.trailing_metadata() or ()):
        # Only the creation has to wait; other calls of this client continue.
        raise TooManyRequestsException(f"gateway {gateway.address} could not {what}: {reason}") from error
    if error.code() is REFUSED and (wait := _retry_after(error)) is not None:
        gateway.rest(wait)
    if error.code() in _TRANSIENT:
        return reason
    if error.code() is grpc.StatusCode.UNAUTHENTICATED and gateway.tokens is not None and gateway.tokens.changed():
        return f"{reason}; the token is another one by now"
    message = f"gateway {gateway.address} could not {what}: {reason}"
    if error.code() in _DENIED:
        raise UnauthorizedAccessException(message) from error
    if changes and error.code() in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN):
        raise UnknownOutcomeException(f"{message}; it may or may not have happened") from error
    raise MetaStoreException(message) from error


def _retry_after(error: AioRpcError) -> float | None:
    """Seconds after which the gateway accepts another call of this client; None if it does not say."""
    text = next((str(value) for key, value in error.trailing_metadata() or () if key == RETRY_AFTER_MS), "")
    return int(text) / 1000 if text.isdecimal() else None


def failure_in_words(gateway: Gateway, what: str, error: AioRpcError) -> str:
    """Describes a failure to a loop that never gives up: a retry follows after a pause even if it is unlikely to
    help.
    """
    try:
        return check_transient(gateway, what, error)
    except BKException as permanent:
        return str(permanent)
