"""Fixtures and settings for the whole suite."""

import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

pytest_plugins = ["tests.integration.cluster"]

# How long an example takes says how busy the machine is, and nothing of the product.
settings.register_profile("bookgate", deadline=None)
settings.load_profile("bookgate")


_FOLDERS = {"protos", "ledger", "runtime", "thinclient", "gateway", "bookie"}


@pytest.fixture(scope="session", autouse=True)
def each_module_exists_once() -> Iterator[None]:
    """From the root of the repository `import gateway` would work too, and give every class a second time."""
    yield
    assert not _FOLDERS & sys.modules.keys(), "import these below bookgate"
