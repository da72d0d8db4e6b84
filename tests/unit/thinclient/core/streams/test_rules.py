"""The rules of streams: producers, batches, searches, cursors, retention."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bookgate.ledger.errors import IncorrectParameterException
from bookgate.ledger.payload_codec import RecordPosition
from bookgate.ledger.stream_entry import StreamEntry, decode_stream_entry, encode_stream_entry
from bookgate.ledger.streams import CommittedCursor, Retention
from bookgate.thinclient.core.streams.appends import SNAPSHOT_INTERVAL, Offer, StreamAppends
from bookgate.thinclient.core.streams.cursors import after, committed
from bookgate.thinclient.core.streams.producers import MAX_PRODUCERS, ProducerTable
from bookgate.thinclient.core.streams.retention import RetentionBounds, first_to_keep
from bookgate.thinclient.core.streams.search import FirstAtOrAfter

MAX_ENTRY = 100_000


def appends(table: ProducerTable | None = None, last_time: int = 0) -> StreamAppends:
    return StreamAppends(table or ProducerTable(), last_time, 1000, MAX_ENTRY)


# Producers


@given(
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 30), st.booleans()), max_size=200),
    st.integers(1, 8),
    st.integers(1, 6),
)
@example([("z", 0, True), ("a", 0, False), ("b", 0, False), ("a", 1, True)], 8, 6)
@example([("a", 0, True), ("b", 0, True), ("c", 0, True)], 8, 3)
@example([("a", 0, True), ("b", 0, True), ("c", 0, True)], 1, 1)
def test_the_next_writer_knows_what_the_last_one_knew(
    records: list[tuple[str, int, bool]], limit: int, interval: int
) -> None:
    """T1, at every entry: folding from the last snapshot on gives the writer's own table."""
    table = ProducerTable(limit)
    writer = StreamAppends(table, 0, 1000, MAX_ENTRY, interval)
    entries: list[StreamEntry] = []
    for name, sequence, ends in records:
        writer.offer(b"x", name, sequence)
        if ends and writer.count:
            entries.append(decode_stream_entry(encode_stream_entry(writer.take(5))))
            since = entries[-1].since_snapshot
            assert since is not None
            next_one = ProducerTable(limit)
            next_one.fold(entries[len(entries) - 1 - since :])
            assert next_one.snapshot() == table.snapshot()


def test_each_number_is_taken_once() -> None:
    writer = appends()
    offers = [writer.offer(b"x", "p", sequence) for sequence in (0, 1, 1, 0, 5, 4, 6)]
    added, duplicate = Offer.ADDED, Offer.DUPLICATE
    assert offers == [added, added, duplicate, duplicate, added, duplicate, added]
    assert writer.last_sequence("p") == 6
    assert writer.last_sequence("q") is None


def test_the_producer_heard_of_longest_ago_is_forgotten() -> None:
    table = ProducerTable()
    for number in range(MAX_PRODUCERS):
        table.appended(f"p{number}", 1)
    table.appended("p0", 2)
    table.appended("new", 1)
    assert table.last_sequence("p1") is None
    assert (table.last_sequence("p0"), len(table.snapshot())) == (2, MAX_PRODUCERS)


@pytest.mark.parametrize(
    ("producer", "sequence"), [("p", None), ("", 3), ("p", -1), ("p", True), ("p", 1 << 63), ("x" * 129, 1)]
)
def test_a_record_with_half_a_number_is_refused(producer: str, sequence: int | None) -> None:
    with pytest.raises(IncorrectParameterException):
        appends().offer(b"x", producer, sequence)


# Batches


def test_the_first_entry_of_a_term_is_a_snapshot_and_one_in_a_thousand() -> None:
    """T3."""
    writer = appends(ProducerTable())
    found = []
    for number in range(2 * SNAPSHOT_INTERVAL + 1):
        writer.offer(b"x", "p", number)
        found.append(writer.take(1).since_snapshot)
    assert found == [number % SNAPSHOT_INTERVAL for number in range(2 * SNAPSHOT_INTERVAL + 1)]


@given(st.lists(st.integers(0, 100), min_size=1), st.integers(0, 100))
def test_times_never_fall(clock: list[int], last: int) -> None:
    """T2, also where the clock was set back, or the writer before had a faster one."""
    writer, times = appends(last_time=last), [last]
    for now in clock:
        writer.offer(b"x")
        times.append(writer.take(now).append_time_ms)
    assert times == sorted(times)


