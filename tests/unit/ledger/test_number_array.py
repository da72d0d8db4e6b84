"""Many ledgers by their numbers: what a plain set and a plain list say."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.ledger_numbers import LedgerNumbers
from bookgate.ledger.number_array import NumberArray

NUMBERS = st.integers(0, 2**63 - 1) | st.integers(2**64, 2**128 - 1) | st.integers(0, 5)


@given(st.lists(NUMBERS), st.lists(NUMBERS))
def test_a_set_of_numbers_is_a_set(numbers: list[int], wanted: list[int]) -> None:
    found, plain = LedgerNumbers(numbers), set(numbers)
    assert list(found) == sorted(plain)
    assert len(found) == len(plain)
    assert all((number in found) == (number in plain) for number in wanted)
    copy = found.copy()
    assert copy.take(wanted) == sorted(plain & set(wanted))
    assert list(copy) == sorted(plain - set(wanted))
    assert copy.take_first(2) == sorted(plain - set(wanted))[:2]
    assert list(found) == sorted(plain)


@given(st.lists(NUMBERS), st.lists(NUMBERS))
def test_an_array_of_numbers_is_a_list(numbers: list[int], more: list[int]) -> None:
    found = NumberArray(numbers)
    found.extend(more)
    plain = numbers + more
    assert list(found) == plain
    assert [found[place] for place in range(-len(plain), len(plain))] == plain + plain
    assert list(found[1:4]) == plain[1:4]
    for place in range(len(plain)):
        found[place] = plain[place] = plain[-1 - place]
    assert list(found) == plain


def test_a_number_is_never_taken_for_its_lower_half() -> None:
    scoped = LedgerId(3, 7).number
    found = LedgerNumbers([scoped])
    assert 7 not in found
    assert found.take([7]) == []
