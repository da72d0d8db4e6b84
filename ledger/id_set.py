"""Sets of ledger ids as one compact string: the portable 64-bit Roaring serialisation, which many languages read.

An id is 64 bits, carried signed. A set has them unsigned, so in its order, as in that of listings, the negative ones
(there are such in scopes other than 0) come last: `unsigned` is the key of that order.

Source: docs/protocol/gateway.md#serialized-ranges.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyroaring import BitMap64

_MASK = (1 << 64) - 1
_SIGN = 1 << 63


def unsigned(ledger_id: int) -> int:
    """The same 64 bits without a sign."""
    return ledger_id & _MASK


def encode_ids(ids: Iterable[int]) -> bytes:
    """Serialises ids of 64 bits."""
    data: bytes = BitMap64(map(unsigned, ids)).serialize()
    return data


def decode_ids(data: bytes) -> list[int]:
    """The ids in ascending order of `unsigned`. Raises ValueError for bytes that are no such set."""
    try:
        return [bits - (bits & _SIGN) * 2 for bits in BitMap64.deserialize(data)]
    except Exception as error:
        raise ValueError(f"{len(data)} bytes are not a serialised set of ledger ids: {error}") from error
