"""A listing in columns is planned as the same listing of single records is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookgate.ledger.errors import DigestMatchException, UnauthorizedAccessException
from bookgate.ledger.ledger_columns import NOT_KNOWN, LedgerColumns
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import DigestType
from bookgate.ledger.metadata_codec import from_format, to_format
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.metadata_templates import take_numbers
from bookgate.ledger.unbounded import close_unbounded, create_unbounded
from bookgate.thinclient.spark.options.values import LedgerRange
from bookgate.thinclient.spark.reading.entries import readable_slices
from bookgate.thinclient.spark.reading.planning import Slice
from bookgate.thinclient.spark.reading.pushdown import Bounds, Interval
from tests.unit.thinclient.spark.reading.test_entries import Ordered, as_client, ledger, options, sink_ledger


def in_columns(records: Sequence[LedgerRecord]) -> LedgerColumns:
    """As a gateway sends them: equal templates once."""
    templates, rows = dict[bytes, int](), []
    for record in records:
        message = to_format(record.metadata)
        numbers = take_numbers(message)
        assert numbers is not None
        index = templates.setdefault(message.SerializeToString(), len(templates))
        created = NOT_KNOWN if record.created_ms is None else record.created_ms
        rows.append((index, record.ledger_id.low, record.version, *numbers, created))
    built = [from_format(type(to_format(records[0].metadata)).FromString(key)) for key in templates]
    return LedgerColumns(records[0].ledger_id.scope_id, built, *zip(*rows, strict=True))


class InPages(Ordered):
    """Lists in pages of single records."""

    def list_ledgers(self, scope_id: int, start_after: int | None, end_before: int | None) -> Iterator[Any]:
        for page in super().list_ledgers(scope_id, start_after, end_before):
            for start in range(0, len(page), 5):
                yield page[start : start + 5]


class InColumns(InPages):
    """Lists the same pages in columns: where two marks contradict each other, it counts which page has which."""

    def list_ledgers(self, scope_id: int, start_after: int | None, end_before: int | None) -> Iterator[Any]:
        yield from map(in_columns, super().list_ledgers(scope_id, start_after, end_before))


@st.composite
def ledgers(draw: st.DrawFn) -> LedgerRecord:
    number = draw(st.integers(0, 40))
    made = draw(
        st.sampled_from(
            [
                ledger(number),
                ledger(number, entries=0),
                ledger(number, entries=3, app=b"x"),
                ledger(number, entries=None),
                sink_ledger(number),
                sink_ledger(number, [number]),
                sink_ledger(number, [3, 4]),
            ]
        )
    )
    metadata = made.metadata
    if draw(st.integers(0, 9)) == 0:
        metadata = close_unbounded(create_unbounded(ledger(number, entries=None).metadata), 4, 50)
    metadata = replace(metadata, ctime_ms=draw(st.sampled_from([None, 10, 20])))
    return replace(
        made, metadata=metadata, version=draw(st.integers(0, 3)), created_ms=draw(st.sampled_from([None, 15]))
    )


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "include_uncommitted": st.just(True),
        "include_ledger_metadata": st.just(True),
        "custom_metadata": st.just({"app": b"x"}),
        "starting_timestamp_ms": st.just(15),
        "passwords": st.just({3: b"planted-pw"}),
        "ledger_range": st.builds(LedgerRange, st.integers(0, 20), st.none() | st.integers(20, 40)),
        "ledger_ids": st.just((2, 3)),
        "starting_offsets": st.just({3: 2, 4: 9}),
        "ending_offsets": st.just({4: 2}),
    },
)
BOUNDS = st.builds(
    Bounds,
    ledger_id=st.builds(Interval, st.integers(0, 10), st.integers(20, 40)),
    entry_id=st.builds(Interval, st.integers(0, 2), st.integers(5, 20)),
    ledger_ids=st.none() | st.frozensets(st.integers(0, 40)),
)


@settings(deadline=None)
@given(st.lists(ledgers(), unique_by=lambda each: each.ledger_id), OPTIONS, BOUNDS)
def test_the_slices_are_the_same(records: list[LedgerRecord], wanted: dict[str, Any], bounds: Bounds) -> None:
    def slices(kind: type[Ordered]) -> list[Slice]:
        return readable_slices(as_client(kind(*records)), options(fail_on_data_loss=False, **wanted), bounds)

    assert slices(InColumns) == slices(InPages)


def test_one_ledger_of_each_template_in_a_page_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[int]()
    record_at = LedgerColumns.__getitem__

    def counted(self: LedgerColumns, index: int) -> object:
        made.append(index)
        return record_at(self, index)

    monkeypatch.setattr(LedgerColumns, "__getitem__", counted)
    client = InColumns(*(ledger(number, entries=number + 1) for number in range(10)))
    assert len(readable_slices(as_client(client), options())) == 10
    assert made == [0, 0]


def test_what_forbids_to_read_a_ledger_names_it() -> None:
    outside, wrong = ledger(4), replace(ledger(5), ledger_id=LedgerId(0, 5))
    client = InColumns(outside, wrong, ledger(6))
    since_five = options(ledger_range=LedgerRange(5, None), password=b"wrong")
    with pytest.raises(UnauthorizedAccessException, match="ledger 5"):
        readable_slices(as_client(client), since_five)
    with pytest.raises(DigestMatchException, match="ledger 4"):
        readable_slices(as_client(client), options(digest_type=DigestType.HMAC))


def test_a_listing_that_covers_more_than_the_range_is_narrowed_to_it() -> None:
    """In a scope ids of both signs are listed apart, so a range with both is listed whole."""
    records = [replace(ledger(0), ledger_id=LedgerId(5, number)) for number in range(-3, 4)]
    wanted = options(scope_id=5, ledger_range=LedgerRange(-1, 1))
    slices = readable_slices(as_client(InColumns(*records)), wanted)
    assert sorted(piece.ledger_id.low for piece in slices) == [-1, 0, 1]
