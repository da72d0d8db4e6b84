"""What must hold in every state of a world of an unbounded ledger: G1, G2, U3 to U5 and P2 of
docs/protocol/invariants.md.

U1 is judged by each bookie at each request, P5 and P6 by the store. Where nothing happens any more, every client must
have ended (P12), and one more, to which nothing happens, must take the ledger over, append, and close it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from bookgate.ledger.metadata import LedgerMetadata, LedgerState
from bookgate.ledger.quorum import write_set
from tests.explore.adding import BOOKIES
from tests.explore.letters import Violation
from tests.explore.servers import Store
from tests.explore.stream_client import StreamClient
from tests.explore.term_bookie import TermBookie
from tests.explore.world import Faults, State, World

Bookies = dict[str, TermBookie]


class StreamRules:
    """Judges the states of one world; a combination of actors' states is judged once."""

    def __init__(self, world: World, healed: World, healer: Callable[[Store], StreamClient]) -> None:
        self._world, self._healed, self._healer = world, healed, healer
        self._judged: set[tuple[int, ...]] = set()
        self._quiet: set[tuple[int, ...]] = set()

    def judge(self, state: State) -> None:
        """Raises Violation."""
        if state.actors not in self._judged:
            self._judged.add(state.actors)
            _check([self._world.fact(number) for number in state.actors])
        if state.actors not in self._quiet and self._world.is_quiet(state):
            self._quiet.add(state.actors)
            self._judge_end([self._world.fact(number) for number in state.actors])

    def _judge_end(self, actors: list[object]) -> None:
        clients = [each for each in actors if isinstance(each, StreamClient)]
        for client in clients:
            if not client.over:
                raise Violation("P12", f"client {client.number} has not ended, and nothing happens any more")
        (store,) = (each for each in actors if isinstance(each, Store))
        if store.metadata.is_closed:
            return
        healed = self._healed
        servers = [each for each in actors if isinstance(each, TermBookie | Store)]
        state = healed.state_of([self._healer(store), *servers], Faults())
        while (step := next(healed.steps(state), None)) is not None:
            state = healed.after(state, step)
            _check([*clients, *(healed.fact(number) for number in state.actors)])
        (healer,) = (each for each in map(healed.fact, state.actors) if isinstance(each, StreamClient))
        if healer.error is not None or not healer.acknowledged:
            raise Violation("P12", f"a client without faults can't take the ledger over: {healer.error}")


def _check(actors: Iterable[object]) -> None:
    actors = list(actors)
    (store,) = (each for each in actors if isinstance(each, Store))
    metadata = store.metadata
    bookies = dict(zip(BOOKIES, (each for each in actors if isinstance(each, TermBookie)), strict=False))
    clients = [each for each in actors if isinstance(each, StreamClient)]
    for client in clients:
        _check_acknowledged(client, metadata, bookies)
        _check_truncated(client, metadata, bookies)
    _check_divergence(metadata, bookies)
    _check_replicated(metadata, bookies)


def _members(metadata: LedgerMetadata, entry_id: int) -> list[str]:
    ensemble = metadata.fragment_at(entry_id).ensemble
    return [ensemble[i] for i in write_set(entry_id, metadata.ensemble_size, metadata.write_quorum_size)]


def _held(bookie: TermBookie, entry_id: int) -> bytes | None:
    entry = bookie.durable.get(entry_id)
    return None if entry is None else entry.payload


def _check_acknowledged(client: StreamClient, metadata: LedgerMetadata, bookies: Bookies) -> None:
    for entry_id, payload in client.acknowledged.items():
        held = [_held(bookies[name], entry_id) for name in _members(metadata, entry_id)]
        if held.count(payload) < metadata.ack_quorum_size:
            raise Violation("U5", f"entry {entry_id} was acknowledged as {payload!r}; its bookies hold {held}")
        if metadata.is_closed and entry_id > metadata.last_entry_id:
            raise Violation("P2", f"entry {entry_id} was acknowledged; the ledger ends at {metadata.last_entry_id}")


def _check_truncated(client: StreamClient, metadata: LedgerMetadata, bookies: Bookies) -> None:
    assert metadata.terms is not None
    if client.opened_at is None or metadata.state is not LedgerState.OPEN or metadata.terms.term != client.term:
        return
    for name in metadata.last_fragment.ensemble:
        highest = max(bookies[name].durable, default=-1)
        if highest != client.opened_at:
            raise Violation("U3", f"{name} holds entry {highest}; the truncate entry is {client.opened_at}")


def _check_divergence(metadata: LedgerMetadata, bookies: Bookies) -> None:
    end = max((entry_id for each in bookies.values() for entry_id in each.entries), default=-1)
    for entry_id in range(end + 1):
        shown = [bookies[name].shown(entry_id) for name in _members(metadata, entry_id)]
        values = {entry.payload for entry in shown if entry is not None}
        if len(values) > 1:
            raise Violation("U4", f"readers of entry {entry_id} are shown {sorted(values)}")


def _check_replicated(metadata: LedgerMetadata, bookies: Bookies) -> None:
    invariant = "G2" if metadata.is_closed else "G1"
    end = metadata.last_entry_id + 1 if metadata.is_closed else metadata.last_fragment.first_entry_id
    for entry_id in range(end):
        held = {_held(bookies[name], entry_id) for name in _members(metadata, entry_id)}
        if len(held) != 1 or None in held:
            raise Violation(invariant, f"entry {entry_id} is {held} on its bookies, and its fragment is complete")
