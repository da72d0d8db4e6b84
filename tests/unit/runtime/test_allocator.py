"""A buffer that was freed is used again without a page from the system, unless the environment says otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PAGES = 2048
AT_ONCE, TIMES = 4, 20
FAULTS = f"""
import resource, sys
from bookgate.runtime.allocator import keep_freed_buffers
if sys.argv[1] == "kept":
    keep_freed_buffers()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({TIMES}):
    [bytearray({PAGES} * resource.getpagesize()) for _ in range({AT_ONCE})]
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(mode: str, **environment: str) -> int:
    command = [sys.executable, "-c", FAULTS, mode]
    return int(subprocess.check_output(command, env={**os.environ, **environment}, text=True))


@pytest.mark.skipif(sys.platform != "linux", reason="glibc alone has the call")
def test_freed_buffers_are_used_again() -> None:
    assert faults("kept") < 2 * AT_ONCE * PAGES < TIMES * PAGES < faults("as it is")


@pytest.mark.skipif(sys.platform != "linux", reason="glibc alone has the call")
def test_an_environment_that_has_a_say_is_left_alone() -> None:
    assert faults("kept", MALLOC_TRIM_THRESHOLD_="131072") > TIMES * PAGES
