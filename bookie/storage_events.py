"""What storage says to whoever serves requests, and what it carries for them: events and completions.

A request goes into storage together with its `Completion`, which comes back by one event of `StorageEvents`, once:
`stored` when the record is durable (written, where its sync is deferred), or `not_stored` when the disk had no space
for it. The other events belong to no request.

Events come from storage's threads: journal, checkpoint, or whoever deletes ledgers. Journal and checkpoint wait until
an event returns, so none may block.

Not its job: what becomes of an event (`protocol.loop_bridge`), the kinds of completions (`protocol.completions`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from bookgate.ledger.wire.messages import Response, Status
from bookgate.runtime.latency import OpStats


class CompletionClient(Protocol):
    """Whoever sent a request, as far as its completion goes."""

    def send(self, frame: bytes) -> None:
        """Queues a response; ignored once the connection is closed."""

    def answer(self, response: Response) -> None:
        """Encodes a response and queues it."""

    def flush(self) -> None:
        """Hands what is queued to the transport."""


class Timer(NamedTuple):
    """A request that is timed: where its latency counts, and when it began by `time.perf_counter`."""

    latency: OpStats
    started: float


class Completion:
    """What is owed to a client once its request is stored. Storage carries it, and looks at nothing in it."""

    __slots__ = ("client", "frame", "timer")

    def __init__(self, client: CompletionClient, frame: bytes, timer: Timer | None = None) -> None:
        """`frame` is the response, encoded; empty where the request goes on instead, as a read behind its fence."""
        self.client = client
        self.frame = frame
        self.timer = timer

    def refusal(self, status: Status) -> Response:
        """The response that says why the request was not stored."""
        raise NotImplementedError


class Retry(Enum):
    """What becomes of a write that found no space."""

    WITH_SPACE = "storage keeps what it could not write, and tries again once told to"
    NEVER = "the error is fatal"


class StorageEvents(Protocol):
    """Implemented by whoever opens storage. Called from storage's threads."""

    def stored(self, completions: Sequence[Completion]) -> None:
        """The records of these requests are durable, in the order in which they came."""

    def not_stored(self, completions: Sequence[Completion], error: OSError) -> Retry:
        """A write found no space. These requests are not acknowledged, now or later; there may be none.

        Whoever says `Retry.WITH_SPACE` sees to it that nothing more is written until `space_restored`.
        """

    def capacity_available(self) -> None:
        """The write cache or a journal's queue takes more: there may be capacity for adds again."""

    def space_restored(self) -> None:
        """What had found no space has been made good; `LedgerStorage.out_of_space` says whether anything is left."""

    def ledgers_deleted(self, ids: Sequence[int]) -> None:
        """These ledgers of scope 0 were deleted, durably."""

    def failed(self, error: BaseException) -> None:
        """Storage failed and ends: nothing more is accepted or acknowledged. Called once."""
