"""TLS and authentication before a connection opens, on both event loops and in both protocols."""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme
import uvloop

from bookgate import BookKeeper, ClientConfig
from bookgate.ledger.errors import (
    BKException,
    BookieHandleNotAvailableException,
    ClientClosedException,
    IncorrectParameterException,
    SecurityException,
    UnauthorizedAccessException,
)
from bookgate.ledger.wire.messages import (
    AddRequest,
    AddResponse,
    AuthRequest,
    AuthResponse,
    Operation,
    ReadLacRequest,
    ReadLacResponse,
    StartTlsRequest,
    StartTlsResponse,
    Status,
)
from bookgate.ledger.wire.v3 import encode_response
from bookgate.thinclient.bookies.auth import TokenAuthProvider, load_provider
from bookgate.thinclient.config import load_config
from tests.unit.thinclient.bookies.secure_bookie import SecureBookie
from tests.unit.thinclient.fakes import FakeCluster
from tests.unit.thinclient.inside import pool_of


@dataclass
class Certificates:
    """An authority, a bookie's context, and the files of a client."""

    authority: trustme.CA
    ca: Path
    cert: Path
    key: Path
    folder: Path

    def server(self, host: str = "127.0.0.1", ask_client: bool = False) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.authority.issue_cert(host).configure_cert(context)
        if ask_client:
            self.authority.configure_trust(context)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return new_certificates(tmp_path_factory.mktemp("tls"))


def new_certificates(folder: Path) -> Certificates:
    authority = trustme.CA()
    result = Certificates(authority, folder / "ca.pem", folder / "cert.pem", folder / "key.pem", folder)
    authority.cert_pem.write_to_path(str(result.ca))
    client = authority.issue_cert("client@example.org")
    client.private_key_pem.write_to_path(str(result.key))
    for blob in client.cert_chain_pems:
        blob.write_to_path(str(result.cert), append=True)
    return result


LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.SelectorEventLoop,
    "uvloop": uvloop.new_event_loop,
}


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Iterator[Callable[[Awaitable[None]], None]]:
    """Runs a test on one kind of event loop; nothing it did may end in the loop's exception handler."""
    problems: list[dict[str, Any]] = []

    async def watched(test: Awaitable[None]) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: problems.append(context))
        await test

    with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
        yield lambda test: runner.run(watched(test))
    assert problems == []


@asynccontextmanager
async def cluster_of(*bookies: SecureBookie) -> AsyncIterator[FakeCluster]:
    for bookie in bookies:
        await bookie.start()
    cluster = FakeCluster(list(bookies))
    try:
        yield cluster
    finally:
        for client in cluster.clients:
            await client.close()
        for bookie in bookies:
            await bookie.stop()


async def ask(client: BookKeeper, bookie: SecureBookie) -> ReadLacResponse:
    pool = pool_of(client)
    request = ReadLacRequest(pool.next_txn_id(), 1)
    response = await pool.request(bookie.bookie_id, Operation.READ_LAC, request, timeout=20)
    assert isinstance(response, ReadLacResponse)
    return response


async def write_and_read(client: BookKeeper) -> None:
    ledger = await client.create_ledger(1, 1, 1)
    payloads = [b"%d" % i * 1000 for i in range(200)]
    await ledger.append_all(payloads)
    await ledger.close()
    reader = await client.open_ledger(ledger.ledger_id)
    assert [entry.payload async for entry in reader.read(0, 199)] == payloads


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("protocol", ["v3", "v2"])
def test_entries_go_through_tls(
    run: Callable[[Awaitable[None]], None], certificates: Certificates, native: bool, protocol: str
) -> None:
    async def test() -> None:
        async with cluster_of(SecureBookie(certificates.server(), native)) as cluster:
            mode = "native" if native else "start-tls"
            client = cluster.client(bookie_tls=mode, bookie_tls_ca=certificates.ca, wire_protocol=protocol)
            await write_and_read(client)
            (bookie,) = cluster.bookies
            assert isinstance(bookie, SecureBookie)
            assert bookie.tls_connections == bookie.connections > 0
            assert isinstance(bookie.requests[0], AddRequest if native else StartTlsRequest)

    run(test())


