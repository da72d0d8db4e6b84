"""Protobuf's variable-length integers, for the few places that write bytes beside the protobuf library."""

from __future__ import annotations


def encode_varint(value: int) -> bytes:
    """`value` of 0 or more, seven bits a byte, the lowest first."""
    if value < 0x80:
        return bytes((value,))
    # Transaction and entry ids of a busy client have three or four bytes: worth not looping for.
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
"""Those of one and two bytes, made once."""

CONTINUED = tuple(bytes((value & 0x7F | 0x80, value >> 7 | 0x80)) for value in range(1 << 14))
"""The lower fourteen bits of longer ones: `CONTINUED[n % 2**14] + VARINTS[n >> 14]` is that of an n below 2**28."""


def decode_varint(data: bytes) -> int:
    """The value of one whole varint."""
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
