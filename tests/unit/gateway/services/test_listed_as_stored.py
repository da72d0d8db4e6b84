"""Ledgers of a listing are sent as they are stored only where each of them can be parsed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookgate.gateway.services.encoded_responses import listed_as_stored
from bookgate.gateway.services.iterate import stored_answer
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_codec import encode, to_format
from bookgate.ledger.metadata_store import RawLedgerRecord
from bookgate.ledger.varint import encode_varint
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2 import GetLedgerRangesResponse

CLOSED = LedgerMetadata.new(("a:1", "b:1", "c:1"), 3, 2, custom_metadata={"app": b"orders"}).close(9, 1000)
FIFTH = LedgerId(0, 5)
OPEN = LedgerMetadata.new(("ä:1",), 1, 1)


def record(data: bytes, ledger_id: LedgerId = FIFTH, created_ms: int | None = None) -> RawLedgerRecord:
    return RawLedgerRecord(ledger_id, data, 3, created_ms)


def with_body(body: bytes) -> bytes:
    return b"BookieMetadataFormatVersion\t3\n" + encode_varint(len(body)) + body


def test_they_say_what_messages_say() -> None:
    records = [
        record(encode(CLOSED)),
        record(encode(OPEN), LedgerId(0, 2**63 - 1), created_ms=1_700_000_000_000),
        record(encode(replace(CLOSED, ctime_ms=5)), LedgerId(-7, -1), created_ms=0),
    ]
    items = listed_as_stored(records, 77)
    assert items is not None
    listed = GetLedgerRangesResponse.FromString(b"".join(items)).ledgers
    assert list(listed) == [stored_answer(each.ledger_id, each, 77) for each in records]


def _lacks_its_end() -> bytes:
    message = to_format(CLOSED)
    message.ClearField("lastEntryId")
    return with_body(message.SerializeToString())


def _lacks_a_required_field() -> bytes:
    message = to_format(CLOSED)
    message.ClearField("quorumSize")
    return with_body(message.SerializePartialToString())


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(encode(CLOSED)[:-1], id="cut short"),
        pytest.param(encode(CLOSED) + b"\0", id="followed by a byte"),
        pytest.param(b"BookieMetadataFormatVersion\t3\n", id="no length"),
        pytest.param(b"BookieMetadataFormatVersion\t3\n" + b"\xff" * 6, id="endless length"),
        pytest.param(with_body(b"\xff\xff\xff"), id="not a message"),
        pytest.param(with_body(b"\x0a\x7f"), id="a field beyond the end"),
        pytest.param(_lacks_its_end(), id="closed without an end"),
        pytest.param(_lacks_a_required_field(), id="without a required field"),
        pytest.param(encode(replace(CLOSED, format_version=2)), id="version 2"),
        pytest.param(encode(replace(OPEN, format_version=1, password=None, digest_type=None)), id="version 1"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_what_is_damaged_or_old_is_looked_at_by_itself(data: bytes) -> None:
    assert listed_as_stored([record(encode(CLOSED)), record(data)], 1) is None
