"""Taking an unbounded ledger over: what is kept, what is cut off, who gives way."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bookgate.ledger.entry import Entry
from bookgate.ledger.errors import (
    BookieHandleNotAvailableException,
    LedgerClosedException,
    LedgerRecoveryException,
    TermSupersededException,
    TimeoutException,
)
from bookgate.ledger.metadata import LedgerState
from bookgate.ledger.unbounded import begin_term, close_unbounded, create_unbounded, open_term, terms_of
from bookgate.thinclient.core.recovery import Replace
from bookgate.thinclient.core.recovery_reads import Missing, RecoveryRead, Unreadable
from bookgate.thinclient.core.unbounded.adds import Horizon, Place, RetryLater
from bookgate.thinclient.core.unbounded.changes import Holder, closing, taken, taking, trimming
from bookgate.thinclient.core.unbounded.taking_over import Patience, TakenOver, TakeOver, TakeOverAdd, TakeOverState
from tests.unit.thinclient.core.unbounded.model import LEDGER, SIZE, Client, Model

NOT_SENT = BookieHandleNotAvailableException("down").of_request_over()


def started(model: Model) -> Client:
    client = model.client()
    client.start()
    return client


def test_what_is_not_replicated_is_and_the_end_is_cut() -> None:
    model = Model()
    first = started(model)
    for _ in range(3):
        first.append()
    for bookie_id in ("b0", "b1"):
        for _ in range(3):
            model.deliver(model.messages_of(f"to {bookie_id}")[-1])
    model.messages = [message for message in model.messages if message.answer is not None]
    model.settle()
    assert list(model.acknowledged) == [0, 1, 2]
    second = model.client()
    second.begin_take_over()
    assert model.metadata.state is LedgerState.IN_RECOVERY
    model.settle()
    assert second.opened_at == 3
    model.check()
    assert (model.metadata.state, terms_of(model.metadata).term) == (LedgerState.OPEN, 1)
    for name in ("b0", "b1", "b2"):
        assert sorted(model.bookies[name].entries) == [0, 1, 2, 3]
        assert model.bookies[name].entries[3] == Entry(9, 3, -1, 3 * SIZE, b"")
    second.append()
    model.settle()
    assert model.acknowledged[4] == b"2-1".ljust(SIZE, b".")
    assert second.writer is not None
    assert second.writer.length == 4 * SIZE


def dirty(model: Model, name: str, entry_id: int, payload: bytes) -> None:
    """The bookie holds an entry of a term before that no other has."""
    model.bookies[name].entries[entry_id] = Entry(9, entry_id, -1, SIZE, payload)


def append_at(model: Model, client: Client, count: int, *names: str) -> None:
    """Appends; of all bookies only these get the entries, and acknowledge them."""
    for _ in range(count):
        client.append()
    for name in names:
        for index in model.messages_of(f"to {name}"):
            model.deliver(index)
    for index in model.messages_of("answer"):
        model.deliver(index)


def test_a_dirty_entry_does_not_outlive_the_truncate_entry() -> None:
    """The published counter-example: one bookie keeps an old value at an id that the next term uses again."""
    model = Model(spares=0)
    started(model)
    # Reading ends at entry 0, which b0 lacks as well; so the old entry 1 is beyond the end.
    dirty(model, "b0", 1, b"old")
    second = model.client()
    second.begin_take_over()
    model.settle()
    model.check()
    assert list(model.bookies["b0"].entries) == [0]


def test_a_truncate_entry_is_for_every_member_not_for_its_write_set() -> None:
    model = Model((4, 2, 2), spares=0)
    started(model)
    dirty(model, "b3", 2, b"old")
    second = model.client()
    second.begin_take_over()
    model.settle()
    assert second.opened_at == 0
    model.check()
    assert list(model.bookies["b3"].entries) == [0]


def test_a_bookie_that_comes_back_with_dirty_entries_shows_none() -> None:
    """It was a member once, joins again, and is sent a LAC above its old entry before it has the new one (U4)."""
    model = Model((3, 3, 2), spares=1)
    dirty(model, "b3", 1, b"old")
    second = model.client()
    second.begin_take_over()
    model.settle()
    model.check()
    append_at(model, second, 3, "b0", "b1")
    assert sorted(model.acknowledged) == [1, 2, 3]
    for index in model.messages_of("to b2"):
        model.lose(index)
    # b3 has joined. All that it is sent arrives in the worst order, first an add that says that entry 1 is confirmed.
    second.append()
    while messages := model.messages_of("to b3"):
        model.deliver(messages[0])
        model.check()
    assert b"old" not in {entry.payload for entry in model.bookies["b3"].entries.values()}


def test_what_a_bookie_that_did_not_come_to_join_holds_is_no_entry_of_the_term() -> None:
    """Named in the metadata, it would be asked for entry 2 first, and has one of an earlier term (U5)."""
    model = Model((3, 3, 2), spares=1)
    dirty(model, "b3", 2, b"old")
    second, third = model.client(), model.client()
    second.begin_take_over()
    model.settle()
    model.check()
    append_at(model, second, 2, "b0", "b1")
    assert sorted(model.acknowledged) == [1, 2]
    for name in ("b2", "b3"):
        for index in model.messages_of(f"to {name}"):
            model.lose(index)
    model.check()
    third.begin_take_over()
    model.settle()
    model.check()
    assert model.last_opened == (3, 2)


def test_one_good_copy_is_kept_though_it_was_never_confirmed() -> None:
    model = Model(spares=0)
    first = started(model)
    first.append()
    model.deliver(model.messages_of("to b0")[0])
    model.messages.clear()
    second = model.client()
    second.begin_take_over()
    model.settle()
    assert second.opened_at == 1
    assert all(each.entries[0].payload.startswith(b"1-1") for each in model.bookies.values())


def test_a_bookie_that_fails_is_replaced_and_the_fragment_stored_with_the_end() -> None:
    model = Model()
    first = started(model)
    first.append()
    model.deliver(model.messages_of("to b0")[0])
    model.messages.clear()
    second = model.client()
    second.begin_take_over()
    while second.opened_at is None:
        for index in model.messages_of("add"):
            if "to b2" in model.messages[index].text:
                model.lose(index)
        if model.messages:
            model.deliver(0)
    model.check()
    assert [(each.first_entry_id, each.ensemble) for each in model.metadata.fragments] == [(0, ("b0", "b1", "b3"))]


def take_over(*, lafr: int = -1, lac: int = -1, answers: int = 2) -> TakeOver:
    """One that is fenced and reads."""
    core = TakeOver(LEDGER, begin_term(Model(spares=0).metadata, 77))
    for index in range(answers):
        core.on_fence_answer(index, Horizon(lac, lafr), 1)
    return core


def test_reading_begins_after_the_lafr_not_after_the_lac() -> None:
    core = TakeOver(LEDGER, begin_term(Model(spares=0).metadata, 77))
    core.on_fence_answer(0, Horizon(5, 2), 1)
    effects = core.on_fence_answer(1, Horizon(4, 3), 1)
    assert min(effect.entry_id for effect in effects) == 4  # type: ignore[union-attr]
    entry = Entry(9, 4, 3, 50, b"x" * 10)
    sent = [each for each in core.on_read_answer(4, "b1", entry, 1) if isinstance(each, TakeOverAdd)]
    assert [(each.add.last_add_confirmed, each.add.lafr) for each in sent] == [(5, 3)], "frozen (U6)"


def adds(effects: Sequence[object]) -> list[TakeOverAdd]:
    return [each for each in effects if isinstance(each, TakeOverAdd)]


def test_its_adds_do_not_tell_how_far_it_is() -> None:
    """If it dies, what it has stored may be on bookies that are in its memory only (U6)."""
    core = take_over(lac=1, lafr=-1)
    for number in range(3):
        sent = adds(core.on_read_answer(number, f"b{number}", Entry(9, number, -1, number + 1, b"x"), 1))
        told = [(each.add.entry_id, each.add.last_add_confirmed, each.add.lafr) for each in sent]
        assert told == [(number, 1 if number else -1, -1)]
        for place in sent[0].places:
            core.on_add_ack(sent[0].add, place, 1)


def test_entries_are_read_from_the_fragment_as_it_was() -> None:
    """A bookie that takes the place of another has none of the entries, and its answers would mark the end."""
    core = TakeOver(LEDGER, begin_term(Model().metadata, 77), read_batch=1)
    for index in range(2):
        core.on_fence_answer(index, Horizon(-1, -1), 1)
    sent = adds(core.on_read_answer(0, "b0", Entry(9, 0, -1, 1, b"x"), 1))
    core.on_add_failure(sent[0].places[1], TimeoutException("lost"))
    again = core.on_replacements({1: "b3"})
    assert [place.bookie_id for each in adds(again) for place in each.places] == ["b3"]
    effects, asked = core.on_read_answer(1, "b1", Entry(9, 1, -1, 2, b"x"), 1), set()
    while reads := [each for each in effects if isinstance(each, RecoveryRead)]:
        asked.add(reads[0].bookie_id)
        effects = core.on_read_answer(2, reads[0].bookie_id, Unreadable(TimeoutException("lost")), 1)
    assert asked == {"b0", "b1", "b2"}


def test_a_take_over_confirms_nothing_so_that_it_pins_nobody() -> None:
    core = take_over()
    effects = core.on_read_answer(0, "b0", Entry(9, 0, -1, 1, b"x"), 1)
    (sent,) = [each for each in effects if isinstance(each, TakeOverAdd)]
    for place in sent.places[:2]:
        core.on_add_ack(sent.add, place, 1)
    failed = sent.places[1]
    (effect,) = core.on_add_failure(failed, TimeoutException("lost"))
    assert effect == Replace(("b0", "b1", "b2"), {failed.index: failed.bookie_id})


def test_fencing_waits_for_coverage() -> None:
    assert take_over(answers=1).state is TakeOverState.FENCING
    core = TakeOver(LEDGER, begin_term(Model(spares=0).metadata, 77))
    for index in range(2):
        core.on_fence_answer(index, Horizon(-1, -1), 0)
    assert core.state is TakeOverState.FENCING, "answers of another term count for nothing"
    timeout = Unreadable(TimeoutException("lost"))
    core.on_fence_answer(0, timeout, 1)
    core.on_fence_answer(1, timeout, 1)
    (failed,) = core.on_fence_answer(2, Horizon(-1, -1), 1)
    with pytest.raises(LedgerRecoveryException, match="too few bookies"):
        raise failed.error  # type: ignore[union-attr]


def test_a_confirmed_entry_that_is_denied_is_a_loss_not_the_end() -> None:
    core = take_over(lac=0)
    core.on_read_answer(0, "b0", Missing.MISSING, 1)
    assert core.on_read_answer(0, "b0", Missing.MISSING, 1) == (), "the same one twice is one"
    (failed,) = core.on_read_answer(0, "b1", Missing.MISSING, 1)
    with pytest.raises(LedgerRecoveryException, match="they have lost it"):
        raise failed.error  # type: ignore[union-attr]


def test_neither_readable_nor_surely_missing_ends_it_without_a_result() -> None:
    core = take_over()
    core.on_read_answer(0, "b0", Missing.MISSING, 1)
    timeout = Unreadable(TimeoutException("lost"))
    assert core.on_read_answer(0, "b1", Missing.MISSING, 0) == (), "of another term"
    core.on_read_answer(0, "b1", timeout, 1)
    (failed,) = core.on_read_answer(0, "b2", timeout, 1)
    with pytest.raises(LedgerRecoveryException, match="neither readable nor surely missing"):
        raise failed.error  # type: ignore[union-attr]
    assert core.over
    assert core.on_read_answer(0, "b2", Missing.MISSING, 1) == ()


def test_the_last_replicated_entry_tells_the_length_where_nothing_is_added_again() -> None:
    core = take_over(lafr=6, lac=6)
    core.on_read_answer(7, "b1", Missing.MISSING, 1)
    (read,) = core.on_read_answer(7, "b2", Missing.MISSING, 1)
    assert read.entry_id == 6  # type: ignore[union-attr]
    sent = core.on_read_answer(6, "b0", Entry(9, 6, 5, 700, b"x"), 1)
    (truncate,) = [each for each in sent if isinstance(each, TakeOverAdd)]
    assert (truncate.add.entry_id, truncate.add.length, truncate.add.truncate) == (7, 700, True)
    assert len(truncate.places) == 3, "every member is truncated (U3)"


def test_a_bookie_that_fails_again_later_is_tried_as_long_as_the_first_time() -> None:
    """A take-over may take longer than that: what counts is how long it does not get on."""
    core, patience = take_over(), Patience(60)
    effects, now = core.on_read_answer(0, "b0", Entry(9, 0, -1, 1, b"x"), 1), 100.0
    for entry_id in range(2):
        (sent,) = adds(effects)
        *working, failing = sent.places
        for place in working:
            core.on_add_ack(sent.add, place, 1)
        for second in (0, 59):
            core.on_add_failure(failing, TimeoutException("lost"))
            assert [type(each) for each in core.on_replacements({})] == [RetryLater]
            assert not patience.is_over(core.last_replicated, now + second)
            (sent,) = adds(core.retry())
            (failing,) = sent.places
        assert patience.is_over(core.last_replicated, now + 60)
        core.on_add_ack(sent.add, failing, 1)
        assert core.last_replicated == entry_id
        effects = core.on_read_answer(1, "b1", Entry(9, 1, -1, 2, b"x"), 1)
        now += 500


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_a_bookie_that_is_replaced_first_of_all_leaves_the_length_before_its_fragment(kept: int) -> None:
    """Where reading begins behind the fragment's first entry, only what is read tells the length."""
    model = Model()
    first = started(model)
    for _ in range(4):
        first.append()
        model.settle()
    for _ in range(kept):
        first.append()
        model.deliver(model.messages_of("to b0")[-1])
        model.messages.clear()
    second = model.client()
    second.begin_take_over()
    while second.opened_at is None:
        for index in reversed(model.messages_of("add")):
            if "to b2" in model.messages[index].text:
                model.lose(index)
        if model.messages:
            model.deliver(0)
    begins = model.metadata.last_fragment.first_entry_id
    assert begins in (3, 4)
    assert "b2" not in model.metadata.last_fragment.ensemble
    assert terms_of(model.metadata).length_before == begins * SIZE


