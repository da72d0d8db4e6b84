"""Every v3 operation against a real bookie process, seen from the wire."""

from __future__ import annotations

import itertools
import socket
import struct
from collections.abc import Iterator

import pytest

from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.ledger.entry_availability import decode_runs
from bookgate.ledger.wire import messages
from bookgate.ledger.wire.frames import DEFAULT_MAX_FRAME_SIZE
from bookgate.ledger.wire.messages import Operation, Status
from bookgate.ledger.wire.v3 import encode_request
from bookgate.protos.bookkeeper.proto import bookkeeper_protocol_pb2 as wire
from tests.integration.bookie.entry_client import KEY, WRONG_KEY, EntryClient, add, fence, lac_packet, packet, read

_ledger_ids = itertools.count(1_000_000)


@pytest.fixture
def ledger_id() -> int:
    return next(_ledger_ids)


@pytest.fixture
def bookie(standalone_cluster: StandaloneCluster) -> Iterator[EntryClient]:
    with EntryClient(standalone_cluster.bookies[0]) as client:
        yield client


def still_serves(bookie: EntryClient) -> bool:
    host, port = bookie.socket.getpeername()
    with EntryClient(f"{host}:{port}") as other:
        return other.status(messages.GetBookieInfoRequest(1)) == Status.EOK


# --- adds and reads ---


def test_an_added_entry_is_read_back(bookie: EntryClient, ledger_id: int) -> None:
    response = bookie.ask(add(ledger_id, 0, b"first"))
    assert response[1:4] == (Status.EOK, ledger_id, 0)
    response = bookie.ask(read(ledger_id, 0))
    assert isinstance(response, messages.ReadResponse)
    assert response[1:7] == (Status.EOK, ledger_id, 0, packet(ledger_id, 0, b"first"), -1, None)


def test_many_outstanding_adds_are_all_answered(bookie: EntryClient, ledger_id: int) -> None:
    wanted = [add(ledger_id, entry_id, bytes(entry_id % 300)) for entry_id in range(3000)]
    bookie.send(*wanted)
    answers = {bookie.receive().txn_id for _ in wanted}
    assert answers == {request.txn_id for request in wanted}
    bookie.send(*(read(ledger_id, entry_id) for entry_id in range(3000)))
    bodies = [bookie.receive() for _ in range(3000)]
    assert [len(body.body or b"") for body in bodies if isinstance(body, messages.ReadResponse)] == [
        36 + entry_id % 300 for entry_id in range(3000)
    ]


def test_the_last_entry_and_its_lac_are_read_with_entry_minus_1(bookie: EntryClient, ledger_id: int) -> None:
    for entry_id in (0, 1, 7, 2):
        bookie.ask(add(ledger_id, entry_id))
    response = bookie.ask(read(ledger_id, -1))
    assert isinstance(response, messages.ReadResponse)
    assert (response.entry_id, response.body, response.max_lac) == (-1, packet(ledger_id, 7), 6)


def test_what_is_not_there_is_told_apart(bookie: EntryClient, ledger_id: int) -> None:
    assert bookie.status(read(ledger_id, 0)) == Status.ENOLEDGER
    assert bookie.status(read(ledger_id, -1)) == Status.ENOLEDGER
    bookie.ask(add(ledger_id, 5))
    assert bookie.status(read(ledger_id, 0)) == Status.ENOENTRY
    assert bookie.status(read(ledger_id, 6)) == Status.ENOENTRY


def test_an_entry_may_be_added_again(bookie: EntryClient, ledger_id: int) -> None:
    assert bookie.status(add(ledger_id, 0)) == Status.EOK
    again = packet(ledger_id, 0, lac=-1)
    assert bookie.status(add(ledger_id, 0, body=again)) == Status.EOK


def test_entries_as_large_as_a_frame_allows(bookie: EntryClient, ledger_id: int) -> None:
    payload = b"x" * (DEFAULT_MAX_FRAME_SIZE - 500 - 36)
    assert bookie.status(add(ledger_id, 0, payload)) == Status.EOK
    response = bookie.ask(read(ledger_id, 0))
    assert isinstance(response, messages.ReadResponse)
    assert response.body == packet(ledger_id, 0, payload)


# --- keys and fences ---


def test_the_first_key_is_the_ledgers(bookie: EntryClient, ledger_id: int) -> None:
    assert bookie.status(add(ledger_id, 0)) == Status.EOK
    assert bookie.status(add(ledger_id, 1, key=WRONG_KEY)) == Status.EUA
    assert bookie.status(add(ledger_id, 1, key=KEY[:-1])) == Status.EUA
    assert bookie.status(fence(ledger_id, key=WRONG_KEY)) == Status.EUA
    assert bookie.status(add(ledger_id, 1)) == Status.EOK


@pytest.mark.parametrize("key", [b"", bytes(20)])
def test_an_unset_key_is_refused(bookie: EntryClient, ledger_id: int, key: bytes) -> None:
    assert bookie.status(add(ledger_id, 0, key=key)) == Status.EUA
    assert bookie.status(fence(ledger_id, key=key)) == Status.EUA
    assert bookie.status(read(ledger_id, 0)) == Status.ENOLEDGER


