"""The record of damaged copies: small, whatever a disk has done, and never less than was found."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from bookgate.bookie.replication.copies.corrupt_copies import MOST_RANGES, both, decode_corrupt, encode_corrupt

_IDS = st.sets(st.integers(0, 5000), max_size=50).map(BitMap64)


@given(st.dictionaries(st.sampled_from(["a:1", "b:1"]), _IDS))
def test_what_was_found_is_read_again(copies: dict[str, BitMap64]) -> None:
    assert decode_corrupt(encode_corrupt(copies, 7)) == {name: ids for name, ids in copies.items() if ids}


def test_of_many_ranges_the_nearest_become_one() -> None:
    ids = BitMap64(range(0, 10 * MOST_RANGES, 4)) | BitMap64([1 << 40, 1 << 50])
    record = encode_corrupt({"a:1": ids}, 7)
    found = decode_corrupt(record)["a:1"]
    assert ids <= found
    assert len(record) < 40 * MOST_RANGES
    assert len(found) < 11 * MOST_RANGES, "what is far apart stays apart"


def test_what_either_names_is_named() -> None:
    assert both({"a:1": BitMap64([1])}, {"a:1": BitMap64([2]), "b:1": BitMap64([3])}) == {
        "a:1": BitMap64([1, 2]),
        "b:1": BitMap64([3]),
    }


@pytest.mark.parametrize(
    "record", [b"", b"[]", b'{"copies": 1}', b'{"copies": {"a:1": [1]}}', b'{"copies": {"a": [["x", 1]]}}']
)
def test_a_record_that_can_not_be_read_names_nothing(record: bytes) -> None:
    assert decode_corrupt(record) == {}
