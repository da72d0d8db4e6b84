"""Recovery against a model of bookies: the table values of the protocol, hard cases, random runs (P2, P3, P11)."""

import random
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookgate.ledger.entry import Entry
from bookgate.ledger.errors import (
    BookieHandleNotAvailableException,
    DigestMatchException,
    LedgerRecoveryException,
    TimeoutException,
    UnauthorizedAccessException,
    UnexpectedConditionException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.quorum import write_set
from bookgate.thinclient.core.recovery import (
    DEFAULT_READ_BATCH,
    Effect,
    Failed,
    FenceRead,
    Finished,
    LedgerRecovery,
    RecoveryAdd,
    Replace,
)
from bookgate.thinclient.core.recovery_reads import Answer, Missing, RecoveryRead, Unreadable
from bookgate.thinclient.core.writing import Member, WriterRules

LEDGER = LedgerId.unscoped(9)
SIZE = 50
"""Payload bytes of every entry of the model."""


class Bookie:
    """What one bookie holds, and what is wrong with it."""

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self.fenced = False
        self.down = False
        self.bad_digest = False
        self.serves_runs = True

    def add(self, entry_id: int, lac: int, *, recovery: bool = False) -> bool:
        if self.down or (self.fenced and not recovery):
            return False
        self.entries[entry_id] = Entry(9, entry_id, lac, SIZE * (entry_id + 1), b"x" * SIZE)
        return True

    def read(self, entry_id: int) -> Answer:
        if self.down:
            return Unreadable(BookieHandleNotAvailableException("down"))
        self.fenced = True
        wanted = max(self.entries, default=-1) if entry_id == -1 else entry_id
        if wanted not in self.entries:
            return Missing.MISSING
        return Unreadable(DigestMatchException("bad")) if self.bad_digest else self.entries[wanted]

    def read_behind(self, entry_id: int, count: int) -> list[Entry]:
        """What a response has besides the entry, if it has that."""
        behind = range(entry_id + 1, entry_id + 1 + count) if self.serves_runs else ()
        return [self.entries[each] for each in takewhile(self.entries.__contains__, behind)]


class Model:
    """Bookies of one ledger, and recoveries of it step by step."""

    def __init__(self, sizes: tuple[int, int, int] = (3, 3, 2)) -> None:
        self.sizes = sizes
        self.names = [f"b{i}" for i in range(sizes[0])]
        self.bookies = {name: Bookie() for name in self.names}
        self.metadata = LedgerMetadata.new(self.names, sizes[1], sizes[2]).begin_recovery()

    def write(self, entry_id: int, indexes: list[int] | None = None, lac: int | None = None) -> None:
        """Stores an entry on the given members of its write set, by position in it; None for all."""
        full = write_set(entry_id, self.sizes[0], self.sizes[1])
        chosen = full if indexes is None else [full[i] for i in indexes]
        ensemble = self.metadata.last_fragment.ensemble
        for index in chosen:
            self.bookies[ensemble[index]].add(entry_id, entry_id - 1 if lac is None else lac)

    def replacements(self, ensemble: tuple[str, ...], failed: Mapping[int, str]) -> dict[int, str]:
        """Spare bookies, as far as there are any."""
        spare = [name for name in self.bookies if name.startswith("spare") and name not in ensemble]
        return dict(zip(failed, spare, strict=False))

    def recover(self, rng: random.Random | None = None) -> Finished | Failed:
        recovery = Recovery(self)
        while recovery.result is None:
            recovery.step(rng)
        return recovery.result


class Recovery:
    """One recovery; its requests are carried out one at a time, in order or at random."""

    def __init__(self, model: Model, read_batch: int = DEFAULT_READ_BATCH) -> None:
        self.model = model
        self.machine = LedgerRecovery(LEDGER, model.metadata, read_batch=read_batch)
        self.todo: deque[FenceRead | RecoveryRead | Replace | tuple[RecoveryAdd, Member]] = deque()
        self.result: Finished | Failed | None = None
        self.added: list[int] = []
        self.take(self.machine.begin())

    def take(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Finished | Failed):
                assert self.result is None
                self.result = effect
            elif isinstance(effect, RecoveryAdd):
                self.added.append(effect.add.entry_id)
                self.todo.extend((effect, member) for member in effect.members)
            else:
                self.todo.append(effect)

    def step(self, rng: random.Random | None) -> None:
        assert self.todo, "nothing is outstanding and there is no result"
        if rng is not None:
            self.todo.rotate(rng.randrange(len(self.todo)))
        action = self.todo.popleft()
        match action:
            case FenceRead(index, name):
                self.take(self.machine.on_fence_answer(index, self.model.bookies[name].read(-1)))
            case RecoveryRead(entry_id, name, following):
                answer, behind = self.model.bookies[name].read(entry_id), []
                if following and isinstance(answer, Entry):
                    behind = self.model.bookies[name].read_behind(entry_id, following)
                    behind = behind if rng is None else behind[: rng.randint(0, len(behind))]
                self.take(self.machine.on_read_answer(entry_id, answer, behind))
            case Replace(ensemble, failed):
                self.take(self.machine.on_replacements(self.model.replacements(ensemble, failed)))
            case (RecoveryAdd(add), member):
                if self.model.bookies[member.bookie_id].add(add.entry_id, add.last_add_confirmed, recovery=True):
                    self.take(self.machine.on_add_ack(add, member))
                else:
                    down = BookieHandleNotAvailableException("down")
                    self.take(self.machine.on_add_failure(add, member, down))


def test_an_empty_ledger_is_closed_empty() -> None:
    assert Model().recover() == Finished(-1, 0)


def test_everything_replicated_is_kept_and_the_tail_is_added_again() -> None:
    model = Model()
    for entry_id in range(4):
        model.write(entry_id)
    recovery = Recovery(model)
    while recovery.result is None:
        recovery.step(None)
    assert recovery.result == Finished(3, 200)
    # The last entry carries LAC 2: only it was not known to be confirmed.
    assert recovery.added == [3]


@pytest.mark.parametrize(("position", "kept"), [(0, True), (1, True), (2, False)])
def test_a_tail_entry_on_one_bookie_depends_on_its_place_in_the_write_set(position: int, kept: bool) -> None:
    model = Model()
    model.write(0)
    model.write(1, [position])
    assert model.recover() == (Finished(1, 100) if kept else Finished(0, 50))


@pytest.mark.parametrize("positions", [[0, 1], [0, 2], [1, 2]])
def test_a_tail_entry_on_two_bookies_is_always_kept(positions: list[int]) -> None:
    model = Model()
    model.write(0)
    model.write(1, positions)
    assert model.recover() == Finished(1, 100)
    assert sum(1 in bookie.entries for bookie in model.bookies.values()) == 3


@pytest.mark.parametrize(("position", "kept"), [(0, True), (1, False), (2, False)])
def test_one_miss_ends_a_ledger_whose_quorums_are_equal(position: int, kept: bool) -> None:
    model = Model((3, 3, 3))
    model.write(0)
    model.write(1, [position])
    assert model.recover() == (Finished(1, 100) if kept else Finished(0, 50))


def test_entries_behind_the_first_missing_one_are_lost() -> None:
    model = Model()
    model.write(0)
    model.write(2, lac=0)
    assert model.recover() == Finished(0, 50)


def test_f10_the_length_is_the_last_entrys_though_a_later_one_was_seen() -> None:
    model = Model()
    for entry_id in range(5):
        model.write(entry_id)
    model.write(5, [2], lac=4)
    model.write(6, [0, 1, 2], lac=4)
    assert model.recover() == Finished(4, 250)


def test_f10_the_length_of_an_ensemble_without_entries_is_read_from_the_one_before() -> None:
    model = Model()
    for entry_id in range(7):
        model.write(entry_id)
    for name in ("c0", "c1", "c2"):
        model.bookies[name] = Bookie()
    model.metadata = model.metadata.with_ensemble(7, ["c0", "c1", "c2"])
    assert model.recover() == Finished(6, 350)


def test_f11_an_answer_with_a_bad_digest_leaves_its_bookie_unknown() -> None:
    model = Model()
    model.write(0)
    model.bookies["b0"].bad_digest = True
    model.bookies["b1"].down = True
    result = model.recover()
    assert isinstance(result, Failed)
    assert isinstance(result.error, LedgerRecoveryException)
    model.bookies["b1"].down = False
    assert model.recover() == Finished(0, 50)


def test_two_of_three_bookies_down_leave_the_ledger_for_later() -> None:
    model = Model()
    model.write(0)
    model.bookies["b1"].down = model.bookies["b2"].down = True
    result = model.recover()
    assert isinstance(result, Failed)
    assert isinstance(result.error, LedgerRecoveryException)
    assert "IN_RECOVERY" in str(result.error)
    assert "down" in str(result.error)


def test_one_of_three_bookies_down_is_no_obstacle() -> None:
    for down in range(3):
        model = Model()
        for entry_id in range(10):
            model.write(entry_id)
        model.bookies[f"b{down}"].down = True
        assert model.recover() == Finished(9, 500)


def test_one_missing_and_the_others_unreachable_is_no_end() -> None:
    machine = LedgerRecovery(LEDGER, Model().metadata)
    machine.begin()
    machine.on_fence_answer(0, Missing.MISSING)
    assert machine.on_fence_answer(1, Missing.MISSING) == [RecoveryRead(0, "b0", 15)]
    down = Unreadable(BookieHandleNotAvailableException("down"))
    assert machine.on_read_answer(0, Missing.MISSING) == [RecoveryRead(0, "b1", 15)]
    assert machine.on_read_answer(0, down) == [RecoveryRead(0, "b2", 15)]
    (failed,) = machine.on_read_answer(0, down)
    assert isinstance(failed, Failed)
    assert machine.over


def test_a_wrong_key_ends_recovery_at_once_and_timeouts_are_reported_as_such() -> None:
    machine = LedgerRecovery(LEDGER, Model().metadata)
    (failed,) = machine.on_fence_answer(0, Unreadable(UnauthorizedAccessException("key")))
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, UnauthorizedAccessException)
    machine = LedgerRecovery(LEDGER, Model().metadata)
    late = Unreadable(TimeoutException("late"))
    assert [*machine.on_fence_answer(0, late), *machine.on_fence_answer(1, late)] == []
    (failed,) = machine.on_fence_answer(2, late)
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, TimeoutException)


