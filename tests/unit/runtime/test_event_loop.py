"""uvloop's event loop where it is installed, otherwise asyncio's, whoever asks."""

from __future__ import annotations

import asyncio
import sys

import pytest
import uvloop

from bookgate.runtime import event_loop
from bookgate.runtime.event_loop import new_event_loop, run_async, run_server


async def running_loop() -> type[asyncio.AbstractEventLoop]:
    return type(asyncio.get_running_loop())


def test_uvloop_is_used_where_it_is() -> None:
    assert run_async(running_loop()) is uvloop.Loop


def test_without_uvloop_the_loop_is_that_of_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    loop = new_event_loop()
    loop.close()
    assert isinstance(loop, asyncio.BaseEventLoop)
    assert issubclass(run_async(running_loop()), asyncio.BaseEventLoop)


def test_a_server_may_open_as_many_files_as_the_system_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[bool] = []
    monkeypatch.setattr(event_loop, "raise_descriptor_limit", lambda: raised.append(True))
    assert run_server(running_loop()) is uvloop.Loop
    assert raised == [True]
