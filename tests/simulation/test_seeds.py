"""A fixed set of seeds, and those that once found a bug; `make simulate` runs any number of others."""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

import pytest

from bookgate.bookie.index.file_index import LedgerCache
from bookgate.bookie.mode.state_manager import StateManager
from bookgate.bookie.protocol.request_processor import RequestProcessor
from bookgate.bookie.storage import replay_start
from bookgate.bookie.storage.ledger_descriptor import LedgerDescriptor
from bookgate.bookie.storage.ledger_state import BookieLedgerState
from bookgate.ledger.wire.messages import Status
from tests.history import events
from tests.simulation.__main__ import replay_command
from tests.simulation.kinds import WorldKind
from tests.simulation.outcome import Outcome
from tests.simulation.plan import (
    DAMAGED_JOURNAL,
    KILLED_MOVING,
    FaultPlan,
    Limits,
    Plan,
    RatePlan,
    VisitPlan,
    WriterPlan,
    make_plan,
)
from tests.simulation.regressions import REGRESSIONS
from tests.simulation.run import LIMITS, REPAIR_LIMITS, SMALL_LIMITS, run_seed

SEEDS = (1, 3, 4, 5, 6, 7, 9, 11, 12, 13, 14, 15, 772000101, 782007453, 792000044, 802001747, 812000887)
"""Encounters and others, small and large, with gateways and without; each is quick enough for every test run. The last
ones: a drained bookie beside an entry of which a damaged copy is left; zeros from within the length of a padding;
a bookie whose return an auditor hears of during the repair that replaces it; two batch reads of one connection that are
answered in the other order; a repair that comes upon an older state of the store.
"""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """What bookies say about their faults is not kept."""
    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    yield
    logger.setLevel(level)


PLANS = {**{f"seed-{seed}": make_plan(seed, LIMITS) for seed in SEEDS}, **REGRESSIONS}


@pytest.mark.parametrize("name", PLANS)
def test_no_invariant_is_broken(name: str) -> None:
    outcome = run_seed(PLANS[name].seed, PLANS[name])
    assert not outcome.failed, outcome.problem
    assert outcome.looked["P1"]
    assert outcome.looked["P12"]


SMALL_SEEDS = range(1_000_000, 1_000_015)


def test_no_invariant_is_broken_in_small_worlds() -> None:
    """They are put to the same tests as large ones, with far less in each."""
    looked: Counter[str] = Counter()
    operations = 0
    for seed in SMALL_SEEDS:
        outcome = run_seed(seed, limits=SMALL_LIMITS)
        assert not outcome.failed, outcome.problem
        looked += outcome.looked
        operations += outcome.operations
    assert {"P1", "P2", "P3", "P9", "P12", "S1", "S5"} <= set(looked)
    assert operations < 100 * len(SMALL_SEEDS)


def test_repairs_keep_to_racks_and_budgets() -> None:
    """Worlds of repair whose bookies are in racks, and whose workers have small budgets."""
    looked: Counter[str] = Counter()
    for seed in (91000014, 91000018):
        outcome = run_seed(seed, limits=REPAIR_LIMITS)
        assert not outcome.failed, outcome.problem
        looked += outcome.looked
    assert {"R1", "R2", "R3", "R5", "R9", "R14", "R15"} <= set(looked)


def test_the_command_that_replays_a_seed_makes_the_same_plan() -> None:
    assert replay_command(WorldKind.LARGE, 7) == "python -m tests.simulation --seed 7"
    plan = make_plan(7, SMALL_LIMITS).keeping({"w0"})
    bursts = len(plan.writers[0].bursts)
    smaller = f"python -m tests.simulation --seed 7 --world small --keep w0:{bursts}"
    assert replay_command(WorldKind.SMALL, 7, plan) == smaller


@pytest.mark.long
def test_the_same_seed_gives_the_same_transcript() -> None:
    first, second = (run_seed(7, transcript=True) for _ in range(2))
    assert first.transcript == second.transcript
    assert first.history == second.history
    assert len(first.transcript.splitlines()) > 100