def test_a_packet_shorter_than_its_length_field_is_refused() -> None:
    machine = LedgerRecovery(LEDGER, Model().metadata)
    machine.on_fence_answer(0, Missing.MISSING)
    machine.on_fence_answer(1, Missing.MISSING)
    failed, _ = machine.on_read_answer(0, Entry(9, 0, -1, 3, b"four"))
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, UnexpectedConditionException)


sizes = st.sampled_from([(3, 3, 2), (3, 2, 2), (3, 3, 3), (5, 3, 2), (3, 2, 1), (4, 3, 1), (1, 1, 1)])


def written(rng: random.Random, quorums: tuple[int, int, int]) -> tuple[Model, int]:
    """A ledger as a writer that crashed may leave it, and its last acknowledged entry."""
    model = Model(quorums)
    acknowledged = rng.randrange(-1, 8)
    told = -1
    for entry_id in range(acknowledged + 1):
        count = rng.randint(quorums[2], quorums[1])
        model.write(entry_id, rng.sample(range(quorums[1]), count), lac=told)
        if rng.random() < 0.7:
            told = entry_id
    for entry_id in range(acknowledged + 1, acknowledged + 1 + rng.randrange(4)):
        model.write(entry_id, rng.sample(range(quorums[1]), rng.randint(0, quorums[1])), lac=told)
    return model, acknowledged


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 2**32), sizes)
def test_recovery_loses_nothing_acknowledged_whatever_is_down(seed: int, quorums: tuple[int, int, int]) -> None:
    rng = random.Random(seed)
    model, acknowledged = written(rng, quorums)
    for name in rng.sample(model.names, rng.randint(0, min(quorums[2] - 1, quorums[0] - 1))):
        model.bookies[name].down = True
    result = model.recover(rng)
    if isinstance(result, Failed):
        # It may be retried once everybody is back.
        for bookie in model.bookies.values():
            bookie.down = False
        result = model.recover(rng)
    assert isinstance(result, Finished), result
    assert result.last_entry_id >= acknowledged
    assert result.length == SIZE * (result.last_entry_id + 1)
    for entry_id in range(acknowledged + 1, result.last_entry_id + 1):
        assert sum(entry_id in bookie.entries for bookie in model.bookies.values()) >= quorums[2]


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 2**32), sizes)
def test_a_recovery_after_another_agrees_with_it(seed: int, quorums: tuple[int, int, int]) -> None:
    """P11: nothing the first one kept is cut by the second, and both keep what was acknowledged."""
    rng = random.Random(seed)
    model, acknowledged = written(rng, quorums)
    first = model.recover(rng)
    second = model.recover(rng)
    assert isinstance(first, Finished)
    assert isinstance(second, Finished)
    assert second.last_entry_id >= first.last_entry_id >= acknowledged
    for result in (first, second):
        assert result.length == SIZE * (result.last_entry_id + 1)


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 2**32), sizes)
def test_two_recoveries_at_once_keep_what_was_acknowledged(seed: int, quorums: tuple[int, int, int]) -> None:
    rng = random.Random(seed)
    model, acknowledged = written(rng, quorums)
    recoveries = [Recovery(model), Recovery(model)]
    while unfinished := [recovery for recovery in recoveries if recovery.result is None]:
        rng.choice(unfinished).step(rng)
    for recovery in recoveries:
        assert isinstance(recovery.result, Finished)
        assert recovery.result.last_entry_id >= acknowledged
        assert recovery.result.length == SIZE * (recovery.result.last_entry_id + 1)


