"""Clocks are looked up when they are called: with the machine's own a seed would be another run on a busy machine."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import bookgate

_PACKAGE = Path(bookgate.__file__).parent
_CLOCKS = ("time", "monotonic", "perf_counter", "time_ns", "monotonic_ns", "perf_counter_ns")
_NAMES = tuple(f"time.{name}" for name in _CLOCKS)


@pytest.mark.parametrize("part", ["bookie", "gateway", "ledger", "runtime", "thinclient"])
def test_no_clock_of_the_machine_is_bound_when_a_module_is_imported(part: str) -> None:
    bound = [
        f"{path.name}:{line}"
        for path in sorted((_PACKAGE / part).resolve().rglob("*.py"))
        if "time" in (text := path.read_text(encoding="utf-8"))
        for line in _bound(ast.parse(text))
    ]
    assert bound == [], "give `bookgate.runtime.clock` as the default"


def _bound(module: ast.Module) -> Iterator[int]:
    """Lines that name a clock and do not call it, or take it out of its module."""
    called = {id(node.func) for node in ast.walk(module) if isinstance(node, ast.Call)}
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            yield from (node.lineno for alias in node.names if alias.name in _CLOCKS)
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in _NAMES and id(node) not in called:
            yield node.lineno
