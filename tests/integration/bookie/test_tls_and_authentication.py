"""TLS and authentication on the entry port of a real bookie, with certificates of an authority made for the run."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import trustme

from bookgate.bookie.protocol.connection import AcceptedConnection
from bookgate.bookie.server import BookieServer
from bookgate.ledger.errors import IncorrectParameterException
from bookgate.ledger.wire import messages, v2
from bookgate.ledger.wire.messages import AuthRequest, AuthResponse, StartTlsRequest, StartTlsResponse, Status
from bookgate.ledger.wire.v3 import encode_request
from tests.integration.bookie.certificates import Files, authority, client_context, stranger
from tests.integration.bookie.entry_client import BinaryEntryClient, EntryClient, add, packet, read
from tests.integration.bookie.in_process import entry_address, running_bookie

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOKEN = "bookgate-token"


def secure(client: EntryClient, context: ssl.SSLContext | None = None) -> None:
    client.socket = (context or client_context()).wrap_socket(client.socket, server_hostname="127.0.0.1")


def start_tls(client: EntryClient, context: ssl.SSLContext | None = None) -> None:
    request = StartTlsRequest(1)
    assert client.ask(request) == StartTlsResponse(1, Status.EOK)
    secure(client, context)


def exchange(client: EntryClient, ledger_id: int, entries: int = 3) -> None:
    for entry_id in range(entries):
        assert client.status(add(ledger_id, entry_id)) == Status.EOK
    answer = client.ask(read(ledger_id, 0))
    assert isinstance(answer, messages.ReadResponse)
    assert answer.body == packet(ledger_id, 0)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("certificates"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bookie(files: Files, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[BookieServer]:
    """TLS beside clear, client certificates by choice."""
    settings = {**files.tls, "tls_client_ca": files.authority}
    async with running_bookie(tmp_path_factory.mktemp("tls"), **settings) as server:
        yield server


async def test_start_tls_then_v3_then_the_binary_protocol(bookie: BookieServer) -> None:
    def talk() -> None:
        with EntryClient(entry_address(bookie)) as client:
            start_tls(client)
            exchange(client, 1)
            client.socket.sendall(v2.encode_request(read(1, 1)))
            assert v2.decode_response(client.receive_packet()).status == Status.EOK

    await asyncio.to_thread(talk)


@pytest.mark.parametrize("kind", [EntryClient, BinaryEntryClient])
async def test_tls_from_the_first_byte(bookie: BookieServer, kind: type[EntryClient]) -> None:
    def talk() -> None:
        with kind(entry_address(bookie)) as client:
            secure(client)
            exchange(client, 2)

    await asyncio.to_thread(talk)


async def test_the_other_event_loop(files: Files, tmp_path: Path) -> None:
    uvloop = pytest.importorskip("uvloop")

    def talk(address: str) -> None:
        for begin in (start_tls, secure):
            with EntryClient(address) as client:
                begin(client)
                exchange(client, 2, entries=200)

    async def run() -> None:
        async with running_bookie(tmp_path, **files.tls) as server:
            await asyncio.to_thread(talk, entry_address(server))

    await asyncio.to_thread(uvloop.run, run())


async def test_clear_connections_beside(bookie: BookieServer) -> None:
    def talk() -> None:
        with EntryClient(entry_address(bookie)) as clear, EntryClient(entry_address(bookie)) as secured:
            secure(secured)
            exchange(clear, 3)
            exchange(secured, 3)

    await asyncio.to_thread(talk)


async def test_large_entries_and_many_requests_inside_tls(bookie: BookieServer) -> None:
    payload = bytes(range(256)) * 16_000

    def talk() -> None:
        with EntryClient(entry_address(bookie)) as client:
            start_tls(client)
            assert client.status(add(4, 0, payload)) == Status.EOK
            for _ in range(3):
                answer = client.ask(read(4, 0))
                assert isinstance(answer, messages.ReadResponse)
                assert answer.body == packet(4, 0, payload)
            client.send(*(add(4, entry_id) for entry_id in range(1, 2001)))
            assert {client.receive().status for _ in range(2000)} == {Status.EOK}

    await asyncio.to_thread(talk)


async def test_handshake_byte_by_byte(bookie: BookieServer) -> None:
    def talk() -> None:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = client_context().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        with EntryClient(entry_address(bookie)) as client:
            client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            done = False
            while not done:
                try:
                    tls.do_handshake()
                    done = True
                except ssl.SSLWantReadError:
                    done = False
                for byte in outgoing.read():
                    client.socket.sendall(bytes([byte]))
                if not done:
                    incoming.write(client.socket.recv(65536))
            tls.write(encode_request(messages.ForceLedgerRequest(1, 1)))
            client.socket.sendall(outgoing.read())
            while True:
                incoming.write(client.socket.recv(65536))
                try:
                    assert struct.unpack(">I", tls.read(4))[0] > 0
                    return
                except ssl.SSLWantReadError:
                    continue

    await asyncio.to_thread(talk)


async def test_a_second_start_tls_is_refused(bookie: BookieServer) -> None:
    def talk() -> None:
        with EntryClient(entry_address(bookie)) as client:
            start_tls(client)
            assert client.ask(StartTlsRequest(2)) == StartTlsResponse(2, Status.EBADREQ)
            exchange(client, 5)

    await asyncio.to_thread(talk)


@pytest.mark.parametrize("again", [False, True])
async def test_what_comes_in_clear_behind_start_tls_is_not_followed(bookie: BookieServer, again: bool) -> None:
    """It may have been put there by anyone on the way; nothing of it is stored."""

    def talk() -> None:
        with EntryClient(entry_address(bookie)) as client:
            client.send(StartTlsRequest(1), add(6, 0), *[StartTlsRequest(2)] * again)
            while client.socket.recv(65536):
                pass
        with EntryClient(entry_address(bookie)) as client:
            assert client.status(read(6, 0)) == Status.ENOLEDGER

    await asyncio.to_thread(talk)


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("kind", [EntryClient, BinaryEntryClient])
async def test_what_was_asked_in_clear_is_not_answered_inside_tls(
    bookie: BookieServer, kind: type[EntryClient], at_once: bool
) -> None:
    """Whoever stands in between could have asked it, for the client to take the answer for its own."""

    def talk() -> None:
        with kind(entry_address(bookie)) as client:
            if at_once and kind is EntryClient:
                client.send(add(9, 0), StartTlsRequest(1))
                answers = {type(answer): answer.status for answer in (client.receive(), client.receive())}
                assert answers == {messages.AddResponse: Status.EOK, StartTlsResponse: Status.EBADREQ}
            elif at_once:
                client.send(add(9, 0))
                client.socket.sendall(CLIENT_HELLO)
                assert bookie_ends_in_clear(client)
            else:
                assert client.status(add(9, 0)) == Status.EOK
                with pytest.raises((ssl.SSLError, ConnectionError)):
                    secure(client)

    await asyncio.to_thread(talk)


async def test_nor_is_what_came_in_one_piece_with_the_token(files: Files, tmp_path: Path) -> None:
    settings = {**files.tls, "auth_provider": TOKEN, "auth_options": {"file": str(files.tokens)}}

    def talk(address: str) -> None:
        with EntryClient(address) as client:
            client.send(AuthRequest(2, TOKEN, b"open sesame"), add(9, 0))
            assert [client.receive().status for _ in range(2)] == [Status.EOK] * 2
            assert client.status(StartTlsRequest(3)) == Status.EBADREQ

    async with running_bookie(tmp_path, **settings) as server:
        await asyncio.to_thread(talk, entry_address(server))


CLIENT_HELLO = bytes.fromhex("160301020001000000")


def bookie_ends_in_clear(client: EntryClient) -> bool:
    """Reads to the end; False if there was a TLS record."""
    received = b""
    try:
        while data := client.socket.recv(65536):
            received += data
    except ConnectionError:
        pass
    return b"\x15\x03" not in received


@pytest.mark.parametrize("plugin", ["AuthDisabledPlugin", TOKEN])
async def test_authentication_in_clear_before_start_tls(files: Files, tmp_path: Path, plugin: str) -> None:
    """Java's client sends its first AUTH as soon as it is connected."""
    settings = {"auth_provider": TOKEN, "auth_options": {"file": str(files.tokens)}} if plugin == TOKEN else {}

    def talk(address: str) -> None:
        with EntryClient(address) as client:
            assert client.ask(AuthRequest(2, plugin, b"open sesame")) == AuthResponse(2, Status.EOK, plugin, b"")
            start_tls(client)
            exchange(client, 1)

    async with running_bookie(tmp_path, **files.tls, **settings) as server:
        await asyncio.to_thread(talk, entry_address(server))


