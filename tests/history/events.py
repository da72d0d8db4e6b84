"""What happened in a run, as plain values in the order in which it happened: a history.

A history is all that the checkers see, so the same checkers judge a simulation, where bookies and the store are watched
too, and a run over real processes, where only the clients and the ends are. Ledgers are named by their id as text,
payloads by a short text that determines their bytes (`contents`), times are seconds since the run began.

An operation has an event when it is asked and one when it ends; one that never ends was cut off by a fault, and its
outcome is unknown.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

STORE = "store"
"""In the place of a client: the metadata store itself, which sees every version."""


@dataclass(frozen=True, slots=True)
class Event:
    """`at`: seconds since the run began, simulated or real."""

    at: float

    def __str__(self) -> str:
        values = ((field.name, getattr(self, field.name)) for field in dataclasses.fields(self) if field.name != "at")
        return f"{self.at:10.4f} {type(self).__name__} " + " ".join(f"{name}={value}" for name, value in values)


# What clients do


@dataclass(frozen=True, slots=True)
class LedgerCreated(Event):
    """`tag` stands in the ledger's custom metadata: by it a record tells which ledger it is of."""

    client: str
    ledger: str
    sizes: tuple[int, int, int]
    """Ensemble size, write quorum, ack quorum."""
    tag: str
    advanced: bool = False
    deferred_sync: bool = False
    guaranteed: bool = False
    """With a guaranteed write quorum."""


@dataclass(frozen=True, slots=True)
class AppendAsked(Event):
    """`append` numbers the appends of a ledger in the order of the calls; `entry_id` is set on advanced ledgers."""

    client: str
    ledger: str
    append: int
    content: str
    entry_id: int = -1


@dataclass(frozen=True, slots=True)
class AppendAcknowledged(Event):
    client: str
    ledger: str
    append: int
    entry_id: int


@dataclass(frozen=True, slots=True)
class AppendFailed(Event):
    """The entry may be in the ledger or not."""

    client: str
    ledger: str
    append: int
    error: str


@dataclass(frozen=True, slots=True)
class Forced(Event):
    """`lac` is the writer's last add confirmed after the force."""

    client: str
    ledger: str
    lac: int


@dataclass(frozen=True, slots=True)
class WriterLac(Event):
    """The last add confirmed that a writer shows."""

    client: str
    ledger: str
    lac: int


@dataclass(frozen=True, slots=True)
class CloseAsked(Event):
    client: str
    ledger: str


@dataclass(frozen=True, slots=True)
class Closed(Event):
    """The writer closed its ledger."""

    client: str
    ledger: str
    last_entry: int
    length: int


@dataclass(frozen=True, slots=True)
class CloseFailed(Event):
    client: str
    ledger: str
    error: str


@dataclass(frozen=True, slots=True)
class RecoveryAsked(Event):
    client: str
    ledger: str


@dataclass(frozen=True, slots=True)
class Recovered(Event):
    """The ledger was opened with recovery (or was closed already) and ends here."""

    client: str
    ledger: str
    last_entry: int
    length: int


@dataclass(frozen=True, slots=True)
class RecoveryFailed(Event):
    client: str
    ledger: str
    error: str


@dataclass(frozen=True, slots=True)
class ReadDone(Event):
    """The entries from `first` on as they were delivered. `lac` is what the reader knew when it had them."""

    client: str
    ledger: str
    first: int
    contents: tuple[str, ...]
    lac: int
    confirmed: bool = True

    @property
    def last(self) -> int:
        return self.first + len(self.contents) - 1


@dataclass(frozen=True, slots=True)
class ReadFailed(Event):
    client: str
    ledger: str
    first: int
    last: int
    error: str
    confirmed: bool = True
    asked_at: float | None = None
    """When it began; None: just before it failed."""


@dataclass(frozen=True, slots=True)
class LacRead(Event):
    """What a reader was told the last add confirmed is."""

    client: str
    ledger: str
    lac: int


@dataclass(frozen=True, slots=True)
class DeleteAsked(Event):
    """From here on nothing is promised of the ledger."""

    client: str
    ledger: str


@dataclass(frozen=True, slots=True)
class MetadataSeen(Event):
    """A ledger's record as a client was given it; as the store wrote it where `client` is STORE."""

    client: str
    ledger: str
    version: int
    state: str
    sizes: tuple[int, int, int]
    fragments: tuple[tuple[int, tuple[str, ...]], ...]
    """First entry id and ensemble of each."""
    last_entry: int
    length: int
    tag: str


