"""What BookKeeper's auto-recovery keeps in ZooKeeper: its nodes are read, and ours have the same names and bytes.

The nodes are of a cluster that lost two of four bookies: two candidates with all periodic checks, then switch and
delay by the shell.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from bookgate.gateway.stores.zookeeper.replication_paths import ReplicationPaths
from bookgate.ledger.errors import IncorrectParameterException
from bookgate.ledger.replication import (
    LAYOUT,
    MOST_DELAY_SECONDS,
    PeriodicCheck,
    UnderreplicatedLedger,
    decode_delay,
    decode_lock,
    decode_vote,
    encode_delay,
    encode_lock,
    encode_vote,
    ledger_id_of_mark,
)
from tests.conformance.golden import rows

PATHS = ReplicationPaths("/ledgers")
NODES = rows("auto_recovery_znodes.jsonl")


def nodes(pattern: str) -> list[dict[str, Any]]:
    """The nodes below the tree whose whole path matches."""
    found = [
        {**row, "data": bytes.fromhex(row["hex"])} for row in NODES if re.fullmatch(PATHS.base + pattern, row["path"])
    ]
    assert found, pattern
    return found


def test_marks() -> None:
    """Of one lost bookie, and of two."""
    replicas = set()
    for row in nodes("/ledgers/.*/urL.*"):
        ledger_id = ledger_id_of_mark(row["path"].rpartition("/")[2])
        assert ledger_id is not None
        assert PATHS.mark(ledger_id) == row["path"]
        mark = UnderreplicatedLedger.decode(ledger_id, row["data"])
        assert mark.damaged is None
        assert mark.ctime_ms is not None
        assert mark.encode() == row["data"]
        replicas.add(len(mark.replicas))
    assert replicas == {1, 2}


def test_locks() -> None:
    for row in nodes("/locks/.*"):
        ledger_id = ledger_id_of_mark(row["path"].rpartition("/")[2])
        assert ledger_id is not None
        assert PATHS.lock(ledger_id) == row["path"]
        assert encode_lock(decode_lock(row["data"])) == row["data"]
        assert decode_lock(row["data"])
        assert row["ephemeral"]
        assert row["version"] == 0, "by which a lock of BookKeeper's is known"


def test_votes() -> None:
    votes = nodes("/auditorelection/V_[0-9]{10}")
    assert all(row["ephemeral"] for row in votes)
    assert len({decode_vote(row["data"]) for row in votes}) == 2
    for row in votes + nodes("/auditorelection"):
        assert encode_vote(decode_vote(row["data"])) == row["data"] or not row["data"]


@pytest.mark.parametrize("check", PeriodicCheck)
def test_times_of_checks(check: PeriodicCheck) -> None:
    for row in nodes(f"/{check.value}"):
        assert PATHS.check(check) == row["path"]
        time_ms = check.decode(row["data"])
        assert time_ms is not None
        assert time_ms > 1_700_000_000_000
        assert check.encode(time_ms) == row["data"]


def test_switch_delay_and_layout() -> None:
    assert [row["data"] for row in nodes("/LAYOUT")] == [LAYOUT]
    assert [row["path"] for row in nodes("/disable")] == [PATHS.disable]
    delays = [row["data"] for row in nodes("/lostBookieRecoveryDelay")]
    assert [decode_delay(data) for data in delays] == [0, 180]
    assert [encode_delay(decode_delay(data)) for data in delays] == delays


def test_a_delay_that_bookkeeper_can_not_read_is_refused() -> None:
    """It has 32 bits there."""
    assert encode_delay(MOST_DELAY_SECONDS) == b"2147483647"
    for seconds in (-1, MOST_DELAY_SECONDS + 1):
        with pytest.raises(IncorrectParameterException):
            encode_delay(seconds)
