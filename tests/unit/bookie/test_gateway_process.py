"""What the bookie does about its gateway's process, with a process that does as it is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from bookgate.bookie import gateway_process
from bookgate.bookie.gateway_process import GatewayProcess
from bookgate.gateway.config import GatewayConfig
from bookgate.runtime.child_process import ChildFailedException, Pauses
from tests.unit.virtual_time import until

pytestmark = pytest.mark.usefixtures("virtual_time")


class FakeChild:
    """Says what `say` gives it; ends when it is killed. The starts numbered in `failing` fail,
    those in `stuck` do not come to an end.
    """

    pid = 1

    def __init__(self, failing: Sequence[int] = (), stuck: Sequence[int] = ()) -> None:
        self._failing, self._stuck = failing, stuck
        self._lines: asyncio.Queue[bytes] = asyncio.Queue()
        self.starts = 0
        self.kills = 0

    async def start(self, order: bytes, pass_fds: Sequence[int] = ()) -> dict[str, Any]:
        assert json.loads(order)["listener"] in pass_fds
        self.starts += 1
        if self.starts in self._stuck:
            await asyncio.get_running_loop().create_future()
        if self.starts in self._failing:
            raise ChildFailedException("it can't")
        return {"grpc": "127.0.0.1:1", "report": {}}

    async def read_line(self) -> bytes:
        return await self._lines.get()

    async def ended(self) -> int:
        return -9

    def let_go(self) -> None:
        pass

    def say(self, line: bytes) -> None:
        self._lines.put_nowait(line)

    def kill(self) -> None:
        self.kills += 1
        self.say(b"")

    async def stop(self, grace: float, *, by_signal: bool) -> None:
        assert not by_signal


def process(monkeypatch: pytest.MonkeyPatch, child: FakeChild) -> GatewayProcess:
    monkeypatch.setattr(gateway_process, "ChildProcess", lambda *_: child)
    monkeypatch.setattr(Pauses, "FIRST_SECONDS", 0.001)
    settings = GatewayConfig.model_validate({"metadata_uri": "sqlite:///nowhere", "port": 0})
    return GatewayProcess(settings, "bookie-1")


async def test_one_that_says_nothing_for_long_is_killed_and_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_process, "_LOOK_SECONDS", 0.01)
    child = FakeChild()
    hosted = process(monkeypatch, child)
    await hosted.start()
    await until(lambda: child.starts == 2)
    assert child.kills == 1
    assert hosted.metrics.restarts == 1
    await hosted.stop(0)


async def test_one_that_does_not_come_to_serve_is_killed_and_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_process, "_START_SECONDS", 0.01)
    child = FakeChild(stuck=(2,))
    hosted = process(monkeypatch, child)
    await hosted.start()
    child.say(b"")
    await until(lambda: child.starts == 3)
    assert child.kills == 1
    await hosted.stop(0)


async def test_one_that_speaks_again_in_time_is_let_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_process, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(gateway_process, "_LOOKS_BEFORE_KILL", 10**6)
    child = FakeChild()
    hosted = process(monkeypatch, child)
    await hosted.start()
    await until(lambda: not hosted.metrics.answers)
    child.say(b'{"report": {}}\n')
    await until(lambda: hosted.metrics.answers)
    await hosted.stop(0)
    assert (child.starts, child.kills) == (1, 0)


async def test_starts_that_fail_are_tried_again_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    child = FakeChild(failing=(2, 3))
    hosted = process(monkeypatch, child)
    await hosted.start()
    child.say(b"")
    await until(lambda: child.starts == 4)
    await until(lambda: hosted.metrics.answers)
    assert hosted.metrics.restarts == 3
    await hosted.stop(0)


async def test_a_first_start_that_fails_is_told_and_leaves_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    hosted = process(monkeypatch, FakeChild(failing=(1,)))
    with pytest.raises(ChildFailedException, match="it can't"):
        await hosted.start()
    assert not hosted.metrics.answers
