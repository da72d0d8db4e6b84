"""The record of damaged copies: small, whatever a disk has done, and never less than was found."""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from bookgate.bookie.replication.copies.corrupt_copies import decode_corrupt, ranges_of
from bookgate.ledger.corrupt_copies import MOST_RANGES, encode, note_corrupt
from bookgate.ledger.errors import MetadataVersionException
from bookgate.ledger.metadata_store import Versioned
from bookgate.ledger.replication_store import ReplicationMetadata

_IDS = st.sets(st.integers(0, 5000), max_size=50).map(BitMap64)


@given(st.dictionaries(st.sampled_from(["a:1", "b:1"]), _IDS))
def test_what_was_found_is_read_again(copies: dict[str, BitMap64]) -> None:
    assert decode_corrupt(encode(ranges_of(copies), 7)) == {name: ids for name, ids in copies.items() if ids}


def test_of_many_ranges_the_nearest_become_one() -> None:
    ids = BitMap64(range(0, 10 * MOST_RANGES, 4)) | BitMap64([1 << 40, 1 << 50])
    record = encode(ranges_of({"a:1": ids}), 7)
    found = decode_corrupt(record)["a:1"]
    assert ids <= found
    assert len(record) < 40 * MOST_RANGES
    assert len(found) < 11 * MOST_RANGES, "what is far apart stays apart"


class Records:
    """One record, which somebody else writes just before the first write."""

    def __init__(self, *written: bytes) -> None:
        self.stored: Versioned[bytes] | None = None
        self.others = list(written)

    async def read_record(self, *_key: object) -> Versioned[bytes] | None:
        return self.stored

    async def write_record(self, _kind: object, _key: str, value: bytes, version: int | None) -> None:
        if self.others:
            self.stored = Versioned(self.others.pop(0), 5)
        if version != (None if self.stored is None else self.stored.version):
            raise MetadataVersionException("somebody else was first")
        self.stored = Versioned(value, 9)


async def noted(records: Records, copies: dict[str, list[tuple[int, int]]]) -> dict[str, BitMap64]:
    await note_corrupt(cast("ReplicationMetadata", records), 3, copies, 7)
    assert records.stored is not None
    return decode_corrupt(records.stored.value)


@pytest.mark.asyncio
async def test_what_is_found_is_added_to_what_others_have_found() -> None:
    new = {"a:1": [(5, 6), (1, 2), (2, 4)], "b:1": [(3, 3)]}
    assert await noted(Records(), new) == {"a:1": BitMap64(range(1, 7)), "b:1": BitMap64([3])}
    known = encode({"a:1": [(9, 9)], "c:1": [(0, 1)]}, 1)
    assert await noted(Records(known), new) == {
        "a:1": BitMap64([*range(1, 7), 9]),
        "b:1": BitMap64([3]),
        "c:1": BitMap64([0, 1]),
    }


@pytest.mark.parametrize(
    "record", [b"", b"[]", b'{"copies": 1}', b'{"copies": {"a:1": [1]}}', b'{"copies": {"a": [["x", 1]]}}']
)
def test_a_record_that_can_not_be_read_names_nothing(record: bytes) -> None:
    assert decode_corrupt(record) == {}
