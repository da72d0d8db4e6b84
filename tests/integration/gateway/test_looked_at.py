"""Writes at a gateway that has not heard yet that a ledger was deleted, and another one created with its id."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from bookgate.gateway.server import GatewayServer
from bookgate.gateway.stores.drivers import create_factory
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import OWNER_KEY, LedgerMetadata, LedgerState
from bookgate.ledger.metadata_codec import from_format, to_format
from bookgate.protos.bookkeeper.common.v1.status_pb2 import StatusCode
from bookgate.protos.bookkeeper.gateway.v1 import ledger_metadata_service_pb2 as wire
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2_grpc import LedgerMetadataServiceStub
from tests.integration.gateway.guarded import POLICY, guarded_gateways
from tests.stores import made

pytestmark = pytest.mark.asyncio

SEVEN = LedgerId.unscoped(7)


@pytest.mark.parametrize("named", [False, True])
async def test_a_former_owner_does_not_take_the_ledger_over(tmp_path: Path, named: bool) -> None:
    """`named`: the request names the new ledger's incarnation."""
    async with (
        guarded_gateways(tmp_path, POLICY, 2) as (one, other),
        one.channel() as here,
        other.channel() as elsewhere,
    ):
        stub: Any
        other_stub: Any
        stub, other_stub = LedgerMetadataServiceStub(here), LedgerMetadataServiceStub(elsewhere)
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
    async with (
        guarded_gateways(tmp_path, policy, 2) as (one, other),
        one.channel() as here,
        other.channel() as elsewhere,
    ):
        stub: Any
        other_stub: Any
        stub, other_stub = LedgerMetadataServiceStub(here), LedgerMetadataServiceStub(elsewhere)
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


@pytest_asyncio.fixture
async def stubs(tmp_path: Path) -> AsyncIterator[list[Any]]:
    """Of two gateways on one store."""
    uri = made(f"sqlite://{tmp_path}/metadata.db")
    async with AsyncExitStack() as stack:
        found: list[Any] = []
        for _ in range(2):
            factory = create_factory(uri)
            stack.push_async_callback(factory.close)
            await factory.initialize()
            server = GatewayServer(factory)
            stack.push_async_callback(server.stop, 0)
            await server.start()
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(server.address))
            found.append(LedgerMetadataServiceStub(channel))
        yield found


@pytest.mark.parametrize("text_first", [False, True])
async def test_a_ledger_is_written_in_its_own_format(stubs: list[Any], text_first: bool) -> None:
    """The former one of its id had another: as text, a ledger has neither password nor custom metadata."""
    here, elsewhere = stubs
    as_text = replace(LedgerMetadata.new(["b-1"], 1, 1), password=None, digest_type=None, format_version=2)
    whole = LedgerMetadata.new(["b-1"], 1, 1, password=b"p", custom_metadata={"k": b"v"})
    former, later = (as_text, whole) if text_first else (whole, as_text)
    await elsewhere.Create(wire.LedgerMetadataRequest(ledger_id=7, metadata=to_format(former)))
    await here.Read(wire.LedgerMetadataRequest(ledger_id=7))
    await elsewhere.Remove(wire.LedgerMetadataRequest(ledger_id=7))
    created = await elsewhere.Create(wire.LedgerMetadataRequest(ledger_id=7, metadata=to_format(later)))
    closed = to_format(from_format(created.metadata).close(-1, 0))
    write = wire.LedgerMetadataRequest(
        ledger_id=7, expected_version=0, incarnation=created.incarnation, metadata=closed
    )
    assert (await here.Write(write)).code == StatusCode.SUCCESS
    found = from_format((await elsewhere.Read(wire.LedgerMetadataRequest(ledger_id=7))).metadata)
    assert (found.state, found.password) == (LedgerState.CLOSED, later.password)
    assert found.custom_metadata == later.custom_metadata
