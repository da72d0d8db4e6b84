"""Which metadata may take the place of others: none that name less of a ledger."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookgate.ledger.metadata import Fragment, LedgerMetadata
from bookgate.thinclient.commands.ledger_admin import difference, loss_of

OPEN = LedgerMetadata.new(["a", "b", "c"], 2, 2)
MOVED = replace(OPEN, fragments=(*OPEN.fragments, Fragment(10, ("a", "b", "d"))))


@pytest.mark.parametrize(
    ("present", "restored", "hint"),
    [
        (OPEN.close(9, 100), OPEN, "closed"),
        (MOVED, OPEN, "fragments"),
        (MOVED.close(20, 100), OPEN.close(20, 100), "fragments"),
        (OPEN.close(9, 100), OPEN.close(8, 90), "entry 9"),
    ],
)
def test_what_names_less_is_a_loss(present: LedgerMetadata, restored: LedgerMetadata, hint: str) -> None:
    assert hint in (loss_of(present, restored) or "")
    assert difference(present, restored)


@pytest.mark.parametrize(("present", "restored"), [(OPEN, MOVED), (OPEN, OPEN.close(9, 1)), (MOVED, MOVED)])
def test_what_names_as_much_is_none(present: LedgerMetadata, restored: LedgerMetadata) -> None:
    assert loss_of(present, restored) is None


def test_passwords_are_not_shown() -> None:
    lines = difference(OPEN, replace(OPEN, password=b"hidden"))
    assert lines == ["the password changes"]
