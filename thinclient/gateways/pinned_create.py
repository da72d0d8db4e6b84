"""Changes that two gateway processes must not both carry out: creations of generated ids.

A gateway process knows such a change by its token and answers it the second time as the first. Any other process (one
started anew at the same address, another worker at its port, whatever stands behind a balancer) would make another
ledger. So a change names the process that it is meant for, in the metadata `bookgate-instance`, by the id which that
process has told with earlier answers; another one refuses it with FAILED_PRECONDITION and has not done it.

States of a change:

* sent, naming the process last heard of there → answered; refused: sent again at once, naming nobody; lost;
* sent, naming nobody (nothing was heard of that gateway yet, or a refusal) → answered; lost;
* lost, and it is known which process had it, since it was named or told itself in the error → sent again, naming it;
* sent again, a few times while the answer is lost → answered; whatever else happens, what the first attempt did stays
  unknown;
* lost, and not known which process had it → unknown.

A gateway older than this tells no id. It is named `none`, which it ignores, and which its successor refuses.
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
from bookgate.thinclient.gateways.gateway import Gateway, instance_told

T = TypeVar("T")

Metadata = tuple[tuple[str, str], ...]
Send = Callable[[Gateway, float, Metadata], Awaitable[T]]
"""Carries the call out at that gateway within so many seconds, with that metadata."""


async def create_pinned(gateways: GatewayChannel, what: str, send: Send[T]) -> tuple[T, bool]:
    """The answer, and whether the change was sent a second time.

    Raises UnknownOutcomeException where it may have happened, else as `GatewayChannel.call` does.
    """
    had_it: dict[Gateway, str | None] = {}

    async def attempt(gateway: Gateway, timeout: float, named: str | None) -> T:
        had_it[gateway] = named
        try:
            return await send(gateway, timeout, _naming(named))
        except AioRpcError as error:
            had_it[gateway] = instance_told(error.trailing_metadata()) or named
            raise

    async def first(gateway: Gateway, timeout: float) -> T:
        known = gateway.instance
        try:
            return await attempt(gateway, timeout, known)
        except AioRpcError as error:
            if known is None or error.code() is not grpc.StatusCode.FAILED_PRECONDITION:
                raise
        # Behind a balancer it may be yet another one: naming nobody, this ends here.
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
    # Several times: a channel shows a connection for a moment after it is gone, so that the first may fail on it.
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
