from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookgate.ledger.id_set import decode_ids, encode_ids, unsigned
from bookgate.ledger.ledger_id import LedgerId


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
