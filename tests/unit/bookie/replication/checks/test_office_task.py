"""When what ended at some time is due again."""

from __future__ import annotations

import pytest

from bookgate.bookie.replication.checks.office_task import due_in_seconds
from bookgate.runtime.clock import now_ms

pytestmark = pytest.mark.asyncio

HOUR = 3600.0


async def due(ended_ms: int | None) -> tuple[float, list[int]]:
    """In how many seconds, and what was written."""
    written: list[int] = []

    async def write(at_ms: int) -> None:
        written.append(at_ms)

    return await due_in_seconds(ended_ms, HOUR, write), written


async def test_what_never_ended_is_due_at_once() -> None:
    assert await due(None) == (0.0, [])


async def test_what_ended_longer_ago_than_the_interval_is_due_at_once() -> None:
    assert await due(now_ms() - 3_600_001) == (0.0, [])


async def test_what_ended_is_due_an_interval_later() -> None:
    seconds, written = await due(now_ms() - 1_800_000)
    assert HOUR / 4 < seconds <= HOUR / 2
    assert not written


async def test_a_time_to_come_is_written_anew_as_now() -> None:
    before = now_ms()
    seconds, (written,) = await due(before + 1_000_000_000)
    assert seconds == HOUR
    assert before <= written <= now_ms()