def entry(entry_id: int) -> Entry:
    return Entry(9, entry_id, -1, 10 * (entry_id + 1), b"x" * 10)


def reads(effects: Sequence[object]) -> list[tuple[int, str, int]]:
    return [tuple(each) for each in effects if isinstance(each, RecoveryRead)]  # type: ignore[misc]


def begin_reading(core: TakeOver) -> Sequence[object]:
    core.on_fence_answer(0, Horizon(-1, -1), 1)
    return core.on_fence_answer(1, Horizon(-1, -1), 1)


def test_a_run_of_entries_is_asked_for_with_one_read_and_the_rest_with_another() -> None:
    core = TakeOver(LEDGER, begin_term(Model(spares=0).metadata, 77))
    assert reads(begin_reading(core)) == [(0, "b0", 15)]
    effects = core.on_read_answer(0, "b0", entry(0), 1, [entry(1), entry(2)])
    assert [each.add.entry_id for each in effects if isinstance(each, TakeOverAdd)] == [0, 1, 2]
    assert reads(effects)[-1] == (3, "b0", 12)
    assert core.on_read_answer(4, "b1", entry(4), 1) == (), "nobody was asked for entry 4 by itself"


def test_what_a_run_lacks_is_not_the_end() -> None:
    core = TakeOver(LEDGER, begin_term(Model(spares=0).metadata, 77))
    begin_reading(core)
    core.on_read_answer(0, "b0", entry(0), 1)
    assert core.state is TakeOverState.READING, "that b0 has not sent it says nothing"
    core.on_read_answer(1, "b1", Missing.MISSING, 1)
    before = core.state
    core.on_read_answer(1, "b2", Missing.MISSING, 1)
    assert (before, core.state) == (TakeOverState.READING, TakeOverState.STORING)


