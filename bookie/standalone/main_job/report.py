"""How the main job talks: progress while it works, a table and a summary at the end, or one JSON document.

On a terminal progress is drawn as bars; elsewhere a line at the beginning and at the end of each stage. With JSON the
document is all there is on standard output, and progress goes to standard error.
"""

from __future__ import annotations

import csv
import io
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bookgate.bookie.standalone.main_job.text import TextStatistics
from bookgate.ledger.ledger_id import LedgerId
from bookgate.runtime.replaced_files import replace_file

_MEGABYTE = 1_000_000

Update = Callable[[int, int], None]
"""Takes what is done and what there is in all."""


@dataclass(frozen=True, slots=True)
class LedgerResult:
    """A row of the result: what the Spark job counted of a ledger, None if it is not in its result."""

    ledger_id: LedgerId
    name: str
    counted: TextStatistics | None
    difference: str = ""


@dataclass(slots=True)
class Stage:
    """How long a part of the run took, and how much went through."""

    name: str
    entries: int = 0
    bytes: int = 0
    seconds: float = 0.0

    @property
    def entries_per_second(self) -> float:
        return self.entries / self.seconds if self.seconds else 0.0

    @property
    def megabytes_per_second(self) -> float:
        return self.bytes / _MEGABYTE / self.seconds if self.seconds else 0.0

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "entries": self.entries,
            "bytes": self.bytes,
            "seconds": round(self.seconds, 3),
            "entries_per_second": round(self.entries_per_second, 1),
            "mb_per_second": round(self.megabytes_per_second, 3),
        }


@dataclass(slots=True)
class Outcome:
    """Everything a run found."""

    input: str
    metadata: str
    binary: int
    unreadable: int
    ledgers: list[LedgerResult] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)

    @property
    def differing(self) -> list[LedgerResult]:
        return [ledger for ledger in self.ledgers if ledger.difference]

    @property
    def equal(self) -> bool:
        return not self.differing

    @property
    def totals(self) -> TextStatistics:
        """Sums over the ledgers; the longest line of all."""
        counted = [ledger.counted for ledger in self.ledgers if ledger.counted]
        return TextStatistics(
            sum(statistics.entries for statistics in counted),
            sum(statistics.bytes for statistics in counted),
            sum(statistics.distinct_words for statistics in counted),
            max((statistics.longest_line for statistics in counted), default=0),
        )

    def as_json(self) -> dict[str, object]:
        return {
            "input": self.input,
            "metadata": self.metadata,
            "equal": self.equal,
            "ledgers": [_row(ledger) for ledger in self.ledgers],
            "totals": asdict(self.totals),
            "stages": [stage.as_json() for stage in self.stages],
            "left_out": {"binary": self.binary, "unreadable": self.unreadable},
            "differences": [
                {"ledger_id": str(ledger.ledger_id), "name": ledger.name, "difference": ledger.difference}
                for ledger in self.differing
            ],
        }


def _row(ledger: LedgerResult) -> dict[str, object]:
    statistics = asdict(ledger.counted) if ledger.counted else {}
    return {"ledger_id": str(ledger.ledger_id), "name": ledger.name, **statistics}


class Report:
    """Where a run tells of itself."""

    def __init__(self, as_json: bool = False, console: Console | None = None) -> None:
        self._as_json = as_json
        self._console = console or Console(stderr=as_json, highlight=False)

    def say(self, line: str) -> None:
        self._console.print(line, markup=False, soft_wrap=True)

    @contextmanager
    def stage(self, stage: Stage, unit: str, total: int = 0) -> Iterator[Update]:
        """Shows a stage while the block runs, and takes its time. The update may be called from any thread."""
        started = time.monotonic()
        try:
            if self._console.is_terminal:
                with self._bars() as bars:
                    task = bars.add_task(stage.name, total=total or None, unit=unit)
                    yield lambda done, of: bars.update(task, completed=done, total=of or None)
            else:
                self.say(f"{stage.name} …")
                yield lambda _done, _of: None
        finally:
            stage.seconds = time.monotonic() - started
        if not self._console.is_terminal:
            self.say(f"{stage.name}: done in {stage.seconds:.1f} s")

    def _bars(self) -> Progress:
        return Progress(
            TextColumn("{task.description:<28}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]}"),
            TimeElapsedColumn(),
            console=self._console,
        )

    def finish(self, outcome: Outcome, top: int) -> None:
        """The result: a table of the `top` ledgers with most entries, the summary, and what differs."""
        if self._as_json:
            print(json.dumps(outcome.as_json()), file=sys.stdout, flush=True)
        else:
            self._console.print(_table(outcome, top))
            for line in _summary(outcome):
                self.say(line)
        for ledger in outcome.differing:
            self.say(f"DIFFERS: ledger {ledger.ledger_id} ({ledger.name}): {ledger.difference}")
        if outcome.equal:
            self.say(
                f"Equal: {len(outcome.ledgers):,} ledgers give in Spark what a plain read of {outcome.input} gives."
            )


def _table(outcome: Outcome, top: int) -> Table:
    ordered = sorted(outcome.ledgers, key=lambda ledger: -(ledger.counted or TextStatistics()).entries)
    shown = ordered[:top]
    table = Table(title=f"{len(shown)} of {len(ordered)} ledgers, by entries" if len(shown) < len(ordered) else None)
    for heading in ("ledger", "name"):
        table.add_column(heading)
    for heading in ("entries", "bytes", "distinct words", "longest line"):
        table.add_column(heading, justify="right")
    for ledger in shown:
        table.add_row(
            str(ledger.ledger_id), escape(ledger.name), *_figures(ledger.counted), style="red" * bool(ledger.difference)
        )
    table.add_section()
    table.add_row("all", f"{len(ordered)} ledgers", *_figures(outcome.totals))
    return table


def _figures(statistics: TextStatistics | None) -> list[str]:
    if statistics is None:
        return ["–"] * 4
    return [
        f"{figure:,}"
        for figure in (statistics.entries, statistics.bytes, statistics.distinct_words, statistics.longest_line)
    ]


def _summary(outcome: Outcome) -> Iterator[str]:
    for stage in outcome.stages:
        rates = ""
        if stage.entries:
            rates = (
                f"  {stage.entries:>11,} entries  {stage.bytes / _MEGABYTE:>8.1f} MB"
                f"  {stage.entries_per_second:>9,.0f} entries/s  {stage.megabytes_per_second:>6.2f} MB/s"
            )
        yield f"{stage.name:<26}{stage.seconds:>7.1f} s{rates}"
    if outcome.binary or outcome.unreadable:
        yield f"Left out: {outcome.binary} binary files, {outcome.unreadable} that could not be read."


def write_table(path: Path, ledgers: Sequence[LedgerResult]) -> None:
    """The whole table as CSV."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(["ledger_id", "name", "entries", "bytes", "distinct_words", "longest_line"])
    for ledger in ledgers:
        figures = asdict(ledger.counted).values() if ledger.counted else [""] * 4
        writer.writerow([str(ledger.ledger_id), ledger.name, *figures])
    replace_file(path, text.getvalue().encode(), 0o644)
