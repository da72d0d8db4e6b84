"""The fixture `virtual_time`, and how tests with it are run."""

from __future__ import annotations

import inspect

import pytest

from tests.unit.virtual_time import VirtualTime


@pytest.fixture
def virtual_time(request: pytest.FixtureRequest) -> VirtualTime:
    return VirtualTime(request.node.name)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs async tests with `virtual_time` in its world."""
    time = pyfuncitem.funcargs.get("virtual_time")
    if not isinstance(time, VirtualTime) or not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    time.world.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in wanted}))
    return True
