"""What a look at a bookie that is emptied says."""

from __future__ import annotations

from bookgate.ledger.ledger_id import LedgerId
from bookgate.thinclient.tools.draining import DrainingProgress


def test_a_look_is_stuck_when_nothing_else_is_left() -> None:
    one, two = LedgerId.unscoped(1), LedgerId.unscoped(2)
    assert not DrainingProgress((), 0, (), None).is_stuck
    assert not DrainingProgress((one, two), 0, (one,), None).is_stuck
    assert DrainingProgress((one, two), 0, (one, two), None).is_stuck
