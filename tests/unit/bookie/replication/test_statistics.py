"""What a scrape tells of checks that do not end."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bookgate.bookie.replication.checks.ledger_check import CheckStatistics
from bookgate.bookie.replication.checks.scrub import ScrubStatistics
from bookgate.bookie.replication.statistics import _CHECK, AutoRecoveryCollector, _of_a_check

DAY_MS = 86_400_000


@pytest.mark.parametrize("name", ["auditor_SCRUB_SECONDS_SINCE", "auditor_REPLICA_CHECK_SECONDS_SINCE"])
@pytest.mark.parametrize("days", [None, 90])
def test_a_first_check_that_never_ends_grows_older(name: str, days: int | None) -> None:
    began_ms = None if days is None else int(time.time() * 1000) - days * DAY_MS
    shown: Any = SimpleNamespace(
        scrub=SimpleNamespace(statistics=ScrubStatistics(since_ms=began_ms)),
        auditor=SimpleNamespace(statistics=SimpleNamespace(is_auditor=True)),
    )
    collector = AutoRecoveryCollector(cast(Any, shown))
    check = _of_a_check(_CHECK, "check", CheckStatistics(since_ms=began_ms), in_office=True)
    [told] = [each for each in (*collector._of_the_scrub(), *check) if each.name == name]
    assert [round(sample.value / 86_400) for sample in told.samples] == ([] if days is None else [days])
