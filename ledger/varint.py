"""Protobuf's variable-length integers, for the few places that encode bytes without the protobuf library."""

from __future__ import annotations

from collections.abc import Sequence


def encode_varint(value: int) -> bytes:
    """Encodes a value of 0 or more: seven bits per byte, lowest first."""
    if value < 0x80:
        return bytes((value,))
    # Transaction and entry ids of a busy client take three or four bytes; this avoids the loop for them.
    if 0x4000 <= value < 0x200000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    if 0x200000 <= value < 0x10000000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14 & 0x7F | 0x80, value >> 21))
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


VARINTS = tuple(encode_varint(value) for value in range(1 << 14))
"""All one- and two-byte varints, precomputed."""

CONTINUED = tuple(bytes((value & 0x7F | 0x80, value >> 7 | 0x80)) for value in range(1 << 14))
"""Encodings of the low fourteen bits of longer varints: n below 2**28 is `CONTINUED[n % 2**14] + VARINTS[n >> 14]`."""


def short_varint(value: int) -> bytes:
    """`encode_varint` by look-ups where there are at most four bytes, as in most ids."""
    if value < 1 << 14:
        return VARINTS[value]
    if value < 1 << 28:
        return CONTINUED[value & 0x3FFF] + VARINTS[value >> 14]
    return encode_varint(value)


def decode_varint(data: bytes) -> int:
    """Decodes one complete varint."""
    if len(data) == 1:
        return data[0]
    if len(data) == 2:
        return data[0] & 0x7F | data[1] << 7
    if len(data) == 3:
        return data[0] & 0x7F | (data[1] & 0x7F) << 7 | data[2] << 14
    value = 0
    for byte in reversed(data):
        value = value << 7 | byte & 0x7F
    return value


def is_shortest(varint: bytes) -> bool:
    """Whether these bytes, of which there are at most nine, are one number in its shortest form."""
    last = varint[-1]
    return last < 0x80 and (len(varint) == 1 or (last > 0 and min(varint[:-1]) > 0x7F))


def are_shortest(varints: Sequence[bytes]) -> bool:
    """Whether each of these bytes, which are of one size of nine at most, is one number in its shortest form."""
    size = len(varints[0])
    joined = b"".join(varints)
    last = joined[size - 1 :: size]
    if max(last) > 0x7F or (size > 1 and not min(last)):
        return False
    return all(min(joined[place::size]) > 0x7F for place in range(size - 1))
