"""Lists of a ledger's entries, against BookKeeper's own bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from bookgate.ledger.entry_availability import decode_runs, encode_runs
from tests.conformance.golden import rows

ROWS = [row for row in rows("v3.jsonl", "response") if row["name"] == "get-list-of-entries"]


def runs(entries: Iterable[int]) -> Iterator[tuple[int, int]]:
    run: list[int] = []
    for entry in entries:
        if run and entry != run[-1] + 1:
            yield run[0], len(run)
            run = []
        run.append(entry)
    if run:
        yield run[0], len(run)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row["params"]["entries"]))
def test_lists_are_javas(row: dict[str, Any]) -> None:
    params = row["params"]
    assert encode_runs(runs(params["entries"])).hex() == params["availability"]
    decoded = [first + i for first, count in decode_runs(bytes.fromhex(params["availability"])) for i in range(count)]
    assert decoded == params["entries"]


def test_periodic_groups_are_read() -> None:
    group = (3).to_bytes(8, "big") + (11).to_bytes(8, "big") + (2).to_bytes(4, "big") + (4).to_bytes(4, "big")
    data = bytes(4) + (1).to_bytes(4, "big") + bytes(56) + group
    assert list(decode_runs(data)) == [(3, 2), (7, 2), (11, 2)]


@pytest.mark.parametrize("data", [b"", bytes(63), (1).to_bytes(4, "big") + bytes(60), bytes(7) + b"\1" + bytes(56)])
def test_damaged_lists_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="list of entries"):
        list(decode_runs(data))
