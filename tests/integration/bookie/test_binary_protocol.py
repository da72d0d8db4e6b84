"""The binary protocol, versions 0 to 2, against a real bookie process, seen from the wire."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator

import pytest

from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.ledger.wire import messages, v2
from bookgate.ledger.wire.messages import BatchReadRequest, BatchReadResponse, ReadResponse, Status
from bookgate.ledger.wire.v3 import encode_request as encode_v3
from tests.integration.bookie.entry_client import (
    KEY,
    WRONG_KEY,
    BinaryEntryClient,
    EntryClient,
    add,
    fence,
    packet,
    read,
)

_ledger_ids = itertools.count(2_000_000)
_RECORD = 4 + 36 + len(b"payload")


@pytest.fixture
def ledger_id() -> int:
    return next(_ledger_ids)


@pytest.fixture
def bookie(standalone_cluster: StandaloneCluster) -> Iterator[BinaryEntryClient]:
    with BinaryEntryClient(standalone_cluster.bookies[0]) as client:
        yield client


def batch(
    ledger_id: int, entry_id: int, max_count: int = 0, max_size: int = 1 << 20, key: bytes | None = None
) -> BatchReadRequest:
    return BatchReadRequest(77, ledger_id, entry_id, max_count, max_size, fence=key is not None, master_key=key)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_add_and_read_in_each_version(bookie: BinaryEntryClient, ledger_id: int, version: int) -> None:
    bookie.version = version
    assert bookie.ask(add(ledger_id, 0)) == messages.AddResponse(0, Status.EOK, ledger_id, 0)
    bookie.send(read(ledger_id, 0))
    answer = bookie.receive_packet()
    assert answer[:4] == struct.pack(">BBH", version, 0 if version == 0 else 2, 2 if version == 0 else 0)
    assert v2.decode_response(answer) == ReadResponse(0, Status.EOK, ledger_id, 0, packet(ledger_id, 0))


def test_versions_may_change_within_a_connection(bookie: BinaryEntryClient, ledger_id: int) -> None:
    bookie.ask(add(ledger_id, 0))
    versions = [0, 2, 1, 2, 0]
    for version in versions:
        bookie.version = version
        bookie.send(read(ledger_id, 0))
    answers = [bookie.receive_packet() for _ in versions]
    assert sorted(answer[0] for answer in answers) == sorted(versions)


@pytest.mark.parametrize("version", [3, 4, 9, 127, 255])
@pytest.mark.parametrize("kind", ["add", "read", "batch"])
def test_a_version_that_is_not_known_is_named_in_the_answer(
    bookie: BinaryEntryClient, ledger_id: int, version: int, kind: str
) -> None:
    kinds: dict[str, messages.Request] = {
        "add": add(ledger_id, 5),
        "read": read(ledger_id, 5),
        "batch": batch(ledger_id, 5),
    }
    frame = bytearray(v2.encode_request(kinds[kind]))
    frame[4] = version
    bookie.socket.sendall(frame)
    answer = bookie.receive_packet()
    assert answer[0] == version
    response = v2.decode_response(answer)
    assert response.status == Status.EBADVERSION
    assert bookie.ask(read(ledger_id, 0)).status == Status.ENOLEDGER


@pytest.mark.parametrize("opcode", [0, 4, 5, 6, 8, 100])
def test_an_unknown_opcode_ends_the_connection(bookie: BinaryEntryClient, opcode: int) -> None:
    bookie.socket.sendall(struct.pack(">IBBH", 40, 2, opcode, 0) + bytes(36))
    assert bookie.is_closed_by_bookie()


def test_v3_then_the_binary_protocol_and_never_back(standalone_cluster: StandaloneCluster, ledger_id: int) -> None:
    with EntryClient(standalone_cluster.bookies[0]) as client:
        assert client.status(add(ledger_id, 0)) == Status.EOK
        client.socket.sendall(v2.encode_request(read(ledger_id, 0)))
        assert v2.decode_response(client.receive_packet()).status == Status.EOK
        client.socket.sendall(encode_v3(messages.ForceLedgerRequest(1, ledger_id)))
        assert client.is_closed_by_bookie()


def test_many_outstanding_adds_are_all_answered(bookie: BinaryEntryClient, ledger_id: int) -> None:
    bookie.send(*(add(ledger_id, entry_id) for entry_id in range(2000)))
    answers = [bookie.receive() for _ in range(2000)]
    assert {answer.entry_id for answer in answers if isinstance(answer, messages.AddResponse)} == set(range(2000))


def test_refusals(bookie: BinaryEntryClient, ledger_id: int) -> None:
    assert bookie.status(read(ledger_id, 0)) == Status.ENOLEDGER
    bookie.ask(add(ledger_id, 0))
    assert bookie.status(read(ledger_id, 1)) == Status.ENOENTRY
    assert bookie.status(add(ledger_id, 1, key=WRONG_KEY)) == Status.EUA
    assert bookie.status(add(ledger_id, 1, key=bytes(20))) == Status.EUA
    assert bookie.status(read(ledger_id, -2)) == Status.EBADREQ
    assert bookie.status(read(-1, 0)) == Status.EBADREQ
    forged = packet(ledger_id, 0)
    assert bookie.status(add(ledger_id, -3, body=forged[:8] + struct.pack(">q", -3) + forged[16:])) == Status.EBADREQ


def test_fence_and_recovery_add(bookie: BinaryEntryClient, ledger_id: int) -> None:
    bookie.ask(add(ledger_id, 0))
    assert bookie.status(fence(ledger_id, key=WRONG_KEY)) == Status.EUA
    assert bookie.ask(fence(ledger_id)) == ReadResponse(0, Status.EOK, ledger_id, -1, packet(ledger_id, 0))
    assert bookie.status(add(ledger_id, 1)) == Status.EFENCED
    assert bookie.status(add(ledger_id, 1, recovery=True)) == Status.EOK


def test_a_fence_of_an_older_version_carries_no_key_and_is_refused(bookie: BinaryEntryClient, ledger_id: int) -> None:
    bookie.version = 1
    bookie.ask(add(ledger_id, 0))
    assert bookie.status(fence(ledger_id)) == Status.EUA


@pytest.mark.parametrize("version", [0, 1, 2])
def test_authentication_is_disabled(bookie: BinaryEntryClient, version: int) -> None:
    bookie.version = version
    bookie.send(messages.AuthRequest(0, "some.Plugin", b"token"))
    answer = bookie.receive_packet()
    assert answer[:4] == b"\x02\x03\x00\x00"
    assert v2.decode_response(answer) == messages.AuthResponse(0, Status.EOK, "AuthDisabledPlugin", b"")


# --- batch reads ---


def test_a_batch_is_consecutive_entries(bookie: BinaryEntryClient, ledger_id: int) -> None:
    bookie.send(*(add(ledger_id, entry_id) for entry_id in (0, 1, 2, 3, 5)))
    for _ in range(5):
        bookie.receive()
    entries = [packet(ledger_id, entry_id) for entry_id in range(4)]
    expected = BatchReadResponse(77, Status.EOK, ledger_id, 1, (entries[1], entries[2]))
    assert bookie.ask(batch(ledger_id, 1, max_count=2)) == expected
    assert bookie.ask(batch(ledger_id, 0)) == BatchReadResponse(77, Status.EOK, ledger_id, 0, tuple(entries))


@pytest.mark.parametrize(("max_size", "count"), [(36 + 3 * _RECORD, 3), (36 + 3 * _RECORD - 1, 2), (0, 1), (-1, 1)])
def test_a_batch_keeps_to_its_size(bookie: BinaryEntryClient, ledger_id: int, max_size: int, count: int) -> None:
    for entry_id in range(5):
        bookie.ask(add(ledger_id, entry_id))
    answer = bookie.ask(batch(ledger_id, 0, max_size=max_size))
    assert isinstance(answer, BatchReadResponse)
    assert len(answer.bodies) == count


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_batch_that_has_no_first_entry_fails(bookie: BinaryEntryClient, ledger_id: int, version: int) -> None:
    bookie.version = version
    assert bookie.ask(batch(ledger_id, 0)) == BatchReadResponse(77, Status.ENOLEDGER, ledger_id, 0)
    bookie.ask(add(ledger_id, 1))
    assert bookie.ask(batch(ledger_id, 0)) == BatchReadResponse(77, Status.ENOENTRY, ledger_id, 0)
    assert bookie.ask(batch(ledger_id, -2)) == BatchReadResponse(77, Status.EBADREQ, ledger_id, -2)


def test_a_batch_from_the_last_entry_is_that_entry(bookie: BinaryEntryClient, ledger_id: int) -> None:
    for entry_id in range(3):
        bookie.ask(add(ledger_id, entry_id))
    expected = BatchReadResponse(77, Status.EOK, ledger_id, -1, (packet(ledger_id, 2),))
    assert bookie.ask(batch(ledger_id, -1)) == expected


def test_a_batch_may_fence(bookie: BinaryEntryClient, ledger_id: int) -> None:
    bookie.ask(add(ledger_id, 0))
    assert bookie.status(batch(ledger_id, 0, key=WRONG_KEY)) == Status.EUA
    assert bookie.status(batch(ledger_id, 0, key=KEY)) == Status.EOK
    assert bookie.status(add(ledger_id, 1)) == Status.EFENCED


def test_batches_larger_than_a_frame_are_cut(bookie: BinaryEntryClient, ledger_id: int) -> None:
    payload = bytes(500_000)
    for entry_id in range(12):
        assert bookie.status(add(ledger_id, entry_id, payload)) == Status.EOK
    answer = bookie.ask(batch(ledger_id, 0, max_size=1 << 40))
    assert isinstance(answer, BatchReadResponse)
    assert len(answer.bodies) == 10
