"""Sets of ledger ids in a compact form: the portable 64-bit Roaring serialisation, which many languages can read.

An id has 64 bits and is carried signed. A set stores them unsigned, so in its order, as in the order of listings,
negative ids (which occur in scopes other than 0) come last. `unsigned` is the sort key of that order.

Source: docs/protocol/gateway.md#serialized-ranges.
"""

from __future__ import annotations

from collections.abc import Collection

from pyroaring import BitMap64

_MASK = (1 << 64) - 1
_SIGN = 1 << 63


def unsigned(ledger_id: int) -> int:
    """The same 64 bits, read as an unsigned number."""
    return ledger_id & _MASK


def signed(bits: int) -> int:
    """The id whose `unsigned` is this."""
    return bits - (bits & _SIGN) * 2


def encode_ids(ids: Collection[int]) -> bytes:
    """Serialises 64-bit ids."""
    # A gateway does this on its event loop for thousands of ids, which are seldom negative.
    data: bytes = BitMap64(ids if min(ids, default=0) >= 0 else map(unsigned, ids)).serialize()
    return data


def decode_ids(data: bytes) -> list[int]:
    """The ids in ascending `unsigned` order. Raises ValueError if the bytes are not a valid set."""
    try:
        return list(map(signed, BitMap64.deserialize(data)))
    except Exception as error:
        raise ValueError(f"{len(data)} bytes are not a serialised set of ledger ids: {error}") from error
