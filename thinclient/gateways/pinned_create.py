"""Creates with generated ids: changes that two gateway processes must not both carry out.

A gateway process recognises such a change by its token and repeats its first response. Any other process (one restarted
at the same address, another worker at its port, another process behind a load balancer) would create another ledger. A
change therefore names the intended process in the metadata `bookgate-instance`, by the id that this process sent with
earlier responses; any other process rejects it with FAILED_PRECONDITION without executing it.

States of a change:

* sent, naming the process last heard at that gateway → answered; rejected: resent at once, naming none; lost;
* sent, naming none (no id is known for that gateway yet, or after a rejection) → answered; lost;
* lost, and the process that received it is known, because it was named or sent its id with the error → resent, naming
  it;
* resent, a few times while the response is lost → answered; on any other failure the outcome of the first attempt stays
  unknown;
* lost, and the process that received it is not known → unknown.

A gateway older than this protocol sends no id. It is named `none`, which it ignores and its successor rejects.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import grpc
from grpc.aio import AioRpcError

from bookgate.ledger.errors import BKException, UnknownOutcomeException
from bookgate.ledger.wire.gateway_headers import INSTANCE
from bookgate.thinclient.gateways.channel import GatewayChannel
from bookgate.thinclient.gateways.failures import LostAnswerException
from bookgate.thinclient.gateways.gateway import Gateway, instance_in

T = TypeVar("T")

Metadata = tuple[tuple[str, str], ...]
Send = Callable[[Gateway, float, Metadata], Awaitable[T]]
"""Makes the call at that gateway, with a timeout in seconds and request metadata."""


async def create_pinned(gateways: GatewayChannel, what: str, send: Send[T]) -> tuple[T, bool]:
    """Makes a change at one gateway process.

    Returns:
        The response, and whether the change was sent a second time.

    Raises:
        UnknownOutcomeException: The change may have been carried out.
        BKException: Else, as `GatewayChannel.call`.
    """
    had_it: dict[Gateway, str | None] = {}

    async def attempt(gateway: Gateway, timeout: float, named: str | None) -> T:
        had_it[gateway] = named
        try:
            return await send(gateway, timeout, _naming(named))
        except AioRpcError as error:
            had_it[gateway] = instance_in(error.trailing_metadata()) or named
            raise

    async def first(gateway: Gateway, timeout: float) -> T:
        known = gateway.instance
        try:
            return await attempt(gateway, timeout, known)
        except AioRpcError as error:
            if known is None or error.code() is not grpc.StatusCode.FAILED_PRECONDITION:
                raise
        # A load balancer may choose yet another process; naming none ends the search.
        return await attempt(gateway, timeout, None)

    try:
        return await gateways.call(what, first, changes=True), False
    except LostAnswerException as error:
        lost = error
    instance = had_it[lost.gateway]
    if instance is None:
        raise lost

    async def again(gateway: Gateway, timeout: float) -> T:
        return await send(gateway, timeout, _naming(instance))

    latest: BKException = lost
    # Several times, because a channel reports a connection for a moment after it is gone, and the first attempt may
    # fail on it.
    for _ in range(gateways.retries.pinned_create_repeats):
        if not await lost.gateway.connect(gateways.timeout):
            break
        try:
            return await gateways.call(what, again, changes=True, only_at=lost.gateway), True
        except LostAnswerException as error:
            latest = error
        except BKException as error:
            raise UnknownOutcomeException(f"{lost}; {error}") from error
    raise latest


def _naming(instance: str | None) -> Metadata:
    return () if instance is None else ((INSTANCE, instance),)
