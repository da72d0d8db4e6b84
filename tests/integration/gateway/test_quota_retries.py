"""Creations whose caller does not learn what they made: sent again through another gateway, or given up."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_codec import to_format
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.protos.bookkeeper.gateway.v1 import ledger_metadata_service_pb2 as lm
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2_grpc import LedgerMetadataServiceStub
from tests.integration.gateway.conftest import some_metadata
from tests.integration.gateway.guarded import POLICY, call, guarded_gateways, methods, outcome

pytestmark = pytest.mark.asyncio

METHODS = {method.name: method for method in methods()}
QUOTA = (
    '[[limits]]\nprincipals = ["token:team-a", "token:admin"]\nledgers = 1\n[[quotas]]\nscopes = ["0"]\nledgers = 2\n'
)


TWO_FOR_A_TEAM = '[[limits]]\nprincipals = ["token:team-a"]\nledgers = 2\n'


def create(number: int, token: bytes) -> lm.LedgerMetadataRequest:
    return lm.LedgerMetadataRequest(ledger_id=number, metadata=to_format(some_metadata()), request_token=token)


async def test_it_is_answered_with_what_it_has_made(tmp_path: Path) -> None:
    async with (
        guarded_gateways(tmp_path, POLICY + QUOTA) as (here, there),
        here.channel() as first,
        there.channel() as second,
    ):
        for gateway in (here, there):
            assert gateway.server.quotas is not None
            await gateway.server.quotas.count()
        request = create(5, b"token-of-the-request")
        made = await call(first, METHODS["Create"], request, here.bearer("team-a"))
        assert await outcome(second, METHODS["Create"], create(6, b"another"), there.bearer("admin")) == "SUCCESS"
        assert there.server.quotas is not None
        await there.server.quotas.count()

        again = await call(second, METHODS["Create"], request, there.bearer("team-a"))
        assert (again.ledger_id, again.version, again.metadata) == (5, 0, made.metadata)
        for other in (create(5, b"another request"), create(7, b"token-of-the-request")):
            assert await outcome(second, METHODS["Create"], other, there.bearer("team-a")) == "RESOURCE_EXHAUSTED"
        # Whose request it was is part of what makes it the same.
        assert await outcome(second, METHODS["Create"], request, there.bearer("admin")) == "RESOURCE_EXHAUSTED"
        lines = [(row["principal"], row["resource"], row["outcome"]) for row in there.audit()]
        assert ("token:team-a", "ledger:5", "SUCCESS") in lines
        assert [line for line in lines if line[2] == "quota"] == [
            ("token:team-a", "scope:0", "quota"),
            ("token:team-a", "scope:0", "quota"),
            ("token:admin", "scope:0", "quota"),
        ]


async def test_creations_that_their_caller_gives_up_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store has been asked for them, and makes them."""
    async with guarded_gateways(tmp_path, POLICY + TWO_FOR_A_TEAM, 1) as (here,), here.channel() as channel:
        quotas, manager = here.server.quotas, here.factory.ledger_manager
        assert quotas is not None
        await quotas.count()
        begun, go_on = asyncio.Event(), asyncio.Event()
        making: list[asyncio.Task[LedgerRecord]] = []
        make = manager.create

        async def slowly(ledger_id: LedgerId | None, metadata: LedgerMetadata) -> LedgerRecord:
            async def at_the_store() -> LedgerRecord:
                await go_on.wait()
                return await make(ledger_id, metadata)

            making.append(asyncio.ensure_future(at_the_store()))
            begun.set()
            return await asyncio.shield(making[-1])

        monkeypatch.setattr(manager, "create", slowly)
        create_rpc = LedgerMetadataServiceStub(channel).Create
        for number in range(2):
            begun.clear()
            given_up = create_rpc(
                lm.LedgerMetadataRequest(metadata=to_format(some_metadata())), metadata=here.bearer("team-a")
            )
            await begun.wait()
            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up
            # A call behind it on the connection: the gateway knows by then that the caller has gone.
            assert (
                await outcome(channel, METHODS["Read"], create(number, b""), here.bearer("admin")) == "LEDGER_NOT_FOUND"
            )
            assert quotas.owned_by("token:team-a") == number + 1
        go_on.set()
        await asyncio.gather(*making)
        assert await outcome(channel, METHODS["Create"], create(9, b""), here.bearer("team-a")) == "RESOURCE_EXHAUSTED"
        assert quotas.owned_by("token:team-a") == 2