@pytest.mark.parametrize("protocol", ["v3", "v2"])
@pytest.mark.parametrize("tls", [False, True])
def test_requests_wait_for_the_authentication(
    run: Callable[[Awaitable[None]], None], certificates: Certificates, protocol: str, tls: bool
) -> None:
    async def test() -> None:
        context = certificates.server() if tls else None
        async with cluster_of(SecureBookie(context, token=b"secret")) as cluster:
            settings = {"bookie_tls": "start-tls", "bookie_tls_ca": certificates.ca} if tls else {}
            client = cluster.client(
                auth_provider="bookgate-token", auth_token="secret", wire_protocol=protocol, **settings
            )
            await write_and_read(client)
            kinds = [type(request) for request in cluster.bookies[0].requests]
            assert kinds[: 2 + tls] == [StartTlsRequest] * tls + [AuthRequest, AddRequest]

    run(test())


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no tls": ({}, {}, "has no TLS"),
    "another authority": ({"other": True}, {}, "its certificate is not accepted"),
    "another host": ({"host": "elsewhere.example.org"}, {}, "its certificate is not accepted"),
    "no client certificate": ({"ask_client": True}, {}, "(?i)certificate.required|want a client certificate"),
    "clear bytes behind the answer": ({"greeting": b"\0\0\0\1x"}, {}, "in clear|TLS failed"),
    "silence to START_TLS": (
        {"silent_to": StartTlsRequest},
        {"bookie_tls_timeout_seconds": 0.2},
        "not finished within 0.2 s",
    ),
    "files that are not there": ({"host": "127.0.0.1"}, {"bookie_tls_ca": Path("/nonexistent")}, "/nonexistent can't"),
    "a file that is no certificate": ({"host": "127.0.0.1"}, {"bookie_tls_ca": Path(__file__)}, "no PEM certificates"),
    "a certificate that is none": (
        {"host": "127.0.0.1"},
        {"bookie_tls_cert": Path(__file__), "bookie_tls_key": Path(__file__)},
        "the client certificate .* can't be used",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_tls_that_fails_says_why(
    run: Callable[[Awaitable[None]], None], certificates: Certificates, case: str, tmp_path: Path
) -> None:
    server, settings, message = REFUSED[case]
    bookie = SecureBookie()
    if server:
        issuer = new_certificates(tmp_path) if server.get("other") else certificates
        bookie.context = issuer.server(server.get("host", "127.0.0.1"), server.get("ask_client", False))
        bookie.greeting = server.get("greeting", b"")
        bookie.silent_to = server.get("silent_to")

    async def test() -> None:
        async with cluster_of(bookie) as cluster:
            client = cluster.client(**{"bookie_tls": "start-tls", "bookie_tls_ca": certificates.ca, **settings})
            # A bookie that refuses a client's certificate may say so or just go away.
            kinds = (SecurityException, BookieHandleNotAvailableException)[: 1 + bool(server.get("ask_client"))]
            with pytest.raises(kinds, match=message) as caught:
                await ask(client, bookie)
            assert bookie.bookie_id in str(caught.value)
            assert not any(isinstance(request, ReadLacRequest) for request in bookie.requests)
            assert pool_of(client).connection(bookie.bookie_id).outstanding_count == 0

    run(test())


@pytest.mark.parametrize("asked", [AddRequest, AuthRequest])
def test_answers_to_what_somebody_else_asked_before_tls_are_nobodys(
    run: Callable[[Awaitable[None]], None], certificates: Certificates, asked: type
) -> None:
    """Whoever stands in between asks in clear, with the transaction ids that a client would begin with."""
    bookie = SecureBookie(certificates.server(), token=b"secret")
    bookie.silent_to = asked
    for txn_id in range(1000):
        bookie.said_instead.append(AddResponse(txn_id, Status.EOK, 0, 0))
        bookie.said_instead.append(AuthResponse(txn_id, Status.EOK, "AuthDisabledPlugin", b""))

    async def test() -> None:
        async with cluster_of(bookie) as cluster:
            tls = {"bookie_tls": "start-tls", "bookie_tls_ca": certificates.ca, "bookie_tls_timeout_seconds": 0.5}
            client = cluster.client(**tls, auth_provider="bookgate-token", auth_token="secret", add_timeout_seconds=0.5)
            ledger = await client.create_ledger(1, 1, 1)
            with pytest.raises(BKException):
                await ledger.append(b"never stored")
            assert bookie.ledgers == {}
            assert not any(isinstance(request, AddRequest) for request in bookie.requests)

    run(test())


def test_host_names_are_not_checked_where_that_is_switched_off(
    run: Callable[[Awaitable[None]], None], certificates: Certificates
) -> None:
    async def test() -> None:
        bookie = SecureBookie(certificates.server("elsewhere.example.org"))
        async with cluster_of(bookie) as cluster:
            settings = {"bookie_tls": "start-tls", "bookie_tls_ca": certificates.ca}
            await ask(cluster.client(**settings, bookie_tls_verify_host_name=False), bookie)

    run(test())


def test_a_client_certificate_is_presented(run: Callable[[Awaitable[None]], None], certificates: Certificates) -> None:
    async def test() -> None:
        bookie = SecureBookie(certificates.server(ask_client=True))
        async with cluster_of(bookie) as cluster:
            files = {"bookie_tls_cert": certificates.cert, "bookie_tls_key": certificates.key}
            await ask(cluster.client(bookie_tls="start-tls", bookie_tls_ca=certificates.ca, **files), bookie)

    run(test())


def test_changed_files_are_taken_up_by_the_next_connection(
    run: Callable[[Awaitable[None]], None], certificates: Certificates, tmp_path: Path
) -> None:
    async def test() -> None:
        bookie = SecureBookie(certificates.server())
        async with cluster_of(bookie) as cluster:
            ca = tmp_path / "ca.pem"
            ca.write_bytes(trustme.CA().cert_pem.bytes())
            client = cluster.client(bookie_tls="start-tls", bookie_tls_ca=ca)
            with pytest.raises(SecurityException):
                await ask(client, bookie)
            replacement = tmp_path / "new.pem"
            replacement.write_bytes(certificates.ca.read_bytes())
            os.replace(replacement, ca)
            await ask(client, bookie)

    run(test())


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("protocol", "error", "message"),
    [
        ("v3", UnauthorizedAccessException, "refuses the authentication by bookgate-token"),
        ("v2", BookieHandleNotAvailableException, "ended during the authentication by bookgate-token"),
    ],
)
async def test_a_refused_authentication_ends_everything_outstanding(
    protocol: str, error: type[BKException], message: str
) -> None:
    bookie = SecureBookie(token=b"secret")
    async with cluster_of(bookie) as cluster:
        client = cluster.client(auth_provider="bookgate-token", auth_token="wrong", wire_protocol=protocol)
        outcomes = await asyncio.gather(*(ask(client, bookie) for _ in range(3)), return_exceptions=True)
        for outcome in outcomes:
            assert isinstance(outcome, error)
            assert message in str(outcome)
        assert {type(request) for request in bookie.requests} == {AuthRequest}