def test_a_run_that_fails_or_is_of_another_term_proves_nothing() -> None:
    core = TakeOver(LEDGER, begin_term(Model(spares=0).metadata, 77))
    begin_reading(core)
    assert core.on_read_answer(0, "b0", entry(0), 0, [entry(1)]) == ()
    effects = core.on_read_answer(0, "b0", Unreadable(TimeoutException("lost")), -1)
    assert reads(effects) == [(0, "b1", 15)], "the whole run of another replica"


@pytest.mark.parametrize("runs", [True, False])
def test_no_runs_are_asked_for_where_bookies_hold_parts_or_frames_are_small(runs: bool) -> None:
    model = Model((4, 2, 2), spares=0) if runs else Model(spares=0)
    core = TakeOver(LEDGER, begin_term(model.metadata, 77), runs=runs)
    effects: Sequence[object] = ()
    for index in range(4 if runs else 2):
        effects = core.on_fence_answer(index, Horizon(-1, -1), 1) or effects
    assert len(reads(effects)) == 16
    assert {following for _, _, following in reads(effects)} == {0}


def test_entry_0_is_never_added_again_with_lac_0() -> None:
    """Entry 0 of ledger 0 would begin with zeros, and bookies refuse it."""
    core = take_over(lac=0)
    effects = core.on_read_answer(0, "b0", entry(0), 1, [entry(1)])
    sent = [each.add for each in effects if isinstance(each, TakeOverAdd)]
    assert [(add.entry_id, add.last_add_confirmed, add.lafr) for add in sent] == [(0, -1, -1), (1, 0, -1)]