WITH_GATEWAYS = 13
"""A small one with a gateway and store faults, which depended on that order."""
_ELSEWHERE = f"""
import logging, hashlib
logging.getLogger().addHandler(logging.NullHandler())
from tests.simulation.run import run_seed
print(hashlib.sha256(run_seed({WITH_GATEWAYS}, transcript=True).transcript.encode()).hexdigest())
"""


@pytest.mark.long
def test_gateways_do_the_same_in_every_process() -> None:
    """What they keep of their streams once stood in sets, whose order is that of addresses."""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": str(root)}
    command = [sys.executable, "-c", _ELSEWHERE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, cwd=root) as other:
        here = run_seed(WITH_GATEWAYS, transcript=True)
        there = other.communicate()[0].decode().strip()
    assert here.plan is not None
    assert here.plan.gateways
    assert hashlib.sha256(here.transcript.encode()).hexdigest() == there


@pytest.mark.long
def test_a_bookie_that_forgets_fences_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def check_key_only(
        ledger: BookieLedgerState, master_key: bytes, *, recovery: bool, term: int | None = None
    ) -> Status:
        return ledger.check_key(master_key)

    monkeypatch.setattr(BookieLedgerState, "check_add", check_key_only)
    broken = next(outcome for seed in range(13, 31) if (outcome := run_seed(seed)).failed)
    assert broken.invariant in ("P1", "P2", "P7", "P8")
    # It ended where that was seen, not with the run.
    assert not any(isinstance(event, events.Healed) for event in broken.history)


def test_a_bookie_that_takes_any_key_on_its_fast_paths_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """S7, within 20 seeds: the intruder's requests have the form that these paths read."""
    decides = RequestProcessor._decides_long

    def without_key(processor: RequestProcessor, ledger: LedgerDescriptor, _key: bytes, entry_id: int) -> bool:
        return decides(processor, ledger, ledger.master_key, entry_id)

    monkeypatch.setattr(RequestProcessor, "_decides_long", without_key)
    broken = next(outcome for seed in range(1, 21) if (outcome := run_seed(seed)).failed)
    assert broken.invariant == "S7"


def first_to_fail(kind: str, most: int = 30) -> Outcome:
    """Of small worlds with such a fault."""
    plans = (make_plan(seed, SMALL_LIMITS) for seed in count(5_000_030))
    chosen = islice((plan for plan in plans if any(fault.kind == kind for fault in plan.faults)), most)
    return next(outcome for plan in chosen if (outcome := run_seed(plan.seed, plan)).failed)


def test_a_bookie_that_believes_any_mark_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """S8: it denies what lay in the part of its journal that is gone."""
    monkeypatch.setattr(replay_start, "_problem", lambda *_: None)
    assert first_to_fail(DAMAGED_JOURNAL).invariant == "S8"


def test_a_bookie_that_removes_a_log_on_the_word_of_memory_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """S1: the index on the disk points into a log that is no longer there."""

    monkeypatch.setattr(LedgerCache, "read_back", lambda index, ledger_ids: index.sync())
    broken = first_to_fail(KILLED_MOVING)
    assert broken.invariant == "error"
    assert "but the index points into it" in str(broken.problem)


REGISTERED_ELSEWHERE = Plan(
    seed=20000361,
    bookies=3,
    duration=6.0,
    writers=(WriterPlan("w0", 1.235723568623982, (1, 1, 1), (2,), 100, 0.9, "crash"),),
    visits=(),
    faults=(
        FaultPlan("f1", 1.1728210812025375, "power-loss", 2, 1.2),
        FaultPlan("s0", 1.0085790347604373, "store-older", 2, 1.2),
        FaultPlan("s1", 0.7175775810435809, "store-of-another", 2, 1.2),
    ),
    rates=(RatePlan("r-clock-skew", "clock-skew", 1080.0),),
    gateways=0,
)
"""A bookie starts while it is at an older state of the store, and registers there shortly before all is healed."""


