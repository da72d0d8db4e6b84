"""Bugs to plant: each is a change of a few characters of the product that breaks what an invariant promises.

A mutation is text in one file that is replaced by other text; the text must stand there exactly once, so that the table
can't rot. `world` says which simulation has the code in it: `data` (clients, bookies, disks; `run.run_seed`), `small`
(the same with less in each world, for what needs many of them), `repair` (the same with auto-recovery), `peers` (the
same over gateways and ZooKeeper, beside BookKeeper's), `metadata` (gateways, ZooKeeper, watchers;
`metadata_run.run_seed`), `access` (the same under a policy), `unbounded` (clients that fight for one unbounded ledger;
`unbounded_run`) or `streams` (`streams_run`). `expected` are the invariants that it should break; another one may be
the first to notice. What no simulation has in it (Spark, SQLite, TLS), and what few seeds meet, names the `tests` that
are to notice instead: unit tests, or a plan of `regressions`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

DATA = "data"
SMALL = "small"
METADATA = "metadata"
ACCESS = "access"
REPAIR = "repair"
PEERS = "peers"
UNBOUNDED = "unbounded"
STREAMS = "streams"


class Edit(NamedTuple):
    """Text of one file, which stands there once, and what takes its place."""

    file: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Mutation:
    """One bug. `breaks` is a sentence for the table; `more` are edits that it takes beside the first.

    `tests`: pytest's files and nodes, one of which must fail; no seeds are run then.
    """

    name: str
    area: str
    expected: tuple[str, ...]
    breaks: str
    file: str
    before: str
    after: str
    world: str = DATA
    more: tuple[Edit, ...] = ()
    tests: tuple[str, ...] = ()

    @property
    def edits(self) -> tuple[Edit, ...]:
        return Edit(self.file, self.before, self.after), *self.more


def in_small_worlds(tests: tuple[str, ...], name: str, breaks: str, file: str, before: str, after: str) -> Mutation:
    """One that the exploration of small worlds finds (`tests/explore`), by these of its tests."""
    return Mutation(name, _area(file), (), breaks, file, before, after, tests=tests)


def in_worlds_of(
    world: str, name: str, expected: tuple[str, ...], breaks: str, file: str, before: str, after: str
) -> Mutation:
    """One that seeds of one kind of world find."""
    return Mutation(name, _area(file), expected, breaks, file, before, after, world)


def _area(file: str) -> str:
    return "bookie" if file.startswith("bookie") else "client"
