"""How ledgers and scopes are named on the command line."""

from __future__ import annotations

import pytest

from bookgate.ledger.errors import IncorrectParameterException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.thinclient.commands.ledger_naming import ledger_fields, parse_ledger, parse_scope

NAME = "000000000000002a0000000000000007"


@pytest.mark.parametrize(
    ("named", "found"),
    [
        (("7",), LedgerId(0, 7)),
        (("7", "42"), LedgerId(42, 7)),
        (("-7", "0x2a"), LedgerId(42, -7)),
        (("7", "0xffffffffffffffff"), LedgerId(-1, 7)),
        ((NAME,), LedgerId(42, 7)),
        ((None, None, NAME.upper()), LedgerId(42, 7)),
        ((None, "42", "00000000-0000-002a-0000-000000000007"), LedgerId(42, 7)),
        (("00000000000000000000000000000007",), LedgerId(0, 7)),
    ],
)
def test_a_ledger_by_any_of_its_names(named: tuple[str | None, ...], found: LedgerId) -> None:
    assert parse_ledger(*named) == found


@pytest.mark.parametrize(
    "named",
    [(), ("7", None, NAME), ("-7",), ("x",), (NAME, "43"), ("7", "x"), ("7", "0x1ffffffffffffffff"), (str(2**63),)],
)
def test_what_names_no_ledger_is_refused(named: tuple[str | None, ...]) -> None:
    with pytest.raises(IncorrectParameterException):
        parse_ledger(*(named or (None,)))


def test_what_is_told_of_a_ledger() -> None:
    assert ledger_fields(LedgerId(0, 7)) == {"ledger_id": 7}
    assert ledger_fields(LedgerId(-1, 7)) == {"ledger_id": 7, "scope_id": -1}
    assert parse_scope(None) == 0
