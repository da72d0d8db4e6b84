"""Turns good inputs into bad ones, the same for the same seed."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

_EDGES = (0, 1, 2, 3, 15, 16, 20, 127, 128, 255, 1024, 0xFFFF, 0x7FFFFFFF, -1, -2, -0x100, -0x1000, -0x80000000)


def mutate(choice: random.Random, samples: Sequence[bytes], longest: int) -> bytes:
    """One to four changes to one of the samples; at most `longest` bytes."""
    data = bytearray(choice.choice(samples))
    for _ in range(choice.choice((1, 1, 2, 4))):
        choice.choice(_CHANGES)(choice, data, samples)
    return bytes(data[:longest])


def _flip(choice: random.Random, data: bytearray, samples: Sequence[bytes]) -> None:
    for _ in range(choice.randint(1, 4)):
        if data:
            data[_place(choice, data)] ^= 1 << choice.randrange(8)


def _overwrite(choice: random.Random, data: bytearray, samples: Sequence[bytes]) -> None:
    """A number where there may have been another: lengths, counts, versions, ids."""
    place = _place(choice, data)
    form = choice.choice((">i", ">q", "B"))
    value = choice.choice(_EDGES) + choice.choice((0, 0, -1, 1))
    bits = 8 * struct.calcsize(form)
    value &= (1 << bits) - 1
    packed = value.to_bytes(bits // 8, "big")
    data[place : place + len(packed)] = packed


def _truncate(choice: random.Random, data: bytearray, samples: Sequence[bytes]) -> None:
    del data[choice.randint(0, len(data)) :]


def _insert(choice: random.Random, data: bytearray, samples: Sequence[bytes]) -> None:
    place = _place(choice, data)
    data[place:place] = choice.choice((choice.randbytes(choice.randint(1, 24)), bytes(choice.randint(1, 600))))


def _delete(choice: random.Random, data: bytearray, samples: Sequence[bytes]) -> None:
    place = _place(choice, data)
    del data[place : place + choice.randint(1, 32)]


def _splice(choice: random.Random, data: bytearray, samples: Sequence[bytes]) -> None:
    other = choice.choice(samples)
    start = choice.randint(0, len(other))
    place = _place(choice, data)
    data[place : place + choice.randint(0, 64)] = other[start : start + choice.randint(1, 4096)]


def _place(choice: random.Random, data: bytearray) -> int:
    """Mostly near the beginning, where the structure is; in a large file also at multiples of 512."""
    if not data:
        return 0
    kind = choice.random()
    if kind < 0.5:
        return min(len(data) - 1, int(choice.expovariate(1 / 24)))
    if kind < 0.7:
        return min(len(data) - 1, 512 * choice.randint(0, len(data) // 512) + choice.randint(0, 40))
    return choice.randrange(len(data))


_CHANGES = (_flip, _flip, _overwrite, _overwrite, _truncate, _insert, _delete, _splice)