@pytest.mark.asyncio
async def test_a_bookie_without_authentication_tells_so_and_is_used() -> None:
    bookie = SecureBookie()
    async with cluster_of(bookie) as cluster:
        await ask(cluster.client(auth_provider="bookgate-token", auth_token="any"), bookie)
        # A session that never gets what it waits for is not asked then.
        client = BookKeeper(cluster.metadata, cluster.discovery, ClientConfig(), auth_provider=CountingProvider())
        cluster.clients.append(client)
        await ask(client, bookie)


@pytest.mark.asyncio
async def test_a_token_is_read_anew_for_each_connection(tmp_path: Path) -> None:
    bookie, file = SecureBookie(token=b"secret"), tmp_path / "token"
    async with cluster_of(bookie) as cluster:
        client = cluster.client(auth_provider="bookgate-token", auth_token_file=file)
        with pytest.raises(UnauthorizedAccessException, match="can't be read"):
            await ask(client, bookie)
        file.write_text("secret\n")
        await ask(client, bookie)


class CountingSession:
    """Says the token as often as the bookie wants it."""

    def initial(self) -> bytes:
        return b"secret"

    def process(self, payload: bytes) -> bytes | None:
        return None if payload == b"0" else b"secret"


class CountingProvider:
    plugin_name = "bookgate-token"

    def new_session(self) -> CountingSession:
        return CountingSession()


