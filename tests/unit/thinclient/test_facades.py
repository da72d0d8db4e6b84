"""The blocking client has the asynchronous one's names, and the reference pages are those of the code."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import bookgate
from bookgate.thinclient.blocking import client, generate
from bookgate.thinclient.blocking.generate import client_text

ROOT = Path(__file__).parents[3]

ONLY_ASYNCHRONOUS = {
    "of_factory",  # for who builds a client of parts
    "append_nowait",  # there `append_future`: a future of concurrent.futures
}
ONLY_BLOCKING = {"append_future", "append_all_future"}


def public(value: type) -> dict[str, object]:
    return {name: member for name, member in inspect.getmembers(value) if not name.startswith("_")}


@pytest.mark.parametrize("name", ["BookKeeper", "WriteHandle", "AdvancedWriteHandle", "ReadHandle"])
def test_the_blocking_client_has_the_same_names_and_parameters(name: str) -> None:
    asynchronous, plain = public(getattr(bookgate, name)), public(getattr(client, name))
    assert set(asynchronous) - set(plain) <= ONLY_ASYNCHRONOUS
    assert set(plain) - set(asynchronous) <= ONLY_BLOCKING
    for member_name in set(asynchronous) & set(plain):
        ours, theirs = asynchronous[member_name], plain[member_name]
        if callable(ours) and callable(theirs):
            assert list(inspect.signature(theirs).parameters) == list(inspect.signature(ours).parameters), member_name


def test_the_blocking_client_is_what_is_generated() -> None:
    assert client_text() == generate.TARGET.read_text(), "run `make blocking`"


def test_a_blocking_call_is_documented_as_the_asynchronous_one() -> None:
    assert inspect.getdoc(client.ReadHandle.read_batches) == inspect.getdoc(bookgate.ReadHandle.read_batches)
    assert "append_nowait" not in generate.TARGET.read_text()


def test_the_reference_pages_are_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "docs" / "generate_reference.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=240)
    assert done.returncode == 0, done.stderr