@dataclass(frozen=True, slots=True)
class MetadataRemoved(Event):
    """The record is gone, as `client` (or STORE) sees it."""

    client: str
    ledger: str


@dataclass(frozen=True, slots=True)
class LedgerRepaired(Event):
    """A worker of auto-recovery is about to write this version of a ledger's metadata, under the ledger's lock."""

    ledger: str
    version: int


# What bookies do, where somebody watches them


@dataclass(frozen=True, slots=True)
class BookieAnswered(Event):
    """An answer as it leaves a bookie. `arrived_after`: how many events the history had when the request arrived."""

    bookie: str
    ledger: str
    entry_id: int
    operation: str
    """add, recovery-add, deferred-add, read, fencing-read, force, write-lac, read-lac."""
    status: str
    """Name of the protocol's status: EOK, ENOENTRY, ..."""
    arrived_after: int
    wrong_key: bool = False

    @property
    def promises_an_entry(self) -> bool:
        """Whether it says that the entry is durable."""
        return self.status == "EOK" and self.operation in ("add", "recovery-add")


@dataclass(frozen=True, slots=True)
class StrangerAnswered(Event):
    """The same to somebody of `rules_access.STRANGERS`. `tells`: it has something of the ledger beside the status."""

    bookie: str
    client: str
    ledger: str
    operation: str
    status: str
    tells: bool
    arrived_after: int


@dataclass(frozen=True, slots=True)
class FenceAsked(Event):
    """Somebody who may has asked a bookie for the first time for what fences a ledger, where strangers ask too."""

    bookie: str
    ledger: str


@dataclass(frozen=True, slots=True)
class PolicyReplaced(Event):
    """Bookies have learnt of another policy."""


@dataclass(frozen=True, slots=True)
class BookieStarted(Event):
    """A bookie serves (again)."""

    bookie: str


@dataclass(frozen=True, slots=True)
class RawLedgerRecord:
    """What a bookie holds of one ledger: entry ids with what they contain, ascending."""

    ledger: str
    fenced: bool
    entries: tuple[tuple[int, str], ...]
    limbo: bool = False
    """Whether the bookie may have lost some of it, and takes no adds for that reason."""


@dataclass(frozen=True, slots=True)
class BookieHolds(Event):
    """Everything that a bookie holds: after a start, and at the end of the run."""

    bookie: str
    ledgers: tuple[RawLedgerRecord, ...]


@dataclass(frozen=True, slots=True)
class LedgerCollected(Event):
    """A bookie's garbage collection took a ledger for deleted."""

    bookie: str
    ledger: str


@dataclass(frozen=True, slots=True)
class SurplusCollected(Event):
    """A bookie deleted its copies of a closed ledger, which the metadata place elsewhere."""

    bookie: str
    ledger: str


# What is done to them

DAMAGED_FILE = "damaged-file"
BEGUN_ANEW = "begun-anew"
"""A bookie loses its directories and its cookie, and starts again under its id."""
LOSES_DATA = frozenset({"wipe", "corrupt", "flipped-reads", DAMAGED_FILE, BEGUN_ANEW})
"""Faults after which a bookie may lack what it acknowledged."""
POWER_LOSS = "power-loss"


@dataclass(frozen=True, slots=True)
class Fault(Event):
    """`kind` is one word; `target` the bookie, client or gateway that it befell."""

    kind: str
    target: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Healed(Event):
    """No fault from here on: progress is demanded (P12)."""


History = list[Event]

EVENTS: dict[str, type[Event]] = {kind.__name__: kind for kind in Event.__subclasses__()}


def encode(event: Event) -> dict[str, Any]:
    """A value for JSON."""
    return {"event": type(event).__name__, **dataclasses.asdict(event)}


def decode(value: dict[str, Any]) -> Event:
    """Raises KeyError or TypeError for what is no event."""
    fields = {name: _tuples(field) for name, field in value.items() if name != "event"}
    kind = EVENTS[value["event"]]
    if kind is BookieHolds:
        fields["ledgers"] = tuple(
            RawLedgerRecord(**{name: _tuples(part) for name, part in one.items()}) for one in value["ledgers"]
        )
    return kind(**fields)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value
