"""The interface from storage to the code that serves requests: events and completions.

A request enters storage together with its `Completion`, which returns exactly once, with one event of `StorageEvents`:
`stored` when the record is durable (or written, if its sync is deferred), or `not_stored` when the disk had no space
for it. The other events concern no particular request.

Events come from storage's threads: journal, checkpoint, or the thread that deletes ledgers. Journal and checkpoint wait
until an event returns, so no event may block.

Not its job: handling events (`protocol.loop_bridge`), the kinds of completions (`protocol.completions`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from bookgate.ledger.wire.messages import Response, Status
from bookgate.runtime.latency import OpStats


class CompletionClient(Protocol):
    """The sender of a request, as its completion needs it."""

    def send(self, frame: bytes, count: int = 1) -> None:
        """Queues a response, or so many, one frame after the other; ignored once the connection is closed."""

    def answer(self, response: Response) -> None:
        """Encodes a response and queues it."""

    def flush(self) -> None:
        """Hands the queued responses to the transport."""


class Timer(NamedTuple):
    """A timed request: which latency it counts for, and when it began by `time.perf_counter`."""

    latency: OpStats
    started: float


class Completion:
    """What is owed to a client once its request, or several, are stored. Storage carries it without looking inside."""

    __slots__ = ("client", "frame", "timer")

    def __init__(self, client: CompletionClient, frame: bytes, timer: Timer | None = None) -> None:
        """`frame` is the response, encoded; empty where the request goes on instead, as a read behind its fence."""
        self.client = client
        self.frame = frame
        self.timer = timer

    @property
    def count(self) -> int:
        """Number of requests, and of their responses in `frame`."""
        return 1

    def refusals(self, status: Status) -> Sequence[Response]:
        """The responses that say why the requests were not stored."""
        raise NotImplementedError


class Retry(Enum):
    """What happens after a write that found no space."""

    WITH_SPACE = "storage keeps what it could not write, and tries again once told to"
    NEVER = "the error is fatal"


class StorageEvents(Protocol):
    """Implemented by the owner of storage. Called from storage's threads."""

    def stored(self, completions: Sequence[Completion]) -> None:
        """The records of these requests are durable, in the order in which they came."""

    def not_stored(self, completions: Sequence[Completion], error: OSError) -> Retry:
        """A write found no space. These requests, possibly none, are not acknowledged, now or later.

        An implementation that returns `Retry.WITH_SPACE` ensures that nothing more is written until `space_restored`.
        """

    def capacity_available(self) -> None:
        """The write cache or a journal's queue has capacity again, so adds may be accepted again."""

    def space_restored(self) -> None:
        """A write that had found no space has succeeded; `LedgerStorage.out_of_space` says whether others are left."""

    def ledgers_deleted(self, ids: Sequence[int]) -> None:
        """These ledgers of scope 0 were deleted, durably."""

    def failed(self, error: BaseException) -> None:
        """Storage failed and ends: nothing more is accepted or acknowledged. Called once."""