def left_on_one_bookie() -> Model:
    """Entries 0 to 4 everywhere; 5 and 6, never acknowledged, on b0 alone; everybody knows LAC 4."""
    model = Model()
    for entry_id in range(5):
        model.write(entry_id)
    for entry_id in (5, 6):
        model.bookies["b0"].add(entry_id, 4)
    return model


def lacs(model: Model) -> set[int]:
    """The highest last add confirmed that each bookie could tell a reader."""
    return {
        max((entry.last_add_confirmed for entry in bookie.entries.values()), default=-1)
        for bookie in model.bookies.values()
    }


@pytest.mark.parametrize("seed", range(10))
def test_until_a_recovery_closes_nobody_is_told_of_more_than_was_confirmed_at_its_start(seed: int) -> None:
    """It may die, or lose to one that can't reach b0 and finds the end at 4."""
    model = left_on_one_bookie()
    model.bookies["spare"] = Bookie()
    model.bookies["b2"].down = True
    recovery, rng = Recovery(model, read_batch=1), random.Random(seed)
    while recovery.result is None:
        recovery.step(rng)
        assert max(lacs(model)) == 4
    assert isinstance(recovery.result, Finished)
    assert recovery.result.last_entry_id == 6


@pytest.mark.parametrize("seed", range(10))
def test_a_later_recovery_adds_again_all_that_one_before_it_did(seed: int) -> None:
    """The one before stored 5 and 6 on b0 and on a replacement that nobody else knows of, and died."""
    model = left_on_one_bookie()
    model.bookies["spare"] = Bookie()
    model.bookies["b2"].down = True
    dying, rng = Recovery(model, read_batch=1), random.Random(seed)
    while dying.result is None:
        dying.step(rng)
    del model.bookies["spare"]
    for entry_id in (5, 6):
        del model.bookies["b1"].entries[entry_id]  # was on its way
    later = Recovery(model)
    while later.result is None:
        later.step(rng)
    assert isinstance(later.result, Finished)
    assert later.result.last_entry_id == 6
    for entry_id in range(7):
        assert sum(entry_id in model.bookies[name].entries for name in model.names) >= 2


