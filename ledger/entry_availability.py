"""The list of entries that a bookie holds of a ledger, in its wire form: runs of consecutive ids in 24-byte groups.

A group describes runs of `size` ids each, which begin at `first`, `first + period`, … up to `last`. The encoder writes
one group per run (period 0); the decoder accepts both forms. Source: docs/protocol/wire.md#entry-lists.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

_HEADER = struct.Struct(">ii56x")
_GROUP = struct.Struct(">qqii")
_VERSION = 0


def encode_runs(runs: Iterable[tuple[int, int]]) -> bytes:
    """Encodes runs of (first entry id, count), given in ascending order."""
    groups = b"".join(_GROUP.pack(first, first, count, 0) for first, count in runs)
    return _HEADER.pack(_VERSION, len(groups) // _GROUP.size) + groups


def decode_runs(data: bytes) -> Iterator[tuple[int, int]]:
    """Yields runs of (first entry id, count). Raises ValueError if the bytes are not a valid entry list."""
    if len(data) < _HEADER.size:
        raise ValueError(f"a list of entries has a header of {_HEADER.size} bytes; these are {len(data)}")
    version, count = _HEADER.unpack_from(data)
    if version > _VERSION or len(data) < _HEADER.size + count * _GROUP.size:
        raise ValueError(f"a list of entries of version {version} with {count} groups in {len(data)} bytes")
    for index in range(count):
        first, last, size, period = _GROUP.unpack_from(data, _HEADER.size + index * _GROUP.size)
        for start in range(first, last + 1, period) if period > 0 else (first,):
            yield start, size
