"""What a worker and a repair that was given up leave in the store, for tests of what shows it."""

from __future__ import annotations

import json
from typing import Any

from bookgate.ledger.replication_progress import Amount, Danger, Endangered, Moving, OfBookie, WorkerProgress

LOSS: dict[str, Any] = {
    "entries": 3,
    "first_entries": [4, 5, 6],
    "end_is_lost": False,
    "lost_bookies": ["a:1"],
    "given_up_with": ["c:1"],
    "answers": {"a:1": "lost", "b:1": "lacks 3"},
    "found_ms": 7000,
}
_STORED = {**LOSS, "given_up_with": {"c:1": 6000}, "time_ms": LOSS["found_ms"]}
GIVEN_UP = json.dumps({name: value for name, value in _STORED.items() if name != "found_ms"}).encode()


def told_by_a_worker(now_ms: int) -> WorkerProgress:
    """Three ledgers, one of them under repair; 3,000 bytes at 10 a second are left."""
    return WorkerProgress(
        holder="worker7",
        time_ms=now_ms,
        entries=100,
        bytes=9000,
        entries_a_second=0.25,
        bytes_a_second=10.0,
        moving=[Moving(7, now_ms - 60_000, 10, 1000, 20, 2000, "worker7")],
        endangered=Endangered(
            began_ms=now_ms - 100_000,
            listed_ms=now_ms,
            classes={Danger.LAST_COPY: Amount(3, 40, 4000)},
            bookies=[OfBookie("a:1", 3, 1, 90.0)],
            oldest=(7, now_ms - 3_600_000),
            ledgers_a_minute=2.0,
            seconds_left=90.0,
        ),
    )
