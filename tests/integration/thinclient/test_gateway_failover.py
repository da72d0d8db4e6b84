"""Gateways that die, stand still or speak TLS: what a client of several notices of it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trustme

from bookgate import BookKeeper, ClientConfig
from bookgate.gateway.server import GatewayServer
from bookgate.gateway.stores.drivers import create_factory
from bookgate.ledger.errors import IncorrectParameterException, MetaStoreException, UnknownOutcomeException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.runtime.tls.files import ServerTlsFiles
from bookgate.thinclient.gateways.factory import RpcLedgerManagerFactory
from bookgate.thinclient.gateways.uri import ClientTlsFiles
from tests.stores import made

ROOT = Path(__file__).parents[3]
METADATA = LedgerMetadata.new(["a", "b", "c"], 3, 2, password=b"planted-p")
SEVEN = LedgerId.unscoped(7)


class GatewayProcess:
    """`bookgate gateway` on a store that several share."""

    def __init__(self, metadata_uri: str, port: int = 0) -> None:
        command = [
            sys.executable,
            "-m",
            "bookgate",
            "gateway",
            "--metadata-uri",
            metadata_uri,
            "--port",
            str(port),
            "--json",
        ]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, text=True
        )

    def address(self) -> str:
        assert self.process.stdout is not None
        return str(json.loads(self.process.stdout.readline())["gateway"])

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def gateways(tmp_path: Path) -> Iterator[dict[str, GatewayProcess]]:
    """Two gateways by their addresses."""
    processes = [GatewayProcess(made(f"sqlite://{tmp_path}/metadata.db")) for _ in range(2)]
    try:
        yield {process.address(): process for process in processes}
    finally:
        for process in processes:
            process.end()


class Heard:
    """The versions that a listener heard."""

    def __init__(self) -> None:
        self.versions: list[int] = []
        self._more = asyncio.Event()

    def __call__(self, ledger_id: LedgerId, record: LedgerRecord | None) -> None:
        assert record is not None
        self.versions.append(record.version)
        self._more.set()

    async def until(self, version: int) -> None:
        while not self.versions or self.versions[-1] < version:
            self._more.clear()
            await self._more.wait()


@pytest.mark.asyncio
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
async def test_a_dead_gateway_is_left_by_calls_and_watches(
    gateways: dict[str, GatewayProcess], how: signal.Signals, victim: int
) -> None:
    """Changes, watches and reads go on elsewhere. What each took is printed; the bound is generous."""
    factory = RpcLedgerManagerFactory("grpc://" + ",".join(gateways), timeout=30)
    manager, heard = factory.ledger_manager, Heard()
    metadata = (await manager.create(SEVEN, METADATA)).metadata
    for _ in gateways:
        await manager.read(SEVEN)
    await manager.register_listener(SEVEN, heard)
    await heard.until(0)
    list(gateways.values())[victim].signal(how)
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(15):
        for version in range(4):
            begun = loop.time()
            await manager.write(SEVEN, metadata, version)
            written = loop.time()
            await heard.until(version + 1)
            print(f"write {written - begun:.3f} s, heard {loop.time() - written:.3f} s")
        for _ in range(4):
            begun = loop.time()
            assert (await manager.read(SEVEN)).version == 4
            print(f"read {loop.time() - begun:.3f} s")
    assert heard.versions == sorted(set(heard.versions))
    await factory.close()


class HoldingProxy:
    """In front of a gateway: keeps its answers back, and new connections waiting until there is a gateway again."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self.mute = False
        self.open = asyncio.Event()
        self.open.set()

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        try:
            await self.open.wait()
            answers, requests = await asyncio.open_connection(*self._target)
            ends.append(requests)
            pumps = [asyncio.ensure_future(each) for each in (self._up(reader, requests), self._down(answers, writer))]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        finally:
            for end in ends:
                end.transport.abort()

    async def _up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)

    async def _down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            if not self.mute:
                writer.write(data)


@pytest.mark.asyncio
async def test_a_creation_is_not_carried_out_again_by_a_gateway_that_was_started_anew(tmp_path: Path) -> None:
    """Killed when it had made the ledger and before it could say so, and started at the same port."""
    store = made(f"sqlite://{tmp_path}/metadata.db")
    async with AsyncExitStack() as stack:
        first = GatewayProcess(store)
        stack.callback(first.end)
        address = first.address()
        proxy = HoldingProxy(address)
        client = RpcLedgerManagerFactory(f"grpc://{await proxy.start()}", timeout=30)
        stack.push_async_callback(proxy.stop)
        stack.push_async_callback(client.close)
        onlooker = create_factory(store)
        stack.push_async_callback(onlooker.close)
        await onlooker.initialize()

        async def ledgers() -> list[int]:
            return [number async for ids in onlooker.ledger_manager.ledger_ranges() for number in ids]

        await client.initialize()
        proxy.mute = True
        manager = client.ledger_manager
        creating = asyncio.ensure_future(manager.create(None, METADATA))
        async with asyncio.timeout(30):
            while not await ledgers():  # noqa: ASYNC110 (another process makes it)
                await asyncio.sleep(0.01)
            proxy.open.clear()
            first.end()
            second = GatewayProcess(store, int(address.rpartition(":")[2]))
            stack.callback(second.end)
            assert await asyncio.to_thread(second.address) == address
            proxy.mute = False
            proxy.open.set()
            with pytest.raises(UnknownOutcomeException, match="another instance of the gateway"):
                await creating
        assert len(await ledgers()) == 1
        # The next one knows the new process, and is none of these.
        created = await manager.create(None, METADATA)
        assert created.ledger_id.low in await ledgers()


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


