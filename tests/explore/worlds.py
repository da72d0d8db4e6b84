"""The small worlds that are explored: their sizes, their clients, their faults.

`SMALL` are for `make test`, `LARGE` for `make explore`. A world with `most_states` is explored up to so many: its
exploration proves nothing, and looks for bugs only.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass, field

from bookgate.ledger.metadata import GUARANTEED_KEY, LedgerMetadata
from tests.explore.adding import BOOKIES
from tests.explore.letters import Client, Server
from tests.explore.reader import Reader
from tests.explore.recoverer import Recoverer
from tests.explore.rules import Rules
from tests.explore.search import Found, Judge, explore
from tests.explore.servers import Bookie, Store
from tests.explore.stream_worlds import StreamWorld
from tests.explore.world import Faults, World
from tests.explore.writer import Writer


@dataclass(frozen=True, slots=True)
class SmallWorld:
    """An ordinary ledger in a world of few bookies."""

    name: str
    ensemble: int
    write_quorum: int
    ack_quorum: int
    entries: int
    recoverers: int = 1
    looks: int = 0
    """How often a tailing reader looks at the ledger; 0: there is none."""
    bookies: int = 3
    faults: Faults = field(default_factory=Faults)
    closes: bool = False
    """The writer closes the ledger once nothing is pending; else it leaves it open."""
    read_batch: int = 1
    syncs_apart: bool = False
    """A bookie's syncs are moves of their own; needed where bookies crash."""
    guaranteed: bool = False
    """The ledger has a guaranteed write quorum."""
    most_states: int = 0
    """Where exploring all of them takes too long; 0: all."""

    def build(self) -> tuple[World, Judge]:
        """The world, and what judges its states."""
        names = BOOKIES[: self.bookies]
        custom = {GUARANTEED_KEY: b"true"} if self.guaranteed else {}
        metadata = LedgerMetadata.new(
            names[: self.ensemble], self.write_quorum, self.ack_quorum, custom_metadata=custom
        )
        world = self._world(metadata)
        healed = self._healing_world(metadata)
        return world, Rules(world, healed, lambda store: self._recoverer((store.metadata, store.version), 1)).judge

    def _servers(self, metadata: LedgerMetadata) -> dict[str, Server]:
        bookies: dict[str, Server] = {name: Bookie(syncs_apart=self.syncs_apart) for name in BOOKIES[: self.bookies]}
        return {**bookies, "store": Store(metadata)}

    def _positions(self, clients: int) -> tuple[dict[str, int], int]:
        """Of the bookies and the store, which come after so many clients."""
        return {name: clients + index for index, name in enumerate(BOOKIES[: self.bookies])}, clients + self.bookies

    def _world(self, metadata: LedgerMetadata) -> World:
        count = 1 + self.recoverers + (self.looks > 0)
        bookies, store = self._positions(count)
        clients: dict[str, Client] = {"writer": Writer(metadata, bookies, store, self.entries, closes=self.closes)}
        for number in range(1, 1 + self.recoverers):
            clients[f"recoverer {number}"] = self._recoverer((metadata, 0), count)
        if self.looks:
            clients["reader"] = Reader(bookies, store, self.looks)
        return World(clients, self._servers(metadata), self.faults)

    def _healing_world(self, metadata: LedgerMetadata) -> World:
        return World({"healer": self._recoverer((metadata, 0), 1)}, self._servers(metadata), Faults())

    def _recoverer(self, record: tuple[LedgerMetadata, int], clients: int) -> Recoverer:
        bookies, store = self._positions(clients)
        return Recoverer(record, bookies, store, self.read_batch)


SMALL = (
    SmallWorld("a writer alone, late requests", 2, 2, 2, entries=2, recoverers=0, faults=Faults(1), closes=True),
    SmallWorld("late and doubled requests", 2, 2, 2, entries=1, faults=Faults(1, 1), closes=True),
    SmallWorld("late requests, an ack quorum of one", 2, 2, 1, entries=1, faults=Faults(1), closes=True),
    SmallWorld("two recoverers", 2, 2, 2, entries=1, recoverers=2),
    SmallWorld("a recoverer beside the writer", 2, 2, 2, entries=2, closes=True),
    SmallWorld("a tailing reader", 2, 2, 2, entries=2, recoverers=0, looks=2, closes=True),
    SmallWorld(
        "a guaranteed write quorum", 2, 2, 1, entries=2, recoverers=0, faults=Faults(1), closes=True, guaranteed=True
    ),
    SmallWorld(
        "a guaranteed write quorum, a recoverer", 2, 2, 1, entries=1, faults=Faults(1), closes=True, guaranteed=True
    ),
)

LARGE = (
    *SMALL,
    SmallWorld("three bookies, an entry that closes", 3, 3, 2, entries=1, faults=Faults(1), closes=True),
    SmallWorld("a tailing reader beside a recoverer", 2, 2, 2, entries=2, looks=1, closes=True),
    SmallWorld("a tailing reader, late requests", 2, 2, 1, entries=2, recoverers=0, faults=Faults(1), looks=2),
    SmallWorld("three bookies, two entries", 3, 3, 2, entries=2, most_states=4_000_000),
    SmallWorld("three entries in stripes", 3, 2, 2, entries=3, most_states=4_000_000),
    SmallWorld("two entries, late requests", 2, 2, 2, entries=2, faults=Faults(1)),
    SmallWorld("two entries read at once", 2, 2, 2, entries=2, read_batch=2),
    SmallWorld("a recoverer that reads runs", 2, 2, 1, entries=2, bookies=2, read_batch=4),
    SmallWorld("two recoverers, late requests", 2, 2, 2, entries=1, recoverers=2, faults=Faults(1)),
    SmallWorld("two recoverers, two entries", 2, 2, 2, entries=2, recoverers=2, most_states=4_000_000),
    SmallWorld(
        "a guaranteed write quorum in three", 3, 3, 2, entries=1, faults=Faults(1), closes=True, guaranteed=True
    ),
    SmallWorld(
        "a guaranteed write quorum, a crash",
        2,
        2,
        1,
        entries=1,
        faults=Faults(0, 0, 1),
        closes=True,
        syncs_apart=True,
        guaranteed=True,
    ),
    SmallWorld("a crash", 2, 2, 2, entries=1, faults=Faults(0, 0, 1), closes=True, syncs_apart=True),
    SmallWorld("a crash, an ack quorum of one", 2, 2, 1, entries=1, faults=Faults(0, 0, 1), syncs_apart=True),
)


def explored(small: SmallWorld | StreamWorld) -> tuple[Found, int]:
    """What came of a world, and the memory that the process has taken so far, in MiB."""
    world, judge = small.build()
    found = explore(world, judge, small.most_states)
    return found, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
