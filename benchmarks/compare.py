"""What moved between two commits: `make bench-compare BASE=<commit>` (HEAD=<commit>, BENCH=bookie,client, ROUNDS=3).

Runs the quick form of each benchmark on both commits in turn, from worktrees of their own, and says of which rows the
figures of all rounds lie apart: what moved less than the spread may be the machine. By chance alone that is so for a
third of the rows after two rounds, for a tenth after three, for one in 35 after four. CPU rows tell more than rates.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]

Rows = dict[str, list[float]]
"""Our figures by the row's name."""


@contextmanager
def _worktree(commit: str, directory: Path) -> Iterator[Path]:
    subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(directory), commit], cwd=ROOT, check=True)
    try:
        yield directory
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", str(directory)], cwd=ROOT, check=True)


def _measure(tree: Path, benchmark: str, rows: Rows) -> None:
    """One run; adds to `rows`."""
    environment = {**os.environ, "QUICK": "1", "PYTHONPATH": str(tree)}
    command = [sys.executable, "-m", f"benchmarks.{benchmark}"]
    # Where older commits write; what is in the repository is no figure of this run.
    places = [tree / place / f"{benchmark}.json" for place in ("build/benchmarks", "benchmarks/results")]
    for place in places:
        place.unlink(missing_ok=True)
    subprocess.run(command, cwd=tree, env=environment, check=True, stdout=subprocess.DEVNULL)
    written = next((place for place in places if place.exists()), None)
    if written is None:
        sys.exit(f"a quick run of {benchmark} writes no figures in {tree.name}: an older commit; compare later ones")
    for row in json.loads(written.read_text()):
        rows.setdefault(f"{row['name']} ({row['unit']})", []).append(row["ours"])


def verdict(base: list[float], head: list[float]) -> str:
    """`moved` where all figures of one side lie beyond all of the other's."""
    apart = max(base) < min(head) or max(head) < min(base)
    return "moved" if apart else ""


def main() -> None:
    base, head = os.environ.get("BASE"), os.environ.get("HEAD", "HEAD")
    if not base:
        sys.exit("say which commit to compare with: make bench-compare BASE=<commit>")
    benchmarks = os.environ.get("BENCH", "bookie,client").split(",")
    rounds = int(os.environ.get("ROUNDS", "3"))
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bookgate-compare-")))
        before = stack.enter_context(_worktree(base, directory / "base"))
        after = stack.enter_context(_worktree(head, directory / "head"))
        for benchmark in benchmarks:
            table = Table("figure", base, head, "ratio", "", title=f"{benchmark}: {rounds} rounds in turn")
            old: Rows = {}
            new: Rows = {}
            for _ in range(rounds):
                _measure(before, benchmark, old)
                _measure(after, benchmark, new)
            for name in [name for name in old if name in new]:
                ratio = median(new[name]) / median(old[name]) if median(old[name]) else 0.0
                moved = verdict(old[name], new[name])
                table.add_row(name, _figure(old[name]), _figure(new[name]), f"{ratio:.2f}", moved)
            Console().print(table)


def _figure(values: list[float]) -> str:
    return f"{median(values):,.2f} ({min(values):,.2f} to {max(values):,.2f})"


if __name__ == "__main__":
    main()
