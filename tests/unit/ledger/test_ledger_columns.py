"""Columns of ledgers are a sequence of records, and refuse what is none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bookgate.ledger.ledger_columns import NOT_KNOWN, LedgerColumns
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord

OPEN = LedgerMetadata.new(("a:1", "b:1"), 2, 1, ctime_ms=0)
CLOSED = LedgerMetadata.new(("b:1", "c:1"), 2, 2, custom_metadata={"app": b"orders"}).close(0, 0)

COLUMNS: dict[str, Any] = {
    "scope_id": 5,
    "templates": (CLOSED, OPEN),
    "template_of": [0, 1, 0],
    "ledger_ids": [3, 7, -1],
    "versions": [2, 0, 4],
    "last_entry_ids": [9, -1, 0],
    "lengths": [1000, 0, 10],
    "ctimes_ms": [1, 2, 3],
    "creator_tokens": [0, 8, 0],
    "created_ms": [NOT_KNOWN, 6, 0],
}
RECORDS = [
    LedgerRecord(LedgerId(5, 3), replace(CLOSED, last_entry_id=9, length=1000), 2),
    LedgerRecord(LedgerId(5, 7), replace(OPEN, ctime_ms=2, creator_token=8), 0, 6),
    LedgerRecord(LedgerId(5, -1), replace(CLOSED, last_entry_id=0, length=10), 4, 0),
]


def test_they_are_a_sequence_of_records() -> None:
    columns = LedgerColumns(**COLUMNS)
    assert list(columns) == RECORDS
    assert [each.created_ms for each in columns] == [None, 6, 0]
    assert [columns[index] for index in range(-3, 3)] == RECORDS * 2
    assert columns[1:] == RECORDS[1:]
    assert (len(columns), RECORDS[1] in columns, columns.index(RECORDS[2])) == (3, True, 2)
    with pytest.raises(IndexError):
        columns[3]


@pytest.mark.parametrize(
    ("column", "values", "told"),
    [
        ("versions", [1, 2], r"different lengths: \[2, 3\]"),
        ("template_of", [0, 1, 2], "a template that is none of 2"),
        ("template_of", [0, 1, -1], "a template that is none of 2"),
        ("last_entry_ids", [0, -2, 0], "out of range"),
        ("lengths", [0, 0, -1], "out of range"),
    ],
)
def test_what_are_no_ledgers_is_refused(column: str, values: list[int], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        LedgerColumns(**{**COLUMNS, column: values})


def test_an_id_without_a_scope_is_not_negative() -> None:
    with pytest.raises(ValueError, match="negative"):
        LedgerColumns(**{**COLUMNS, "scope_id": 0})
