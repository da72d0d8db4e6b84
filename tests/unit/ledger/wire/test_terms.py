"""What messages of unbounded ledgers carry: it comes over the wire, no short way passes over it, v2 never sends it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookgate.ledger.digest import digest_for, ledger_master_key
from bookgate.ledger.entry import encode_entry
from bookgate.ledger.errors import (
    EntryNotConfirmedException,
    IllegalOpException,
    InvalidTermException,
    WriteException,
    exception_for_status,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import DigestType
from bookgate.ledger.wire import fast_add, fast_read, fast_responses, v2
from bookgate.ledger.wire.error_responses import error_response
from bookgate.ledger.wire.fast_requests import TermAddEncoder
from bookgate.ledger.wire.messages import AddRequest, AddResponse, ReadRequest, ReadResponse, Request, Response, Status
from bookgate.ledger.wire.v3 import decode_request, decode_response, encode_request, encode_response
from bookgate.protos.bookkeeper.proto import bookkeeper_protocol_pb2 as wire

DIGEST = digest_for(DigestType.CRC32C, b"secret")
KEY = ledger_master_key(b"secret")
TERMS = st.integers(0, 2**63 - 1)
ENTRIES = st.integers(-1, 2**63 - 1)
SCOPED = (7 << 64) + 5
LEDGERS = st.sampled_from([5, 2**62, SCOPED])


def add_of(ledger_id: int = 5, term: int | None = 0, lafr: int | None = None, truncate: bool = False) -> AddRequest:
    body = encode_entry(DIGEST, ledger_id, 4, 3, 10, b"x" * 10)
    return AddRequest(9, ledger_id, 4, KEY, body, term=term, lafr=lafr, truncate=truncate)


@given(LEDGERS, TERMS, st.none() | ENTRIES, st.booleans(), st.booleans())
def test_an_add_keeps_its_term_and_the_short_way_takes_the_common_one_only(
    ledger_id: int, term: int, lafr: int | None, truncate: bool, recovery: bool
) -> None:
    request = add_of(ledger_id, term, lafr, truncate)._replace(recovery=recovery)
    packet = encode_request(request)[4:]
    assert decode_request(packet) == request
    short = fast_add.read_v3(memoryview(packet))
    assert short is None or not (lafr is None or truncate or recovery)


@given(LEDGERS, ENTRIES, TERMS, st.booleans(), st.none() | ENTRIES)
def test_a_read_keeps_its_term_and_no_short_way_takes_it(
    ledger_id: int, entry_id: int, term: int, fence: bool, known_lac: int | None
) -> None:
    request = ReadRequest(9, ledger_id, entry_id, fence, KEY, term=term, known_lac=known_lac)
    for read in (request, request._replace(fence=False, master_key=None)):
        packet = encode_request(read)[4:]
        assert decode_request(packet) == read
        assert fast_read.read_v3(memoryview(packet)) is None


@given(LEDGERS, ENTRIES)
def test_what_a_reader_knows_is_read_the_long_way(ledger_id: int, known_lac: int) -> None:
    request = ReadRequest(9, ledger_id, 4, known_lac=known_lac)
    packet = encode_request(request)[4:]
    assert decode_request(packet) == request
    assert fast_read.read_v3(memoryview(packet)) is None


@given(LEDGERS, TERMS, st.none() | ENTRIES, st.none() | ENTRIES, st.sampled_from([Status.EOK, Status.EINVALIDTERM]))
def test_answers_keep_the_term_also_by_the_short_way(
    ledger_id: int, term: int, lac: int | None, lafr: int | None, status: Status
) -> None:
    answers: list[Response] = [
        AddResponse(9, status, ledger_id, 4, term),
        ReadResponse(9, status, ledger_id, 4, b"body", lac, term=term, lafr=lafr),
    ]
    for answer in answers:
        packet = encode_response(answer)[4:]
        assert decode_response(packet) == answer
        stored = type(answer) is AddResponse and status == Status.EOK
        assert fast_responses.stored_add(packet) == ((9, term) if stored else None)
        assert fast_responses.found_entry(packet) is None


def test_the_fields_have_the_numbers_of_the_page() -> None:
    add = wire.Request.FromString(encode_request(add_of(SCOPED, 3, 2, True))[4:]).addRequest
    assert (add.ledgerTerm, add.lastAddFullyReplicated, add.truncate) == (3, 2, True)
    numbers = {
        message.name: {field.name: field.number for field in message.fields if field.number > 1000}
        for message in (wire.AddRequest.DESCRIPTOR, wire.ReadRequest.DESCRIPTOR, wire.ReadResponse.DESCRIPTOR)
    }
    term, lafr = {"ledgerTerm": 1001}, {"lastAddFullyReplicated": 1002}
    assert numbers["AddRequest"] == {**term, **lafr, "truncate": 1003}
    assert numbers["ReadRequest"] == {**term, "lastAddConfirmed": 1004, "following": 1005}
    assert numbers["ReadResponse"] == {**term, **lafr, "following": 1005}


@pytest.mark.parametrize("request_", [add_of(term=6), ReadRequest(9, 5, 4, True, KEY, term=6)], ids=["add", "read"])
def test_an_error_carries_the_term_of_its_request(request_: Request) -> None:
    answer = error_response(request_, Status.EINVALIDTERM)
    assert (answer.status, getattr(answer, "term", None)) == (Status.EINVALIDTERM, 6)


@pytest.mark.parametrize("request_", [add_of(term=0), ReadRequest(9, 5, 4, term=0)], ids=["add", "read"])
def test_v2_sends_no_term(request_: Request) -> None:
    with pytest.raises(IllegalOpException, match="term 0 of ledger 5"):
        v2.encode_request(request_)


def test_v2_tells_its_writer_that_it_is_fenced_and_its_reader_that_the_read_failed() -> None:
    for status, code in ((Status.EINVALIDTERM, Status.EFENCED), (Status.ENOTCONFIRMED, Status.EIO)):
        answer = v2.decode_response(v2.encode_response(AddResponse(0, status, 5, 4))[4:])
        assert isinstance(answer, AddResponse)
        assert answer.status == code


def test_statuses_have_errors_of_their_own() -> None:
    assert isinstance(exception_for_status(600, WriteException, "lost"), InvalidTermException)
    assert isinstance(exception_for_status(601, WriteException, "later"), EntryNotConfirmedException)


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1), st.integers(-1, 2**63 - 1), st.booleans())
def test_adds_at_a_term_are_written_as_the_long_way_does(entry: int, term: int, lafr: int, recovery: bool) -> None:
    for ledger in (7, LedgerId(3, -7).number):
        encoder = TermAddEncoder(ledger, b"k" * 20, term, recovery=recovery, priority=100 if recovery else 0)
        request = AddRequest(
            9, ledger, entry, b"k" * 20, b"body", recovery, priority=100 if recovery else 0, term=term, lafr=lafr
        )
        assert encoder.encode_add(9, entry, b"body", lafr) == encode_request(request)
