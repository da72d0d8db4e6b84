"""`python -m tests.explore`: explores every small world, on all cores, and prints how many states each has.

Ends with 0 when every rule held, with 1 when one did not; then the trace that breaks it is printed. A trace saved in a
file is followed again with `--replay`.
"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tests.explore.search import Found, replay
from tests.explore.stream_worlds import LARGE_STREAMS, StreamWorld
from tests.explore.worlds import LARGE, SmallWorld, explored

_console = Console(soft_wrap=True)
_ALL: list[SmallWorld | StreamWorld] = [*LARGE, *LARGE_STREAMS]


def main(
    only: Annotated[str, typer.Option(help="worlds with these words in their names")] = "",
    jobs: Annotated[int, typer.Option(help="processes; 0: one a core")] = 0,
    trace: Annotated[
        Path | None, typer.Option("--replay", help="a file with a trace, to follow in those worlds")
    ] = None,
) -> None:
    """Drives the protocol's cores through every interleaving of small worlds, and checks every invariant."""
    wanted = [small for small in _ALL if only in small.name]
    if not wanted:
        _console.print(f"no world is called {only}; there are: {', '.join(small.name for small in _ALL)}")
        raise typer.Exit(2)
    if trace is not None:
        raise typer.Exit(_replay(wanted, [line.strip() for line in trace.read_text().splitlines() if line.strip()]))
    found = _explore_all(wanted, jobs or os.cpu_count() or 1)
    _console.print(_table(wanted, found))
    broken = [(name, each) for name, (each, _) in found.items() if each.violation is not None]
    for name, each in broken:
        _console.print(f"\n{name}: {each.violation}", *each.trace, sep="\n  ", markup=False, highlight=False)
    raise typer.Exit(1 if broken else 0)


def _explore_all(wanted: list[SmallWorld | StreamWorld], jobs: int) -> dict[str, tuple[Found, int]]:
    found: dict[str, tuple[Found, int]] = {}
    # One world a process: what a world has met is of no use to another, and its memory is told by the process.
    with ProcessPoolExecutor(jobs, max_tasks_per_child=1) as pool:
        running = {pool.submit(explored, small): small.name for small in wanted}
        for ended in as_completed(running):
            found[running[ended]] = ended.result()
            _console.print(f"{running[ended]}: {ended.result()[0].states:,} states", highlight=False)
    return found


def _table(wanted: list[SmallWorld | StreamWorld], found: dict[str, tuple[Found, int]]) -> Table:
    table = Table("world", "states", "steps", "longest path", "CPU", "memory", "outcome")
    for small in wanted:
        each, memory = found[small.name]
        outcome = str(each.violation) if each.violation else "every state" if each.complete else "no bug so far"
        numbers = f"{each.states:,}", f"{each.steps:,}", f"{each.depth}", f"{each.seconds:.0f} s", f"{memory:,} MiB"
        table.add_row(small.name, *numbers, outcome)
    return table


def _replay(wanted: list[SmallWorld | StreamWorld], trace: list[str]) -> int:
    broken = 0
    for small in wanted:
        world, judge = small.build()
        taken, violation = replay(world, judge, trace)
        broken |= violation is not None
        _console.print(f"{small.name}: {len(taken)} of {len(trace)} steps, {violation or 'no rule broken'}")
    return broken


if __name__ == "__main__":
    typer.run(main)
