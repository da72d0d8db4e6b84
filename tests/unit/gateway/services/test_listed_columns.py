"""Ledgers in columns are those that single messages tell of, and a page that columns can't carry is refused whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookgate.gateway.services.iterate import stored_answer
from bookgate.gateway.services.listed_columns import ColumnsBuilder, NotInColumnsError
from bookgate.gateway.stores.listed_ledgers import Listed
from bookgate.ledger.errors import MetadataFormatException, MetaStoreException
from bookgate.ledger.ledger_columns import LedgerColumns
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_codec import encode, to_format
from bookgate.ledger.metadata_store import LedgerRecord, RawLedgerRecord
from bookgate.ledger.metadata_templates import MetadataTemplates
from bookgate.ledger.unbounded import begin_term, close_unbounded, create_unbounded, open_term
from bookgate.ledger.varint import encode_varint
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2 import GetLedgerRangesResponse
from bookgate.thinclient.gateways.messages import columns_of, record_of

OPEN = LedgerMetadata.new(("ä:1", "b:1"), 2, 1)
CLOSED = LedgerMetadata.new(("a:1", "b:1", "c:1"), 3, 2, custom_metadata={"app": b"orders"}).close(9, 1000)
TERMS = begin_term(create_unbounded(OPEN), 7)
KINDS = (
    OPEN,
    OPEN.begin_recovery(),
    CLOSED,
    replace(CLOSED, last_entry_id=-1, length=0, ctime_ms=0),
    replace(CLOSED, last_entry_id=0, length=2**63 - 1, ctime_ms=1_700_000_000_000, creator_token=5),
    replace(CLOSED, format_version=2),
    replace(OPEN, format_version=1, password=None, digest_type=None),
    create_unbounded(OPEN),
    TERMS,
    close_unbounded(open_term(TERMS), 3, 30),
)


def listed(
    metadata: LedgerMetadata, number: int = 5, version: int = 3, created_ms: int | None = None, scope_id: int = 0
) -> Listed:
    return Listed(number, RawLedgerRecord(LedgerId(scope_id, number), encode(metadata), version, created_ms))


def sent(page: Sequence[Listed], scope_id: int = 0) -> LedgerColumns:
    """What a client has of a page, over the wire."""
    builder, response = ColumnsBuilder(None), GetLedgerRangesResponse(ledger_scope_id=scope_id)
    builder.take(page[: len(page) // 2])
    builder.take(page[len(page) // 2 :])
    builder.fill(response.columns, 77)
    return columns_of(GetLedgerRangesResponse.FromString(response.SerializeToString()), MetadataTemplates())


@given(
    st.lists(
        st.builds(
            listed,
            st.sampled_from(KINDS),
            st.integers(0, 2**63 - 1),
            st.integers(0, 2**63 - 1),
            st.sampled_from([None, 0, 1_700_000_000_000]),
        ),
        min_size=1,
    )
)
def test_they_say_what_messages_say(page: list[Listed]) -> None:
    expected = [_as_message(each) for each in page]
    found = list(sent(page))
    assert found == expected
    assert [each.created_ms for each in found] == [each.created_ms for each in expected], "equality leaves them out"


def _as_message(each: Listed) -> LedgerRecord:
    return record_of(stored_answer(LedgerId(0, each.number), each.outcome, 77))


def test_ids_of_a_scope_may_be_negative() -> None:
    (record,) = sent([listed(CLOSED, -1, scope_id=-7)], -7)
    assert record.ledger_id == LedgerId(-7, -1)


def test_what_ledgers_share_is_sent_once() -> None:
    page = [listed(replace(CLOSED, last_entry_id=n, length=n, ctime_ms=n, creator_token=n), n) for n in range(200)]
    builder, response = ColumnsBuilder(None), GetLedgerRangesResponse()
    builder.take(page)
    builder.fill(response.columns, 77)
    assert len(response.columns.templates) == 1
    assert response.ByteSize() < 16 * len(page)


def with_body(body: bytes) -> bytes:
    return b"BookieMetadataFormatVersion\t3\n" + encode_varint(len(body)) + body


def without(field: str) -> bytes:
    message = to_format(CLOSED)
    message.ClearField(field)
    return with_body(message.SerializePartialToString())


def with_length(length: int) -> bytes:
    message = to_format(CLOSED)
    message.length = length
    return with_body(message.SerializeToString())


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(encode(CLOSED)[:-1], id="cut short"),
        pytest.param(b"BookieMetadataFormatVersion\t3\n", id="no length"),
        pytest.param(b"BookieMetadataFormatVersion\t3\n" + b"\xff" * 6, id="endless length"),
        pytest.param(b"BookieMetadataFormatVersion\t4\n", id="unknown version"),
        pytest.param(with_body(b"\xff\xff\xff"), id="not a message"),
        pytest.param(with_body(b"\x0a\x7f"), id="a field beyond the end"),
        pytest.param(without("lastEntryId"), id="closed without an end"),
        pytest.param(without("length"), id="closed without a length"),
        pytest.param(without("quorumSize"), id="without a required field"),
        pytest.param(without("digestType"), id="a password without a digest type"),
        pytest.param(with_length(-1), id="a negative length"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_a_page_with_what_can_not_be_read_is_refused(data: bytes) -> None:
    builder = ColumnsBuilder(None)
    with pytest.raises(NotInColumnsError):
        builder.take([listed(CLOSED), Listed(6, RawLedgerRecord(LedgerId(0, 6), data, 0, None))])


def test_a_page_with_an_error_is_refused() -> None:
    with pytest.raises(NotInColumnsError):
        ColumnsBuilder(None).take([listed(CLOSED), Listed(6, MetadataFormatException("damaged"))])


def test_the_client_names_a_ledger_whose_metadata_break_a_rule() -> None:
    message = to_format(CLOSED)
    message.ClearField("segment")
    page = [listed(CLOSED, 3), Listed(4, RawLedgerRecord(LedgerId(0, 4), with_body(message.SerializeToString()), 0))]
    with pytest.raises(MetadataFormatException, match=r"ledger 4: .*no ensemble"):
        sent(page)


def test_the_client_refuses_columns_that_do_not_fit_each_other() -> None:
    response = GetLedgerRangesResponse()
    response.columns.ledger_ids.append(7)
    with pytest.raises(MetaStoreException, match=r"listing is damaged: .*lengths"):
        columns_of(response, MetadataTemplates())
