"""A bookie under load, killed with SIGKILL again and again: every acknowledged entry, fence and LAC is there again.

`BOOKGATE_CRASH_RUNS` sets the number of kills, `BOOKGATE_CRASH_SEED` the seed; a failure names the seed.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from tests.integration.bookie.entry_client import EntryClient
from tests.integration.bookie.forked_bookie import ForkedBookie
from tests.integration.bookie.kill_load import KillLoad

RUNS = int(os.environ.get("BOOKGATE_CRASH_RUNS", "50"))
SEED = int(os.environ.get("BOOKGATE_CRASH_SEED", str(random.SystemRandom().randrange(1 << 31))))

# Small, so that rolls, checkpoints and replays are always under way.
SMALL = {"journal_max_size_mb": 1, "entry_log_max_mb": 1, "write_cache_mb": 1, "flush_interval_seconds": 0.03}


def several_directories(root: Path) -> dict[str, object]:
    """Two journals, and the index in RocksDB beside each of two ledger directories."""
    return {
        "storage_type": "db",
        "journal_directories": (root / "journal-a", root / "journal-b"),
        "ledger_directories": (root / "ledgers-a", root / "ledgers-b"),
    }


@pytest.mark.long
@pytest.mark.timeout(120 + 15 * RUNS)
def test_nothing_acknowledged_is_lost_over_many_kills(tmp_path: Path) -> None:
    kill_again_and_again(ForkedBookie(tmp_path, **SMALL), RUNS)


@pytest.mark.long
@pytest.mark.timeout(120 + 15 * RUNS)
def test_nothing_acknowledged_is_lost_with_rocksdb_and_several_directories(tmp_path: Path) -> None:
    kill_again_and_again(ForkedBookie(tmp_path, **SMALL, **several_directories(tmp_path)), max(5, RUNS // 5))


def kill_again_and_again(bookie: ForkedBookie, runs: int) -> None:
    print(f"replay with BOOKGATE_CRASH_SEED={SEED} BOOKGATE_CRASH_RUNS={RUNS}")
    load = KillLoad(SEED)
    for run in range(runs):
        bookie.start()
        if run % 5 == 4:
            # Somewhere in the start: opening, replaying, flushing, registering.
            time.sleep(load.random.uniform(0, 0.3))
            bookie.kill()
            continue
        bookie.wait_until_serving()
        with EntryClient(bookie.address) as client:
            load.verify(client)
            load.run(client, load.random.choice((1, 50, 300, 600, 1000, 2000)), bookie.kill)
    bookie.start()
    bookie.wait_until_serving()
    with EntryClient(bookie.address) as client:
        load.verify(client, everything=True)
    bookie.stop()
    assert load.acknowledged > 20 * runs  # some kills come at the first add, or at the start
    assert sum(known.fenced for known in load.known.values()) > runs
