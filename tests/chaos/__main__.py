"""`python -m tests.chaos`: a cluster of real processes under faults, its clients' histories checked."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.chaos.run import ChaosOutcome, run_rounds

_console = Console()


def main(
    minutes: Annotated[float, typer.Option(help="how long; the last round is finished")] = 5.0,
    seed: Annotated[int, typer.Option(help="0: any")] = 0,
    round_seconds: Annotated[float, typer.Option(help="of the faults of a round")] = 20.0,
) -> None:
    """Ends with 1 when an invariant did not hold; the history of that round is kept then."""
    seed = seed or random.randrange(1, 1_000_000)
    root = Path(tempfile.mkdtemp(prefix="bookgate-chaos-"))
    _console.print(f"seed {seed}; directories below {root}")
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=_console, transient=True) as progress:
        bar = progress.add_task("round 1", total=minutes * 60)

        def report(outcome: ChaosOutcome) -> None:
            acknowledged = f"{outcome.acknowledged} appends acknowledged"
            progress.update(bar, description=f"round {outcome.rounds + 1}, {acknowledged}", advance=round_seconds)

        outcome = asyncio.run(run_rounds(root, seed, minutes * 60, round_seconds, report))
    _console.print(_summary(outcome))
    for violation in outcome.violations:
        _console.print(str(violation), markup=False, style="red")
    if outcome.violations:
        _console.print(f"history: {outcome.kept}; logs of the processes beside it")
        raise typer.Exit(1)
    shutil.rmtree(root, ignore_errors=True)


def _summary(outcome: ChaosOutcome) -> Table:
    table = Table(box=None, show_header=False)
    table.add_row("rounds", str(outcome.rounds))
    table.add_row("operations", f"{outcome.operations}, {outcome.acknowledged} appends acknowledged")
    table.add_row("faults", f"{_counts(outcome.faults)}, connections cut {outcome.cuts}")
    table.add_row("checks", _counts(outcome.looked))
    table.add_row("invariants", "all hold" if not outcome.violations else f"{len(outcome.violations)} broken")
    return table


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counter.items() if count)


if __name__ == "__main__":
    # Connections that gateways give up are what is wanted here.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    typer.run(main)
