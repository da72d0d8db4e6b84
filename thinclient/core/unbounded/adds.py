"""Types shared by the writer and the take-over of an unbounded ledger: bookies at their positions, adds, and
effects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bookgate.ledger.errors import BKException
from bookgate.thinclient.core.recovery import Replace
from bookgate.thinclient.core.unbounded.changes import NewFragment


class Place:
    """A bookie at its index of the ensemble. A response is reported with the place to which the request was sent.

    `route` belongs to the caller.
    """

    __slots__ = ("bit", "bookie_id", "index", "joins", "route")

    def __init__(self, index: int, bookie_id: str, *, joins: bool = False) -> None:
        self.index = index
        self.bit = 1 << index
        """Marks it in sets of indexes."""
        self.bookie_id = bookie_id
        self.route: Any = None
        self.joins = joins
        """Whether it is no member yet, and is truncated before it becomes one."""


class Add:
    """An add in progress. `began`, `packet` and `token` belong to the caller."""

    __slots__ = (
        "acked",
        "began",
        "entry_id",
        "indexes",
        "lafr",
        "last_add_confirmed",
        "length",
        "packet",
        "required",
        "sent",
        "size",
        "token",
        "truncate",
    )

    began: float

    def __init__(
        self,
        entry_id: int,
        size: int,
        length: int,
        horizon: Sequence[int],
        indexes: Sequence[int],
        required: int,
        truncate: bool,
    ) -> None:
        self.entry_id = entry_id
        self.size = size
        """Payload bytes."""
        self.length = length
        """The ledger's payload bytes including this entry."""
        self.last_add_confirmed, self.lafr = horizon
        """The LAC in its packet and the LAFR in its requests, also in later ones."""
        self.indexes = indexes
        """Indexes that must store it: its write set, or every index for a truncate entry."""
        self.required = required
        """The same as bits."""
        self.truncate = truncate
        self.sent = 0
        """Indexes whose present bookie was sent the add, as bits."""
        self.acked = 0
        """Indexes in `sent` whose bookie acknowledged it, as bits."""
        self.packet = b""
        self.token: Any = None

    @property
    def replicated(self) -> bool:
        """Whether all required bookies have stored it."""
        return self.acked == self.required


class Horizon(NamedTuple):
    """The LAC and LAFR of a ledger."""

    last_add_confirmed: int
    lafr: int


class SendAdd(NamedTuple):
    """Send an add to bookies; report each result with its place."""

    add: Add
    places: Sequence[Place]
    truncate: bool
    """Whether the request has the truncate flag."""


class Confirmed(NamedTuple):
    """Inform the application that these are written, in this order."""

    adds: Sequence[Add]


class FailedAdds(NamedTuple):
    """The writer has ended: inform the application that these failed, and why."""

    adds: Sequence[Add]
    error: BKException


class ChooseEnsemble(NamedTuple):
    """Choose an ensemble for the next fragment; report it with `on_ensemble`."""

    present: tuple[str, ...]


class StoreFragment(NamedTuple):
    """Store the fragment in the metadata; then call `on_stored`, or `disengage`."""

    new: NewFragment


class RetryLater(NamedTuple):
    """Call `retry` after a pause: there was no replacement for failed bookies."""

    failed: Mapping[str, BKException]


Effect = SendAdd | Confirmed | FailedAdds | Replace | ChooseEnsemble | StoreFragment | RetryLater
