"""Bad input to every reader of bytes: none crashes, hangs, or takes memory that the input does not explain.

`BOOKGATE_FUZZ_INPUTS` sets the number of inputs in all (`make fuzz`: a million), `BOOKGATE_FUZZ_SEED` the seed. A
failure names the target, the seed and the number of the input, and prints the input.
"""

from __future__ import annotations

import os
import random
import tracemalloc
import zlib

import pytest

from tests.fuzz.mutation import mutate
from tests.fuzz.targets import TARGETS, Target

INPUTS = int(os.environ.get("BOOKGATE_FUZZ_INPUTS", "30000"))
SEED = int(os.environ.get("BOOKGATE_FUZZ_SEED", "1"))
_MEASURED = 100
"""Every so many inputs the memory taken is measured, which is slow."""
_ALLOWED_MEMORY = 4 << 20


@pytest.mark.timeout(600 + INPUTS // 500)
@pytest.mark.parametrize("name", TARGETS)
def test_bad_input_is_told_by_a_declared_error(name: str) -> None:
    target = TARGETS[name]
    for number in range(INPUTS // len(TARGETS)):
        data = mutate(random.Random(zlib.crc32(name.encode()) ^ (SEED << 32) + number), target.samples, target.longest)
        try:
            read_measured(target, data) if number % _MEASURED == 0 else read(target, data)
        except Exception as error:
            pytest.fail(f"{name}, seed {SEED}, input {number}: {type(error).__name__}: {error}; {data.hex()}")


def read(target: Target, data: bytes) -> None:
    try:
        target.read(data)
    except target.errors:
        return


def read_measured(target: Target, data: bytes) -> None:
    tracemalloc.start()
    try:
        read(target, data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < _ALLOWED_MEMORY + 64 * len(data), f"{peak} bytes of memory for an input of {len(data)}"


@pytest.mark.parametrize("name", TARGETS)
def test_good_input_is_read(name: str) -> None:
    """Otherwise the mutations would only show how soon a reader gives up."""
    target = TARGETS[name]
    accepted = 0
    for sample in target.samples:
        try:
            target.read(sample)
            accepted += 1
        except target.errors:
            continue
    assert accepted >= (len(target.samples) + 1) // 2
