"""Entries and messages of ledgers with a scope: format V2, and the scope in every sub-message of protocol v3."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookgate.ledger import entry as packets
from bookgate.ledger.digest import Digest, digest_for
from bookgate.ledger.entry_columns import decode_columns
from bookgate.ledger.errors import DigestMatchException, IllegalOpException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import DigestType
from bookgate.ledger.wire import fast_add, fast_read, fast_responses, messages, v2, v3
from bookgate.ledger.wire.fast_requests import AddRequestEncoder, ReadRequestEncoder

INT64 = st.integers(-(2**63), 2**63 - 1)
SCOPED = st.builds(LedgerId, INT64.filter(bool), INT64)
UNSCOPED = st.builds(LedgerId, st.just(0), st.integers(0, 2**63 - 1))
IDS = SCOPED | UNSCOPED
DIGESTS = st.sampled_from([digest_for(kind, b"secret") for kind in DigestType])
LEDGER = LedgerId(-2, 5)
KEY = bytes(range(20))


def test_the_bytes_of_a_v2_entry() -> None:
    packet = packets.encode_entry(digest_for(DigestType.CRC32C, b""), LEDGER.number, 7, 6, 100, b"payload")
    header = packet[:41]
    assert header == bytes([0b1010_0011]) + struct.pack(">qqqqq", -2, 5, 7, 6, 100)
    assert packet == header + digest_for(DigestType.CRC32C, b"").compute(header, b"payload") + b"payload"


@given(IDS, DIGESTS, st.integers(0, 2**40), st.integers(-1, 2**40), st.binary(max_size=40))
def test_an_entry_comes_back(ledger_id: LedgerId, digest: Digest, entry_id: int, lac: int, payload: bytes) -> None:
    packet = packets.encode_entry(digest, ledger_id.number, entry_id, lac, len(payload), payload)
    found = packets.decode_entry(digest, packet, ledger_id.number, entry_id)
    assert found == (ledger_id.low, entry_id, lac, len(payload), payload)
    assert packets.decode_header(packet) == (ledger_id.number, entry_id, lac, len(payload))
    assert packets.packet_ids(packet) == (ledger_id.number, entry_id)
    assert packets.packet_lac(packet) == lac
    assert len(packet) == packets.header_size_of(ledger_id.number) + digest.length + len(payload)
    for decode in (packets.decode_entries, decode_columns):
        entries, error = decode(digest, [packet, packet], ledger_id.number, entry_id)
        assert list(entries) == [found]
        assert error is not None


@given(IDS, IDS, DIGESTS, st.integers(0, 2**40))
def test_an_entry_of_one_ledger_is_never_one_of_another(
    one: LedgerId, other: LedgerId, digest: Digest, at: int
) -> None:
    for asked in (other, LedgerId(0, (one.low ^ 1) & (2**63 - 1))):
        if asked != one:
            with pytest.raises(DigestMatchException):
                packets.decode_entry(digest, packets.encode_entry(digest, one.number, at, -1, 0, b""), asked.number, at)
            with pytest.raises(DigestMatchException):
                packets.decode_lac(digest, packets.encode_lac(digest, one.number, at), asked.number)


@given(IDS, DIGESTS, INT64)
def test_an_explicit_lac_comes_back(ledger_id: LedgerId, digest: Digest, lac: int) -> None:
    packet = packets.encode_lac(digest, ledger_id.number, lac)
    assert packets.decode_lac(digest, packet, ledger_id.number) == lac
    assert packets.decode_lac_header(packet) == (ledger_id.number, lac)


@pytest.mark.parametrize("flags", [0x80, 0x93, 0xA0, 0xA5, 0xAF, 0xB3, 0xFF])
def test_unknown_formats_are_bad_entries(flags: int) -> None:
    digest = digest_for(DigestType.DUMMY, b"")
    packet = bytes([flags]) + packets.encode_entry(digest, LEDGER.number, 0, -1, 1, b"x")[1:]
    with pytest.raises(DigestMatchException, match=r"version|digest type"):
        packets.decode_entry(digest, packet, LEDGER.number, 0)
    with pytest.raises(ValueError, match=r"version|digest type"):
        packets.packet_ids(packet)


def test_the_digest_type_in_the_flags_must_be_the_ledgers() -> None:
    digest = digest_for(DigestType.DUMMY, b"")
    packet = bytearray(packets.encode_entry(digest, LEDGER.number, 0, -1, 1, b"payload"))
    packet[0] = 0xA3
    with pytest.raises(DigestMatchException, match="digest type 3"):
        packets.decode_entry(digest, bytes(packet), LEDGER.number, 0)


def test_an_entry_of_format_v2_can_t_be_of_scope_0() -> None:
    packet = bytes([0xA4]) + bytes(40)
    with pytest.raises(ValueError, match="scope 0"):
        packets.packet_ids(packet)
    with pytest.raises(DigestMatchException, match="scope 0"):
        packets.decode_header(packet)


@given(st.binary(max_size=60))
def test_any_bytes_have_ids_or_are_refused(data: bytes) -> None:
    try:
        number, _ = packets.packet_ids(data)
    except ValueError:
        return
    assert (number >= 2**64) == packets.is_scoped_packet(data)


REQUESTS = st.builds(
    lambda ledger, entry, recovery, fence, poll: [
        messages.AddRequest(9, ledger, entry, KEY, b"x" * 60, recovery, 1, 100),
        messages.ReadRequest(9, ledger, entry, fence, KEY if fence else None, poll, poll, not fence, 0),
        messages.ReadLacRequest(9, ledger),
        messages.WriteLacRequest(9, ledger, entry, KEY, b"body"),
        messages.ForceLedgerRequest(9, ledger),
        messages.ListEntriesRequest(9, ledger),
    ],
    IDS.map(lambda each: each.number),
    st.integers(0, 2**40),
    st.booleans(),
    st.booleans(),
    st.none() | st.integers(0, 1000),
)


@given(REQUESTS)
def test_v3_requests_carry_the_scope(requests: list[messages.Request]) -> None:
    for request in requests:
        assert v3.decode_request(v3.encode_request(request)[4:]) == request


@given(IDS.map(lambda each: each.number), st.integers(0, 2**40))
def test_v3_responses_carry_the_scope(ledger: int, entry: int) -> None:
    for response in (
        messages.AddResponse(9, 0, ledger, entry),
        messages.ReadResponse(9, 0, ledger, entry, b"body", 4, 5),
        messages.ReadLacResponse(9, 0, ledger, b"lac", b"entry"),
        messages.WriteLacResponse(9, 0, ledger),
        messages.ForceLedgerResponse(9, 0, ledger),
        messages.ListEntriesResponse(9, 0, ledger, b"runs"),
    ):
        assert v3.decode_response(v3.encode_response(response)[4:]) == response


@given(IDS.map(lambda each: each.number), st.integers(0, 2**40), st.booleans())
def test_fast_encoders_write_what_v3_writes(ledger: int, entry: int, recovery: bool) -> None:
    add = messages.AddRequest(9, ledger, entry, KEY, b"x" * 60, recovery)
    assert AddRequestEncoder(ledger, KEY, recovery=recovery).encode(9, entry, b"x" * 60) == v3.encode_request(add)
    assert ReadRequestEncoder(ledger).encode(9, entry) == v3.encode_request(messages.ReadRequest(9, ledger, entry))
    fence = messages.ReadRequest(9, ledger, entry, True, KEY)
    assert ReadRequestEncoder(ledger, KEY).encode(9, entry) == v3.encode_request(fence)


@given(SCOPED.map(lambda each: each.number), st.integers(0, 2**40))
def test_fast_decoders_leave_scopes_to_v3(ledger: int, entry: int) -> None:
    body = packets.encode_entry(digest_for(DigestType.CRC32C, b""), ledger, entry, -1, 0, b"x")
    add = v3.encode_request(messages.AddRequest(9, ledger, entry, KEY, body))[4:]
    assert fast_add.read_v3(memoryview(add)) is None
    read = v3.encode_request(messages.ReadRequest(9, ledger, entry))[4:]
    assert fast_read.read_v3(memoryview(read)) is None
    found = messages.ReadResponse(9, 0, ledger, entry, body, 3)
    assert fast_responses.found_entry(v3.encode_response(found)[4:]) is None


def test_scope_0_is_never_written() -> None:
    frames = [v3.encode_request(each) for each in (messages.ReadRequest(1, 5, 0), messages.ForceLedgerRequest(1, 5))]
    assert not any(b"\xc0\x3e" in frame for frame in frames)
    assert v3.scope_field(5) == b""


@pytest.mark.parametrize(
    "request_",
    [
        messages.AddRequest(0, LEDGER.number, 0, KEY, b"x" * 60),
        messages.ReadRequest(0, LEDGER.number, 0),
        messages.BatchReadRequest(0, LEDGER.number, 0, 1, 1),
    ],
)
def test_v2_refuses_scopes(request_: messages.Request) -> None:
    with pytest.raises(IllegalOpException, match="scope"):
        v2.encode_request(request_)


def test_the_field_is_number_1000_of_every_sub_message_with_a_ledger_id() -> None:
    from bookgate.protos.bookkeeper.proto import bookkeeper_protocol_pb2 as wire

    with_ledger = [m for m in wire.DESCRIPTOR.message_types_by_name.values() if "ledgerId" in m.fields_by_name]
    assert len(with_ledger) == 12
    assert {each.fields_by_name["ledgerScopeId"].number for each in with_ledger} == {1000}
