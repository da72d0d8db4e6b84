from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookgate.ledger.id_set import decode_ids, encode_ids, unsigned
from bookgate.ledger.ledger_id import LedgerId, halves_of, id_array, ids_in_scope
from bookgate.ledger.ledger_numbers import LedgerNumbers


@given(st.sets(st.integers(-(2**63), 2**63 - 1), max_size=200))
def test_a_set_of_ids_comes_back_in_the_order_of_their_bits(ids: set[int]) -> None:
    negative = sorted(each for each in ids if each < 0)
    assert decode_ids(encode_ids(ids)) == [*sorted(ids - set(negative)), *negative] == sorted(ids, key=unsigned)


def test_a_dense_range_is_small() -> None:
    assert len(encode_ids(range(100_000))) < 20_000


@pytest.mark.parametrize("data", [b"", b"abc", encode_ids([1, 2, 3])[:-1], b"\xff" * 64])
def test_what_is_no_set_of_ids_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a serialised set"):
        decode_ids(data)


def test_names_of_ids() -> None:
    assert str(LedgerId.unscoped(42)) == "42"
    assert LedgerId.unscoped(42).qualified_name == "0000000000000000000000000000002a"
    assert str(LedgerId(-1, -2)) == "fffffffffffffffffffffffffffffffe"


@pytest.mark.parametrize("halves", [(0, -1), (0, 2**63), (2**63, 0), (-(2**63) - 1, 0)])
def test_ids_out_of_range_are_refused(halves: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"negative|64 bits"):
        LedgerId(*halves)


INT64 = st.integers(-(2**63), 2**63 - 1)
LEDGER_IDS = st.builds(LedgerId, INT64.filter(bool), INT64) | st.builds(LedgerId, st.just(0), st.integers(0, 2**63 - 1))


@given(LEDGER_IDS, LEDGER_IDS)
def test_numbers_never_alias_and_are_ordered_as_names(one: LedgerId, other: LedgerId) -> None:
    assert LedgerId.of_number(one.number) == one
    assert halves_of(one.number) == (one.scope_id, one.low)
    assert (one.scope_id == 0) == (one.number < 2**63)
    assert (one.number == other.number) == (one == other)
    assert (one < other) == (one.number < other.number) == (one.qualified_name < other.qualified_name)
    assert (one >= other) is not (one < other)
    assert (one > other) is not (one <= other)


@given(LEDGER_IDS)
def test_names_and_uuids_come_back(ledger_id: LedgerId) -> None:
    name = ledger_id.qualified_name
    assert {LedgerId.parse(form) for form in (name, name.upper(), str(UUID(name)))} == {ledger_id}
    assert ledger_id.to_uuid() == UUID(name)
    if ledger_id.scope_id:
        assert LedgerId.from_uuid(UUID(name)) == ledger_id


@pytest.mark.parametrize("name", ["", "5", "g" * 32, "0" * 31, "0" * 33, "{" + "0" * 32 + "}", "-" * 4 + "1" * 32])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="qualified"):
        LedgerId.parse(name)


def test_a_uuid_without_a_scope_is_refused() -> None:
    with pytest.raises(ValueError, match="upper half"):
        LedgerId.from_uuid(UUID(int=5))
    with pytest.raises(ValueError, match="2\\^63"):
        LedgerId.parse(f"{2**63:032x}")


def test_new_ids() -> None:
    assert {LedgerId.random().to_uuid().version for _ in range(20)} == {4}
    made = [LedgerId.time_ordered(1_700_000_000_000 + step) for step in range(50)]
    assert {each.to_uuid().version for each in made} == {7}
    assert made == sorted(made)
    assert made[0].qualified_name.startswith(f"{1_700_000_000_000:012x}7")
    with pytest.raises(ValueError, match="version 7"):
        LedgerId.time_ordered(1 << 48)


@given(st.lists(LEDGER_IDS.map(lambda each: each.number)), st.lists(LEDGER_IDS.map(lambda each: each.number)))
def test_sets_of_numbers(some: list[int], others: list[int]) -> None:
    one, other = LedgerNumbers(some), LedgerNumbers(others)
    assert list(one) == sorted(set(some)) == list(one.copy())
    assert list(one | other) == sorted(set(some) | set(others))
    assert list(one & other) == sorted(set(some) & set(others))
    assert list(one - other) == sorted(set(some) - set(others))
    assert len(one) == len(set(some))
    assert all(number in one for number in some)
    for number in others:
        one.discard(number)
    assert one == LedgerNumbers(set(some) - set(others))
    assert list(id_array(some)) == some


@given(st.lists(st.integers(-(2**63), 2**63 - 1)), st.integers(-(2**63), 2**63 - 1))
def test_ids_made_together_are_those_made_singly(lows: list[int], scope_id: int) -> None:
    scope_id = scope_id or 1
    made = ids_in_scope(scope_id, lows)
    assert made == [LedgerId(scope_id, low) for low in lows]
    assert [hash(each) for each in made] == [hash(LedgerId(scope_id, low)) for low in lows]


@pytest.mark.parametrize(("scope_id", "lows"), [(0, [3, -1, 5]), (1, [0, 1 << 63]), (1 << 63, [0])])
def test_one_that_is_out_of_range_is_refused_among_others(scope_id: int, lows: list[int]) -> None:
    with pytest.raises(ValueError, match="ledger id"):
        ids_in_scope(scope_id, lows)