def files_of(authority: trustme.CA, folder: Path, name: str) -> tuple[Path, Path, Path]:
    """Authority, certificate and key as PEM files."""
    issued = authority.issue_cert("localhost", "127.0.0.1", common_name=name)
    paths = (folder / f"{name}-ca.pem", folder / f"{name}.pem", folder / f"{name}.key")
    authority.cert_pem.write_to_path(paths[0])
    issued.cert_chain_pems[0].write_to_path(paths[1])
    issued.private_key_pem.write_to_path(paths[2])
    return paths


@asynccontextmanager
async def tls_gateway(folder: Path, authority: trustme.CA, *, client_certificates: bool) -> AsyncIterator[str]:
    ca, cert, key = files_of(authority, folder, "server")
    async with AsyncExitStack() as stack:
        factory = create_factory(made(f"sqlite://{folder}/metadata.db"))
        stack.push_async_callback(factory.close)
        await factory.initialize()
        server_files = ServerTlsFiles(str(cert), str(key), str(ca) if client_certificates else None)
        server = GatewayServer(factory, tls=server_files)
        stack.push_async_callback(server.stop, 0)
        yield f"grpcs://localhost:{await server.start()}"


async def check(uri: str, tls: ClientTlsFiles, timeout: float = 10) -> None:
    config = ClientConfig(metadata_timeout_seconds=timeout, tls_ca=tls.ca, tls_cert=tls.cert, tls_key=tls.key)
    async with await BookKeeper.connect(uri, config) as client:
        record = await client.ledger_manager.create(None, METADATA)
        assert await client.read_record(record.ledger_id) == record


@pytest.mark.asyncio
async def test_tls(tmp_path: Path, authority: trustme.CA) -> None:
    ca = files_of(authority, tmp_path, "client")[0]
    async with tls_gateway(tmp_path, authority, client_certificates=False) as uri:
        await check(uri, ClientTlsFiles(ca))
        await check(f"{uri}?ca={ca}", ClientTlsFiles())
        # Neither an authority that is not trusted nor plain text gets through.
        for refused in (uri, uri.replace("grpcs", "grpc")):
            with pytest.raises(MetaStoreException, match="localhost"):
                await check(refused, ClientTlsFiles(), timeout=1)


@pytest.mark.asyncio
async def test_tls_with_client_certificates(tmp_path: Path, authority: trustme.CA) -> None:
    ca, cert, key = files_of(authority, tmp_path, "client")
    stranger = files_of(trustme.CA(), tmp_path, "stranger")
    async with tls_gateway(tmp_path, authority, client_certificates=True) as uri:
        await check(uri, ClientTlsFiles(ca, cert, key))
        for files in (ClientTlsFiles(ca), ClientTlsFiles(ca, *stranger[1:])):
            with pytest.raises(MetaStoreException, match="localhost"):
                await check(uri, files, timeout=1)
        command = [sys.executable, "-m", "bookgate", "--tls-ca", str(ca), "--tls-cert", str(cert)]
        command += ["--tls-key", str(key), "ledger", "list", "--json", "-g", uri]
        process = await asyncio.create_subprocess_exec(
            *command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        output, _ = await process.communicate()
        assert len(json.loads(output)) == 1


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        (lambda folder: ClientTlsFiles(folder / "missing.pem"), "missing.pem can't be read"),
        (lambda folder: ClientTlsFiles(folder / "none.pem"), "none.pem is no PEM file"),
        (lambda folder: ClientTlsFiles(None, folder / "none.pem"), "both its certificate and its key"),
        (lambda folder: ClientTlsFiles(folder / "torn.pem"), "torn.pem can't be used together"),
        (
            lambda folder: ClientTlsFiles(None, folder / "a.pem", folder / "b.key"),
            "a.pem, .*b.key can't",
        ),
        (lambda folder: ClientTlsFiles(None, folder / "torn.pem", folder / "b.key"), "torn.pem, .*b.key can't"),
    ],
)
def test_tls_files_that_are_none(
    tmp_path: Path, authority: trustme.CA, files: Callable[[Path], ClientTlsFiles], problem: str
) -> None:
    (tmp_path / "none.pem").write_text("nothing")
    certificate = files_of(authority, tmp_path, "a")[1].read_bytes()
    files_of(authority, tmp_path, "b")
    (tmp_path / "torn.pem").write_bytes(certificate[: len(certificate) // 2])
    with pytest.raises(IncorrectParameterException, match=problem):
        files(tmp_path).credentials()
