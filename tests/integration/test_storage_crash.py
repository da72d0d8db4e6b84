"""A storage process killed with SIGKILL while it appends: whatever it reported as durable is there afterwards."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from bookgate.ledger.ledger_id import LedgerId
from tests.unit.bookie.storage.storage_support import opened, packet

LEDGERS = 7

WRITER = """
import sys, itertools
from pathlib import Path
from tests.unit.bookie.storage.storage_support import KEY, OpenStorage, packet

def report(tokens):
    for kind, number, entry_id in tokens:
        sys.stdout.write(f"{kind} {number} {entry_id}\\n")
    sys.stdout.flush()
    bookie.acks.durable(tokens)

root, ledgers = Path(sys.argv[1]), int(sys.argv[2])
bookie = OpenStorage(root, journal_max_size_bytes=300_000, write_cache_bytes=200_000, entry_log_max_bytes=150_000)
bookie.acks.on_stored = report
starts = [bookie.storage.reader.last_entry_id(bookie.ledger(number)) + 1 for number in range(ledgers)]
for step in itertools.count():
    for number in range(ledgers):
        entry_id = starts[number] + step
        size = 20 + (entry_id * 37) % 700
        token = ("entry", number, entry_id)
        bookie.writer.add_entry(bookie.ledger(number), entry_id, packet(number, entry_id, size), token)
    if step % 50 == 10:
        fenced = 1000 + starts[0] + step
        bookie.writer.fence(bookie.ledger(fenced), ("fence", fenced, 0))
    if step % 20 == 19:
        bookie.acks.wait_for(("entry", ledgers - 1, starts[-1] + step))
"""


def run_and_kill(root: Path, lines: int) -> list[tuple[str, int, int]]:
    """Starts a writer, kills it after it reported that many requests, and returns everything it had reported."""
    command = [sys.executable, "-c", WRITER, str(root), str(LEDGERS)]
    project = Path(__file__).parents[2]
    with subprocess.Popen(command, cwd=project, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        reported = [process.stdout.readline() for _ in range(lines)]
        process.send_signal(signal.SIGKILL)
        reported += process.stdout.readlines()
    assert process.returncode == -signal.SIGKILL, reported
    whole = [line.split() for line in reported if line.endswith("\n")]
    return [(kind, int(number), int(entry_id)) for kind, number, entry_id in whole]


@pytest.mark.timeout(600)
def test_nothing_reported_is_lost_over_repeated_kills(tmp_path: Path) -> None:
    entries: dict[int, set[int]] = defaultdict(set)
    fenced: set[int] = set()
    for lines in (1, 700, 4000):
        for kind, number, entry_id in run_and_kill(tmp_path, lines):
            if kind == "entry":
                entries[number].add(entry_id)
            else:
                fenced.add(number)
        with opened(tmp_path) as bookie:
            for number, entry_ids in entries.items():
                ledger = bookie.storage.ledgers.get(LedgerId.unscoped(number))
                assert ledger is not None
                for entry_id in entry_ids:
                    expected = packet(number, entry_id, 20 + (entry_id * 37) % 700)
                    assert bookie.storage.reader.read_entry(ledger, entry_id) == expected
            assert all(bookie.ledger(number).fenced for number in fenced)
    assert sum(map(len, entries.values())) > 4000
    assert fenced
