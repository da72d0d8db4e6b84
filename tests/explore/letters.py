"""What actors send each other, and what breaks a rule while they act.

An actor is known by its position in the world. A *letter* is a request to a server (a bookie, the metadata store) or
its answer. `handle` is what a client knows its request by; a request without one is *forsaken*: its client heard of a
timeout, or needs no answer any more, but it may still arrive.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from bookgate.ledger.entry import Entry
from bookgate.ledger.errors import BKException
from bookgate.ledger.metadata import LedgerMetadata

Handle = tuple[Any, ...]
Move = tuple[Any, ...]
"""Something an actor may do of its own accord: a word, and which of several ways."""


class Violation(Exception):
    """A rule was broken. `invariant` is its id in docs/protocol/invariants.md."""

    def __init__(self, invariant: str, problem: str) -> None:
        super().__init__(invariant, problem)
        self.invariant, self.problem = invariant, problem

    def __str__(self) -> str:
        return f"{self.invariant}: {self.problem}"


class Add(NamedTuple):
    """Store this entry."""

    entry: Entry
    recovery: bool

    def __str__(self) -> str:
        kind = "recovery add" if self.recovery else "add"
        return f"{kind} {self.entry.entry_id} (LAC {self.entry.last_add_confirmed})"


class FencingRead(NamedTuple):
    """Fence the ledger, then read, besides at most so many entries `following`; -1 stands for the last entry."""

    entry_id: int
    following: int = 0

    def __str__(self) -> str:
        behind = f" and {self.following} behind it" if self.following else ""
        return f"fencing read {'of the last entry' if self.entry_id < 0 else self.entry_id}{behind}"


class PlainRead(NamedTuple):
    """Read as readers do; -1 stands for the last entry."""

    entry_id: int

    def __str__(self) -> str:
        return f"read {'of the last entry' if self.entry_id < 0 else self.entry_id}"


class FoundRun(NamedTuple):
    """The answer to a read of several entries; they follow one another."""

    entries: tuple[Entry, ...]

    def __str__(self) -> str:
        return f"entries {self.entries[0].entry_id} to {self.entries[-1].entry_id}"


class Stored(NamedTuple):
    """The answer to an add."""

    error: BKException | None

    def __str__(self) -> str:
        return "stored" if self.error is None else type(self.error).__name__


class Write(NamedTuple):
    """Replace the metadata of this version."""

    metadata: LedgerMetadata
    version: int

    def __str__(self) -> str:
        return f"write {describe(self.metadata)} over version {self.version}"


class Look(NamedTuple):
    """Tell the metadata."""

    def __str__(self) -> str:
        return "read the metadata"


class Record(NamedTuple):
    """The metadata as they are stored; `written` is None for an answer to `Look`, False for a version conflict."""

    metadata: LedgerMetadata
    version: int
    written: bool | None

    def __str__(self) -> str:
        word = {None: "metadata", True: "written", False: "conflict"}[self.written]
        return f"{word}: version {self.version} {describe(self.metadata)}"


def describe(metadata: LedgerMetadata) -> str:
    """The state, the end and the fragments in a few words."""
    end = f" at {metadata.last_entry_id}" if metadata.is_closed else ""
    fragments = ", ".join(f"{each.first_entry_id}: {' '.join(each.ensemble)}" for each in metadata.fragments)
    return f"{metadata.state.name}{end} [{fragments}]"


class Letter(NamedTuple):
    """A request on its way from `sender` to `to`, or an answer on its way back."""

    to: int
    sender: int
    handle: Handle | None
    body: object
    is_answer: bool = False


class Client(Protocol):
    """A writer or a recoverer. Its methods return the requests it sends: (position of the server, handle, body)."""

    outstanding: set[Handle]
    """The requests whose answers it still wants; their handles."""

    def moves(self) -> Sequence[Move]: ...

    def act(self, move: Move) -> Sequence[tuple[int, Handle, object]]: ...

    def hear(self, handle: Handle, answer: object) -> Sequence[tuple[int, Handle, object]]: ...

    @property
    def over(self) -> bool: ...


class Server(Protocol):
    """A bookie or the store. Its methods return the answers that leave: (position of the client, handle, body)."""

    def moves(self) -> Sequence[Move]: ...

    def act(self, move: Move) -> Sequence[tuple[int, Handle | None, object]]: ...

    def serve(
        self, client: int, handle: Handle | None, request: object
    ) -> Sequence[tuple[int, Handle | None, object]]: ...

    def ignores(self, request: object) -> bool:
        """Whether this request would change nothing, now and ever."""
        ...


@runtime_checkable
class Crashes(Protocol):
    """A server that may crash. `waiting` are the requests that it has taken and not answered."""

    up: bool
    waiting: list[Any]

    def crash(self) -> None: ...