@pytest.mark.asyncio
@pytest.mark.parametrize("steps", [3, 100])
async def test_an_exchange_of_several_steps_by_an_object_of_the_application(steps: int) -> None:
    bookie = SecureBookie(token=b"secret")
    bookie.auth_steps = steps
    async with cluster_of(bookie) as cluster:
        client = BookKeeper(cluster.metadata, cluster.discovery, ClientConfig(), auth_provider=CountingProvider())
        cluster.clients.append(client)
        if steps == 3:
            await ask(client, bookie)
            return
        with pytest.raises(UnauthorizedAccessException, match="did not come to an end in 32 steps"):
            await ask(client, bookie)


def test_providers_that_can_t_be_used_are_named() -> None:
    with pytest.raises(IncorrectParameterException, match="no authentication provider 'sasl'; installed are: bookgate"):
        load_provider("sasl", None, None)
    with pytest.raises(IncorrectParameterException, match="one of auth_token_file and auth_token"):
        TokenAuthProvider()
    assert "secret" not in repr(ClientConfig(auth_provider="bookgate-token", auth_token="secret"))


@pytest.mark.parametrize("settings", [{"bookie_tls_cert": "x"}, {"bookie_tls_key": "x"}, {"auth_token": "x"}])
def test_settings_that_need_others_say_so(settings: dict[str, Any]) -> None:
    with pytest.raises(IncorrectParameterException, match=r"go together|no effect without"):
        load_config(**settings)


def test_a_client_closed_or_timed_out_within_the_handshake_leaves_nothing(
    run: Callable[[Awaitable[None]], None], certificates: Certificates
) -> None:
    async def test() -> None:
        bookie, handshake = SecureBookie(certificates.server()), asyncio.Event()

        async def never(request: StartTlsRequest, writer: asyncio.StreamWriter) -> None:
            writer.write(encode_response(StartTlsResponse(request.txn_id, Status.EOK)))
            handshake.set()
            await asyncio.Event().wait()

        bookie.start_tls = never  # type: ignore[method-assign]
        async with cluster_of(bookie) as cluster:
            tasks, files = asyncio.all_tasks(), set(os.listdir("/proc/self/fd"))
            for timeout in (60, 1.5):
                handshake.clear()
                client = cluster.client(
                    bookie_tls="start-tls", bookie_tls_ca=certificates.ca, bookie_tls_timeout_seconds=timeout
                )
                outcome = asyncio.ensure_future(ask(client, bookie))
                await handshake.wait()
                if timeout == 1.5:
                    with pytest.raises(SecurityException, match=r"TLS was not finished|handshake"):
                        await outcome
                connection = pool_of(client).connection(bookie.bookie_id)
                connection.close()
                await connection.wait_closed()
                assert not connection._tasks
                assert not connection._wires
                await client.close()
                if timeout == 60:
                    with pytest.raises(ClientClosedException):
                        await outcome
            for task in asyncio.all_tasks() - tasks:  # the bookie's, which would wait for ever
                task.cancel()
            async with asyncio.timeout(60):
                # What was there before may have gone meanwhile.
                while not (asyncio.all_tasks() <= tasks and set(os.listdir("/proc/self/fd")) <= files):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

    run(test())
