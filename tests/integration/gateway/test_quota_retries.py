"""A creation that is sent again, through another gateway, when what it made has reached the quota."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookgate.ledger.metadata_codec import to_format
from bookgate.protos.bookkeeper.gateway.v1 import ledger_metadata_service_pb2 as lm
from tests.integration.gateway.conftest import some_metadata
from tests.integration.gateway.guarded import POLICY, call, guarded_gateways, methods, outcome

pytestmark = pytest.mark.asyncio

METHODS = {method.name: method for method in methods()}
QUOTA = (
    '[[limits]]\nprincipals = ["token:team-a", "token:admin"]\nledgers = 1\n[[quotas]]\nscopes = ["0"]\nledgers = 2\n'
)


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
