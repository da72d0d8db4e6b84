"""Writing, ensemble changes, closing and recovery together, in any order (P1, P2, P3, P5, P6, P9, P11, P12, G1, G2)."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bookgate.thinclient.core.writing import WriterRules
from tests.unit.thinclient.core.protocol_model import Recovery, World

positions = st.integers(0, 2**16)
SIZES = [(3, 3, 2), (3, 2, 2), (3, 3, 3), (4, 3, 2), (5, 3, 2), (3, 2, 1), (2, 2, 1), (1, 1, 1)]


class LedgerLife(RuleBasedStateMachine):
    """Rules are steps; at the end everything heals and the ledger must be closed with all that was acknowledged."""

    world: World
    guaranteed = False

    @initialize(sizes=st.sampled_from(SIZES), spare=st.integers(0, 3), delayed=st.booleans(), required=st.booleans())
    def begin(self, sizes: tuple[int, int, int], spare: int, delayed: bool, required: bool) -> None:
        self.world = World(sizes, spare, WriterRules(delayed, required), guaranteed=self.guaranteed)

    @precondition(lambda self: self.world.writer.writable)
    @rule(count=st.integers(1, 6))
    def append(self, count: int) -> None:
        for _ in range(count):
            self.world.writer.append()

    @precondition(lambda self: self.world.messages)
    @rule(chosen=st.lists(positions, min_size=1, max_size=8))
    def deliver(self, chosen: list[int]) -> None:
        for position in chosen:
            if self.world.messages:
                self.world.deliver(position)

    @precondition(lambda self: self.world.messages)
    @rule(position=positions, carried_out=st.booleans())
    def lose(self, position: int, carried_out: bool) -> None:
        self.world.lose(position, carried_out)

    @precondition(lambda self: self.world.writer.wants_step)
    @rule(some=st.booleans(), lose_answer=st.booleans())
    def change_ensemble(self, some: bool, lose_answer: bool) -> None:
        self.world.writer.change_step(some, lose_answer)

    @precondition(lambda self: self.world.writer.may_try_again)
    @rule()
    def try_failed_members_again(self) -> None:
        self.world.writer.try_again()

    @rule()
    def spare_bookies_leave_or_return(self) -> None:
        self.world.none_free = not self.world.none_free

    @rule(position=positions)
    def crash_or_restart(self, position: int) -> None:
        bookie = list(self.world.bookies.values())[position % len(self.world.bookies)]
        bookie.up = not bookie.up

    @precondition(lambda self: len(self.world.recoveries) < 3)
    @rule()
    def begin_recovery(self) -> None:
        self.world.recoveries.append(Recovery(self.world))

    @precondition(lambda self: any(recovery.wants_step for recovery in self.world.recoveries))
    @rule(position=positions, some=st.booleans(), lose_answer=st.booleans())
    def recover(self, position: int, some: bool, lose_answer: bool) -> None:
        waiting = [recovery for recovery in self.world.recoveries if recovery.wants_step]
        waiting[position % len(waiting)].step(some, lose_answer)

    @precondition(lambda self: any(not recovery.over for recovery in self.world.recoveries))
    @rule(position=positions)
    def kill_a_recovering_client(self, position: int) -> None:
        alive = [recovery for recovery in self.world.recoveries if not recovery.over]
        alive[position % len(alive)].dead = True

    @precondition(lambda self: self.world.writer.may_close)
    @rule()
    def close(self) -> None:
        self.world.writer.close()

    @precondition(lambda self: self.world.writer.closing is not None)
    @rule(lose_answer=st.booleans())
    def go_on_closing(self, lose_answer: bool) -> None:
        self.world.writer.close_step(lose_answer)

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        for bookie in world.bookies.values():
            bookie.up = True
        world.none_free = False
        world.recoveries.append(last := Recovery(world))
        rng = random.Random(len(world.writer.acknowledged))
        for _ in range(100_000):
            if last.over:
                break
            self.some_step(rng)
            world.check()
        assert last.closed_at is not None, "P12: with everybody back the ledger can be recovered"
        world.check()

    def some_step(self, rng: random.Random) -> None:
        waiting = [recovery for recovery in self.world.recoveries if recovery.wants_step]
        if waiting and (not self.world.messages or rng.random() < 0.3):
            rng.choice(waiting).step(True, False)
        elif self.world.writer.wants_step and rng.random() < 0.3:
            self.world.writer.change_step(True, False)
        else:
            self.world.deliver(rng.randrange(len(self.world.messages)))


TestLedgerLife = LedgerLife.TestCase
TestLedgerLife.settings = settings(
    max_examples=100, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)


class GuaranteedLedgerLife(LedgerLife):
    """The same with a guaranteed write quorum (G1, G2; G3 by what P1 would miss)."""

    guaranteed = True


TestGuaranteedLedgerLife = GuaranteedLedgerLife.TestCase
TestGuaranteedLedgerLife.settings = TestLedgerLife.settings


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32), st.sampled_from([(3, 3, 2), (3, 2, 2), (3, 3, 3), (5, 3, 2)]), st.booleans())
def test_bookies_lost_while_a_long_tail_is_recovered(seed: int, sizes: tuple[int, int, int], guaranteed: bool) -> None:
    """P3 over the fragments of a recovery: each begins where the ensemble before it has done its part."""
    rng = random.Random(seed)
    world = World(sizes, 4, WriterRules(), guaranteed=guaranteed)
    for _ in range(12):
        world.writer.append()
    while world.messages:
        world.deliver(0)
    lost = rng.sample(sorted(world.bookies), rng.randint(1, 2))
    recovery = Recovery(world)
    world.recoveries.append(recovery)
    while not recovery.over:
        if lost and rng.random() < 0.03:
            world.bookies[lost.pop()].up = False
        if recovery.wants_step and (not world.messages or rng.random() < 0.3):
            recovery.step(rng.random() < 0.5, False)
        else:
            world.deliver(rng.randrange(len(world.messages)))
    world.check()
    if recovery.closed_at is not None:
        assert recovery.closed_at == 11


@settings(deadline=None, max_examples=80)
@given(st.integers(0, 2**32), st.sampled_from([(3, 3, 2), (4, 3, 2), (5, 3, 2), (3, 2, 1)]))
def test_bookies_that_fail_while_another_one_lags(seed: int, sizes: tuple[int, int, int]) -> None:
    """G1 to G3: what one bookie lacks stays on those that have it until it has caught up."""
    rng = random.Random(seed)
    world = World(sizes, 3, WriterRules(), guaranteed=True)
    writer = world.writer
    for step in range(120):
        if step < 60 and rng.random() < 0.2:
            writer.append()
        # One bookie's requests wait; of another one some are lost, and it is replaced where that is allowed.
        lagging = f"b{seed % sizes[0]}"
        swift = [at for at, message in enumerate(world.messages) if step >= 60 or message.bookie != lagging]
        if swift and rng.random() < 0.05:
            world.lose(rng.choice(swift), rng.random() < 0.5)
        elif swift and rng.random() < 0.8:
            world.deliver(rng.choice(swift))
        if writer.wants_step and rng.random() < 0.5:
            writer.change_step(True, False)
        world.check()


@pytest.mark.parametrize("guaranteed", [False, True])
@pytest.mark.parametrize("sizes", [(3, 3, 2), (4, 3, 2), (3, 2, 1)])
def test_bookies_that_are_tried_again_and_replaced_acknowledge_late(
    sizes: tuple[int, int, int], guaranteed: bool
) -> None:
    """P1: what a bookie was asked before it failed may be answered after another one has taken its place. P12: once all
    is well, nothing waits.
    """
    for seed in range(80):
        rng = random.Random(seed)
        world = World(sizes, 8, WriterRules(delay_ensemble_change=seed % 2 > 0), guaranteed=guaranteed)
        writer = world.writer
        for step in range(240):
            if step < 160 and rng.random() < 0.4:
                writer.append()
            if world.messages and rng.random() < 0.5:
                position = rng.randrange(len(world.messages))
                if rng.random() < 0.3:
                    world.lose(position, carried_out=False)
                else:
                    world.deliver(position)
            # A change that finds nobody leaves its failed members to be tried again.
            world.none_free = rng.random() < 0.6
            if writer.wants_step and rng.random() < 0.5:
                writer.change_step(True, False)
            if writer.may_try_again and rng.random() < 0.8:
                writer.try_again()
            world.check()
        while world.messages or writer.wants_step or writer.may_try_again:
            if writer.wants_step:
                writer.change_step(True, False)
            elif world.messages:
                world.deliver(rng.randrange(len(world.messages)))
            else:
                writer.try_again()
            world.check()
        assert writer.may_close or writer.machine.error is not None, "P12"
