"""ZooKeeper with digest authentication and over TLS, for real."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE
from pydantic import SecretStr

from bookgate.bookie.standalone.local_zookeeper import LocalZooKeeper
from bookgate.gateway.stores.drivers import create_admin, create_factory, ensure_cluster
from bookgate.gateway.stores.zookeeper.factory import ZooKeeperLedgerManagerFactory
from bookgate.gateway.stores.zookeeper.settings import ZooKeeperSettings
from bookgate.gateway.stores.zookeeper.uri import parse_zookeeper
from bookgate.ledger.bookie_info import BookieServiceInfo
from bookgate.ledger.errors import BKException, MetaStoreException, ZKException
from bookgate.ledger.metadata_store import CreateRequest, LedgerManagerFactory
from tests.held_ports import held_port
from tests.integration.gateway.conftest import Recorder, all_ids, some_metadata, unscoped

pytestmark = pytest.mark.asyncio

OWNER = ZooKeeperSettings(zookeeper_auth=SecretStr("owner:pw"), zookeeper_acl="creator")


async def opened(uri: str, settings: ZooKeeperSettings) -> LedgerManagerFactory:
    await ensure_cluster(uri, settings)
    factory = create_factory(uri, settings)
    await factory.initialize()
    return factory


async def use(factory: LedgerManagerFactory) -> None:
    """A little of everything that makes nodes or reads them."""
    manager = factory.ledger_manager
    record = await manager.create(None, some_metadata())
    await manager.create_many([CreateRequest(unscoped(2**40), some_metadata()), CreateRequest(None, some_metadata())])
    told = Recorder()
    await manager.register_listener(record.ledger_id, told)
    await told.until_version(0)
    await manager.write(record.ledger_id, some_metadata(), 0)
    await told.until_version(1)
    assert len(await all_ids(factory)) == 3
    assert all(not isinstance(found, BKException) for found in await manager.read_many([record.ledger_id]))
    await factory.registration_manager.register_bookie(BookieServiceInfo.legacy("h:1"), read_only=False)
    await factory.registration_manager.write_cookie("h:1", b"cookie", None)
    await manager.remove(record.ledger_id)


@pytest.fixture
def zookeeper_uri(zookeeper: LocalZooKeeper, empty_zookeeper_uri: str) -> str:
    """What lies above the cluster is open, whoever makes the cluster: other tests go there as well."""
    client: Any = KazooClient(zookeeper.address)
    client.start()
    client.ensure_path(parse_zookeeper(empty_zookeeper_uri).ledgers_root.rpartition("/")[0])
    client.stop()
    client.close()
    return empty_zookeeper_uri


class TestDigest:
    async def test_only_the_creator_touches_what_it_made(self, zookeeper_uri: str, zookeeper: LocalZooKeeper) -> None:
        root = parse_zookeeper(zookeeper_uri).ledgers_root
        owner = await opened(zookeeper_uri, OWNER)
        await use(owner)
        same = await opened(zookeeper_uri, OWNER)
        assert len(await all_ids(same)) == 2
        for stranger in (ZooKeeperSettings(), ZooKeeperSettings(zookeeper_auth=SecretStr("owner:other"))):
            with pytest.raises(ZKException, match="NoAuth"):
                await opened(zookeeper_uri, stranger)
        client: Any = KazooClient(zookeeper.address, auth_data=[("digest", "owner:pw")])
        client.start()
        paths = [root]
        for path in paths:
            acls, _ = client.get_acls(path)
            assert [(acl.id.scheme, acl.id.id.partition(":")[0], acl.perms) for acl in acls] == [
                ("digest", "owner", 31)
            ]
            paths += [f"{path}/{name}" for name in client.get_children(path)]
        assert len(paths) > 15
        client.stop()
        client.close()
        await same.close()
        await owner.close()

    async def test_nodes_of_long_ids_are_open_as_java_has_them(
        self, zookeeper_uri: str, zookeeper: LocalZooKeeper
    ) -> None:
        root = parse_zookeeper(zookeeper_uri).ledgers_root
        owner = await opened(zookeeper_uri, OWNER)
        client: Any = KazooClient(zookeeper.address, auth_data=[("digest", "owner:pw")])
        client.start()
        client.create(f"{root}/idgen-long", b"", acl=OPEN_ACL_UNSAFE)
        await owner.ledger_manager.create(None, some_metadata())
        assert client.get_acls(f"{root}/idgen-long/HOB-0000000001")[0] == OPEN_ACL_UNSAFE
        client.stop()
        client.close()
        await owner.close()

    async def test_authentication_without_restricting_nodes(
        self, zookeeper_uri: str, zookeeper: LocalZooKeeper
    ) -> None:
        """Enters what others have restricted, and leaves what it makes itself open."""
        root = parse_zookeeper(zookeeper_uri).ledgers_root
        client: Any = KazooClient(zookeeper.address, auth_data=[("digest", "u:p")])
        client.start()
        admin = create_admin(zookeeper_uri)
        async with admin:
            await admin.initialize()
        client.create(f"{root}/00", b"", acl=CREATOR_ALL_ACL)
        outsider = await opened(zookeeper_uri, ZooKeeperSettings())
        with pytest.raises(ZKException, match="NoAuth"):
            await outsider.ledger_manager.create(unscoped(1), some_metadata())
        insider = await opened(zookeeper_uri, ZooKeeperSettings(zookeeper_auth=SecretStr("u:p")))
        await insider.ledger_manager.create(unscoped(1), some_metadata())
        assert client.get_acls(f"{root}/00/0000")[0] == OPEN_ACL_UNSAFE
        client.stop()
        client.close()
        await outsider.close()
        await insider.close()

    async def test_refusal_within_a_batch_reaches_its_caller(
        self, zookeeper_uri: str, zookeeper: LocalZooKeeper
    ) -> None:
        root = parse_zookeeper(zookeeper_uri).ledgers_root
        factory = await opened(zookeeper_uri, ZooKeeperSettings())
        client: Any = KazooClient(zookeeper.address, auth_data=[("digest", "u:p")])
        client.start()
        client.create(f"{root}/21/4748", b"", acl=CREATOR_ALL_ACL, makepath=True)
        client.create(f"{root}/21/4748/L0001", b"", acl=CREATOR_ALL_ACL)
        requests = [CreateRequest(unscoped(2_147_480_000), some_metadata()), CreateRequest(None, some_metadata())]
        refused, made = await factory.ledger_manager.create_many(requests)
        assert isinstance(refused, ZKException)
        assert not isinstance(made, BKException)
        with pytest.raises(NoAuthError):
            await asyncio.to_thread(_unauthenticated_read, zookeeper, f"{root}/21/4748/L0001")
        (unreadable,) = await factory.ledger_manager.read_many([unscoped(2_147_480_001)])
        assert isinstance(unreadable, ZKException)
        client.stop()
        client.close()
        await factory.close()


def _unauthenticated_read(server: LocalZooKeeper, path: str) -> None:
    client: Any = KazooClient(server.address)
    client.start()
    try:
        client.get(path)
    finally:
        client.stop()
        client.close()


class Secured(NamedTuple):
    """A server that speaks TLS and wants client certificates, and the files that please it."""

    server: LocalZooKeeper
    uri: str
    ca: str
    client: str


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory: Path = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(directory / "ca.pem")
    server_certificate = authority.issue_cert("127.0.0.1", "localhost")
    # ZooKeeper reads keys in PKCS #8 only.
    key = serialization.load_pem_private_key(server_certificate.private_key_pem.bytes(), None)
    key_pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    chain = b"".join(part.bytes() for part in server_certificate.cert_chain_pems)
    (directory / "server.pem").write_bytes(key_pem + chain)
    authority.issue_cert("gateway.test").private_key_and_cert_chain_pem.write_to_path(directory / "client.pem")
    with held_port() as port, _secured(directory, port) as server:
        uri = f"zk+hierarchical://127.0.0.1:{port}/ledgers"
        yield Secured(server, uri, str(directory / "ca.pem"), str(directory / "client.pem"))


def _secured(directory: Path, port: int) -> LocalZooKeeper:
    settings = {
        "secureClientPort": port,
        "secureClientPortAddress": "127.0.0.1",
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": directory / "server.pem",
        "ssl.keyStore.type": "PEM",
        "ssl.trustStore.location": directory / "ca.pem",
        "ssl.trustStore.type": "PEM",
        "ssl.clientAuth": "need",
    }
    return LocalZooKeeper(directory / "zookeeper", settings=settings)


def tls(secured: Secured, **others: Any) -> ZooKeeperSettings:
    values = {"zookeeper_tls_ca": secured.ca, "zookeeper_tls_cert": secured.client, "zookeeper_tls_key": secured.client}
    return ZooKeeperSettings(zookeeper_tls=True, **{**values, **others})


async def start_within(uri: str, settings: ZooKeeperSettings, seconds: float) -> None:
    factory = ZooKeeperLedgerManagerFactory(parse_zookeeper(uri), connect_timeout_seconds=seconds, settings=settings)
    try:
        await factory.initialize()
    finally:
        await factory.close()


class TestTls:
    async def test_everything_works_over_tls(self, secured: Secured) -> None:
        factory = await opened(secured.uri, tls(secured))
        await use(factory)
        await factory.close()

    async def test_tls_and_digest_and_creator_together(self, secured: Secured) -> None:
        uri = secured.uri.replace("/ledgers", "/other/ledgers")
        settings = tls(secured, zookeeper_auth=SecretStr("owner:pw"), zookeeper_acl="creator")
        async with create_admin(uri, settings) as admin:
            await admin.initialize()
        factory = await opened(uri, settings)
        await use(factory)
        await factory.close()

    async def test_who_is_not_trusted_does_not_get_in(self, secured: Secured, tmp_path: Path) -> None:
        foreign = trustme.CA()
        foreign.cert_pem.write_to_path(tmp_path / "ca.pem")
        foreign.issue_cert("gateway.test").private_key_and_cert_chain_pem.write_to_path(tmp_path / "client.pem")
        wrong = str(tmp_path / "client.pem")
        for settings in (
            ZooKeeperSettings(),
            tls(secured, zookeeper_tls_ca=str(tmp_path / "ca.pem")),
            tls(secured, zookeeper_tls_cert=wrong, zookeeper_tls_key=wrong),
            ZooKeeperSettings(zookeeper_tls=True, zookeeper_tls_ca=secured.ca),
        ):
            with pytest.raises(MetaStoreException, match=r"127\.0\.0\.1"):
                await start_within(secured.uri, settings, 1.5)

    async def test_missing_certificate_file_is_named(self, secured: Secured) -> None:
        with pytest.raises(BKException, match=r"no-such\.pem"):
            await opened(secured.uri, tls(secured, zookeeper_tls_ca="/no-such.pem"))


@pytest.mark.parametrize(
    ("values", "hint"),
    [
        ({"zookeeper_auth": "nobody"}, "user:password"),
        ({"zookeeper_tls": True, "zookeeper_tls_cert": "c"}, "zookeeper_tls_key"),
        ({"zookeeper_tls_ca": "c"}, "zookeeper_tls is not"),
        ({"zookeeper_acl": "creator"}, "zookeeper_auth"),
    ],
)
async def test_settings_that_do_not_fit_say_so(values: dict[str, Any], hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        ZooKeeperSettings(**values)
