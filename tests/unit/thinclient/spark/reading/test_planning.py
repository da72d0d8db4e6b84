"""Planning: every entry in exactly one task, bounds kept, ensembles apart unless small, selection and snapshots."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookgate.ledger.errors import DigestMatchException, IllegalOpException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import DigestType, LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.terms import Terms
from bookgate.ledger.unbounded import trim
from bookgate.thinclient.spark.options.read_options import Options
from bookgate.thinclient.spark.options.values import LedgerRange
from bookgate.thinclient.spark.reading.planning import (
    MOST_LEDGERS,
    MOST_PARTS,
    Slice,
    TaskLimits,
    TemplateTable,
    by_fragment,
    check_digest_type,
    is_wanted,
    packed,
    plan,
    readable_record,
    unpacked,
    wanted_part,
    wanted_range,
)
from bookgate.thinclient.spark.reading.pushdown import Interval

OPTIONS = Options(gateways="grpc://g:1")
MEGABYTE = 1024 * 1024


def record(ledger_id: int, entries: int, size: int = 0, borders: tuple[int, ...] = ()) -> LedgerRecord:
    """A closed ledger with an ensemble change at each of `borders`."""
    metadata = LedgerMetadata.new(["b:0", "c:0"], 2, 1, custom_metadata={"App": b"x", "n": b"%d" % ledger_id})
    for border in borders:
        metadata = metadata.with_ensemble(border, ["b:0", f"d:{border}"])
    return LedgerRecord(LedgerId.unscoped(ledger_id), metadata.close(entries - 1, size), 1)


def whole(ledger_id: int, entries: int, size: int = 0, borders: tuple[int, ...] = ()) -> Slice:
    return TemplateTable().slice_of(record(ledger_id, entries, size, borders))


def slice_of(closed: LedgerRecord, options: Options) -> Slice | None:
    return wanted_part(TemplateTable().slice_of(closed), options)


def spans(tasks: list[list[Slice]]) -> list[list[tuple[int, int, int]]]:
    return [[(s.ledger_id.low, s.first_entry_id, s.last_entry_id) for s in task] for task in tasks]


@st.composite
def ledgers(draw: st.DrawFn) -> list[Slice]:
    result = []
    for ledger_id in range(draw(st.integers(0, 6))):
        entries = draw(st.integers(1, 400))
        borders = draw(st.lists(st.integers(1, 400), max_size=3, unique=True).map(sorted))
        first = draw(st.integers(0, entries - 1))
        last = draw(st.integers(first, entries - 1))
        size = draw(st.integers(0, 50 * MEGABYTE))
        result.append(whole(ledger_id, entries, size, tuple(borders)).between(first, last))
    return result


limits = st.builds(
    TaskLimits,
    spread_over=st.integers(1, 20),
    min_partitions=st.integers(1, 20),
    max_entries=st.none() | st.integers(1, 200),
    max_bytes=st.integers(1, 20 * MEGABYTE),
)


@given(ledgers(), limits)
def test_every_entry_is_in_exactly_one_task(slices: list[Slice], limits: TaskLimits) -> None:
    planned = sorted(
        (s.ledger_id.low, e)
        for task in plan(slices, limits)
        for s in task
        for e in range(s.first_entry_id, s.last_entry_id + 1)
    )
    wanted = sorted((s.ledger_id.low, e) for s in slices for e in range(s.first_entry_id, s.last_entry_id + 1))
    assert planned == wanted


@given(ledgers(), limits)
def test_bounds_hold(slices: list[Slice], limits: TaskLimits) -> None:
    tasks = plan(slices, limits)
    total = sum(s.entries for s in slices)
    assert len(tasks) >= min(limits.min_partitions, total)
    for task in tasks:
        assert task
        entries, size = sum(s.entries for s in task), sum(s.size for s in task)
        assert limits.max_entries is None or entries <= limits.max_entries
        # The estimate is spread over whole entries, so a task may pass it by what one entry is worth.
        assert size <= limits.max_bytes + max(s.length // (s.end + 1) + 1 for s in task)


@given(ledgers(), limits)
def test_what_is_not_whole_stays_within_one_ensemble_and_alone(slices: list[Slice], limits: TaskLimits) -> None:
    given_slices = {(s.ledger_id, s.first_entry_id, s.last_entry_id) for s in slices}
    halved_by_min_partitions = TaskLimits(limits.spread_over, 1, limits.max_entries, limits.max_bytes)
    for task in plan(slices, halved_by_min_partitions):
        parts = [s for s in task if (s.ledger_id, s.first_entry_id, s.last_entry_id) not in given_slices]
        if parts:
            assert len(task) == 1
            metadata = parts[0].record.metadata
            assert metadata.fragment_at(parts[0].first_entry_id) == metadata.fragment_at(parts[0].last_entry_id)


def test_no_slices_no_tasks() -> None:
    assert plan([], TaskLimits(min_partitions=4)) == []


def test_small_ledgers_are_packed_in_order() -> None:
    tasks = plan([whole(n, 10, 1000) for n in range(6)], TaskLimits(spread_over=2))
    assert spans(tasks) == [[(0, 0, 9), (1, 0, 9), (2, 0, 9)], [(3, 0, 9), (4, 0, 9), (5, 0, 9)]]


def test_a_large_ledger_is_cut_by_fragment_then_by_size() -> None:
    tasks = plan([whole(1, 100, 100 * MEGABYTE, borders=(20,))], TaskLimits(max_bytes=50 * MEGABYTE))
    assert spans(tasks) == [[(1, 0, 19)], [(1, 20, 59)], [(1, 60, 99)]]


def test_an_ensemble_that_begins_with_the_last_entry_has_a_task_of_its_own() -> None:
    tasks = plan([whole(1, 100, 100 * MEGABYTE, borders=(99,))], TaskLimits(max_bytes=50 * MEGABYTE))
    assert spans(tasks) == [[(1, 0, 48)], [(1, 49, 98)], [(1, 99, 99)]]


def test_a_small_ledger_keeps_its_fragments_together() -> None:
    assert spans(plan([whole(1, 100, 1000, borders=(20, 40))], TaskLimits())) == [[(1, 0, 99)]]


def test_the_entry_bound_is_exact_when_packing_too() -> None:
    tasks = plan([whole(1, 3), whole(2, 3), whole(3, 7)], TaskLimits(max_entries=5))
    assert sorted(spans(tasks)) == [[(1, 0, 2)], [(2, 0, 2)], [(3, 0, 2)], [(3, 3, 6)]]


def test_min_partitions_cuts_even_tiny_scans() -> None:
    assert sorted(spans(plan([whole(1, 4, 40)], TaskLimits(min_partitions=4)))) == [[(1, n, n)] for n in range(4)]
    assert len(plan([whole(1, 2), whole(2, 1)], TaskLimits(min_partitions=10))) == 3


def test_a_large_ledger_beside_small_ones_gets_most_tasks() -> None:
    tasks = plan([whole(1, 1000, 90 * MEGABYTE), whole(2, 10, 100), whole(3, 10, 100)], TaskLimits(spread_over=4))
    large = [task for task in tasks if task[0].ledger_id.low == 1]
    assert len(large) in (4, 5)
    assert max(task[0].size for task in large) <= 25 * MEGABYTE


def test_slices_leave_custom_metadata_at_home() -> None:
    piece = whole(1, 5, 50)
    assert piece.record == replace(
        record(1, 5, 50), metadata=replace(record(1, 5, 50).metadata, custom_metadata={}, ctime_ms=None)
    )


@given(ledgers())
def test_slices_travel(slices: list[Slice]) -> None:
    assert unpacked(pickle.loads(pickle.dumps(packed(slices)))) == slices


def test_ledgers_of_one_kind_share_their_metadata_and_travel_in_a_few_bytes() -> None:
    shapes = TemplateTable()
    slices = [shapes.slice_of(record(n, 1 + n % 7, 100 * n)) for n in range(1000)]
    assert len({id(piece.shape) for piece in slices}) == 1
    assert len(pickle.dumps(packed(slices))) < 100 * len(slices)


def test_an_unbounded_ledger_shares_no_shape_with_an_ordinary_one() -> None:
    ordinary = record(1, 5, 50)
    terms = Terms(term=3, holder=7)
    unbounded = replace(record(2, 5, 50), metadata=replace(ordinary.metadata, terms=terms))
    shapes = TemplateTable()
    assert [shapes.slice_of(each).record.metadata.terms for each in (ordinary, unbounded, ordinary)] == [
        None,
        terms,
        None,
    ]


def test_a_trimmed_ledger_begins_where_the_trim_ended() -> None:
    closed = record(2, 10, 100, borders=(6,))
    unbounded = replace(closed, metadata=trim(replace(closed.metadata, terms=Terms(term=1, holder=7)), 4))
    piece = slice_of(unbounded, OPTIONS)
    assert piece is not None
    assert (piece.first_entry_id, piece.last_entry_id, piece.size, piece.length) == (4, 9, 60, 100)
    named = Options(gateways="g", starting_offsets={2: 2}, ending_offsets={2: 7})
    part = slice_of(unbounded, named)
    assert part is not None
    assert (part.first_entry_id, part.last_entry_id, part.size) == (4, 6, 30)
    assert spans([list(by_fragment(piece))]) == [[(2, 4, 5), (2, 6, 9)]]
    everything = replace(unbounded, metadata=trim(unbounded.metadata, 10))
    assert slice_of(everything, OPTIONS) is None


def test_a_task_does_not_take_tiny_ledgers_without_end() -> None:
    tasks = plan([whole(n, 1, 1) for n in range(2 * MOST_LEDGERS + 1)], TaskLimits())
    assert [len(task) for task in tasks] == [MOST_LEDGERS, MOST_LEDGERS, 1]


def test_a_ledger_of_any_length_does_not_take_the_drivers_memory() -> None:
    """As metadata say that somebody has made up: 34 billion tasks."""
    with pytest.raises(
        IllegalOpException, match=r"ledger 5 has 68719476737 entries .* leave the ledger out by ledgerIds"
    ):
        plan([whole(4, 10), whole(5, (1 << 36) + 1, 1 << 62)], TaskLimits())
    most = plan([whole(5, MOST_PARTS)], TaskLimits(max_entries=1))
    assert len(most) == MOST_PARTS
    with pytest.raises(IllegalOpException, match="1000001 tasks: raise maxBytesPerPartition"):
        plan([whole(5, MOST_PARTS + 1)], TaskLimits(max_entries=1))


def test_an_open_ledger_becomes_a_snapshot_up_to_its_last_add_confirmed() -> None:
    opened = LedgerRecord(LedgerId.unscoped(3), LedgerMetadata.new(["b:0"], 1, 1), 0)
    piece = slice_of(readable_record(opened, 6, 70), OPTIONS)
    assert piece is not None
    assert (piece.first_entry_id, piece.last_entry_id, piece.size) == (0, 6, 70)
    assert slice_of(readable_record(opened, -1, 0), OPTIONS) is None


def test_offsets_begin_at_the_entry_and_end_before_the_entry() -> None:
    options = Options(gateways="g", starting_offsets={1: 2}, ending_offsets={1: 5, 2: 100})
    first, second = slice_of(record(1, 10, 100), options), slice_of(record(2, 10, 100), options)
    assert first is not None
    assert (first.first_entry_id, first.last_entry_id, first.size) == (2, 4, 30)
    assert second is not None
    assert (second.first_entry_id, second.last_entry_id) == (0, 9)
    assert slice_of(record(1, 2), options) is None
    assert slice_of(record(1, 0), options) is None


def test_selection() -> None:
    by_ids = Options(gateways="g", ledger_ids=(3, 9))
    by_range = Options(gateways="g", ledger_range=LedgerRange(3, 5))
    open_range = Options(gateways="g", ledger_range=LedgerRange(8, None))
    by_key = Options(gateways="g", custom_metadata={"app": b"x", "n": b"4"})
    candidates = [record(n, 1) for n in range(1, 11)]
    chosen = [[r.ledger_id.low for r in candidates if is_wanted(r, o)] for o in (by_ids, by_range, open_range, by_key)]
    assert chosen == [[3, 9], [3, 4, 5], [8, 9, 10], [4]]
    assert len([r for r in candidates if is_wanted(r, OPTIONS)]) == 10
    assert wanted_range(by_ids) == Interval(3, 9)
    assert wanted_range(by_range) == Interval(3, 5)
    assert wanted_range(open_range) == Interval(first=8)
    assert wanted_range(by_key) == Interval(first=0)


def test_a_wrong_digest_type_names_the_ledger() -> None:
    check_digest_type(record(5, 1), None)
    check_digest_type(record(5, 1), DigestType.CRC32C)
    with pytest.raises(DigestMatchException, match=r"ledger 5 .*CRC32C.*HMAC"):
        check_digest_type(record(5, 1), DigestType.HMAC)