WRITABLE_ELSEWHERE = Plan(
    seed=20006553,
    bookies=3,
    duration=6.0,
    writers=(WriterPlan("w0", 0.427434560904308, (3, 3, 3), (11,), 1000, 0.72, "close", True),),
    visits=(),
    faults=(
        FaultPlan("f0", 1.268422497403761, "full-disk", 0, 1.2),
        FaultPlan("s0", 2.345442327457296, "store-older", 0, 0.3),
        FaultPlan("s1", 2.1375145350943083, "store-empty", 0, 1.2),
    ),
    rates=(RatePlan("r-clock-skew", "clock-skew", 180.0),),
    gateways=0,
)
"""A bookie tells a wrong store that it can be written to again."""


@pytest.mark.parametrize("plan", [REGISTERED_ELSEWHERE, WRITABLE_ELSEWHERE], ids=["registered", "writable"])
def test_healing_waits_for_what_a_bookie_told_a_wrong_store(plan: Plan) -> None:
    outcome = run_seed(plan.seed, plan)
    assert not outcome.failed, outcome.problem
    assert outcome.faults["store-older"] == 1


STARTS_FIRST_ELSEWHERE = Plan(
    seed=20002480,
    bookies=3,
    duration=6.0,
    writers=(WriterPlan("w0", 0.3, (3, 3, 2), (3,), 100, 0.5, "close"),),
    visits=(),
    faults=(
        FaultPlan("f0", 1.0, "add-bookie", 0, 0.3),
        FaultPlan("s0", 1.0001, "store-empty", 3, 0.3),
    ),
    rates=(),
    gateways=0,
)
"""A new bookie would join the cluster that it is shown first, and it would be right to."""


def test_only_a_bookie_that_has_joined_comes_upon_a_wrong_store() -> None:
    outcome = run_seed(STARTS_FIRST_ELSEWHERE.seed, STARTS_FIRST_ELSEWHERE)
    assert not outcome.failed, outcome.problem
    assert outcome.faults["add-bookie"] == 1
    assert "store-empty" not in outcome.faults


def test_a_bookie_that_never_misses_its_registration_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def look(_manager: StateManager) -> None:
        return

    monkeypatch.setattr(StateManager, "_look", look)
    outcome = run_seed(REGISTERED_ELSEWHERE.seed, REGISTERED_ELSEWHERE)
    assert outcome.invariant == "P12"


OLDER_TWICE = Plan(
    seed=20000274,
    bookies=3,
    duration=6.0,
    writers=(
        WriterPlan("w0", 1.3751439089973894, (3, 3, 2), (1,), 100, 0.0, "close", False, True),
        WriterPlan("w1", 0.916193569311378, (2, 2, 2), (3,), 5000, 0.6, "close"),
    ),
    visits=(VisitPlan("v2", 1.589338555762807, "delete", "w1"),),
    faults=(
        FaultPlan("f-file", 0.1, "damaged-file", 2, 0.07637840716318332),
        FaultPlan("s1", 0.6237831833843356, "store-older", 0, 1.2),
        FaultPlan("s2", 0.7430967686753538, "store-older", 0, 0.3),
    ),
    rates=(),
    gateways=0,
)


def test_no_bookie_comes_upon_an_older_store_at_two_passes_of_garbage_collection() -> None:
    """Then a ledger that both lack is deleted for it, and rightly collected."""
    outcome = run_seed(OLDER_TWICE.seed, OLDER_TWICE)
    assert not outcome.failed, outcome.problem
    assert outcome.faults["store-older"] == 1


def test_a_world_without_faults_has_none() -> None:
    outcome = run_seed(4, make_plan(4, Limits(fault_kinds=(), rates={})))
    assert not outcome.failed, outcome.problem
    assert not any(isinstance(event, events.Fault) and event.kind != "client-crash" for event in outcome.history)
    assert not any(isinstance(event, events.AppendFailed) for event in outcome.history)
