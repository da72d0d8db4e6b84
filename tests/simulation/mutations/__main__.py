"""`python -m tests.simulation.mutations`: plants each bug of the table, and counts the seeds until it is reported.

Writes what each was caught by into MUTATIONS.md beside the simulation. Ends with 0 when all were caught.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from tests.simulation.mutations.mutation import Mutation
from tests.simulation.mutations.page import Page
from tests.simulation.mutations.probe import Found
from tests.simulation.mutations.table import MUTATIONS
from tests.simulation.mutations.tests_run import NotRunError, check_tests, run_tests
from tests.simulation.mutations.tree import ROOT, Tree, environment

PAGE = ROOT / "tests" / "simulation" / "MUTATIONS.md"
_FIRST_SEED = 1
_console = Console(soft_wrap=True)


def main(
    only: Annotated[str, typer.Option(help="names of mutations, separated by commas; default: all")] = "",
    seeds: Annotated[int, typer.Option(help="seeds after which a mutation counts as missed")] = 1000,
    seconds: Annotated[float, typer.Option(help="the same in seconds")] = 600.0,
    jobs: Annotated[int, typer.Option(help="mutations at a time; 0: one a core")] = 0,
) -> None:
    """Plants each bug in a copy of the sources and runs the simulation until it is noticed."""
    wanted = [mutation for mutation in MUTATIONS if not only or mutation.name in only.split(",")]
    if not wanted:
        _console.print(f"no mutation is named {only}; there are {', '.join(each.name for each in MUTATIONS)}")
        raise typer.Exit(2)
    page = Page(PAGE, MUTATIONS, seeds)
    found = _run_all(wanted, page, seeds, seconds, jobs or os.cpu_count() or 1)
    missed = [name for name, outcome in found.items() if outcome.invariant is None]
    raise typer.Exit(1 if missed else 0)


def _run_all(wanted: Sequence[Mutation], page: Page, seeds: int, seconds: float, jobs: int) -> dict[str, Found]:
    found: dict[str, Found] = {}
    with _trees(min(jobs, len(wanted))) as trees, ThreadPoolExecutor(jobs) as pool, Progress(console=_console) as bar:
        _check_tests(trees, wanted, seconds)
        task = bar.add_task("mutations", total=len(wanted))
        running = {pool.submit(_run_one, trees, mutation, seeds, seconds): mutation for mutation in wanted}
        for ended in as_completed(running):
            mutation = running[ended]
            found[mutation.name] = ended.result()
            page.record(mutation, found[mutation.name])
            bar.console.print(_line(mutation, found[mutation.name]), markup=False, highlight=False)
            bar.advance(task)
    return found


def _check_tests(trees: queue.Queue[Tree], wanted: Sequence[Mutation], seconds: float) -> None:
    tests = sorted({test for mutation in wanted for test in mutation.tests})
    if not tests:
        return
    tree = trees.get()
    try:
        check_tests(tree.directory, tests, seconds)
    except NotRunError as error:
        _console.print(str(error), markup=False, highlight=False)
        raise typer.Exit(2) from error
    finally:
        trees.put(tree)


@contextmanager
def _trees(count: int) -> Iterator[queue.Queue[Tree]]:
    with tempfile.TemporaryDirectory(prefix="bookgate-mutations-") as directory:
        free: queue.Queue[Tree] = queue.Queue()
        for number in range(count):
            free.put(Tree(Path(directory) / str(number)))
        yield free


def _run_one(trees: queue.Queue[Tree], mutation: Mutation, seeds: int, seconds: float) -> Found:
    tree = trees.get()
    try:
        with tree.holding(mutation) as directory:
            if mutation.tests:
                return run_tests(directory, mutation.tests, seconds)
            return run_probe(directory, mutation.world, seeds, seconds)
    finally:
        trees.put(tree)


def run_probe(directory: Path, world: str, seeds: int, seconds: float, first: int = _FIRST_SEED) -> Found:
    """Runs seeds with the sources of a directory, in a process of its own."""
    command = [sys.executable, "-m", "tests.simulation.mutations.probe", world, str(first), str(seeds), str(seconds)]
    try:
        ended = subprocess.run(
            command,
            cwd=directory,
            env=environment(directory),
            capture_output=True,
            text=True,
            timeout=seconds + 300,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Found(1, "hang", "a seed does not end")
    if ended.returncode != 0:
        return Found(1, "error", ended.stderr[-2000:])
    return Found(**json.loads(ended.stdout))


def _line(mutation: Mutation, found: Found) -> str:
    if found.invariant is None:
        expected = ", ".join(mutation.expected or mutation.tests)
        return f"MISSED  {mutation.name} in {found.seeds} seeds (expected {expected}) {found.problem}".rstrip()
    lines = found.problem.strip().splitlines() or [""]
    first = lines[-1 if found.invariant == "error" else 0][:160]
    after = "" if mutation.tests else f" after {found.seeds} seeds"
    return f"caught  {mutation.name}{after} by {found.invariant}: {first}"


if __name__ == "__main__":
    typer.run(main)