@pytest.mark.parametrize("garbage", [b"\x16\x03\x01\x00\x05hello", b"\x16\x03\x01\xff\xff" + bytes(70_000)])
async def test_a_handshake_of_garbage_ends_the_connection_only(bookie: BookieServer, garbage: bytes) -> None:
    def talk() -> None:
        with EntryClient(entry_address(bookie)) as client:
            client.socket.sendall(garbage)
            try:
                while client.socket.recv(65536):
                    pass
            except ConnectionError:
                pass
        with EntryClient(entry_address(bookie)) as client:
            exchange(client, 7)

    await asyncio.to_thread(talk)


async def test_a_client_of_another_authority_is_turned_away(bookie: BookieServer) -> None:
    def talk() -> None:
        with EntryClient(entry_address(bookie)) as client:
            start_tls(client, client_context(identity=stranger.issue_cert("client@example.org")))
            with pytest.raises((ssl.SSLError, ConnectionError)):
                exchange(client, 8)
        with EntryClient(entry_address(bookie)) as client:
            start_tls(client, client_context(identity=authority.issue_cert("client@example.org")))
            exchange(client, 8)

    before = bookie.statistics.tls_failures
    await asyncio.to_thread(talk)
    assert bookie.statistics.tls_failures == before + 1


async def test_tls_and_authentication_are_announced(bookie: BookieServer) -> None:
    info = bookie.service_info
    endpoint = info.endpoint("bookie-rpc")
    assert endpoint is not None
    assert endpoint.extensions == ("tls",)
    assert endpoint.auth == ()