def test_a_fence_without_key_is_refused(bookie: EntryClient, ledger_id: int) -> None:
    assert bookie.status(fence(ledger_id, key=None)) == Status.EUA


def test_a_fenced_ledger_takes_recovery_adds_only(bookie: EntryClient, ledger_id: int) -> None:
    bookie.ask(add(ledger_id, 0))
    response = bookie.ask(fence(ledger_id))
    assert isinstance(response, messages.ReadResponse)
    assert (response.status, response.body, response.max_lac) == (Status.EOK, packet(ledger_id, 0), None)
    assert bookie.status(add(ledger_id, 1)) == Status.EFENCED
    assert bookie.status(add(ledger_id, 1, recovery=True)) == Status.EOK
    assert bookie.status(fence(ledger_id, 1)) == Status.EOK


def test_a_fence_of_an_unknown_ledger_makes_it_known(bookie: EntryClient, ledger_id: int) -> None:
    assert bookie.status(fence(ledger_id)) == Status.ENOENTRY
    assert bookie.status(add(ledger_id, 0)) == Status.EFENCED
    assert bookie.status(read(ledger_id, 0)) == Status.ENOENTRY


# --- ill-formed requests: an answer, and the connection goes on ---


@pytest.mark.parametrize("entry_id", [-1, -0x1000, -0x2000, -(2**63)])
def test_adds_of_negative_entries_are_refused(bookie: EntryClient, ledger_id: int, entry_id: int) -> None:
    """F6: the Java bookie stores them and can't start again."""
    body = packet(ledger_id, 0)
    forged = body[:8] + struct.pack(">q", entry_id) + body[16:]
    assert bookie.status(add(ledger_id, entry_id, body=forged)) == Status.EBADREQ
    assert bookie.status(read(ledger_id, -1)) == Status.ENOLEDGER


def test_ids_out_of_range_are_refused(bookie: EntryClient, ledger_id: int) -> None:
    negative = struct.pack(">q", -5) + packet(5, 0)[8:]
    assert bookie.status(add(-5, 0, body=negative)) == Status.EBADREQ
    assert bookie.status(read(-5, 0)) == Status.EBADREQ
    assert bookie.status(read(ledger_id, -2)) == Status.EBADREQ
    assert bookie.status(messages.ReadLacRequest(20, -5)) == Status.EBADREQ
    assert bookie.status(messages.ForceLedgerRequest(21, -5)) == Status.EBADREQ
    assert bookie.status(messages.ListEntriesRequest(22, -5)) == Status.EBADREQ


@pytest.mark.parametrize("size", [0, 8, 16, 24, 31])
def test_a_body_without_a_header_is_refused(bookie: EntryClient, ledger_id: int, size: int) -> None:
    assert bookie.status(add(ledger_id, 0, body=packet(ledger_id, 0)[:size])) == Status.EBADREQ


def test_a_body_of_another_entry_or_ledger_is_refused(bookie: EntryClient, ledger_id: int) -> None:
    assert bookie.status(add(ledger_id, 0, body=packet(ledger_id, 1))) == Status.EBADREQ
    assert bookie.status(add(ledger_id, 0, body=packet(ledger_id + 1, 0))) == Status.EBADREQ


def raw(operation: int, version: int = 3, **parts: object) -> bytes:
    """A frame with whatever header, the rest as given."""
    header = wire.BKPacketHeader.FromString(b"\x08%c\x10%c\x18\x07\x20\x64" % (version, operation))
    body = wire.Request(header=header, **parts).SerializePartialToString()  # type: ignore[arg-type]
    return struct.pack(">I", len(body)) + body


@pytest.mark.parametrize("operation", [3, 4, 12])
def test_operations_that_no_bookie_serves(bookie: EntryClient, operation: int) -> None:
    bookie.socket.sendall(raw(operation))
    assert bookie.receive() == messages.StatusResponse(7, operation, Status.EBADREQ, 100)


@pytest.mark.parametrize("version", [1, 2])
def test_old_protocol_versions(bookie: EntryClient, version: int) -> None:
    bookie.socket.sendall(raw(1, version, readRequest=wire.ReadRequest(ledgerId=1, entryId=2)))
    assert bookie.receive() == messages.ReadResponse(7, Status.EBADVERSION, 1, 2)


def test_a_missing_sub_message(bookie: EntryClient) -> None:
    """F17: the Java bookie closes the connection."""
    bookie.socket.sendall(raw(2))
    assert bookie.receive().status == Status.EBADREQ
    assert bookie.status(messages.GetBookieInfoRequest(1)) == Status.EOK


# --- what can't be followed: the connection ends, the bookie goes on ---


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: bookie\r\n\r\n",
        b"\x00\x00\x00\x00",
        b"\xff\xff\xff\xff",
        struct.pack(">I", DEFAULT_MAX_FRAME_SIZE - 3),
        b"\x00\x00\x00\x05hello",
        b"\x00\x00\x00\x02\xff\xff",
        raw(13),
        raw(2, version=7),
        bytes(range(256)) * 300,
    ],
    ids=["http", "zero", "negative", "over the limit", "text", "varint", "operation 13", "version 7", "bytes"],
)
def test_garbage_ends_the_connection_only(bookie: EntryClient, garbage: bytes) -> None:
    bookie.socket.sendall(garbage)
    assert bookie.is_closed_by_bookie()
    assert still_serves(bookie)


