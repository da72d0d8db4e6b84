"""What the store holds and nobody can read: it is said of the one that is concerned, and the others go on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from bookgate.gateway.limits import GatewayLimits
from bookgate.gateway.server import GatewayServer
from bookgate.gateway.stores.sqlite.change_feed import ledger_key
from bookgate.gateway.stores.sqlite.factory import SqliteLedgerManagerFactory
from bookgate.gateway.stores.sqlite.store import Transaction
from bookgate.ledger.bookie_info import BOOKIE_RPC, BookieServiceInfo, Endpoint
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_codec import encode, to_format
from bookgate.ledger.metadata_store import BookieSet
from bookgate.protos.bookkeeper.common.v1.status_pb2 import StatusCode
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2 import (
    LedgerMetadataRequest,
    LedgerMetadataResponse,
)
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2_grpc import LedgerMetadataServiceStub
from tests.integration.gateway.conftest import Recorder, some_metadata, unscoped
from tests.stores import made

pytestmark = pytest.mark.asyncio

NOT_UTF_8 = b"\xff\xfe\xfd"


@dataclass
class Setting:
    factory: SqliteLedgerManagerFactory
    stub: Any

    async def store(self, ledger_id: int, metadata: bytes) -> None:
        """Stores metadata as they are, as the next version."""
        key = ledger_key(unscoped(ledger_id))

        def put(transaction: Transaction) -> None:
            transaction.ledger_changed(key)
            transaction.execute("UPDATE ledgers SET metadata = ?, version = version + 1 WHERE key = ?", (metadata, key))

        await self.factory.store.change(put)

    async def read(self, ledger_id: int) -> LedgerMetadataResponse:
        answer: LedgerMetadataResponse = await self.stub.Read(LedgerMetadataRequest(ledger_id=ledger_id))
        return answer


@pytest_asyncio.fixture
async def setting(tmp_path: Path) -> AsyncIterator[Setting]:
    made(f"sqlite://{tmp_path}/metadata.db")
    factory = SqliteLedgerManagerFactory(str(tmp_path / "metadata.db"))
    await factory.initialize()
    server = GatewayServer(factory)
    await server.start()
    async with grpc.aio.insecure_channel(server.address) as channel:
        yield Setting(factory, LedgerMetadataServiceStub(channel))
    await server.stop(0)
    await factory.close()


def with_text_that_is_none(metadata: LedgerMetadata) -> bytes:
    """As protobuf stores it, but for one bookie id, which is `b-3` otherwise."""
    return encode(metadata).replace(b"b-3", NOT_UTF_8)


async def test_a_watch_tells_of_metadata_that_can_not_be_read_and_of_what_comes_after(setting: Setting) -> None:
    metadata = some_metadata()
    await setting.factory.ledger_manager.create(unscoped(1), metadata)
    watch = setting.stub.Watch()
    await watch.write(LedgerMetadataRequest(ledger_id=1))
    assert (await watch.read()).version == 0
    await setting.store(1, with_text_that_is_none(metadata))
    damaged = await watch.read()
    assert (damaged.code, damaged.ledger_id) == (StatusCode.LEDGER_METADATA_ERROR, 1)
    assert "UTF-8" in damaged.message
    # So is one who comes later.
    other = setting.stub.Watch()
    await other.write(LedgerMetadataRequest(ledger_id=1, expected_version=0))
    assert (await other.read()).code == StatusCode.LEDGER_METADATA_ERROR
    await setting.store(1, encode(metadata))
    for stream in (watch, other):
        assert (await stream.read()).version == 2


async def test_a_version_that_can_not_be_told_does_not_leave_the_one_before_in_its_place(setting: Setting) -> None:
    metadata = some_metadata()
    await setting.factory.ledger_manager.create(unscoped(1), metadata)
    assert (await setting.read(1)).version == 0
    told = Recorder()
    await setting.factory.ledger_manager.register_listener(unscoped(1), told)
    await told.until_version(0)
    await setting.store(1, with_text_that_is_none(metadata))
    await setting.factory.catch_up(None)
    assert (await setting.read(1)).code == StatusCode.LEDGER_METADATA_ERROR
    await setting.store(1, encode(metadata))
    await told.until_version(2)
    assert (await setting.read(1)).version == 2


async def test_a_registration_that_can_not_be_read_hides_no_other_bookie(setting: Setting) -> None:
    told = Recorder()
    await setting.factory.service_discovery.watch_bookies(BookieSet.WRITABLE, told)
    registrations = setting.factory.registration_manager
    good = BookieServiceInfo("good:1", (Endpoint("bookie", "good", 1, BOOKIE_RPC),), {"property": "value"})
    bad = BookieServiceInfo("bad:1", good.endpoints, good.properties)
    await registrations.register_bookie(bad, read_only=False)

    def damage(transaction: Transaction) -> None:
        transaction.bookies_changed()
        content = bad.encode().replace(b"value", b"\xff" * 5)
        transaction.execute("UPDATE registrations SET content = ? WHERE bookie_id = ?", (content, "bad:1"))

    await setting.factory.store.change(damage)
    await registrations.register_bookie(good, read_only=False)
    found = await told.until(lambda bookies: len(bookies) == 2)
    assert [bookie.info for bookie in found] == [BookieServiceInfo.legacy("bad:1"), good]


async def test_what_waits_for_a_client_that_does_not_read_is_bounded(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ledgers that do not exist end their subscriptions, so the limit of those did not bound what was to be told."""
    from bookgate.gateway.services import watch as watch_service

    monkeypatch.setattr(watch_service, "_DIRECT_LIMIT", 10)
    service = watch_service.WatchService(setting.factory, limits=GatewayLimits(subscriptions_a_stream=10))
    asked = 0

    async def requests() -> AsyncIterator[LedgerMetadataRequest]:
        nonlocal asked
        for asked in range(1, 1001):
            yield LedgerMetadataRequest(ledger_id=asked)
            await setting.factory.catch_up(None)

    context: Any = None
    async with aclosing(service.serve(requests(), context)) as answers:  # type: ignore[type-var]
        await anext(answers)
        while asked < 10:
            await setting.factory.catch_up(None)
        for _ in range(100):
            await setting.factory.catch_up(None)
        assert asked <= 30
        # Whoever reads goes on.
        waiting = asked
        for _ in range(50):
            await anext(answers)
        assert asked > waiting


