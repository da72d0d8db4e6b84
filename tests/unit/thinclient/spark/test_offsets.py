"""Offsets of a stream: what they promise for arbitrary ledgers, triggers and restarts; admission."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bookgate.thinclient.spark.offsets import (
    NOTHING,
    Backlog,
    Basis,
    End,
    LedgerIds,
    OffsetError,
    Origin,
    Range,
    StreamOffset,
    Trimmed,
    advance,
    backlogs,
    behind_latest,
    earliest,
    latest,
    ranges,
    trimmed,
    with_basis,
    without,
)
from bookgate.thinclient.spark.streaming.admission import admit, still_passed_over

LEDGER_IDS = st.one_of(st.integers(0, 20), st.integers(-(1 << 63), (1 << 63) - 1))


def end_of(entries: int, closed: bool = True, size: int = 10) -> End:
    return End(entries, closed, size * entries)


@given(st.sets(LEDGER_IDS), st.sets(LEDGER_IDS))
def test_sets_of_ids_come_back_from_their_text(some: set[int], more: set[int]) -> None:
    ids = LedgerIds(some)
    again = LedgerIds.parse(ids.text)
    assert set(again) == some
    assert set(again.with_more(more)) == some | more
    assert set(again.with_more(more).minus(LedgerIds(some))) == more - some
    assert all(each in again for each in some)
    assert (again == LedgerIds(some)) is True
    assert len(again) == len(some)


NUMBERS = st.dictionaries(LEDGER_IDS, st.integers(0, 1 << 62))


ORIGINS = st.builds(Origin, st.text(), LEDGER_IDS, st.one_of(st.none(), st.integers()))


@given(
    NUMBERS,
    st.sets(LEDGER_IDS),
    st.one_of(st.none(), st.builds(Basis, st.integers(1, 999), NUMBERS, NUMBERS)),
    st.one_of(st.none(), ORIGINS),
)
def test_offsets_come_back_from_json(
    next_entries: dict[int, int], done: set[int], basis: Basis | None, origin: Origin | None
) -> None:
    offset = StreamOffset(next_entries, LedgerIds(done), basis, origin)
    text = json.dumps(offset.to_json())
    assert StreamOffset.from_json(json.loads(text)) == offset
    assert json.dumps(StreamOffset.from_json(json.loads(text)).to_json()) == text


def test_the_form_of_an_offset() -> None:
    assert StreamOffset({12: 5, 3: 1}, LedgerIds()).to_json() == {"v": 1, "ledgers": {"3": 1, "12": 5}}


@pytest.mark.parametrize(
    "document",
    [
        None,
        {},
        {"n": 1},
        {"v": 2, "ledgers": {}},
        {"v": 1, "ledgers": {"x": 1}},
        {"v": 1, "ledgers": {"1": -1}},
        {"v": 1, "ledgers": {"1": True}},
        {"v": 1, "ledgers": {}, "done": "??"},
        {"v": 1, "ledgers": {}, "done": "AAAA"},
        {"v": 1, "ledgers": {}, "done": 7},
        {"v": 1, "ledgers": {}, "cores": -1, "sizes": {}},
        {"v": 1, "ledgers": {}, "cores": 1, "sizes": 7},
        {"v": 1, "ledgers": {}, "cores": 1, "sizes": {"1": "x"}},
        {"v": 1, "ledgers": {}, "cores": 1, "sizes": {}, "firsts": {"1": -1}},
        {"v": 1, "ledgers": {}, "of": {"cluster": "c"}},
        {"v": 1, "ledgers": {}, "of": {"cluster": "c", "scope": "x"}},
        {"v": 1, "ledgers": {}, "of": 7},
    ],
)
def test_what_is_no_offset_is_refused(document: object) -> None:
    with pytest.raises(OffsetError):
        StreamOffset.from_json(document)


def test_a_hundred_thousand_finished_ledgers_are_a_small_offset() -> None:
    ends = {ledger_id: end_of(3) for ledger_id in range(100_000) if ledger_id % 1000}
    offset = advance(NOTHING, ends, dict.fromkeys(ends, 3))
    assert len(offset.done) == 99_900
    assert len(json.dumps(offset.to_json())) < 2_000


# Triggers over ledgers that grow, close and appear


class World:
    """Ledgers with entries, of which a stream sees more and more; some begin behind what a trim has deleted."""

    def __init__(self, sizes: Mapping[int, int], deleted: Mapping[int, int]) -> None:
        self.sizes = dict(sizes)
        self.firsts = {each: min(deleted.get(each, 0), size) for each, size in sizes.items()}
        self.shown: dict[int, int] = {}
        self.closed: set[int] = set()

    def show(self, ledger_id: int, entries: int, close: bool) -> None:
        if ledger_id in self.closed:
            return
        self.shown[ledger_id] = min(self.sizes[ledger_id], self.shown.get(ledger_id, 0) + entries)
        if close and self.shown[ledger_id] == self.sizes[ledger_id]:
            self.closed.add(ledger_id)

    def ends(self) -> dict[int, End]:
        return {
            each: replace(end_of(entries, each in self.closed), first_entry_id=min(self.firsts[each], entries))
            for each, entries in self.shown.items()
        }

    def rows(self, piece: Range) -> list[tuple[int, int]]:
        last = self.shown[piece.ledger_id] - 1 if piece.last is None else piece.last
        return [(piece.ledger_id, entry) for entry in range(piece.first, last + 1)]


Trigger = tuple[list[tuple[int, int, bool]], int | None, int | None, bool]
"""What appears (ledger, entries, whether it closes), limits of entries and bytes, whether the driver restarts."""

STEPS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6), st.booleans()), max_size=6)
TRIGGERS = st.lists(
    st.tuples(STEPS, st.one_of(st.none(), st.integers(1, 9)), st.one_of(st.none(), st.integers(1, 90)), st.booleans()),
    max_size=12,
)


@given(
    st.lists(st.integers(0, 12), min_size=5, max_size=5),
    st.dictionaries(st.integers(0, 4), st.integers(1, 12)),
    TRIGGERS,
)
@example([9, 9, 9, 9, 9], {0: 9, 1: 5}, [([(each, 9, True) for each in range(5)], 2, None, True)] * 20)
def test_every_entry_is_read_once_whatever_the_triggers(
    sizes: list[int], deleted: dict[int, int], triggers: list[Trigger]
) -> None:
    world = World(dict(enumerate(sizes)), deleted)
    offset, seen, passed_over = NOTHING, list[tuple[int, int]](), dict[int, int]()
    everything: Trigger = ([(each, 12, True) for each in range(5)], None, None, True)
    for steps, max_entries, max_bytes, restarted in [*triggers, everything]:
        for step in steps:
            world.show(*step)
        if restarted:
            offset = StreamOffset.from_json(json.loads(json.dumps(offset.to_json())))
        waiting = backlogs(offset, world.ends())
        grants = admit(waiting, max_entries, max_bytes, passed_over)
        passed_over = still_passed_over(passed_over, grants)
        assert all(0 <= granted <= waiting[each].entries for each, granted in grants.items())
        if max_entries is not None:
            assert sum(grants.values()) <= max_entries
        if waiting:
            assert sum(grants.values()) >= 1
        after = advance(offset, world.ends(), grants)
        if after is not offset:
            after = with_basis(offset, after, world.ends(), 1)
        rows = [row for piece in ranges(offset, after) for row in world.rows(piece)]
        assert len(rows) == sum(grants.values())
        assert (after is offset) == (not rows)
        assert [row for piece in ranges(offset, after) for row in world.rows(piece)] == rows
        seen += rows
        offset = after
    assert sorted(seen) == [
        (each, entry) for each, size in enumerate(sizes) for entry in range(world.firsts[each], size)
    ]
    assert len(set(seen)) == len(seen)
    assert not any(each in offset.done for each in offset.next_entries)


def test_a_ledger_that_closes_after_its_last_entry_moves_the_offset_only_along_with_rows() -> None:
    offset = advance(NOTHING, {1: end_of(4, closed=False)}, {1: 4})
    closed = {1: end_of(4)}
    assert advance(offset, closed, {}) is offset
    after = advance(offset, {**closed, 2: end_of(1)}, {2: 1})
    assert after.to_json()["ledgers"] == {}
    assert set(after.done) == {1, 2}
    assert ranges(offset, after) == [Range(1, 4, None), Range(2, 0, None)]


def test_where_a_stream_begins() -> None:
    ends = {1: end_of(4), 2: end_of(3, closed=False), 3: end_of(0, closed=False)}
    assert backlogs(earliest(None), ends) == {1: Backlog(4, 40), 2: Backlog(3, 30)}
    assert backlogs(earliest({1: 3, 2: 9}), ends) == {1: Backlog(1, 10)}
    assert backlogs(latest(ends), ends) == {}
    assert backlogs(latest(ends), {**ends, 3: end_of(2), 4: end_of(1)}) == {3: Backlog(2, 20), 4: Backlog(1, 10)}


def test_ledgers_given_up_are_not_read_any_more() -> None:
    offset = without(StreamOffset({1: 3, 2: 4}, LedgerIds()), [1])
    assert offset == StreamOffset({2: 4}, LedgerIds([1]))
    assert backlogs(offset, {1: end_of(9)}) == {}


def test_how_far_behind_a_stream_is() -> None:
    ends = {1: end_of(4), 2: end_of(10, closed=False), 3: end_of(7)}
    assert behind_latest(StreamOffset({1: 4, 2: 4}, LedgerIds([3])), ends) == {
        "minOffsetsBehindLatest": "0",
        "maxOffsetsBehindLatest": "6",
        "avgOffsetsBehindLatest": "3.0",
    }
    assert behind_latest(NOTHING, {})["avgOffsetsBehindLatest"] == "0.0"


def test_what_a_trim_has_deleted_does_not_wait() -> None:
    ends = {1: End(100, closed=True, size=1000, first_entry_id=90), 2: end_of(30)}
    assert backlogs(NOTHING, ends) == {1: Backlog(10, 100), 2: Backlog(30, 300)}
    assert behind_latest(NOTHING, ends)["maxOffsetsBehindLatest"] == "30"
    end = with_basis(NOTHING, advance(NOTHING, ends, {1: 4}), ends, 8)
    assert end.basis == Basis(8, {1: 40}, {1: 90})
    assert ranges(NOTHING, end) == [Range(1, 90, 93)]


def test_what_a_trim_deletes_of_a_ledger_is_lost_once_that_was_begun() -> None:
    ends = {1: End(100, closed=True, first_entry_id=70), 2: End(50, closed=False, first_entry_id=70)}
    assert trimmed(NOTHING, ends) == []
    assert trimmed(StreamOffset({1: 20, 2: 20, 3: 20}, LedgerIds()), ends) == [Trimmed(1, 20, 70), Trimmed(2, 20, 70)]
    assert trimmed(StreamOffset({1: 70, 2: 50}, LedgerIds()), ends) == [], "nothing that was to be read"


# Admission

WAITING = st.dictionaries(
    st.integers(0, 50),
    st.builds(Backlog, st.integers(1, 1000), st.integers(0, 1 << 30)),
    max_size=20,
)


PASSED_OVER = st.dictionaries(st.integers(0, 50), st.integers(1, 9), max_size=20)


@given(WAITING, st.integers(1, 3000), PASSED_OVER)
@example({0: Backlog(2, 0), 1: Backlog(3, 0), 2: Backlog(3, 0)}, 4, {})
def test_a_limit_of_entries_is_exact_and_shared_in_proportion(
    waiting: dict[int, Backlog], limit: int, passed_over: dict[int, int]
) -> None:
    grants = admit(waiting, limit, None, passed_over)
    total = sum(backlog.entries for backlog in waiting.values())
    assert sum(grants.values()) == min(limit, total)
    for ledger_id, backlog in waiting.items():
        share = backlog.entries * min(limit, total) / total
        assert share - 1 < grants[ledger_id] < share + 1 or grants[ledger_id] == share


@given(WAITING, st.integers(1, 1 << 32), PASSED_OVER)
def test_a_limit_of_bytes_takes_the_same_part_of_every_ledger(
    waiting: dict[int, Backlog], limit: int, passed_over: dict[int, int]
) -> None:
    grants = admit(waiting, None, limit, passed_over)
    total = sum(backlog.size for backlog in waiting.values())
    if total <= limit:
        assert grants == {ledger_id: backlog.entries for ledger_id, backlog in waiting.items()}
        return
    assert sum(grants.values()) >= 1
    for ledger_id, backlog in waiting.items():
        assert grants[ledger_id] <= backlog.entries * limit / total + 1


@pytest.mark.parametrize("limits", [(7, None), (1000, None), (100_000, None), (None, 7), (1000, 900)])
def test_no_ledger_waits_for_ever_behind_a_large_one(limits: tuple[int | None, int | None]) -> None:
    """Nor behind other small ones, which are written to as fast as they are read."""
    waiting = {0: Backlog(10**9, 10**9), **{ledger_id: Backlog(5, 5) for ledger_id in range(1, 100)}}
    served, passed_over = set[int](), dict[int, int]()
    for _ in range(100):
        grants = admit(waiting, *limits, passed_over)
        passed_over = still_passed_over(passed_over, grants)
        served |= {ledger_id for ledger_id, granted in grants.items() if granted}
    assert served == set(waiting)


def test_who_waits_is_served_though_others_come_and_go() -> None:
    """With every other call three ledgers more wait in front of it."""
    passed_over = dict[int, int]()
    for call in range(10):
        others = range(10, 13) if call % 2 else range(10, 11)
        waiting = {0: Backlog(10**9, 1), **{each: Backlog(1, 1) for each in (*others, 20)}}
        grants = admit(waiting, 1000, None, passed_over)
        passed_over = still_passed_over(passed_over, grants)
        if grants[20]:
            return
    raise AssertionError("it waits for ever")


def test_both_limits_hold_together() -> None:
    waiting = {1: Backlog(100, 1000), 2: Backlog(100, 100_000)}
    assert admit(waiting, 50, None) == {1: 25, 2: 25}
    assert admit(waiting, 50, 2525) == {1: 2, 2: 3} or sum(admit(waiting, 50, 2525).values()) == 5
    assert admit(waiting, None, 1) in ({1: 1, 2: 0}, {1: 0, 2: 1})
