"""A small world as numbers: each actor's state, the letters on their way, the faults that are left.

A state of the world is three tuples of small integers. An integer stands for an actor's state, or for a letter, that
was met before. The product's code runs once for each actor's state and each thing that may happen to it; what came of
it is looked up from then on. So worlds of millions of states cost thousands of runs of the cores.

Steps: an actor moves of its own accord, a letter arrives (any of those on their way: letters overtake each other), a
request times out (the client is told, the request or its answer may still arrive; a request that never does is one that
stays on its way), a request arrives a second time, a bookie crashes. Faults are limited: `Faults` says how many.

Folding. What can't matter any more is dropped: answers that nobody waits for, and forsaken requests that would change
nothing. Clients that are alike (two recoverers) may be swapped: `canonical` is the same for both.

Not its job: what is explored, and in which order (`search`); what must hold (`rules`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple, cast

from bookgate.ledger.errors import BookieHandleNotAvailableException, TimeoutException
from tests.explore.freezing import freeze, pack, unpack
from tests.explore.letters import Client, Crashes, Handle, Letter, Move, Server

Key = tuple[Hashable, ...]


class Faults(NamedTuple):
    """How many of each a world may still have."""

    timeouts: int = 0
    doubles: int = 0
    crashes: int = 0


class State(NamedTuple):
    """Of the world."""

    actors: tuple[int, ...]
    letters: tuple[int, ...]
    """On their way, ascending; one may be there twice."""
    faults: Faults


class Step(NamedTuple):
    """What happens: `kind` to an actor or a letter."""

    kind: str
    subject: int
    move: Move = ()


class World:
    """Actors by position, clients first."""

    def __init__(self, clients: Mapping[str, Client], servers: Mapping[str, Server], faults: Faults) -> None:
        self.names = (*clients, *servers)
        self.clients = len(clients)
        self._numbers: dict[Hashable, int] = {}
        self._packed: list[bytes] = []
        self._moves: list[tuple[Move, ...]] = []
        self._outstanding: list[frozenset[Handle]] = []
        self._letter_numbers: dict[Hashable, int] = {}
        self.letters: list[Letter] = []
        self._after: dict[tuple[int, int, Hashable], tuple[int, tuple[int, ...]]] = {}
        self._kept: dict[tuple[int, int], int] = {}
        self._swapped: dict[int, int] = {}
        self._facts: dict[int, object] = {}
        actors: list[Client | Server] = [*clients.values(), *servers.values()]
        self.start = self.state_of(actors, faults)
        self._alike = self._twins()

    def _twins(self) -> tuple[int, int] | None:
        for first in range(self.clients):
            for second in range(first + 1, self.clients):
                if self.start.actors[first] == self.start.actors[second]:
                    return first, second
        return None

    def state_of(self, actors: Sequence[Client | Server], faults: Faults) -> State:
        """Where these actors stand in for those of the start, and nothing is on its way."""
        return State(tuple(self._number_of(each) for each in actors), (), faults)

    @property
    def runs(self) -> int:
        """How often the actors' code has run."""
        return len(self._after)

    def actor(self, number: int) -> Client | Server:
        """A copy of the actor in this state."""
        return cast("Client | Server", unpack(self._packed[number]))

    # Steps

    def steps(self, state: State) -> Iterator[Step]:
        """Everything that may happen now; faults last."""
        for position, number in enumerate(state.actors):
            for move in self._moves[number]:
                yield Step("move", position, move)
        letters = dict.fromkeys(state.letters)
        for letter in letters:
            yield Step("arrive", letter)
        timeouts, doubles, crashes = state.faults
        for letter in letters:
            of = self.letters[letter]
            if timeouts and of.handle is not None:
                yield Step("time out", letter)
            if doubles and not of.is_answer:
                yield Step("arrive twice", letter)
        if crashes:
            for position, number in enumerate(state.actors):
                if self._can_crash(number):
                    yield Step("crash", position)

    def _can_crash(self, number: int) -> bool:
        fact = self.fact(number)
        return isinstance(fact, Crashes) and fact.up

    def is_quiet(self, state: State) -> bool:
        """Nothing happens any more without a fault, but that forsaken requests arrive."""
        return not any(self._moves[number] for number in state.actors) and all(
            self.letters[letter].handle is None for letter in state.letters
        )

    def after(self, state: State, step: Step) -> State:
        """What comes of a step. Raises Violation, and AssertionError where a core's own check fails."""
        letters = list(state.letters)
        faults = state.faults
        match step.kind:
            case "move":
                return self._happen(state.actors, letters, faults, step.subject, ("move", step.move))
            case "arrive":
                letters.remove(step.subject)
                return self._arrive(state.actors, letters, faults, step.subject)
            case "arrive twice":
                letters.remove(step.subject)
                letters.append(self._letter(self.letters[step.subject]._replace(handle=None)))
                faults = faults._replace(doubles=faults.doubles - 1)
                return self._arrive(state.actors, letters, faults, step.subject)
            case "time out":
                faults = faults._replace(timeouts=faults.timeouts - 1)
                return self._time_out(state.actors, letters, faults, step.subject)
            case _:
                faults = faults._replace(crashes=faults.crashes - 1)
                return self._crash(state.actors, letters, faults, step.subject)

    def _arrive(self, actors: tuple[int, ...], letters: list[int], faults: Faults, number: int) -> State:
        letter = self.letters[number]
        position = letter.to
        return self._happen(actors, letters, faults, position, ("letter", number))

    def _time_out(self, actors: tuple[int, ...], letters: list[int], faults: Faults, number: int) -> State:
        letters.remove(number)
        letter = self.letters[number]
        client = letter.to if letter.is_answer else letter.sender
        if not letter.is_answer:
            letters.append(self._letter(letter._replace(handle=None)))
        told = Letter(client, letter.sender + letter.to - client, letter.handle, TimeoutException(), is_answer=True)
        return self._happen(actors, letters, faults, client, ("letter", self._letter(told)))

    def _crash(self, actors: tuple[int, ...], letters: list[int], faults: Faults, position: int) -> State:
        left: list[int] = []
        for number in letters:
            letter = self.letters[number]
            if position not in (letter.to, letter.sender):
                left.append(number)
            elif letter.handle is not None:
                left.append(self._cut(letter, position))
        actor = self.fact(actors[position])
        assert isinstance(actor, Crashes)
        for client, handle, _ in actor.waiting:
            if handle is not None:
                left.append(self._cut(Letter(position, client, handle, None), position))
        return self._happen(actors, left, faults, position, ("crash",))

    def _cut(self, letter: Letter, server: int) -> int:
        """What a client is told when its connection is lost."""
        client = letter.to + letter.sender - server
        return self._letter(Letter(client, server, letter.handle, BookieHandleNotAvailableException(), is_answer=True))

    def _happen(
        self, actors: tuple[int, ...], letters: list[int], faults: Faults, position: int, event: tuple[object, ...]
    ) -> State:
        key = (position, actors[position], cast("Hashable", event))
        found = self._after.get(key)
        if found is None:
            found = self._after[key] = self._run(position, actors[position], event)
        number, sent = found
        actors = (*actors[:position], number, *actors[position + 1 :])
        return State(actors, self._fold(actors, [*letters, *sent]), faults)

    def _run(self, position: int, number: int, event: tuple[object, ...]) -> tuple[int, tuple[int, ...]]:
        """Lets the actor's own code act."""
        actor = self.actor(number)
        if event[0] == "crash":
            cast("Crashes", actor).crash()
            sent: list[Letter] = []
        elif position < self.clients:
            sent = self._run_client(cast("Client", actor), position, event)
        else:
            sent = self._run_server(cast("Server", actor), position, event)
        return self._number_of(actor), tuple(self._letter(letter) for letter in sent)

    def _run_client(self, client: Client, position: int, event: tuple[object, ...]) -> list[Letter]:
        if event[0] == "move":
            sends = client.act(cast("Move", event[1]))
        else:
            letter = self.letters[cast("int", event[1])]
            assert letter.handle is not None
            sends = client.hear(letter.handle, letter.body)
        return [Letter(to, position, handle, body) for to, handle, body in sends]

    def _run_server(self, server: Server, position: int, event: tuple[object, ...]) -> list[Letter]:
        if event[0] == "move":
            answers = server.act(cast("Move", event[1]))
        else:
            letter = self.letters[cast("int", event[1])]
            answers = server.serve(letter.sender, letter.handle, letter.body)
        return [
            Letter(client, position, handle, body, is_answer=True)
            for client, handle, body in answers
            if handle is not None
        ]

    # Numbers

    def _number_of(self, actor: Client | Server) -> int:
        frozen = freeze(actor)
        number = self._numbers.get(frozen)
        if number is None:
            number = self._numbers[frozen] = len(self._packed)
            self._packed.append(pack(actor))
            self._moves.append(tuple(actor.moves()))
            self._outstanding.append(frozenset(getattr(actor, "outstanding", ())))
        return number

    def _letter(self, letter: Letter) -> int:
        frozen = freeze(letter)
        number = self._letter_numbers.get(frozen)
        if number is None:
            number = self._letter_numbers[frozen] = len(self.letters)
            self.letters.append(letter)
        return number

    def fact(self, number: int) -> object:
        """The actor in this state, to look at and not to change."""
        fact = self._facts.get(number)
        if fact is None:
            fact = self._facts[number] = self.actor(number)
        return fact

    # Folding

    def _fold(self, actors: Sequence[int], letters: list[int]) -> tuple[int, ...]:
        kept, left = self._kept, []
        for number in letters:
            letter = self.letters[number]
            while True:
                if letter.handle is None:
                    about = actors[letter.to]
                else:
                    about = actors[letter.to if letter.is_answer else letter.sender]
                becomes = kept.get((number, about))
                if becomes is None:
                    becomes = kept[number, about] = self._folded(number, about)
                if becomes == number or becomes < 0:
                    break
                number, letter = becomes, self.letters[becomes]
            if becomes >= 0:
                left.append(becomes)
        left.sort()
        return tuple(left)

    def _folded(self, number: int, about: int) -> int:
        """The same letter, the same forsaken, or -1 where nothing can come of it."""
        letter = self.letters[number]
        if letter.handle is None:
            server = cast("Server", self.fact(about))
            return -1 if server.ignores(letter.body) else number
        if letter.handle in self._outstanding[about]:
            return number
        return -1 if letter.is_answer else self._letter(letter._replace(handle=None))

    def canonical(self, state: State) -> int:
        """The same for states that differ in nothing but which of two clients that are alike is which."""
        if self._alike is None:
            return hash(state)
        first, second = self._alike
        actors, letters = state.actors, state.letters
        mirrored = list(actors)
        mirrored[first], mirrored[second] = actors[second], actors[first]
        other = (tuple(mirrored), tuple(sorted(self._swap(letter) for letter in letters)), state.faults)
        return hash(min((actors, letters, state.faults), other))

    def _swap(self, number: int) -> int:
        found = self._swapped.get(number)
        if found is None:
            assert self._alike is not None
            first, second = self._alike
            renamed = {first: second, second: first}
            letter = self.letters[number]
            to, sender = renamed.get(letter.to, letter.to), renamed.get(letter.sender, letter.sender)
            found = self._swapped[number] = self._letter(letter._replace(to=to, sender=sender))
            self._swapped[found] = number
        return found

    # Words

    def words(self, step: Step) -> str:
        """A step as a trace shows it."""
        if step.kind == "move":
            ways = " ".join(f"{index}→{name}" for index, name in step.move[1]) if len(step.move) > 1 else ""
            return f"{self.names[step.subject]}: {step.move[0]} {ways}".rstrip()
        if step.kind == "crash":
            return f"{self.names[step.subject]}: crash"
        letter = self.letters[step.subject]
        way = f"{self.names[letter.sender]} → {self.names[letter.to]}"
        forsaken = " (forsaken)" if letter.handle is None else ""
        what = letter.body if not isinstance(letter.body, BaseException) else type(letter.body).__name__
        about = f" [{' '.join(map(str, letter.handle))}]" if letter.is_answer and letter.handle else ""
        return f"{way}: {_shown(what)}{about}{forsaken}{'' if step.kind == 'arrive' else f' — {step.kind}'}"


def _shown(body: object) -> str:
    entry_id = getattr(body, "entry_id", None)
    lac = getattr(body, "last_add_confirmed", None)
    return f"entry {entry_id} (LAC {lac})" if lac is not None else str(body)
