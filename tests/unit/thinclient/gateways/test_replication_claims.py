"""Votes over RPC: what a candidate no longer follows is withdrawn, whatever answers are lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc.aio import AioRpcError, Metadata

from bookgate.ledger.errors import BKException
from bookgate.ledger.replication_store import VoteState
from bookgate.protos.bookkeeper.gateway.v1 import replication_service_pb2 as pb
from bookgate.thinclient.gateways.replication_claims import RpcReplicationClaims

_TIMEOUT = 0.1


class Gateway:
    """A gateway's session: it takes claims, or lets them be lost."""

    def __init__(self) -> None:
        self.loses = False
        self.votes: set[int] = set()
        self.changed = asyncio.Event()

    async def claim(self, request: pb.ClaimRequest, timeout: float) -> pb.ClaimResponse:
        if self.loses:
            raise AioRpcError(grpc.StatusCode.UNAVAILABLE, Metadata(), Metadata(), "connection reset")
        if request.HasField("withdraw"):
            self.votes.discard(request.withdraw)
        else:
            self.votes.add(request.number)
        self.changed.set()
        return pb.ClaimResponse()


def claims_over(gateway: Gateway) -> RpcReplicationClaims:
    @contextlib.contextmanager
    def outstanding(_what: str) -> Iterator[None]:
        yield

    loop = asyncio.get_running_loop()
    channel: Any = SimpleNamespace(check_open=lambda: None, timeout=_TIMEOUT, outstanding=outstanding)
    claims = RpcReplicationClaims(channel, None)  # type: ignore[arg-type]
    claims._keeper = loop.create_task(asyncio.sleep(3600))
    ready = loop.create_future()
    ready.set_result(None)
    asked = SimpleNamespace(
        address="gateway-1:4181", replication=SimpleNamespace(Claim=gateway.claim), failed=lambda *_: None
    )
    session: Any = SimpleNamespace(ready=ready, over=loop.create_future(), session_id="s", gateway=asked)
    claims._session = session
    return claims


@pytest.mark.asyncio
async def test_a_vote_whose_withdrawal_is_not_answered_is_withdrawn_later() -> None:
    """Else it keeps the next vote of the same candidate waiting, for as long as the lease is renewed."""
    gateway = Gateway()
    claims = claims_over(gateway)
    vote = await claims.stand_for_auditor("bookie-1", lambda _: None)
    assert len(gateway.votes) == 1
    gateway.loses = True
    with pytest.raises(BKException):
        await vote.withdraw()
    assert vote.state is VoteState.LOST
    gateway.loses = False
    async with asyncio.timeout(30):
        while gateway.votes:
            gateway.changed.clear()
            await gateway.changed.wait()
    assert claims._keeper is not None
    claims._keeper.cancel()
