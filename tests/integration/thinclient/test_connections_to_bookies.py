"""The client's connections to a real bookie: both protocols, TLS, authentication, cut and frozen connections."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import trustme

from bookgate import BookKeeper, ClientConfig, WriteHandle
from bookgate.bookie.server import BookieServer
from bookgate.bookie.standalone.cluster import BookieProcess
from bookgate.ledger.errors import (
    BKException,
    BookieHandleNotAvailableException,
    LedgerFencedException,
    NotEnoughBookiesException,
    SecurityException,
    TimeoutException,
    UnauthorizedAccessException,
)
from bookgate.thinclient.bookies.connection import tcp_connector
from tests.integration.bookie.in_process import running_bookie
from tests.integration.cluster import own_bookie
from tests.unit.thinclient.inside import pool_of

__all__ = ["own_bookie"]

TOKEN = "planted-token"
PAYLOADS = [b"%d " % number * 100 for number in range(500)]
loop_of_module = pytest.mark.asyncio(loop_scope="module")


class Files:
    """What bookie and client need for TLS and tokens."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        self.ca, self.cert, self.key = folder / "ca.pem", folder / "cert.pem", folder / "key.pem"
        self.client_cert, self.tokens = folder / "client.pem", folder / "tokens"
        authority.cert_pem.write_to_path(self.ca)
        issued = authority.issue_cert("127.0.0.1")
        issued.private_key_pem.write_to_path(self.key)
        issued.cert_chain_pems[0].write_to_path(self.cert)
        client = authority.issue_cert("client@example.org")
        client.private_key_and_cert_chain_pem.write_to_path(self.client_cert)
        self.tokens.write_text(TOKEN)

    @property
    def of_bookie(self) -> dict[str, Any]:
        return {"tls_cert": self.cert, "tls_key": self.key, "tls_client_ca": self.ca}

    @property
    def of_client(self) -> dict[str, Any]:
        return {"bookie_tls": "start-tls", "bookie_tls_ca": self.ca}

    @property
    def of_token(self) -> dict[str, Any]:
        return {"auth_provider": "bookgate-token", "auth_token": TOKEN}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("files"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bookie(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[BookieServer]:
    """Neither TLS nor authentication."""
    async with running_bookie(tmp_path_factory.mktemp("open")) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def secure_bookie(files: Files, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[BookieServer]:
    """Nothing but TLS, a client certificate and a token will do."""
    settings = {"auth_provider": "bookgate-token", "auth_options": {"file": str(files.tokens)}}
    required = {"tls_required": True, "tls_require_client_cert": True}
    async with running_bookie(tmp_path_factory.mktemp("secure"), **files.of_bookie, **settings, **required) as server:
        yield server


async def connect(server: BookieServer, **settings: Any) -> BookKeeper:
    return await BookKeeper.connect(f"grpc://{server.addresses['gateway']}", ClientConfig(**settings))


async def written(client: BookKeeper) -> WriteHandle:
    ledger = await client.create_ledger(1, 1, 1)
    await ledger.append_all(PAYLOADS)
    return ledger


async def read_all(client: BookKeeper, ledger: WriteHandle, recovery: bool = False) -> list[bytes]:
    reader = await client.open_ledger(ledger.ledger_id, recovery=recovery)
    last = await reader.read_last_confirmed()
    return [entry.payload async for entry in reader.read(0, last)]


@loop_of_module
async def test_a_client_of_the_binary_protocol_does_all_that_one_of_v3_does(bookie: BookieServer) -> None:
    async with await connect(bookie, wire_protocol="v2") as writer, await connect(bookie) as other:
        ledger = await written(writer)
        await ledger.append(b"end")
        assert await read_all(writer, ledger) == PAYLOADS
        assert await read_all(other, ledger, recovery=True) == [*PAYLOADS, b"end"]
        with pytest.raises(LedgerFencedException):
            await ledger.append(b"late")
        second = await written(other)
        assert await read_all(writer, second, recovery=True) == PAYLOADS
        with pytest.raises(LedgerFencedException):
            await second.append(b"late")


@loop_of_module
async def test_a_client_of_the_binary_protocol_tails_by_polling_and_asks_for_disk_space_beside(
    bookie: BookieServer,
) -> None:
    async with await connect(bookie, wire_protocol="v2") as client, await connect(bookie) as other:
        ledger = await other.create_ledger(1, 1, 1)
        tail = asyncio.ensure_future(collect(client, ledger))
        for payload in PAYLOADS[:30]:
            await ledger.append(payload)
        await ledger.close()
        async with asyncio.timeout(30):
            assert await tail == PAYLOADS[:30]
        assert await pool_of(client).free_bytes(ledger.metadata.last_fragment.ensemble[0]) > 0


async def collect(client: BookKeeper, ledger: WriteHandle) -> list[bytes]:
    reader = await client.open_ledger(ledger.ledger_id)
    return [entry.payload async for entry in reader.tail(0)]


@loop_of_module
@pytest.mark.parametrize("protocol", ["v3", "v2"])
@pytest.mark.parametrize("mode", ["start-tls", "native"])
@pytest.mark.parametrize("channels", [1, 3])
async def test_through_tls_with_certificate_and_token(
    secure_bookie: BookieServer, files: Files, protocol: str, mode: str, channels: int
) -> None:
    settings = {**files.of_client, **files.of_token, "bookie_tls": mode, "wire_protocol": protocol}
    identity = {"bookie_tls_cert": files.client_cert, "bookie_tls_key": files.client_cert}
    async with await connect(secure_bookie, **settings, **identity, num_channels_per_bookie=channels) as client:
        ledger = await written(client)
        await ledger.close()
        assert await read_all(client, ledger) == PAYLOADS


Lacking = Callable[[Files], dict[str, Any]]
LACKING: dict[str, tuple[Lacking, str]] = {
    "tls": (lambda files: files.of_token, "EUA|UnauthorizedAccess|refuses|closed"),
    "a certificate": (lambda files: {**files.of_client, **files.of_token}, "(?i)certificate"),
    "the token": (
        lambda files: {
            **files.of_client,
            "bookie_tls_cert": files.client_cert,
            "bookie_tls_key": files.client_cert,
            "auth_provider": "bookgate-token",
            "auth_token": "wrong",
        },
        "refuses the authentication by bookgate-token",
    ),
}


@loop_of_module
@pytest.mark.parametrize("lacking", LACKING)
async def test_who_lacks_something_is_told_what(secure_bookie: BookieServer, files: Files, lacking: str) -> None:
    settings, message = LACKING[lacking]
    async with await connect(secure_bookie, **settings(files)) as client:
        ledger = await client.create_ledger(1, 1, 1)
        kinds = (
            SecurityException,
            UnauthorizedAccessException,
            NotEnoughBookiesException,
            BookieHandleNotAvailableException,
        )
        with pytest.raises(kinds, match=message):
            await ledger.append(b"x")


@loop_of_module
async def test_a_bookie_without_tls_refuses_start_tls_in_words(bookie: BookieServer, files: Files) -> None:
    async with await connect(bookie, **files.of_client) as client:
        ledger = await client.create_ledger(1, 1, 1)
        with pytest.raises(BKException, match="it has no TLS"):
            await ledger.append(b"x")


@loop_of_module
async def test_a_bookie_without_authentication_takes_clients_that_bring_a_token(
    bookie: BookieServer, files: Files
) -> None:
    async with await connect(bookie, **files.of_token) as client:
        assert await (await client.create_ledger(1, 1, 1)).append(b"x") == 0


class Cutter:
    """Stands before a bookie, and cuts each connection after so many bytes to the client."""

    def __init__(self) -> None:
        self.budget = 0
        self.cuts = 0
        self._target = ("", 0)
        self._server: asyncio.Server | None = None
        self._pumps: set[asyncio.Task[None]] = set()

    async def connector(self, factory: Callable[[], asyncio.BufferedProtocol], host: str, port: int) -> object:
        """In place of `tcp_connector`: the way leads through here."""
        self._target = (host, port)
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return await tcp_connector(factory, "127.0.0.1", self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._pumps:
            await asyncio.wait(self._pumps)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        up = asyncio.ensure_future(self._pump(reader, far_writer, 1 << 60))
        down = asyncio.ensure_future(self._pump(far_reader, writer, self.budget))
        self._pumps |= {up, down}
        await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
        for end in (writer, far_writer):
            end.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, budget: int) -> None:
        with contextlib.suppress(ConnectionError):
            while budget > 0 and (data := await reader.read(min(budget, 1 << 16))):
                writer.write(data)
                budget -= len(data)
                await writer.drain()
            self.cuts += not budget


@loop_of_module
@pytest.mark.parametrize("protocol", ["v3", "v2"])
async def test_connections_cut_in_the_middle_of_frames_lose_and_double_nothing(
    bookie: BookieServer, protocol: str
) -> None:
    cutter = Cutter()
    settings = ClientConfig(wire_protocol=protocol, read_timeout_seconds=10)  # type: ignore[arg-type]
    async with await connect(bookie) as whole:
        ledger = await written(whole)
        await ledger.close()
        cut = BookKeeper(whole.ledger_manager, whole.service_discovery, settings, connector=cutter.connector)
        for cutter.budget in (1, 3, 4, 30, 101, 1009, 10_007, 50_021):
            reader = await cut.open_ledger(ledger.ledger_id)
            received: list[bytes] = []
            with contextlib.suppress(BookieHandleNotAvailableException):
                async for entry in reader.read(0, 59):
                    received.append(entry.payload)  # noqa: PERF401  # what came before the cut counts
            assert received == PAYLOADS[: len(received)]
        assert cutter.cuts >= 8
        cutter.budget = 1 << 30
        async with asyncio.timeout(60):
            received = []
            while len(received) < 60:
                with contextlib.suppress(BookieHandleNotAvailableException):
                    received = [entry.payload async for entry in reader.read(0, 59)]
                await asyncio.sleep(0.05)  # the pause between attempts
        assert received == PAYLOADS[:60]
        await cut.close()
        await cutter.close()


@pytest.mark.asyncio
async def test_a_frozen_bookie_times_out_and_is_used_again_when_it_thaws(own_bookie: BookieProcess) -> None:
    assert own_bookie.process is not None
    gateway = f"grpc://{own_bookie.addresses['gateway']}"
    async with await BookKeeper.connect(gateway, ClientConfig(read_timeout_seconds=0.5)) as client:
        ledger = await written(client)
        await ledger.close()
        reader = client.open_record(ledger.record)
        assert [entry.payload async for entry in reader.read(0, 10)] == PAYLOADS[:11]
        os.kill(own_bookie.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, own_bookie.process.pid, os.WSTOPPED | os.WNOWAIT)  # noqa: ASYNC222 (at once)
        try:
            async with asyncio.timeout(20):
                with pytest.raises(TimeoutException):
                    _ = [entry async for entry in reader.read(0, 10)]
        finally:
            os.kill(own_bookie.process.pid, signal.SIGCONT)
        async with asyncio.timeout(30):
            while True:
                with contextlib.suppress(TimeoutException):
                    assert [entry.payload async for entry in reader.read(0, 499)] == PAYLOADS
                    break


@pytest.mark.asyncio
async def test_a_killed_bookie_is_reached_again_wherever_it_comes_back(own_bookie: BookieProcess) -> None:
    config = ClientConfig(read_timeout_seconds=2, connect_timeout_seconds=2)
    async with await BookKeeper.connect(f"grpc://{own_bookie.addresses['gateway']}", config) as client:
        ledger = await written(client)
        await ledger.close()
        reader = client.open_record(ledger.record)
        own_bookie.kill()
        with pytest.raises(BKException):
            _ = [entry async for entry in reader.read(0, 499)]
        await asyncio.to_thread(own_bookie.start)
        await asyncio.to_thread(own_bookie.wait_until_serving)
        # Its ports are new ones; a gateway that lives at the new address tells them.
        async with await BookKeeper.connect(f"grpc://{own_bookie.addresses['gateway']}", config) as second:
            again = second.open_record(ledger.record)
            assert [entry.payload async for entry in again.read(0, 499)] == PAYLOADS
