"""Tasks that nobody waits for: what fails is begun anew, told and counted."""

import asyncio
import logging

import pytest

from bookgate.runtime import background
from bookgate.runtime.background import RESTARTS, keep_running


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_FIRST_PAUSE", 0.0)
    monkeypatch.setattr(background, "_LONGEST_PAUSE", 0.0)


@pytest.mark.asyncio
async def test_work_that_fails_is_done_again_told_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    runs = 0

    async def work() -> None:
        nonlocal runs
        runs += 1
        if runs < 4:
            raise OverflowError("int too large to convert to float")

    before = RESTARTS["test work"]
    with caplog.at_level(logging.ERROR):
        await keep_running("test work", work)
    assert runs == 4
    assert RESTARTS["test work"] - before == 3
    assert [record.getMessage().partition(" ")[0] for record in caplog.records] == ["event=background_task_failed"] * 3
    assert "int too large" in caplog.text
    assert all(record.exc_info for record in caplog.records)


@pytest.mark.asyncio
@pytest.mark.parametrize("failing", [False, True])
async def test_who_cancels_it_ends_it(failing: bool) -> None:
    began = asyncio.Event()

    async def work() -> None:
        began.set()
        if failing:
            raise ValueError
        await asyncio.Event().wait()

    task = keep_running("cancelled work", work)
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