async def test_a_certificate_that_has_changed_is_shown_to_the_next_connection(tmp_path: Path) -> None:
    own = Files(tmp_path)

    def connects(address: str, ca: trustme.CA) -> bool:
        with EntryClient(address) as client:
            try:
                secure(client, client_context(ca))
            except ssl.SSLCertVerificationError:
                return False
            exchange(client, 1)
            return True

    async with running_bookie(tmp_path, **own.tls) as server:
        address = entry_address(server)
        assert await asyncio.to_thread(connects, address, authority)
        own.issue(stranger)
        assert await asyncio.to_thread(connects, address, stranger)
        own.key.write_text("no key")
        assert await asyncio.to_thread(connects, address, stranger)
        own.key.unlink()
        assert await asyncio.to_thread(connects, address, stranger)
        own.issue(authority)
        assert await asyncio.to_thread(connects, address, authority)


async def test_tls_required_and_a_client_certificate_required(files: Files, tmp_path: Path) -> None:
    settings = {
        **files.tls,
        "tls_client_ca": files.authority,
        "tls_require_client_cert": True,
        "tls_required": True,
    }

    def talk(address: str) -> None:
        with EntryClient(address) as client:
            assert client.ask(read(1, 0)).status == Status.EUA
            assert client.ask(add(1, 0)).status == Status.EUA
            start_tls(client, client_context(identity=authority.issue_cert("client@example.org")))
            exchange(client, 1)
        with BinaryEntryClient(address) as client:
            assert client.ask(add(1, 5)) == messages.AddResponse(0, Status.EUA, 1, 5)
        with EntryClient(address) as client:
            start_tls(client)
            with pytest.raises((ssl.SSLError, ConnectionError)):
                exchange(client, 1)

    async with running_bookie(tmp_path, **settings) as server:
        await asyncio.to_thread(talk, entry_address(server))


async def test_tokens(files: Files, tmp_path: Path) -> None:
    settings = {**files.tls, "auth_provider": TOKEN, "auth_options": {"file": str(files.tokens)}}

    def talk(address: str) -> None:
        right = AuthRequest(9, TOKEN, b"open sesame", 100)
        with EntryClient(address) as client:
            assert client.ask(read(1, 0)).status == Status.EUA
            assert client.ask(AuthRequest(8, "other", b"open sesame")) == AuthResponse(8, Status.EUA)
            start_tls(client)
            assert client.ask(read(1, 0)).status == Status.EUA
            assert client.ask(right) == AuthResponse(9, Status.EOK, TOKEN, b"", 100)
            exchange(client, 1)
            assert client.ask(right) == AuthResponse(9, Status.EOK, "AuthDisabledPlugin", b"", 100)
        with EntryClient(address) as client:
            assert client.ask(AuthRequest(10, TOKEN, b"open", 100)) == AuthResponse(10, Status.EUA, priority=100)
            assert client.is_closed_by_bookie()
        with BinaryEntryClient(address) as client:
            client.version = 1
            assert client.ask(read(1, 0)).status == Status.EUA
            client.send(right._replace(priority=0))
            answer = client.receive_packet()
            assert answer[0] == 1
            assert v2.decode_response(answer) == AuthResponse(0, Status.EOK, TOKEN, b"")
            exchange(client, 1)
        for refused in (
            AuthRequest(0, TOKEN, b"open"),
            AuthRequest(0, "other", b""),
            messages.BatchReadRequest(1, 1, 0, 1, 1),
        ):
            with BinaryEntryClient(address) as client:
                client.send(refused)
                assert client.is_closed_by_bookie()

    async with running_bookie(tmp_path, **settings) as server:
        await asyncio.to_thread(talk, entry_address(server))
        counted = server.statistics
        assert (counted.tls_handshakes, counted.tls_failures, counted.auth_failures) == (1, 0, 4)
        endpoint = server.service_info.endpoint("bookie-rpc")
        assert endpoint is not None
        assert endpoint.auth == (TOKEN,)


