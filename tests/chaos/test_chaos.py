"""A short round of chaos over real processes; `make chaos` runs many."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.run import run_rounds


@pytest.mark.long
@pytest.mark.asyncio
async def test_a_round_of_chaos_breaks_no_invariant(tmp_path: Path) -> None:
    outcome = await run_rounds(tmp_path, seed=3, seconds=0, round_seconds=5.0, report=lambda outcome: None)
    assert not outcome.violations, "\n".join(map(str, outcome.violations))
    assert outcome.acknowledged
    assert outcome.faults
    assert all(outcome.looked[invariant] for invariant in ("P1", "P2", "P4", "P9", "P12"))
