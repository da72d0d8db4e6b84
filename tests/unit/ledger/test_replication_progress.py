"""What the workers' records amount to together."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from bookgate.ledger.replication_progress import (
    Amount,
    Danger,
    Endangered,
    Moving,
    OfBookie,
    WorkerProgress,
    decode,
    encode,
    together,
)

NOW = 1_700_000_000_000
CLASSES = {Danger.LAST_COPY: Amount(2, 30, 3000), Danger.UNRECOVERABLE: Amount(5, 50, 5000)}


def seen(*, began_ms: int = NOW - 9000, listed_ms: int = NOW, classes: Mapping[Danger, Amount] = CLASSES) -> Endangered:
    return Endangered(began_ms, listed_ms, classes, [OfBookie("a:1", 2, 1, None)], (7, NOW - 5000), 2.0, 60.0)


def worker(
    holder: str,
    endangered: Endangered | None,
    *moving: Moving,
    time_ms: int = NOW,
    bytes_a_second: float = 10.0,
) -> WorkerProgress:
    return WorkerProgress(holder, time_ms, 10, 1000, 1.0, bytes_a_second, list(moving), endangered)


def moved(ledger_id: int, size: int, holder: str = "w") -> Moving:
    return Moving(ledger_id, NOW - 1000, size // 100, size, 20, 2000, holder)


@pytest.mark.parametrize("told", [worker("w", seen(), moved(7, 500), moved(9, 100)), worker("w", None)])
def test_a_record_says_what_was_told(told: WorkerProgress) -> None:
    assert decode(encode(told)) == told


@pytest.mark.parametrize(
    "record",
    [b"", b"{", b"[]", b"7", b"{}", b"null", b"\xff", b'{"moving": [], "endangered": null}', b'{"moving": 7}'],
)
def test_what_can_not_be_read_tells_nothing(record: bytes) -> None:
    assert decode(record) is None


def test_a_class_of_a_later_version_is_not_understood() -> None:
    told = json.loads(encode(worker("w", seen())))
    told["endangered"]["classes"] = {"other": {"ledgers": 1, "entries": 1, "bytes": 1}}
    assert decode(json.dumps(told).encode()) is None


def test_rates_and_repairs_are_those_of_all_and_what_is_endangered_that_of_one() -> None:
    first = worker("first", seen(), moved(9, 500, "first"))
    second = worker("second", seen(began_ms=NOW - 100), moved(7, 300, "second"), bytes_a_second=30.0)
    told = together([second, first], NOW)
    assert (told.workers, told.bytes_a_second, told.entries_a_second) == (2, 40.0, 2.0)
    assert [(each.ledger_id, each.holder) for each in told.moving] == [(7, "second"), (9, "first")]
    assert told.endangered == first.endangered, "it has counted longer"
    # The unrecoverable ones are not waited for; what was copied already is counted off.
    assert told.left == Amount(2, 30 - 8, 3000 - 800)
    assert told.seconds_left == 60.0, "by the ledgers, which is longer than by the bytes"
    slow = together([replace(first, bytes_a_second=1.0)], NOW)
    assert slow.seconds_left == 2500.0


def test_more_is_copied_than_was_due_and_nothing_is_left() -> None:
    assert together([worker("w", seen(), moved(7, 9000))], NOW).left == Amount(2, 0, 0)


def test_a_process_that_is_gone_counts_no_more() -> None:
    gone = worker("gone", seen(), moved(7, 100), time_ms=NOW - 120_000)
    told = together([gone], NOW)
    assert (told.workers, told.moving, told.endangered, told.left) == (0, [], None, Amount())
    assert told.seconds_left is None
    assert together([replace(gone, time_ms=NOW - 119_999)], NOW).workers == 1


@pytest.mark.parametrize(("behind_ms", "counts"), [(60_000, True), (60_001, False)])
def test_an_old_listing_does_not_count_beside_a_newer_one(behind_ms: int, counts: bool) -> None:
    old, new = seen(listed_ms=NOW - behind_ms), seen(began_ms=NOW - 1)
    told = together([worker("old", old), worker("new", new)], NOW)
    assert told.endangered == (old if counts else new)
