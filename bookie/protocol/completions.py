"""The completions of requests that wait in storage: adds, requests with a similar response, and fencing reads.

An add, or a run of adds, is a single object that does not keep its request: thousands of adds are in progress, and
every further container is one more for Python's garbage collector to visit.

Not its job: what happens once a request is stored (`request_processor`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bookgate.bookie.protocol.read_scheduler import ReadingClient
from bookgate.bookie.storage.ledger_state import BookieLedgerState
from bookgate.bookie.storage_events import Completion, CompletionClient, Timer
from bookgate.ledger.entry import packet_ids
from bookgate.ledger.wire.error_responses import error_response
from bookgate.ledger.wire.frames import LENGTH_SIZE
from bookgate.ledger.wire.messages import (
    AddResponse,
    BatchReadRequest,
    ForceLedgerRequest,
    ReadRequest,
    Response,
    Status,
    WriteLacRequest,
)
from bookgate.ledger.wire.v3 import decode_response


class Client(ReadingClient, Protocol):
    """A connection as the processor sees it; it knows the protocol version of its responses."""

    def answer(self, response: Response) -> None:
        """Encodes and sends a response."""

    def start_tls(self, txn_id: int) -> bool:
        """Responds that TLS begins, and begins it; returns False, without any effect, if that is impossible."""

    def pause_reading(self) -> None:
        """Stops reading requests until storage has capacity."""


class AddCompletion(Completion):
    """An add."""

    __slots__ = ("body", "txn_id")

    @property
    def size(self) -> int:
        """Bytes of its entry packet."""
        return len(self.body)

    def __init__(self, client: CompletionClient, frame: bytes, timer: Timer | None, body: bytes, txn_id: bytes) -> None:
        """`body` is the entry packet; `txn_id` is a varint, empty where the protocol has none."""
        self.client = client
        self.frame = frame
        self.timer = timer
        self.body = body
        self.txn_id = txn_id

    def refusals(self, status: Status) -> Sequence[Response]:
        if not self.txn_id:
            return (AddResponse(0, status, *packet_ids(self.body)),)
        return (_refusal_of(memoryview(self.frame), status),)


class AddRunCompletion(Completion):
    """Adds of protocol v3, of one ledger, that are stored as one record after the other."""

    __slots__ = ("bodies",)

    def __init__(self, client: CompletionClient, frame: bytes, timer: Timer | None, bodies: Sequence[bytes]) -> None:
        """`bodies` are the entry packets; `frame` has the responses, all of one size, in the same order."""
        super().__init__(client, frame, timer)
        self.bodies = bodies

    @property
    def count(self) -> int:
        return len(self.bodies)

    @property
    def size(self) -> int:
        """Bytes of the entry packets."""
        return sum(map(len, self.bodies))

    def refusals(self, status: Status) -> Sequence[Response]:
        frames = memoryview(self.frame)
        size = len(frames) // self.count
        return [_refusal_of(frames[start : start + size], status) for start in range(0, len(frames), size)]


class RequestCompletion(Completion):
    """Any other request. Its duration is always measured."""

    __slots__ = ("request",)

    def __init__(
        self,
        client: CompletionClient,
        frame: bytes,
        timer: Timer,
        request: WriteLacRequest | ForceLedgerRequest | ReadRequest | BatchReadRequest,
    ) -> None:
        super().__init__(client, frame, timer)
        self.request = request

    def refusals(self, status: Status) -> Sequence[Response]:
        return (error_response(self.request, status),)


class FencedRead(RequestCompletion):
    """A read that continues once its fence, or its term, is durable."""

    __slots__ = ("ledger",)
    client: Client
    request: ReadRequest | BatchReadRequest

    def __init__(
        self, client: Client, timer: Timer, request: ReadRequest | BatchReadRequest, ledger: BookieLedgerState
    ) -> None:
        super().__init__(client, b"", timer, request)
        self.ledger = ledger


def _refusal_of(frame: memoryview, status: Status) -> AddResponse:
    """The response that refuses an add, made of the one that says that it is stored."""
    stored = decode_response(frame[LENGTH_SIZE:])
    assert isinstance(stored, AddResponse), "the frame says that the add is stored"
    return stored._replace(status=status)
