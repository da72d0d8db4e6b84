"""Writes at a gateway that has not heard yet that a ledger was deleted, and another one created with its id."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import OWNER_KEY, LedgerMetadata, LedgerState
from bookgate.ledger.metadata_codec import from_format, to_format
from bookgate.protos.bookkeeper.common.v1.status_pb2 import StatusCode
from bookgate.protos.bookkeeper.gateway.v1 import ledger_metadata_service_pb2 as wire
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2_grpc import LedgerMetadataServiceStub
from tests.integration.gateway.guarded import POLICY, Guarded, guarded_gateways

pytestmark = pytest.mark.asyncio

SEVEN = LedgerId.unscoped(7)


@asynccontextmanager
async def two_gateways(directory: Path, policy: str) -> AsyncIterator[tuple[Guarded, Any, Guarded, Any]]:
    """On one store, each with its stub."""
    async with (
        guarded_gateways(directory, policy, 2) as (one, other),
        one.channel() as here,
        other.channel() as elsewhere,
    ):
        yield one, LedgerMetadataServiceStub(here), other, LedgerMetadataServiceStub(elsewhere)


@pytest.mark.parametrize("named", [False, True])
async def test_a_former_owner_does_not_take_the_ledger_over(tmp_path: Path, named: bool) -> None:
    """`named`: the request names the new ledger's incarnation."""
    async with two_gateways(tmp_path, POLICY) as (one, stub, other, other_stub):
        former_owner, owner = one.bearer("team-a"), one.bearer("team-b")
        of_a, of_b = (LedgerMetadata.new(["b-1"], 1, 1, password=each) for each in (b"a", b"b"))
        create = wire.LedgerMetadataRequest(ledger_id=7, metadata=to_format(of_a))
        assert (await other_stub.Create(create, metadata=former_owner)).code == StatusCode.SUCCESS
        known = await stub.Read(wire.LedgerMetadataRequest(ledger_id=7), metadata=former_owner)
        await other_stub.Remove(wire.LedgerMetadataRequest(ledger_id=7), metadata=former_owner)
        create.metadata.CopyFrom(to_format(of_b))
        created = await other_stub.Create(create, metadata=owner)
        mine = to_format(from_format(known.metadata).close(-1, 0))
        write = wire.LedgerMetadataRequest(ledger_id=7, expected_version=0, metadata=mine)
        if named:
            write.incarnation = created.incarnation
        with pytest.raises(grpc.aio.AioRpcError) as denied:
            await stub.Write(write, metadata=former_owner)
        assert denied.value.code() is grpc.StatusCode.PERMISSION_DENIED
        found = (await other.factory.ledger_manager.read(SEVEN)).metadata
        assert (found.state, found.password) == (LedgerState.OPEN, b"b")
        assert found.custom_metadata[OWNER_KEY] == b"token:team-b"


async def test_a_write_that_is_looked_at_twice_counts_once(tmp_path: Path) -> None:
    """The owner made it anew elsewhere, and may change one ledger a second."""
    policy = f"""{POLICY}
[[limits]]
principals = ["token:team-a"]
changes_per_second = 1
"""
    async with two_gateways(tmp_path, policy) as (one, stub, other, other_stub):
        owner = one.bearer("team-a")
        metadata = LedgerMetadata.new(["b-1"], 1, 1, password=b"a")
        create = wire.LedgerMetadataRequest(ledger_id=7, metadata=to_format(metadata))
        await other_stub.Create(create, metadata=owner)
        known = await stub.Read(wire.LedgerMetadataRequest(ledger_id=7), metadata=owner)
        # By the store: removals and creations count for rates, too.
        await other.factory.ledger_manager.remove(SEVEN)
        await other.factory.ledger_manager.create(SEVEN, from_format(known.metadata))
        mine = to_format(from_format(known.metadata).close(-1, 0))
        write = wire.LedgerMetadataRequest(ledger_id=7, expected_version=0, metadata=mine)
        assert (await stub.Write(write, metadata=owner)).code == StatusCode.SUCCESS