async def test_files_that_are_of_no_use_are_named_at_the_start(files: Files, tmp_path: Path) -> None:
    missing = tmp_path / "missing.pem"
    with pytest.raises(IncorrectParameterException, match=r"missing\.pem"):
        async with running_bookie(tmp_path, **{**files.tls, "tls_key": missing}):
            pass
    with pytest.raises(IncorrectParameterException, match="go together"):
        async with running_bookie(tmp_path, tls_key=files.key):
            pass


@pytest.mark.parametrize("how", ["clear", "start_tls", "first_byte", "secured"])
async def test_a_connection_that_is_not_let_in_does_not_stay(files: Files, tmp_path: Path, how: str) -> None:
    """Neither one that says nothing, nor one that stops in the middle of its handshake."""
    settings = {**files.tls, "auth_provider": TOKEN, "auth_options": {"file": str(files.tokens)}}

    def begin(client: EntryClient) -> None:
        if how == "start_tls":
            assert client.ask(StartTlsRequest(1)) == StartTlsResponse(1, Status.EOK)
        elif how == "first_byte":
            client.socket.sendall(bytes.fromhex("160301"))
        elif how == "secured":
            start_tls(client)

    def wait(address: str) -> None:
        with EntryClient(address) as client:
            try:
                begin(client)
            except OSError:
                return  # so slow here that the bookie did not wait
            assert client.is_closed_by_bookie()

    async with running_bookie(tmp_path, handshake_timeout_seconds=0.3, **settings) as server:
        await asyncio.to_thread(wait, entry_address(server))


def connection_of(client: EntryClient, server: BookieServer) -> AcceptedConnection:
    """The server's end."""
    host, port = client.socket.getsockname()
    return next(each for each in server.connections if each.peer == f"{host}:{port}")


async def test_nothing_waits_for_a_connection_that_is_let_in(files: Files, tmp_path: Path) -> None:
    settings = {**files.tls, "auth_provider": TOKEN, "auth_options": {"file": str(files.tokens)}}

    def secure_one(client: EntryClient) -> bool:
        start_tls(client)
        assert client.status(read(1, 0)) == Status.EUA
        return True

    async with running_bookie(tmp_path, handshake_timeout_seconds=600, **settings) as server:
        with await asyncio.to_thread(EntryClient, entry_address(server)) as client:
            assert await asyncio.to_thread(secure_one, client)
            connection = connection_of(client, server)
            assert connection.awaits_handshake
            right = AuthRequest(9, TOKEN, b"open sesame", 100)
            assert await asyncio.to_thread(client.status, right) == Status.EOK
            assert not connection.awaits_handshake


async def test_without_a_gate_only_the_handshake_of_tls_has_its_time(files: Files, tmp_path: Path) -> None:
    async with running_bookie(tmp_path, handshake_timeout_seconds=600, **files.tls) as server:
        with await asyncio.to_thread(EntryClient, entry_address(server)) as client:
            await asyncio.to_thread(exchange, client, 1)
            assert not connection_of(client, server).awaits_handshake
        with await asyncio.to_thread(EntryClient, entry_address(server)) as client:
            await asyncio.to_thread(client.ask, AuthRequest(1, "AuthDisabledPlugin", b""))
            connection = connection_of(client, server)
            assert not connection.awaits_handshake
            assert await asyncio.to_thread(client.status, StartTlsRequest(1)) == Status.EOK
            assert connection.awaits_handshake
            await asyncio.to_thread(secure, client)
            await asyncio.to_thread(exchange, client, 2)
            assert not connection.awaits_handshake
