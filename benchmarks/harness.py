"""Runs ours and a peer alternately, and reports medians, spreads and ratios.

Machines are noisy, so a figure is never quoted alone: each row holds at least five pairs, run one after the other, and
the ratio is the median of the pairs' ratios. A figure that was recorded elsewhere is no peer. `QUICK=1` keeps a run
under a minute. Results are written to `benchmarks/results/<name>.json`, one object a row; those of full runs are also
kept, with their date and commit, in `benchmarks/results/history/<name>.jsonl`.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

QUICK = os.environ.get("QUICK") == "1"
PAIRS = 3 if QUICK else 5
RESULTS = Path(__file__).parent / "results"
PASSING = Path(__file__).parents[1] / "build" / "benchmarks"
"""Results that are not kept in the repository: of quick runs, and of runs of a part."""


@dataclass(frozen=True)
class Row:
    """One comparison. `ratio` is ours over the peer; spreads are least and greatest."""

    name: str
    unit: str
    ours: float
    ours_spread: tuple[float, float]
    peer: float
    peer_spread: tuple[float, float]
    peer_name: str
    ratio: float
    higher_is_better: bool = True


def compare(
    name: str,
    unit: str,
    ours: Callable[[], float],
    peer: Callable[[], float],
    peer_name: str,
    *,
    higher_is_better: bool = True,
    pairs: int = PAIRS,
) -> Row:
    """Measures both in turn after one warm-up each."""
    ours(), peer()
    figures = [(ours(), peer()) for _ in range(pairs)]
    return _row(name, unit, [pair[0] for pair in figures], [pair[1] for pair in figures], peer_name, higher_is_better)


def compare_once(
    name: str,
    unit: str,
    ours: Callable[[], float],
    peer: Callable[[], float],
    peer_name: str,
    *,
    higher_is_better: bool = True,
) -> Row:
    """One pair without a warm-up: for counts, for memory, and for what is only there the first time."""
    return _row(name, unit, [ours()], [peer()], peer_name, higher_is_better)


def figures(
    name: str, unit: str, ours: Sequence[float], peer: Sequence[float], peer_name: str, *, up: bool = True
) -> Row:
    """A row from figures that were taken elsewhere, in pairs; `up` says whether more is better."""
    return _row(name, unit, ours, peer, peer_name, up)


def _row(
    name: str, unit: str, ours: Sequence[float], peer: Sequence[float], peer_name: str, higher_is_better: bool
) -> Row:
    ratio = median(a / b if b else 0.0 for a, b in zip(ours, peer, strict=True))
    spreads = (min(ours), max(ours)), (min(peer), max(peer))
    return Row(name, unit, median(ours), spreads[0], median(peer), spreads[1], peer_name, ratio, higher_is_better)


def measured(row: Row) -> Row:
    """Tells a row at once, since a run may be long or may be ended; returns it."""
    print(f"{row.name}: {row.ours:,.6g} {row.unit}, {row.peer_name} {row.peer:,.6g}, ratio {row.ratio:.2f}", flush=True)
    return row


def report(name: str, rows: Sequence[Row], *, whole: bool = True) -> None:
    """Prints a table and writes the JSON file. `whole`: the run had all parts of the benchmark."""
    table = Table("load", "unit", "ours", "peer", "", "ratio", title=name)
    for row in rows:
        table.add_row(
            row.name,
            row.unit,
            _figure(row.ours, row.ours_spread),
            _figure(row.peer, row.peer_spread),
            row.peer_name,
            f"{row.ratio:.2f}",
        )
    Console().print(table)
    results = [asdict(row) for row in rows]
    kept = whole and not QUICK
    directory = RESULTS if kept else PASSING
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.json"
    path.write_text(json.dumps(results, indent=2) + "\n")
    print(f"written to {path}")
    if kept:
        _keep(name, results)


def _keep(name: str, results: Sequence[dict[str, object]]) -> None:
    """Adds a line to the history: what a full run gave, when, and of which commit."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=RESULTS, capture_output=True, text=True, check=False
    )
    run = {"date": date.today().isoformat(), "commit": described.stdout.strip(), "rows": results}
    history = RESULTS / "history"
    history.mkdir(exist_ok=True)
    with (history / f"{name}.jsonl").open("a") as file:
        file.write(json.dumps(run) + "\n")


def _figure(middle: float, spread: tuple[float, float]) -> str:
    digits = 0 if middle >= 100 else 2
    if spread[0] == spread[1]:
        return f"{middle:,.{digits}f}"
    return f"{middle:,.{digits}f} ({spread[0]:,.{digits}f} to {spread[1]:,.{digits}f})"