@given(st.lists(st.binary(max_size=9000), max_size=60), st.integers(0, MAX_PRODUCERS + 10))
def test_no_entry_is_larger_than_allowed(records: list[bytes], producers: int) -> None:
    """With a full table of long names too, whose snapshot may have to fit beside a full batch."""
    table = ProducerTable(60)
    for number in range(producers):
        table.appended(f"{number:0128}", 1 << 62)
    writer = appends(table)
    entries, taken = [], 0
    for number, record in enumerate(records):
        if writer.offer(record, "p", number) is Offer.FULL:
            entries.append(writer.take(1 << 41))
            assert writer.offer(record, "p", number) is Offer.ADDED
    if writer.count:
        entries.append(writer.take(1 << 41))
    for entry in entries:
        assert len(encode_stream_entry(entry)) <= MAX_ENTRY
        taken += len(entry.records)
    assert taken == len(records)


def test_a_record_that_fits_no_entry_is_refused_and_leaves_no_trace() -> None:
    writer = appends()
    with pytest.raises(IncorrectParameterException, match="at most"):
        writer.offer(bytes(MAX_ENTRY), "p", 7)
    assert (writer.count, writer.last_sequence("p")) == (0, None)
    assert writer.offer(bytes(writer.max_record_bytes), "p", 7) is Offer.ADDED
    assert len(encode_stream_entry(writer.take(1 << 41))) <= MAX_ENTRY


# Searches


@given(
    st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=60),
    st.integers(0, 50),
    st.integers(-1, 22),
)
def test_a_search_finds_what_a_scan_finds(steps: list[tuple[int, bool]], first: int, wanted: int) -> None:
    values = sorted(value for value, _ in steps)
    entries = {first + number: value for number, (value, (_, has)) in enumerate(zip(values, steps, strict=True)) if has}
    last = first + len(steps) - 1
    search, reads = FirstAtOrAfter(first, last, wanted), 0
    while (range_ := search.next()) is not None:
        reads += 1
        assert first <= range_[0] <= range_[1] <= last
        found = next((entry for entry in range(range_[0], range_[1] + 1) if entry in entries), None)
        search.tell(found, 0 if found is None else entries[found])
    expected = next((entry for entry in sorted(entries) if entries[entry] >= wanted), last + 1)
    assert search.found == expected
    assert reads <= len(steps).bit_length() + 1


# Cursors and retention


def test_a_cursor_moves_up_only() -> None:
    """T6: a commit below the committed position is refused; the same one again is nothing."""
    cursor = CommittedCursor("s", "life", "c", RecordPosition(5, 2), 1)
    assert committed(cursor, RecordPosition(5, 2), 9) is None
    moved = committed(cursor, after(RecordPosition(5, 2)), 9)
    assert moved is not None
    assert (moved.position, moved.committed_ms) == ((5, 3), 9)
    for lower in (RecordPosition(5, 1), RecordPosition(4, 9)):
        with pytest.raises(IncorrectParameterException, match="back"):
            committed(cursor, lower, 9)
    assert CommittedCursor.of({"bookgate.cursor": cursor.encoded()}) == cursor


@pytest.mark.parametrize(
    ("retention", "limits", "cursors", "snapshot", "first"),
    [
        (Retention(), RetentionBounds(), [], 100, -1),
        (Retention(max_bytes=1), RetentionBounds(by_size=50), [], 100, 50),
        (Retention(max_bytes=1, max_age_seconds=1), RetentionBounds(30, 50), [], 100, 50),
        (Retention(max_bytes=1), RetentionBounds(by_size=50), [40, 60], 100, 40),
        (Retention(max_bytes=1, keep_for_cursors=False), RetentionBounds(by_size=50), [40, 60], 100, 50),
        (Retention(delete_consumed=True), RetentionBounds(), [], 100, -1),
        (Retention(delete_consumed=True), RetentionBounds(), [40, 60], 100, 40),
        (Retention(max_bytes=1), RetentionBounds(by_size=50), [], 20, 20),
        (Retention(max_bytes=1), RetentionBounds(by_size=50), [], -1, -1),
    ],
)
def test_what_stays(
    retention: Retention, limits: RetentionBounds, cursors: list[int], snapshot: int, first: int
) -> None:
    """T4: what a cursor has not committed. T5: the last snapshot, and all after it."""
    positions = [RecordPosition(each, 3) for each in cursors]
    assert first_to_keep(retention, limits, positions, snapshot) == first