@pytest.mark.parametrize(("payload", "most"), [(100, 4 * DEFAULT_READ_BATCH), (1 << 20, 16)])
def test_a_long_tail_is_read_ahead_within_a_window_of_entries_and_bytes(payload: int, most: int) -> None:
    """Bookies that read faster than they write: the window is full of adds before the first is acknowledged."""
    end, seen = 4000, 0
    machine = LedgerRecovery(LEDGER, LedgerMetadata.new(["b0"], 1, 1).begin_recovery())
    machine.begin()
    todo = deque(machine.on_fence_answer(0, Missing.MISSING))
    adds: deque[RecoveryAdd] = deque()
    data = bytes(payload)
    while not isinstance(effect := todo.popleft() if todo else adds.popleft(), Finished):
        match effect:
            case RecoveryRead(entry_id, _, following):
                ids = range(entry_id, min(entry_id + 1 + following, end))
                found = [Entry(9, each, -1, payload * (each + 1), data) for each in ids]
                answer = found[0] if found else Missing.MISSING
                todo.extend(machine.on_read_answer(entry_id, answer, found[1:]))
            case RecoveryAdd(add, _, members) if not todo:
                todo.extend(machine.on_add_ack(add, members[0]))
            case RecoveryAdd():
                adds.append(effect)
        seen = max(seen, len(todo) + len(adds))
    assert effect == Finished(end - 1, payload * end)
    assert most // 2 < seen <= most


