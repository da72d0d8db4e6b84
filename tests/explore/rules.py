"""What must hold in every state of a world of the ordinary protocol: P1 to P12, G2 of docs/protocol/invariants.md.

P5 and P6 are judged by the store at each write, P7 and P8 by each bookie at each add, P9 by the writer at each
acknowledgement. The others are judged here, from the actors' states. Where nothing happens any more, every client must
have ended (P12), and one more recovery, to which nothing happens, must close the ledger: nothing may stand in its way,
and P1 to P3 must hold of what it leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

from bookgate.ledger.ledger_id import NO_ENTRY
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.quorum import write_set
from tests.explore.adding import BOOKIES, length_at, payload_of
from tests.explore.letters import Violation
from tests.explore.reader import Reader
from tests.explore.recoverer import Recoverer
from tests.explore.servers import Bookie, Store
from tests.explore.world import Faults, State, World
from tests.explore.writer import Writer


class Rules:
    """Judges the states of one world; a combination of actors' states is judged once."""

    def __init__(self, world: World, healed: World, healer: Callable[[Store], Recoverer]) -> None:
        self._world = world
        self._healed = healed
        self._healer = healer
        self._judged: set[tuple[int, ...]] = set()
        self._quiet: set[tuple[int, ...]] = set()
        self._any_faults = world.start.faults

    def judge(self, state: State) -> None:
        """Raises Violation."""
        if state.actors not in self._judged:
            self._judged.add(state.actors)
            self._judge_actors([self._world.fact(number) for number in state.actors])
        if state.actors not in self._quiet and self._world.is_quiet(state):
            self._quiet.add(state.actors)
            self._judge_end(state)

    def _judge_actors(self, actors: list[object]) -> None:
        (store,) = (each for each in actors if isinstance(each, Store))
        bookies = {name: each for name, each in zip(self._world.names, actors, strict=True) if isinstance(each, Bookie)}
        metadata = store.metadata
        for bookie in bookies.values():
            _check_entries(bookie)
        for actor in actors:
            if isinstance(actor, Writer):
                _check_writer(actor, metadata, bookies)
            elif isinstance(actor, Recoverer):
                _check_recoverer(actor, metadata)
            elif isinstance(actor, Reader):
                _check_reader(actor, metadata, bookies)
        if metadata.is_closed:
            _check_closed(metadata, bookies)

    def _judge_end(self, state: State) -> None:
        world = self._world
        for position, number in enumerate(state.actors[: world.clients]):
            actor = cast("Writer | Recoverer | Reader", world.fact(number))
            if not actor.over:
                raise Violation("P12", f"{world.names[position]} has not ended, and nothing happens any more")
            if isinstance(actor, Recoverer) and actor.error is not None and state.faults == self._any_faults:
                raise Violation("P12", f"{world.names[position]} has failed though nothing went wrong: {actor.error}")
        self._heal([world.fact(number) for number in state.actors])

    def _heal(self, actors: list[object]) -> None:
        """One more client recovers the ledger."""
        healed = self._healed
        servers = [each for each in actors if isinstance(each, Bookie | Store)]
        (writer,) = (each for each in actors if isinstance(each, Writer))
        (store,) = (each for each in actors if isinstance(each, Store))
        state = healed.state_of([self._healer(store), *servers], Faults())
        while (step := next(healed.steps(state), None)) is not None:
            state = healed.after(state, step)
        after = [healed.fact(number) for number in state.actors]
        (recoverer,) = (each for each in after if isinstance(each, Recoverer))
        if recoverer.closed_at is None:
            raise Violation("P12", f"a recovery without faults does not close the ledger: {recoverer.error}")
        _check_ledger(after, writer)


def _check_ledger(actors: list[object], writer: Writer) -> None:
    (store,) = (each for each in actors if isinstance(each, Store))
    bookies = dict(zip(BOOKIES, (each for each in actors if isinstance(each, Bookie)), strict=False))
    _check_writer(writer, store.metadata, bookies)
    _check_closed(store.metadata, bookies)


def _copies(metadata: LedgerMetadata, entry_id: int, bookies: dict[str, Bookie]) -> Iterator[str]:
    """The bookies that durably hold an entry where readers look for it."""
    ensemble = metadata.fragment_at(entry_id).ensemble
    for index in write_set(entry_id, metadata.ensemble_size, metadata.write_quorum_size):
        if entry_id in bookies[ensemble[index]].durable:
            yield ensemble[index]


def _check_copies(
    invariant: str, metadata: LedgerMetadata, entry_id: int, bookies: dict[str, Bookie], least: int | None = None
) -> None:
    copies = list(_copies(metadata, entry_id, bookies))
    if len(copies) < (least or metadata.ack_quorum_size):
        where = ", ".join(copies) or "none"
        raise Violation(invariant, f"of the bookies that metadata name for entry {entry_id} these hold it: {where}")


def _check_entries(bookie: Bookie) -> None:
    for entry_id, entry in bookie.entries.items():
        if (entry.payload, entry.ledger_length) != (payload_of(entry_id), length_at(entry_id)):
            raise Violation("P1", f"entry {entry_id} holds {entry.payload!r}, length {entry.ledger_length}")


def _check_writer(writer: Writer, metadata: LedgerMetadata, bookies: dict[str, Bookie]) -> None:
    for entry_id in range(writer.acknowledged):
        _check_copies("P1", metadata, entry_id, bookies)
    if metadata.is_closed and metadata.last_entry_id < writer.last_add_confirmed:
        acknowledged = f"entry {writer.last_add_confirmed} was acknowledged"
        raise Violation("P2", f"the ledger is closed at entry {metadata.last_entry_id}, and {acknowledged}")


def _check_recoverer(recoverer: Recoverer, metadata: LedgerMetadata) -> None:
    at = recoverer.closed_at
    if at is not None and (not metadata.is_closed or metadata.last_entry_id != at):
        raise Violation("P11", f"a recoverer takes {at} for the last entry; metadata say {metadata.last_entry_id}")


def _check_reader(reader: Reader, metadata: LedgerMetadata, bookies: dict[str, Bookie]) -> None:
    told = max(reader.last_add_confirmed, reader.delivered)
    if metadata.is_closed and told > metadata.last_entry_id:
        raise Violation("P10", f"the reader was told of entry {told}; the ledger is closed at {metadata.last_entry_id}")
    for entry_id in range(told + 1):
        _check_copies("P10", metadata, entry_id, bookies)


def _check_closed(metadata: LedgerMetadata, bookies: dict[str, Bookie]) -> None:
    last = metadata.last_entry_id
    for entry_id in range(last + 1):
        _check_copies("P3", metadata, entry_id, bookies)
        if metadata.guaranteed_write_quorum:
            _check_copies("G2", metadata, entry_id, bookies, metadata.write_quorum_size)
    if metadata.length != length_at(last):
        raise Violation("P6", f"the ledger is closed at entry {last} with the length {metadata.length}")
    for name, bookie in bookies.items():
        lac = max([bookie.ledger.known_lac, *(e.last_add_confirmed for e in bookie.entries.values())], default=NO_ENTRY)
        if lac > last:
            raise Violation("P10", f"{name} tells readers of a LAC {lac}; the ledger is closed at entry {last}")
