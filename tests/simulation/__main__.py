"""`python -m tests.simulation`: many seeds on all cores, or one of them with a transcript.

Ends with 0 when every invariant held, with 1 when one did not.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import sys
import time
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from tests.simulation.kinds import WorldKind, plan_of, run_one
from tests.simulation.outcome import Outcome
from tests.simulation.plan import Plan
from tests.simulation.seeds import Summary, outcomes
from tests.simulation.shrink import keep_option, kept, shrink

_console = Console(soft_wrap=True)
_MOST_SHOWN = 5


def main(
    seeds: Annotated[int, typer.Option(help="how many seeds to run")] = 200,
    first: Annotated[int, typer.Option(help="the first of them; 0: any")] = 0,
    seed: Annotated[int | None, typer.Option(help="run this one only, with its transcript")] = None,
    keep: Annotated[str, typer.Option(help="parts of that seed's plan to keep, as a shrunk plan is printed")] = "",
    world: Annotated[
        WorldKind,
        typer.Option(
            help="small: short, with few writers, many a second; repair: small, with auto-recovery; "
            "peers: the same over ZooKeeper, beside BookKeeper's; "
            "metadata: gateways and ZooKeeper alone; access: the same under a policy; "
            "unbounded: clients that fight for one unbounded ledger; "
            "streams: one stream, its writers, cursors, retention and collection"
        ),
    ] = WorldKind.LARGE,
    jobs: Annotated[int, typer.Option(help="processes; 0: one a core")] = 0,
    shrinking: Annotated[bool, typer.Option("--shrink/--no-shrink", help="look for smaller plans that fail")] = True,
    quiet: Annotated[bool, typer.Option("--quiet", help="no transcript")] = False,
) -> None:
    """Runs the whole protocol in a simulated world, from seeds, and checks every invariant."""
    if seed is not None:
        raise typer.Exit(_replay(seed, world, keep, quiet=quiet))
    first = first or random.SystemRandom().randrange(1, 1 << 31)
    began = time.monotonic()
    summary = _run_all(first, seeds, jobs or os.cpu_count() or 1, world)
    _console.print(_table(summary, world, first, time.monotonic() - began))
    for outcome in summary.failed[:_MOST_SHOWN]:
        _show(outcome, world, shrinking=shrinking)
    if len(summary.failed) > _MOST_SHOWN:
        others = ", ".join(str(outcome.seed) for outcome in summary.failed[_MOST_SHOWN:])
        _console.print(f"more seeds that fail: {others}")
    raise typer.Exit(1 if summary.failed else 0)


def _replay(seed: int, kind: WorldKind, keep: str, *, quiet: bool) -> int:
    """With a readable transcript."""
    plan = plan_of(kind, seed)
    if keep:
        if plan is None:
            raise typer.BadParameter(f"worlds of {kind} have no plan of which parts could be kept", param_hint="--keep")
        plan = kept(plan, keep)
    if plan is not None:
        _console.print(str(plan), markup=False, highlight=False)
    outcome = run_one(kind, seed, plan, transcript=not quiet, on_line=None if quiet else _say)
    checks = ", ".join(f"{invariant} {count}" for invariant, count in sorted(outcome.looked.items()) if count)
    _console.print(f"{outcome.operations} operations in {outcome.simulated_seconds:.1f} simulated seconds")
    _console.print(f"checked: {checks}")
    _console.print(outcome.problem or "every invariant holds", markup=False, style="red" if outcome.failed else "green")
    return 1 if outcome.failed else 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def _run_all(first: int, count: int, jobs: int, kind: WorldKind) -> Summary:
    summary = Summary()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=_console, transient=True) as progress:
        bar = progress.add_task("seeds", total=count)
        with contextlib.suppress(KeyboardInterrupt):
            for outcome in outcomes(range(first, first + count), jobs, kind):
                summary.add(outcome)
                progress.update(bar, advance=1, description=f"seeds, {len(summary.failed)} failed")
                if outcome.failed:
                    progress.console.print(f"seed {outcome.seed}: {outcome.invariant}")
    summary.failed.sort(key=lambda outcome: outcome.seed)
    return summary


def _table(summary: Summary, kind: WorldKind, first: int, seconds: float) -> Table:
    table = Table(box=None, show_header=False)
    hours = summary.simulated_seconds / 3600
    a_second = summary.operations / max(summary.core_seconds, 1e-9)
    table.add_row("seeds", f"{summary.seeds} from {first} on, {len(summary.failed)} failed, {seconds:.0f} s")
    table.add_row("simulated", f"{hours:.1f} hours, {summary.operations} operations, {a_second:.0f} a second a core")
    table.add_row("a seed", f"{summary.core_seconds / max(summary.seeds, 1):.3f} core-seconds")
    table.add_row("faults", ", ".join(f"{kind} {count}" for kind, count in summary.faults.most_common()))
    table.add_row("checks", ", ".join(f"{each} {summary.looked[each]}" for each in kind.invariants))
    never = [each for each in kind.invariants if not summary.looked[each]]
    if never:
        table.add_row("never put to the test", ", ".join(never))
    return table


def _show(outcome: Outcome, kind: WorldKind, *, shrinking: bool) -> None:
    _console.print(f"\nseed {outcome.seed}", style="red")
    _console.print(outcome.problem, markup=False, highlight=False)
    plan = outcome.plan if shrinking else None
    if plan is not None:
        plan = shrink(plan, lambda smaller: run_one(kind, outcome.seed, smaller).invariant == outcome.invariant)
    _console.print(f"replay it with: {replay_command(kind, outcome.seed, plan)}", highlight=False)


def replay_command(kind: WorldKind, seed: int, plan: Plan | None = None) -> str:
    """What runs the seed again, or of its plan the parts that `plan` has left."""
    world = "" if kind is WorldKind.LARGE else f" --world {kind}"
    keep = f" --keep {keep_option(plan)}" if plan is not None else ""
    return f"python -m tests.simulation --seed {seed}{world}{keep}"


if __name__ == "__main__":
    logging.getLogger().addHandler(logging.NullHandler())
    typer.run(main)