def test_with_delay_a_failure_of_a_complete_add_counts_once_a_change_has_taken_its_acknowledgements() -> None:
    """P12: as in writing."""
    model = Model()
    model.write(0, lac=-1)
    model.write(1, lac=-1)
    machine = LedgerRecovery(LEDGER, model.metadata, WriterRules(delay_ensemble_change=True), runs=False)
    todo, adds = deque(machine.begin()), list[RecoveryAdd]()
    while todo:
        match todo.popleft():
            case FenceRead(index, bookie):
                todo += machine.on_fence_answer(index, model.bookies[bookie].read(-1))
            case RecoveryRead(entry_id, bookie):
                todo += machine.on_read_answer(entry_id, model.bookies[bookie].read(entry_id))
            case RecoveryAdd() as add:
                adds.append(add)
    first, second = adds
    late = TimeoutException("late")
    by_name = {member.bookie_id: member for member in first.members}
    machine.on_add_ack(second.add, by_name["b0"])
    machine.on_add_ack(second.add, by_name["b1"])
    assert not machine.on_add_failure(second.add, by_name["b2"], late)
    assert not machine.on_add_failure(first.add, by_name["b0"], late)
    assert machine.on_add_failure(first.add, by_name["b1"], late) == [Replace(("b0", "b1", "b2"), {0: "b0", 1: "b1"})]
    again = [each for each in machine.on_replacements({0: "b3", 1: "b4"}) if isinstance(each, RecoveryAdd)]
    new = {each.members[0].bookie_id: each.members[0] for each in again}
    assert not machine.on_add_ack(second.add, new["b3"])
    assert machine.on_add_failure(second.add, new["b4"], late) == [Replace(("b3", "b4", "b2"), {1: "b4", 2: "b2"})]
