"""The clocks, the sources of randomness and the sizes of buffers, replaced for as long as a world runs.

What matters to the product comes in through its interfaces. These are the rest: statistics that time something, random
names, the defaults of parameters.
"""

from __future__ import annotations

import os
import random
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import kazoo.client

from bookgate.bookie.journal import format as journal_format
from bookgate.ledger.wire import frames
from bookgate.thinclient.bookies.auth import TokenAuthProvider
from tests.simulation.loop import CURRENT

_BUFFER = 16 * 1024
"""Of connections, and of a journal's replay: there are hundreds in a world, and the ends of small ones are reached."""


class _OrderedSet(dict[object, None]):
    """A set that is walked in the order of its additions, not in that of addresses."""

    def add(self, member: object) -> None:
        self[member] = None


def _ordered_watchers(_of: type[set[object]]) -> defaultdict[str, _OrderedSet]:
    """What kazoo keeps its watchers in, by path. Those of one path it calls in the order of the set."""
    return defaultdict(_OrderedSet)


@contextmanager
def replaced(rng: random.Random, monotonic: Callable[[], float], wall_clock: Callable[[], float]) -> Iterator[None]:
    """Clocks show virtual time; `os.urandom`, and with it `uuid4`, `secrets` and `SystemRandom`, and the functions of
    `random` give what `rng` gives."""
    clocks: dict[str, Callable[[], Any]] = {
        "time": wall_clock,
        "time_ns": lambda: int(wall_clock() * 1e9),
        "monotonic": monotonic,
        "monotonic_ns": lambda: int(monotonic() * 1e9),
        "perf_counter": monotonic,
        "perf_counter_ns": lambda: int(monotonic() * 1e9),
    }
    changes: list[tuple[Any, str, Any]] = [(time, name, clock) for name, clock in clocks.items()]
    # Names of simulated hosts are addresses.
    changes.append((socket, "getaddrinfo", lambda host, port, *_: [(socket.AF_INET, 1, 6, "", (host, port))]))
    changes.append((socket, "gethostname", lambda: getattr(CURRENT.get(None), "host", "localhost")))
    changes += [(frames, "_BUFFER_SIZE", _BUFFER), (journal_format, "_SCAN_CHUNK", _BUFFER)]
    changes += [(os, "urandom", rng.randbytes), (random, "_urandom", rng.randbytes)]
    # The network has no TLS, without which a client sends no token to another machine.
    changes.append((TokenAuthProvider, "needs_tls", False))
    changes.append((kazoo.client, "defaultdict", _ordered_watchers))
    before = [(module, name, getattr(module, name)) for module, name, _ in changes]
    state = random.getstate()
    random.seed(rng.getrandbits(64))
    try:
        for module, name, value in changes:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
        random.setstate(state)
