"""Fixtures and settings for the whole suite."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from tests.forked_commands import forked_commands
from tests.told_secrets import LISTENER

if TYPE_CHECKING:
    from tests.distribution import TogetherScheduling

pytest_plugins = ["tests.integration.cluster"]

# How full this machine's disk is says nothing of the product. Bookies in processes of their own inherit this; a test of
# full disks gives its bookie settings of its own, or a disk.
os.environ.update({"BOOKGATE_BOOKIE_DISK_USAGE_THRESHOLD": "1", "BOOKGATE_BOOKIE_DISK_USAGE_WARN_THRESHOLD": "1"})

# How long an example takes says how busy the machine is, and nothing of the product.
settings.register_profile("bookgate", deadline=None)
settings.load_profile("bookgate")


_AT_ONCE = (
    "tests/simulation/",
    "tests/spark/",
    "tests/integration/bookie/replication/",
    "tests/deploy/",
    "tests/integration/",
)
"""What takes long begins first, so that no process has much left when the others are done.

Worlds begin before clients and clusters that whole runs share are at work in the same process: what these log, and
which of their background tasks are begun anew, would be the worlds' too.
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = {item: next((n for n, at in enumerate(_AT_ONCE) if item.nodeid.startswith(at)), 9) for item in items}
    items.sort(key=ranks.__getitem__)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> TogetherScheduling | None:
    """Tests of one Spark session go to one process, where files are handed out to several."""
    if config.getoption("dist") != "loadfile":
        return None
    from tests.distribution import TogetherScheduling

    return TogetherScheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """No test, whatever it is about, may have a secret in a log line of this process."""
    yield
    told = LISTENER.take()
    assert not told, f"log records tell a secret: {told[:3]}"


@pytest.fixture(scope="session", autouse=True)
def commands_are_forked() -> Iterator[None]:
    """Commands of bookgate that tests start import nothing anew."""
    with forked_commands():
        yield


_FOLDERS = {"protos", "ledger", "runtime", "thinclient", "gateway", "bookie"}


@pytest.fixture(scope="session", autouse=True)
def each_module_exists_once() -> Iterator[None]:
    """From the root of the repository `import gateway` would work too, and give every class a second time."""
    yield
    assert not _FOLDERS & sys.modules.keys(), "import these below bookgate"