async def test_bookie_ids_that_none_can_have_are_written_by_nobody_and_kept_where_they_are(setting: Setting) -> None:
    """Apache BookKeeper takes some that it never makes; a ledger that has one must be closed nevertheless."""
    good = some_metadata()
    bad = replace(good, fragments=(replace(good.fragments[0], ensemble=("b-1", "b-2", "a/../b")),))

    async def write(ledger_id: int, metadata: LedgerMetadata, version: int) -> LedgerMetadataResponse:
        request = LedgerMetadataRequest(ledger_id=ledger_id, metadata=to_format(metadata), expected_version=version)
        answer: LedgerMetadataResponse = await setting.stub.Write(request)
        return answer

    created = await setting.stub.Create(LedgerMetadataRequest(ledger_id=1, metadata=to_format(bad)))
    assert (created.code, "a/../b" in created.message) == (StatusCode.BAD_REQUEST, True)
    await setting.factory.ledger_manager.create(unscoped(1), good)
    assert (await write(1, bad, 0)).code == StatusCode.BAD_REQUEST
    assert (await write(1, good, 0)).code == StatusCode.SUCCESS
    await setting.factory.ledger_manager.create(unscoped(2), bad)
    assert (await setting.read(2)).code == StatusCode.SUCCESS
    assert (await write(2, bad, 0)).code == StatusCode.SUCCESS
