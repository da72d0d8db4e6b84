"""Who created a ledger that a repeated create finds in place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookgate.ledger.creator import Creator, creator_of
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord

WANTED = replace(LedgerMetadata.new(["a", "b", "c"], 3, 2, password=b"p"), creator_token=5)


@pytest.mark.parametrize(
    ("version", "stored", "creator"),
    [
        (0, WANTED, Creator.SELF),
        (0, replace(WANTED, creator_token=6), Creator.ANOTHER),
        (1, replace(WANTED, creator_token=6), Creator.ANOTHER),
        (0, replace(WANTED, creator_token=0, format_version=2), Creator.UNKNOWN),
        (0, replace(WANTED, creator_token=0, custom_metadata={"k": b"v"}), Creator.ANOTHER),
        (1, WANTED.with_ensemble(3, ["d", "b", "c"]), Creator.UNKNOWN),
        (1, WANTED.close(7, 70), Creator.UNKNOWN),
        (2, replace(WANTED.close(7, 70), password=b"q"), Creator.ANOTHER),
        (2, replace(WANTED.close(7, 70), ack_quorum_size=3), Creator.ANOTHER),
    ],
)
def test_the_token_tells_and_once_it_is_gone_what_never_changes(
    version: int, stored: LedgerMetadata, creator: Creator
) -> None:
    assert creator_of(LedgerRecord(LedgerId.unscoped(7), stored, version), WANTED) is creator
