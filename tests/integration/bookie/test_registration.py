"""A bookie's registration when others claim it, and when the store has lost it, on every kind of metadata."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import pytest
from kazoo.client import KazooClient

from bookgate.bookie.mode import state_manager
from bookgate.bookie.standalone.local_zookeeper import LocalZooKeeper
from bookgate.gateway.stores.sqlite.registration import SqliteRegistrationManager
from bookgate.gateway.stores.zookeeper.registration import ZooKeeperRegistrationManager
from bookgate.ledger.bookie_info import LEASE_PROPERTY, BookieServiceInfo
from bookgate.ledger.metadata_store import RegistrationManager
from bookgate.protos.bookkeeper.gateway.v1 import registration_service_pb2 as wire
from bookgate.protos.bookkeeper.gateway.v1 import service_discovery_pb2 as discovery
from bookgate.protos.bookkeeper.gateway.v1.registration_service_pb2_grpc import RegistrationServiceStub
from bookgate.protos.bookkeeper.gateway.v1.service_discovery_pb2_grpc import ServiceDiscoveryStub
from bookgate.thinclient.gateways.registration import RpcRegistrationManager
from tests.integration.bookie.test_read_only import Running, on_store, until

pytestmark = pytest.mark.asyncio

MANAGERS: dict[str, type[RegistrationManager]] = {
    "sqlite": SqliteRegistrationManager,
    "zookeeper": ZooKeeperRegistrationManager,
    "grpc": RpcRegistrationManager,
}
"""By which a bookie registers on each kind of metadata."""
KINDS = list(MANAGERS)


async def claim(gateway: str, bookie_id: str, lease: wire.Lease) -> wire.RegisterResponse:
    """What a gateway answers somebody who registers a bookie id with an address of his own."""
    endpoint = discovery.Endpoint(id="bookie", host="127.0.0.1", port=1, protocol="bookie-rpc")
    bookie = discovery.Bookie(bookie_id=bookie_id, endpoints=[endpoint])
    async with grpc.aio.insecure_channel(gateway) as channel:
        call: Any = RegistrationServiceStub(channel).Register()
        await call.write(wire.RegisterRequest(sequence=1, bookie=bookie, lease=lease))
        answer: wire.RegisterResponse = await call.read()
        call.cancel()
    return answer


async def listed(gateway: str) -> list[discovery.Bookie]:
    async with grpc.aio.insecure_channel(gateway) as channel:
        request = discovery.ListBookiesRequest(bookie_set=discovery.BookieSet.ALL)
        return list((await ServiceDiscoveryStub(channel).ListBookies(request)).bookies)


def gateway_of(bookie: Running) -> str:
    return bookie.server.addresses["gateway"] or urlsplit(bookie.server.addresses["metadata_uri"] or "").netloc


def take_out(bookie: Running, root: Path, kind: str, zookeeper: LocalZooKeeper) -> Callable[[], None]:
    """Removes the bookie's registration from the store, whoever's it is."""
    bookie_id = bookie.server.addresses["bookie_id"]

    def from_sqlite() -> None:
        with sqlite3.connect(root / "metadata.db", timeout=10) as connection:
            connection.execute("DELETE FROM registrations WHERE bookie_id = ?", (bookie_id,))

    def from_zookeeper() -> None:
        client = KazooClient(zookeeper.address)
        client.start()
        client.delete(f"/{root.name}/available/{bookie_id}")
        client.stop()
        client.close()

    return from_zookeeper if kind == "zookeeper" else from_sqlite


@pytest.mark.parametrize("kind", KINDS)
async def test_nobody_else_registers_a_bookie_id_that_is_held(
    kind: str, tmp_path: Path, zookeeper: LocalZooKeeper
) -> None:
    async with on_store(kind, tmp_path, zookeeper) as bookie:
        gateway, bookie_id = gateway_of(bookie), bookie.server.addresses["bookie_id"] or ""
        before = await listed(gateway)
        assert [each.bookie_id for each in before] == [bookie_id]
        answer = await claim(gateway, bookie_id, wire.Lease(lease_id="thief", epoch=1 << 62))
        assert answer.state == wire.RegistrationState.REGISTRATION_STATE_HELD_BY_ANOTHER
        assert await listed(gateway) == before
        assert await bookie.metric("bookie_SERVER_STATUS ") == 1


@pytest.mark.parametrize("kind", ["sqlite", "grpc"])
async def test_neither_clients_nor_the_store_are_told_a_lease_by_which_a_bookie_can_be_claimed(
    kind: str, tmp_path: Path, zookeeper: LocalZooKeeper
) -> None:
    async with on_store(kind, tmp_path, zookeeper) as bookie:
        gateway, bookie_id = gateway_of(bookie), bookie.server.addresses["bookie_id"] or ""
        (told,) = await listed(gateway)
        assert LEASE_PROPERTY not in told.properties
        with sqlite3.connect(tmp_path / "metadata.db", timeout=10) as connection:
            (content,) = connection.execute("SELECT content FROM registrations").fetchone()
        stored = content.partition(b"sha256:")[2].partition(b"/")[0].decode()
        assert bool(stored) == (kind == "grpc")
        # The digest names no lease, whether as it stands or with what marks it as one.
        for lease_id in {stored, f"sha256:{stored}"}:
            answer = await claim(gateway, bookie_id, wire.Lease(lease_id=lease_id, epoch=1 << 62))
            assert answer.state != wire.RegistrationState.REGISTRATION_STATE_REGISTERED
        assert await listed(gateway) == [told]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_bookie_whose_registration_is_gone_says_so_and_registers_again(
    kind: str, tmp_path: Path, zookeeper: LocalZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_manager, "_LOOK_SECONDS", 0.1)
    monkeypatch.setattr(state_manager, "_LOOK_AGAIN_SECONDS", 0.1)
    async with on_store(kind, tmp_path, zookeeper) as bookie:
        manager, may_register = MANAGERS[kind], asyncio.Event()
        register = manager.register_bookie

        async def register_later(self: RegistrationManager, info: BookieServiceInfo, *, read_only: bool) -> None:
            await may_register.wait()
            await register(self, info, read_only=read_only)

        monkeypatch.setattr(manager, "register_bookie", register_later)
        await asyncio.to_thread(take_out(bookie, tmp_path, kind, zookeeper))

        async def is_noticed() -> bool:
            return await bookie.metric("bookie_SERVER_STATUS ") == -1

        await until(is_noticed, "the bookie notices that it is not registered")
        code, problem = await bookie.http("is_ready")
        assert (code, "lost its registration" in problem) == (503, True)
        assert (await bookie.http("state"))[1]["registered"] is False
        assert await bookie.listed() == (0, 0)

        may_register.set()
        await bookie.until_listed(1, 0)

        async def is_well() -> bool:
            return await bookie.metric("bookie_SERVER_STATUS ") == 1

        await until(is_well, "the bookie knows that it is registered")
        assert (await bookie.http("state"))[1]["registered"] is True
