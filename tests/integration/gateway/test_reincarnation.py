"""A client that resumes a watch after its ledger was removed, and another one was created under its id."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from bookgate.gateway.server import GatewayServer
from bookgate.ledger.errors import MetaStoreException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import LedgerManagerFactory
from bookgate.protos.bookkeeper.common.v1.status_pb2 import StatusCode
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2 import LedgerMetadataRequest, WatchEvent
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2_grpc import LedgerMetadataServiceStub
from tests.integration.gateway.conftest import some_metadata, unscoped

pytestmark = pytest.mark.asyncio


async def test_a_watch_resumed_over_another_ledger_of_the_same_version_is_told_of_the_removal(
    factories: tuple[LedgerManagerFactory, LedgerManagerFactory],
) -> None:
    servers = [GatewayServer(factory) for factory in factories]
    for server in servers:
        await server.start()
    async with (
        grpc.aio.insecure_channel(servers[0].address) as one,
        grpc.aio.insecure_channel(servers[1].address) as other,
    ):
        manager = factories[0].ledger_manager
        await manager.create(unscoped(7), some_metadata())
        watch: Any = LedgerMetadataServiceStub(one).Watch()
        await watch.write(LedgerMetadataRequest(ledger_id=7))
        seen = await watch.read()
        assert (seen.version, seen.HasField("incarnation")) == (0, True)
        assert (await manager.read(unscoped(7))).incarnation == seen.incarnation
        watch.cancel()
        # Resumed while the ledger lives, nothing is news; nor is it after its change.
        resumed: Any = LedgerMetadataServiceStub(other).Watch()
        resume = LedgerMetadataRequest(ledger_id=7, expected_version=0, incarnation=seen.incarnation)
        await resumed.write(resume)
        await manager.write(unscoped(7), some_metadata(changed=b""), 0)
        changed = await resumed.read()
        assert (changed.version, changed.incarnation) == (1, seen.incarnation)
        resumed.cancel()

        await manager.remove(unscoped(7))
        await manager.create(unscoped(7), some_metadata())
        for channel in (one, other):
            late: Any = LedgerMetadataServiceStub(channel).Watch()
            await late.write(resume)
            told = await late.read()
            assert (told.event, told.code) == (WatchEvent.REMOVED, StatusCode.LEDGER_NOT_FOUND)
            # The subscription is over, and its listener with it; a new one finds the other ledger.
            await late.write(LedgerMetadataRequest(ledger_id=7))
            found = await late.read()
            assert found.version == 0
            assert found.incarnation != seen.incarnation
            late.cancel()
    for server in servers:
        await server.stop(0)


async def test_a_ledger_made_anew_while_the_gateway_can_not_read_it(
    factories: tuple[LedgerManagerFactory, LedgerManagerFactory], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The former one is removed for who knew it; who asks after the new one was made is told of that, and no end."""
    server = GatewayServer(factories[0])
    await server.start()
    listeners: Any = factories[0].ledger_manager.listeners  # type: ignore[attr-defined]
    elsewhere = factories[1].ledger_manager
    async with grpc.aio.insecure_channel(server.address) as channel:
        await elsewhere.create(unscoped(7), some_metadata())
        await elsewhere.write(unscoped(7), some_metadata(changed=b""), 0)
        early: Any = LedgerMetadataServiceStub(channel).Watch()
        await early.write(LedgerMetadataRequest(ledger_id=7))
        former = await early.read()
        with monkeypatch.context() as patch:

            async def fails(ledger_id: LedgerId) -> None:
                raise MetaStoreException("connection lost")

            patch.setattr(listeners, "_read", fails)
            await elsewhere.remove(unscoped(7))
            await elsewhere.create(unscoped(7), some_metadata())
            late: Any = LedgerMetadataServiceStub(channel).Watch()
            await late.write(LedgerMetadataRequest(ledger_id=7, min_revision=await factories[1].revision()))
            new = await late.read()
            assert (new.event, new.version) == (WatchEvent.STATE, 0)
            assert new.incarnation > former.incarnation
            assert (await early.read()).event == WatchEvent.REMOVED
        await elsewhere.write(unscoped(7), some_metadata(changed=b""), 0)
        changed = await late.read()
        assert (changed.event, changed.version, changed.incarnation) == (WatchEvent.STATE, 1, new.incarnation)
    await server.stop(0)