def test_an_unfinished_take_over_is_taken_over() -> None:
    model = Model()
    first = started(model)
    first.append()
    model.settle()
    second, third = model.client(), model.client()
    second.begin_take_over()
    model.deliver(0)
    third.begin_take_over()
    assert (model.metadata.state, terms_of(model.metadata).term) == (LedgerState.IN_RECOVERY, 2)
    model.settle()
    assert isinstance(second.failed, TermSupersededException)
    assert third.opened_at == 1
    model.check()
    first.append()
    model.settle()
    assert isinstance(first.failed, TermSupersededException)
    assert first.given_up == [1]


def cut_short(model: Model) -> None:
    """Entries 0 and 1 are everywhere, and 2 to 4 of the same writer on b0 alone. Who takes over hears nothing of b0,
    finds no entry 2 on the others, and dies when its truncate entry is on b2.
    """
    first, second = started(model), model.client()
    for _ in range(2):
        first.append()
        model.settle()
    for _ in range(3):
        first.append()
    for index in model.messages_of("to b0")[::-1]:
        model.deliver(index, twice=True)
    model.messages.clear()
    second.begin_take_over()
    while not (truncating := model.messages_of("truncating by 2")):
        if "b0 by 2" in model.messages[0].text:
            model.lose(0)
        else:
            model.deliver(0)
    model.deliver(next(index for index in truncating if "to b2" in model.messages[index].text))
    model.messages.clear()


