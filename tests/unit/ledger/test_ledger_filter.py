"""Which ledgers of a listing are wanted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookgate.ledger.ledger_filter import LedgerFilter
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata, LedgerState
from bookgate.ledger.metadata_store import LedgerRecord

OPEN = LedgerRecord(
    LedgerId.unscoped(1), LedgerMetadata.new(("a", "b"), 2, 2, custom_metadata={"owner": b"me"}, ctime_ms=1000), 0
)
CLOSED = replace(OPEN, metadata=OPEN.metadata.close(9, 500))
OLD = replace(OPEN, metadata=replace(OPEN.metadata, ctime_ms=None, custom_metadata={}))


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (LedgerFilter(), [OPEN, CLOSED, OLD]),
        (LedgerFilter(state=LedgerState.CLOSED), [CLOSED]),
        (LedgerFilter(bookie="b"), [OPEN, CLOSED, OLD]),
        (LedgerFilter(bookie="c"), []),
        (LedgerFilter(created_from_ms=1000), [OPEN, CLOSED]),
        (LedgerFilter(created_from_ms=1001), []),
        (LedgerFilter(created_before_ms=1001), [OPEN, CLOSED]),
        (LedgerFilter(created_before_ms=1000), []),
        (LedgerFilter(min_bytes=500), [CLOSED]),
        (LedgerFilter(min_bytes=501), []),
        (LedgerFilter(max_bytes=500), [CLOSED]),
        (LedgerFilter(max_bytes=499), []),
        (LedgerFilter(custom_metadata={"owner": None}), [OPEN, CLOSED]),
        (LedgerFilter(custom_metadata={"owner": b"me"}), [OPEN, CLOSED]),
        (LedgerFilter(custom_metadata={"owner": b"you"}), []),
        (LedgerFilter(state=LedgerState.OPEN, custom_metadata={"owner": b"me"}), [OPEN]),
    ],
)
def test_what_is_wanted(wanted: LedgerFilter, expected: list[LedgerRecord]) -> None:
    assert wanted.of([OPEN, CLOSED, OLD]) == expected
    assert wanted.takes_all is (wanted == LedgerFilter())