def test_a_connection_cut_in_the_middle_of_a_frame(standalone_cluster: StandaloneCluster, ledger_id: int) -> None:
    with EntryClient(standalone_cluster.bookies[0]) as torn:
        torn.socket.sendall(encode_request(add(ledger_id, 0))[:-3])
        torn.socket.shutdown(socket.SHUT_WR)
        assert torn.is_closed_by_bookie()
    with EntryClient(standalone_cluster.bookies[0]) as other:
        assert other.status(read(ledger_id, 0)) == Status.ENOLEDGER
        assert other.status(add(ledger_id, 0)) == Status.EOK


@pytest.mark.parametrize("garbage", [b"\x00\x00\x00\x05hello", b"\x00\x00\x00\x00", b"GET / HTTP/1.1\r\n\r\n"])
def test_a_whole_add_before_garbage_is_served(
    standalone_cluster: StandaloneCluster, ledger_id: int, garbage: bytes
) -> None:
    with EntryClient(standalone_cluster.bookies[0]) as first:
        first.socket.sendall(encode_request(add(ledger_id, 0)) + garbage)
        assert first.is_closed_by_bookie()
    with EntryClient(standalone_cluster.bookies[0]) as second:
        assert second.status(read(ledger_id, 0)) == Status.EOK


# --- the other operations ---


def test_explicit_lac(bookie: EntryClient, ledger_id: int) -> None:
    write = messages.WriteLacRequest(50, ledger_id, 4, KEY, lac_packet(ledger_id, 4))
    assert bookie.status(messages.ReadLacRequest(51, ledger_id)) == Status.ENOENTRY
    assert bookie.ask(write) == messages.WriteLacResponse(50, Status.EOK, ledger_id)
    expected = messages.ReadLacResponse(52, Status.EIO, ledger_id, lac_packet(ledger_id, 4), None)
    assert bookie.ask(messages.ReadLacRequest(52, ledger_id)) == expected
    bookie.ask(add(ledger_id, 0))
    expected = messages.ReadLacResponse(53, Status.EOK, ledger_id, lac_packet(ledger_id, 4), packet(ledger_id, 0))
    assert bookie.ask(messages.ReadLacRequest(53, ledger_id)) == expected
    response = bookie.ask(read(ledger_id, 0))
    assert isinstance(response, messages.ReadResponse)
    assert response.max_lac == 4


def test_explicit_lac_needs_the_key_and_its_own_ledger(bookie: EntryClient, ledger_id: int) -> None:
    bookie.ask(add(ledger_id, 0))
    body = lac_packet(ledger_id, 0)
    assert bookie.status(messages.WriteLacRequest(60, ledger_id, 0, WRONG_KEY, body)) == Status.EUA
    assert bookie.status(messages.WriteLacRequest(61, ledger_id + 1, 0, KEY, body)) == Status.EBADREQ
    assert bookie.status(messages.WriteLacRequest(62, ledger_id, 0, KEY, body[:15])) == Status.EBADREQ


def test_force(bookie: EntryClient, ledger_id: int) -> None:
    assert bookie.status(messages.ForceLedgerRequest(70, ledger_id)) == Status.EOK


def test_bookie_info_has_what_was_asked_for(bookie: EntryClient) -> None:
    response = bookie.ask(messages.GetBookieInfoRequest(80, messages.TOTAL_DISK_CAPACITY))
    assert isinstance(response, messages.GetBookieInfoResponse)
    assert response.total_disk_capacity
    assert response.free_disk_space is None


def test_list_of_entries(bookie: EntryClient, ledger_id: int) -> None:
    assert bookie.status(messages.ListEntriesRequest(90, ledger_id)) == Status.ENOLEDGER
    for entry_id in (0, 1, 2, 10, 11, 20):
        bookie.ask(add(ledger_id, entry_id))
    response = bookie.ask(messages.ListEntriesRequest(91, ledger_id))
    assert isinstance(response, messages.ListEntriesResponse)
    assert list(decode_runs(response.availability or b"")) == [(0, 3), (10, 2), (20, 1)]


def test_authentication_is_disabled(bookie: EntryClient) -> None:
    answer = bookie.ask(messages.AuthRequest(95, "some.Plugin", b"token"))
    assert answer == messages.AuthResponse(95, Status.EOK, "AuthDisabledPlugin", b"")


def test_tls_is_refused(bookie: EntryClient) -> None:
    assert bookie.ask(messages.StartTlsRequest(96)) == messages.StartTlsResponse(96, Status.EBADREQ)


def test_operations_have_the_numbers_of_the_wire() -> None:
    assert {operation.name: operation.value for operation in Operation} == dict(wire.OperationType.items())
    assert {status.name: status.value for status in Status} == dict(wire.StatusCode.items())