def test_what_a_dead_take_over_cut_off_does_not_come_back_without_what_was_before_it() -> None:
    """The third one reads the truncate entry 2 on b2, and must not go on with the first one's entries 3 and 4 on b0."""
    model = Model(spares=0)
    cut_short(model)
    assert model.bookies["b2"].entries[2].payload == b""
    assert sorted(model.bookies["b0"].entries) == [0, 1, 2, 3, 4]
    third = model.client()
    third.begin_take_over()
    model.settle()
    assert third.opened_at == 3
    model.check()
    assert [sorted(each.entries) for each in model.bookies.values()] == [[0, 1, 2, 3]] * 3
    assert {each.entries[number].payload for each in model.bookies.values() for number in (2, 3)} == {b""}


def test_what_is_behind_a_truncate_entry_is_kept_once_a_lac_tells_that_its_take_over_was_completed() -> None:
    model = Model(spares=0)
    first, second = started(model), model.client()
    first.append()
    model.settle()
    second.begin_take_over()
    model.settle()
    assert second.opened_at == 1
    second.opened_at = None
    second.append()
    # On one bookie alone, and not acknowledged: the add has LAC 1.
    model.deliver(next(index for index in model.messages_of("add 2") if "to b0" in model.messages[index].text))
    model.messages.clear()
    third = model.client()
    third.begin_take_over()
    model.settle()
    assert third.opened_at == 3
    model.check()
    assert all(each.entries[2].payload.startswith(b"2-1") for each in model.bookies.values())


# The changes of the metadata

FRESH = create_unbounded(Model().metadata)


def test_of_two_that_take_the_same_term_one_gives_way() -> None:
    mine, other = taking(FRESH, 1), taking(FRESH, 2)
    taken_over = mine(FRESH)
    assert taken_over is not None
    assert mine(taken_over) is None, "its own write, whose answer was lost"
    with pytest.raises(TermSupersededException, match="meanwhile"):
        other(taken_over)


