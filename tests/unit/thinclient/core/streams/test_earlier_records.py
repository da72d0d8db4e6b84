"""What earlier attempts of a producer have appended is found whatever other writers did in between (T7)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookgate.ledger.errors import UnexpectedConditionException
from bookgate.ledger.stream_entry import OPENING, StreamEntry
from bookgate.thinclient.core.streams.appends import Offer, StreamAppends
from bookgate.thinclient.core.streams.earlier_records import EarlierRecords, record_digest
from bookgate.thinclient.core.streams.producers import ProducerTable

MINE = "spark.query.0"
BATCH = 1 << 32
INTERVAL = 3
"""Entries from one snapshot to the next."""


class Term(NamedTuple):
    """One writer: whose records it appends, how many in each of its entries. A batch is another query batch of mine."""

    producer: str | None
    entries: list[int]
    is_next_batch: bool


class Log:
    """A stream, by what its writers have appended."""

    def __init__(self) -> None:
        self.entries: list[StreamEntry] = []
        self.batch = 0
        self.appended: list[bytes] = []
        """Mine, of the present batch."""
        self.table = ProducerTable()

    def write(self, term: Term) -> None:
        if term.producer == MINE and term.is_next_batch:
            self.batch, self.appended = self.batch + 1, []
        self.entries.append(OPENING)
        appends = StreamAppends(self.table, 0, 1, 1 << 20, INTERVAL)
        for count in term.entries:
            for _ in range(count):
                self._append(appends, term.producer)
            self.entries.append(appends.take(0))

    def _append(self, appends: StreamAppends, producer: str | None) -> None:
        # Few different texts: an attempt may repeat one.
        record = b"record %d" % (len(self.entries) % 5)
        if producer is None:
            appends.offer(record)
            return
        last = appends.last_sequence(producer)
        least = self.batch * BATCH if producer == MINE else 0
        sequence = least if last is None else max(least, last + 1)
        assert appends.offer(record, producer, sequence) is Offer.ADDED
        if producer == MINE:
            self.appended.append(record)

    def found(self, last: int | None = None) -> Counter[bytes]:
        known = self.table.last_sequence(MINE) if last is None else last
        first = self.batch * BATCH
        search = EarlierRecords(MINE, first, first - 1 if known is None else max(known, first - 1))
        for entry in reversed(self.entries):
            if not search.is_complete:
                search.take(entry)
        return search.found()


terms = st.lists(
    st.builds(
        Term,
        st.sampled_from([MINE, MINE, "another's", None]),
        st.lists(st.integers(1, 4), max_size=6),
        st.booleans(),
    ),
    max_size=8,
)


@given(terms)
def test_exactly_what_the_batch_has_is_found(written: Sequence[Term]) -> None:
    log = Log()
    for term in written:
        log.write(term)
    assert log.found() == Counter(record_digest(record) for record in log.appended)


def test_the_search_ends_at_the_batch_before_and_where_the_producer_is_unknown() -> None:
    log = Log()
    log.write(Term(None, [1, 1], False))
    log.write(Term(MINE, [2], False))
    search = EarlierRecords(MINE, 0, 1)
    for entry in reversed(log.entries[:-1]):
        search.take(entry)
        if search.is_complete:
            break
    assert search.is_complete, "the snapshot in front lacks the producer"
    log.write(Term(MINE, [1], True))
    search = EarlierRecords(MINE, BATCH, BATCH)
    for entry in reversed(log.entries):
        assert not search.is_complete
        search.take(entry)
        if search.is_complete:
            break
    assert log.entries.index(entry) == len(log.entries) - 3


@pytest.mark.parametrize("lost", [1, 2])
def test_records_that_are_gone_are_not_taken_for_never_appended(lost: int) -> None:
    log = Log()
    log.write(Term(MINE, [2, 2, 2], False))
    del log.entries[lost]
    with pytest.raises(UnexpectedConditionException, match="does not show them"):
        log.found()


def test_records_that_share_entries_with_others_are_told() -> None:
    log = Log()
    appends = StreamAppends(log.table, 0, 1, 1 << 20)
    appends.offer(b"mine", MINE, 0)
    appends.offer(b"not mine", "another's", 0)
    log.entries.append(appends.take(0))
    with pytest.raises(UnexpectedConditionException, match="something else appends under this name"):
        log.found()
