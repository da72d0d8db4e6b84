"""The legal transitions of ledger metadata (P5, P6)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookgate.ledger.errors import IncorrectParameterException
from bookgate.ledger.metadata import Fragment, LedgerMetadata, LedgerState

BOOKIES = ("a:1", "b:1", "c:1")
FRESH = LedgerMetadata.new(BOOKIES, 3, 2, password=b"secret")


def test_a_new_ledger_is_open_at_entry_0() -> None:
    assert FRESH.state is LedgerState.OPEN
    assert FRESH.fragments == (Fragment(0, BOOKIES),)
    assert (FRESH.last_entry_id, FRESH.length) == (-1, 0)


def test_an_owner_closes_it() -> None:
    closed = FRESH.close(9, 1000)
    assert closed.is_closed
    assert (closed.last_entry_id, closed.length) == (9, 1000)


def test_recovery_closes_it() -> None:
    assert FRESH.begin_recovery().close(-1, 0).is_closed


def test_closed_is_final() -> None:
    closed = FRESH.close(9, 1000)
    for change in (closed.begin_recovery, lambda: closed.close(9, 1000), lambda: closed.with_ensemble(10, BOOKIES)):
        with pytest.raises(IncorrectParameterException, match="CLOSED"):
            change()


def test_recovery_begins_once() -> None:
    with pytest.raises(IncorrectParameterException, match="IN_RECOVERY"):
        FRESH.begin_recovery().begin_recovery()


def test_a_later_ensemble_is_added_and_one_at_the_same_entry_replaced() -> None:
    others = ("d:1", "b:1", "c:1")
    assert FRESH.with_ensemble(5, others).fragments == (Fragment(0, BOOKIES), Fragment(5, others))
    assert FRESH.with_ensemble(0, others).fragments == (Fragment(0, others),)


def test_entries_are_found_in_their_fragment() -> None:
    changed = FRESH.with_ensemble(5, ("d:1", "b:1", "c:1")).with_ensemble(9, ("d:1", "e:1", "c:1"))
    assert [changed.fragment_at(entry).first_entry_id for entry in (0, 4, 5, 8, 9, 1000)] == [0, 0, 5, 5, 9, 9]
    with pytest.raises(IncorrectParameterException, match="before the first"):
        changed.fragment_at(-1)


def test_a_change_forgets_the_creator_token() -> None:
    created = replace(FRESH, creator_token=5)
    assert created.begin_recovery().creator_token == 0
    assert created.close(-1, 0).creator_token == 0
    assert created.with_ensemble(1, BOOKIES).creator_token == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"write_quorum_size": 4}, "at least the next"),
        ({"ack_quorum_size": 0}, "at least the next"),
        ({"ack_quorum_size": 4}, "at least the next"),
        ({"fragments": ()}, "no ensemble"),
        ({"fragments": (Fragment(0, BOOKIES[:2]),)}, "3 members"),
        ({"fragments": (Fragment(5, BOOKIES), Fragment(5, BOOKIES))}, "does not come after"),
        ({"digest_type": None}, "both"),
        ({"last_entry_id": 3}, "does not go with"),
        ({"length": 3}, "does not go with"),
        ({"state": LedgerState.CLOSED, "last_entry_id": -2}, "out of range"),
    ],
)
def test_metadata_that_breaks_a_rule_can_not_be_made(change: dict[str, object], message: str) -> None:
    with pytest.raises(IncorrectParameterException, match=message):
        replace(FRESH, **change)  # type: ignore[arg-type]


def test_a_new_ledger_has_no_bookie_twice() -> None:
    with pytest.raises(IncorrectParameterException, match="twice"):
        LedgerMetadata.new(("a:1", "a:1"), 2, 2)


def test_the_password_is_not_printed() -> None:
    assert "secret" not in repr(FRESH)