def test_only_the_holder_changes_and_finds_its_own_writes() -> None:
    before = begin_term(FRESH, 1)
    done = taken(Holder(1, 1), before, ())(before)
    assert done is not None
    assert done.state is LedgerState.OPEN
    assert taken(Holder(1, 1), before, ())(done) is None
    closed = closing(Holder(1, 1), 5, 50)(done)
    assert closed is not None
    assert closing(Holder(1, 1), 5, 50)(closed) is None
    with pytest.raises(LedgerClosedException):
        closing(Holder(1, 1), 6, 50)(closed)
    lost = begin_term(open_term(before), 2)
    for change in (taken(Holder(1, 1), before, ()), closing(Holder(1, 1), 5, 50)):
        with pytest.raises(TermSupersededException):
            change(lost)


def test_a_trim_that_moves_nothing_writes_nothing() -> None:
    assert trimming(5)(FRESH) is None
    closed = close_unbounded(FRESH, 9, 90)
    trimmed = trimming(5)(closed)
    assert trimmed is not None
    assert trimming(5)(trimmed) is None


def truncating() -> tuple[TakeOver, Sequence[TakeOverAdd]]:
    """A take-over that adds entry 0 again and truncates behind it."""
    core = take_over()
    sent = adds(core.on_read_answer(0, "b0", Entry(9, 0, -1, 1, b"x"), 1))
    for bookie_id in ("b1", "b2"):
        sent += adds(core.on_read_answer(1, bookie_id, Missing.MISSING, 1))
    assert [each.add.truncate for each in sent] == [False, True]
    return core, sent


def of_bookie(sent: TakeOverAdd, bookie_id: str) -> Place:
    (place,) = [place for place in sent.places if place.bookie_id == bookie_id]
    return place


def test_a_member_to_which_the_truncate_entry_was_never_sent_is_sent_it_later() -> None:
    """Whichever of its requests fails first, as on a connection that can't be made (P12)."""
    core, sent = truncating()
    for each in sent:
        core.on_add_failure(of_bookie(each, "b2"), NOT_SENT, each.add)
    assert [type(each) for each in core.on_replacements({})] == [Replace], "it failed twice"
    assert [type(each) for each in core.on_replacements({})] == [RetryLater]
    again = adds(core.retry())
    assert [(each.add.entry_id, [place.bookie_id for place in each.places]) for each in again] == [
        (0, ["b2"]),
        (1, ["b2"]),
    ]
    effects: list[object] = []
    for each in (*sent, *again):
        for place in each.places:
            effects += core.on_add_ack(each.add, place, 1)
    assert isinstance(effects[-1], TakenOver)


@pytest.mark.parametrize("failing", [0, 1])
def test_a_member_at_which_the_truncate_entry_may_still_arrive_is_not_sent_it_again(failing: int) -> None:
    core, sent = truncating()
    late = TimeoutException("lost")
    core.on_add_failure(of_bookie(sent[failing], "b2"), NOT_SENT if failing == 0 else late, sent[failing].add)
    assert [type(each) for each in core.on_replacements({})] == [RetryLater]
    assert adds(core.retry()) == []
    assert core.avoided == {"b2"}


def test_a_member_that_refuses_the_truncate_entry_after_it_was_replaced_may_come_back() -> None:
    core, sent = truncating()
    old = of_bookie(sent[0], "b2")
    core.on_add_failure(old, TimeoutException("lost"), sent[0].add)
    assert adds(core.on_replacements({2: "b3"}))
    assert core._writer is not None
    assert core._writer.barred == {"b2"}
    core.on_add_failure(of_bookie(sent[1], "b2"), NOT_SENT, sent[1].add)
    assert core._writer.barred == set()
    assert [type(each) for each in core.on_add_failure(core._writer.places[2], NOT_SENT)] == [Replace]
    assert adds(core.on_replacements({2: "b2"})) == [], "another one first, or a pause"
    core.retry()
    core.on_add_failure(core._writer.places[2], NOT_SENT)
    assert {place.bookie_id for each in adds(core.on_replacements({2: "b2"})) for place in each.places} == {"b2"}
