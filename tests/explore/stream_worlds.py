"""The small worlds of unbounded ledgers that are explored."""

from __future__ import annotations

from dataclasses import dataclass, field

from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.terms import FragmentCaps
from bookgate.ledger.unbounded import create_unbounded
from tests.explore.adding import BOOKIES
from tests.explore.letters import Client, Server
from tests.explore.search import Judge
from tests.explore.servers import Store
from tests.explore.stream_client import StreamClient
from tests.explore.stream_rules import StreamRules
from tests.explore.term_bookie import TermBookie
from tests.explore.world import Faults, World


@dataclass(frozen=True, slots=True)
class StreamWorld:
    """An unbounded ledger: its creator appends `entries`, each client that takes it over `entries_after`."""

    name: str
    ensemble: int
    write_quorum: int
    ack_quorum: int
    entries: int
    entries_after: int = 1
    takers: int = 1
    bookies: int = 3
    faults: Faults = field(default_factory=Faults)
    syncs_apart: bool = False
    most_states: int = 0
    read_batch: int = 1
    """Entries that a take-over reads ahead; half of them with one read."""

    def build(self) -> tuple[World, Judge]:
        """The world, and what judges its states."""
        names = BOOKIES[: self.bookies]
        metadata = create_unbounded(
            LedgerMetadata.new(names[: self.ensemble], self.write_quorum, self.ack_quorum), FragmentCaps()
        )
        count = 1 + self.takers
        clients: dict[str, Client] = {"creator": self._client(0, (metadata, 0), count, self.entries)}
        for number in range(1, count):
            clients[f"client {number}"] = self._client(number, (metadata, 0), count, self.entries_after)
        world = World(clients, self._servers(metadata), self.faults)
        healed = World({"healer": self._healer(Store(metadata))}, self._servers(metadata), Faults())
        return world, StreamRules(world, healed, self._healer).judge

    def _servers(self, metadata: LedgerMetadata) -> dict[str, Server]:
        bookies: dict[str, Server] = {
            name: TermBookie(syncs_apart=self.syncs_apart) for name in BOOKIES[: self.bookies]
        }
        return {**bookies, "store": Store(metadata)}

    def _client(
        self, number: int, record: tuple[LedgerMetadata, int], clients: int, entries: int, *, closes: bool = False
    ) -> StreamClient:
        bookies = {name: clients + index for index, name in enumerate(BOOKIES[: self.bookies])}
        return StreamClient(
            number, record, bookies, clients + self.bookies, entries, closes=closes, read_batch=self.read_batch
        )

    def _healer(self, store: Store) -> StreamClient:
        return self._client(9, (store.metadata, store.version), 1, 1, closes=True)


SMALL_STREAMS = (
    StreamWorld("stream: a take-over", 2, 2, 1, entries=1),
    StreamWorld("stream: a crash", 1, 1, 1, entries=1, bookies=1, faults=Faults(crashes=1), syncs_apart=True),
    StreamWorld("stream: stripes", 2, 1, 1, entries=2, entries_after=0, bookies=2),
    StreamWorld("stream: a writer alone, late requests", 2, 2, 1, entries=2, takers=0, faults=Faults(timeouts=1)),
    StreamWorld("stream: doubled requests", 2, 2, 1, entries=1, faults=Faults(doubles=1)),
    StreamWorld("stream: two take-overs", 1, 1, 1, entries=1, takers=2, bookies=1),
    StreamWorld("stream: a take-over by runs", 1, 1, 1, entries=2, entries_after=0, bookies=1, read_batch=4),
)

LARGE_STREAMS = (
    *SMALL_STREAMS,
    StreamWorld("stream: a writer alone, two late requests", 2, 2, 1, entries=2, takers=0, faults=Faults(timeouts=2)),
    StreamWorld("stream: a take-over, late requests", 2, 2, 1, entries=1, faults=Faults(timeouts=1)),
    StreamWorld("stream: a take-over, two entries", 2, 2, 1, entries=2, entries_after=0),
    StreamWorld("stream: a take-over of two bookies by runs", 2, 2, 1, entries=2, entries_after=0, read_batch=4),
    StreamWorld("stream: two take-overs of two bookies", 2, 2, 1, entries=1, takers=2, most_states=3_000_000),
    StreamWorld("stream: three bookies", 3, 3, 2, entries=1, most_states=3_000_000),
)
