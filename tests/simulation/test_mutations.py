"""The mutations still fit the sources, and the simulation notices some of them (`make mutations` runs all)."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from tests.simulation.mutations.__main__ import run_probe
from tests.simulation.mutations.mutation import (
    ACCESS,
    DATA,
    METADATA,
    PEERS,
    REPAIR,
    SMALL,
    STREAMS,
    UNBOUNDED,
    Edit,
    Mutation,
)
from tests.simulation.mutations.page import Page
from tests.simulation.mutations.probe import Found
from tests.simulation.mutations.table import MUTATIONS
from tests.simulation.mutations.tests_run import NotRunError, check_tests, run_tests
from tests.simulation.mutations.tree import ROOT, StaleMutationError, Tree, mutated

_QUICK = (pytest.param("fence-not-checked", marks=pytest.mark.long), "ack-below-quorum")
_MOST_SEEDS = 40
_PATIENCE_SECONDS = 900
"""No measure of anything: a busy machine may be slow, and the seeds are counted."""


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_is_still_one(mutation: Mutation) -> None:
    assert mutation.world in (ACCESS, DATA, METADATA, PEERS, REPAIR, SMALL, STREAMS, UNBOUNDED)
    for edit in mutation.edits:
        text = mutated(edit)
        assert text != (ROOT / edit.file).read_text()
        if edit.file.endswith(".py"):
            ast.parse(text)
    # Seeds look for invariants; tests are there.
    assert bool(mutation.expected) != bool(mutation.tests)
    assert all((ROOT / test.partition("::")[0]).is_file() for test in mutation.tests)


def test_text_that_is_no_longer_there_is_told() -> None:
    with pytest.raises(StaleMutationError, match="0 times"):
        mutated(Edit("ledger/quorum.py", "nowhere to be found", ""))


def test_there_are_enough_of_them_and_each_is_one_of_a_kind() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS) >= 100
    assert {mutation.area for mutation in MUTATIONS} == {
        "client",
        "bookie",
        "storage",
        "gateway",
        "spark",
        "auto-recovery",
        "scopes",
        "tools",
    }


def test_the_page_keeps_the_rows_of_bugs_that_are_not_run_again(tmp_path: Path) -> None:
    path = tmp_path / "MUTATIONS.md"
    first, second, tested = *[each for each in MUTATIONS if not each.tests][:2], next(m for m in MUTATIONS if m.tests)
    planted = (first, second, tested)
    Page(path, planted, 9).record(first, Found(3, "P1", simulated_seconds=12))
    assert (
        f"| {second.name} | {second.area} | {second.breaks} | {', '.join(second.expected)} | not run yet"
        in path.read_text()
    )
    Page(path, planted, 9).record(second, Found(9))
    Page(path, planted, 9).record(tested, Found(1, "tests/a.py::test_it"))
    text = path.read_text()
    assert "2 of 3 caught, 2 of them" in text
    assert f"| {first.name} | {first.area} | {first.breaks} | {', '.join(first.expected)} | P1 | 3 | 12 s |" in text
    assert "| **missed** | 9 |" in text
    assert "| `test_it` in `tests/a.py` |" in text
    # What is noticed in another way now, is described otherwise, or was never noticed by a test has to be run again.
    by_tests = replace(first, tests=tested.tests)
    renamed = replace(second, breaks="something else")
    Page(path, (by_tests, renamed, tested), 9).record(tested, Found(1, "a.logger:logs.py:55"))
    assert f"| {first.name} | {first.area} | {first.breaks} | not run yet |" in path.read_text()
    Page(path, (by_tests, renamed, tested), 9).record(by_tests, Found(1, "tests/a.py::Case::test_it"))
    text = path.read_text()
    assert f"| {tested.name} | {tested.area} | {tested.breaks} | not run yet |" in text
    assert f"{renamed.breaks} | {', '.join(renamed.expected)} | not run yet | | |" in text
    assert f"| {first.name} | {first.area} | {first.breaks} | `test_it` in `tests/a.py` |" in text
    Page(path, (first,), 9).record(first, Found(4, "P1"))
    assert "1 of 1 caught" in path.read_text()


@pytest.mark.long
def test_a_bug_in_what_is_not_simulated_is_noticed_by_the_tests_that_it_names(tmp_path: Path) -> None:
    (mutation,) = (each for each in MUTATIONS if each.name == "parts-overlap")
    tree = Tree(tmp_path / "tree")
    check_tests(tree.directory, mutation.tests, _PATIENCE_SECONDS)
    with tree.holding(mutation) as directory:
        found = run_tests(directory, mutation.tests, _PATIENCE_SECONDS)
        with pytest.raises(NotRunError, match="without any mutation"):
            check_tests(directory, mutation.tests, _PATIENCE_SECONDS)
    assert found.invariant is not None
    assert found.invariant.startswith("tests/unit/thinclient/spark/reading/test_planning.py::test_"), found


@pytest.mark.parametrize("name", _QUICK)
def test_a_planted_bug_is_noticed(name: str, tmp_path: Path) -> None:
    (mutation,) = (each for each in MUTATIONS if each.name == name)
    with Tree(tmp_path / "tree").holding(mutation) as directory:
        found = run_probe(directory, mutation.world, _MOST_SEEDS, _PATIENCE_SECONDS)
    assert found.invariant in {*mutation.expected, "P1", "P2", "P7", "P8", "P9"}, found
