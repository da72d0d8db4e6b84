"""What happens around the gateways: ledger records changed, read, watched and listed, as clients and store see it.

A *mark* is a text of its own for every change that is asked for; it travels in the record's custom metadata, so the
store shows whose change each version is. `GONE` stands in the place of a version for a ledger that is not there.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.history import events
from tests.history.events import Event

GONE = -1


@dataclass(frozen=True, slots=True)
class StoreChanged(Event):
    """The store has committed a ledger's version, or its removal (GONE). `order` grows with every change."""

    ledger: str
    version: int
    order: int
    mark: str


@dataclass(frozen=True, slots=True)
class ChangeAsked(Event):
    """`kind`: create, write, remove. No ledger: one whose id is generated."""

    client: str
    mark: str
    kind: str
    ledger: str


@dataclass(frozen=True, slots=True)
class ChangeEnded(Event):
    """`outcome`: done, refused (it did not happen), unknown."""

    client: str
    mark: str
    kind: str
    outcome: str
    ledger: str
    version: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class RecordAsked(Event):
    client: str
    ledger: str
    call: int


@dataclass(frozen=True, slots=True)
class RecordGot(Event):
    client: str
    ledger: str
    call: int
    version: int


@dataclass(frozen=True, slots=True)
class WatchBegun(Event):
    client: str
    ledger: str
    watch: int


@dataclass(frozen=True, slots=True)
class WatchTold(Event):
    client: str
    ledger: str
    watch: int
    version: int


@dataclass(frozen=True, slots=True)
class WatchEnded(Event):
    """By its owner, or with it."""

    client: str
    ledger: str
    watch: int


@dataclass(frozen=True, slots=True)
class StreamAsked(Event):
    """A gateway has read a (un)subscription from a Watch stream."""

    gateway: str
    stream: int
    ledger: str


@dataclass(frozen=True, slots=True)
class StreamTold(Event):
    """A gateway has sent a ledger's state on a Watch stream."""

    gateway: str
    stream: int
    ledger: str
    version: int


@dataclass(frozen=True, slots=True)
class ListingAsked(Event):
    client: str
    listing: int


@dataclass(frozen=True, slots=True)
class ListingPage(Event):
    client: str
    listing: int
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ListingEnded(Event):
    """With the end mark."""

    client: str
    listing: int


@dataclass(frozen=True, slots=True)
class BookieChanged(Event):
    """The store has committed a registration with this label, or its end (no label). `order` as of ledgers."""

    bookie: str
    label: str
    order: int


@dataclass(frozen=True, slots=True)
class GatewayShowed(Event):
    """A gateway has sent an answer that is current up to this change of the store."""

    gateway: str
    order: int


@dataclass(frozen=True, slots=True)
class BookiesAsked(Event):
    """A gateway has received a request for the bookies."""

    gateway: str
    stream: int


@dataclass(frozen=True, slots=True)
class BookiesTold(Event):
    """What a gateway has answered, or told a watch: the label of each registered bookie."""

    gateway: str
    stream: int
    labels: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class GatewayWatches(Event):
    """What a gateway watches in the store, and what it has listeners for, while nothing happens."""

    gateway: str
    watched: tuple[str, ...]
    wanted: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class QuotaSet(Event):
    """The policy lets a client have so many ledgers at a time, and one gateway creates."""

    client: str
    ledgers: int


@dataclass(frozen=True, slots=True)
class LedgerShown(Event):
    """A client that may see its own ledgers was shown one. `how`: listing, records, read, batch, watch."""

    client: str
    ledger: str
    how: str


@dataclass(frozen=True, slots=True)
class GuestAnswered(Event):
    """What a gateway has sent to a client from which passwords are kept. `tells`: one of those is in it."""

    gateway: str
    client: str
    method: str
    tells: bool


@dataclass(frozen=True, slots=True)
class Quiet(Event):
    """Nothing was changed for so long that everyone must have heard of everything."""


events.EVENTS.update((kind.__name__, kind) for kind in Event.__subclasses__() if kind.__module__ == __name__)
