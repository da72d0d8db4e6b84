"""Worlds in which bookies repair over ZooKeeper's tree beside BookKeeper's put each of their invariants to the test."""

from __future__ import annotations

import logging
from collections import Counter

import pytest

from tests.history.verdict import PEER_INVARIANTS
from tests.simulation.kinds import WorldKind, run_one

SEEDS = (*range(1, 11), 15)


def test_an_invariant_of_peers_holds(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1)
    outcome = run_one(WorldKind.PEERS, SEEDS[0])
    assert not outcome.failed, outcome.problem


@pytest.mark.long
def test_what_peers_have_claimed_is_honoured(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1)
    looked: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for seed in SEEDS:
        outcome = run_one(WorldKind.PEERS, seed)
        assert not outcome.failed, outcome.problem
        looked += outcome.looked
        faults += outcome.faults
    assert {*PEER_INVARIANTS, "R5", "R7"} <= set(looked)
    assert faults["peer: lock taken away"], "between the last copy and the metadata that name it"
    assert faults["peer: vote"]
    assert faults["peer: mark"]
