"""Sets of ledger ids as one compact string: the portable 64-bit Roaring serialisation, which many languages read.

Source: gateway page, `serialized_ranges`.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyroaring import BitMap64


def encode_ids(ids: Iterable[int]) -> bytes:
    """Serialises ids between 0 and 2**63 - 1."""
    data: bytes = BitMap64(ids).serialize()
    return data


def decode_ids(data: bytes) -> list[int]:
    """The ids in ascending order. Raises ValueError for bytes that are no such set."""
    try:
        return list(BitMap64.deserialize(data))
    except Exception as error:
        raise ValueError(f"{len(data)} bytes are not a serialised set of ledger ids: {error}") from error
