"""Runs the tests that a mutation names, in a tree with it or without."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.simulation.mutations.probe import Found
from tests.simulation.mutations.tree import environment

_FAILED = re.compile(r"(FAILED|ERROR) tests/")
"""A line of pytest's summary; what a test has logged begins with ERROR too."""
_CHOSEN = "not zookeeper"
"""Of tests that are there for both stores, the ones that need no server."""


class NotRunError(Exception):
    """pytest could not run them, or they fail without any mutation."""


def run_tests(directory: Path, tests: Sequence[str], seconds: float) -> Found:
    """Stops at the first that fails, which is in the place of the invariant. Raises NotRunError."""
    options = ("-x", "-q", "-rfE", "--tb=line", "-p", "no:cacheprovider", "-k", _CHOSEN)
    command = [sys.executable, "-m", "pytest", *options, *tests]
    try:
        ended = subprocess.run(
            command,
            cwd=directory,
            env=environment(directory),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        # A slow machine is no finding; a single test that hangs fails by pytest's own limit.
        return Found(problem=f"the tests did not end within {seconds:g} s")
    if ended.returncode == 0:
        return Found()
    lines = [line for line in ended.stdout.splitlines() if _FAILED.match(line)]
    if ended.returncode != 1 or not lines:
        raise NotRunError(f"{' '.join(tests)}: {ended.stdout[-2000:]}{ended.stderr[-2000:]}")
    _, node, *reason = lines[0].split(maxsplit=2)
    return Found(0, node.partition("[")[0], " ".join(reason).removeprefix("- "))


def check_tests(directory: Path, tests: Sequence[str], seconds: float) -> None:
    """Raises NotRunError unless all pass: what fails anyhow notices nothing."""
    found = run_tests(directory, tests, seconds)
    if found.invariant is not None:
        raise NotRunError(f"without any mutation {found.invariant} fails: {found.problem}")
