"""The completions of requests that wait in storage: adds, requests with a similar response, and fencing reads.

An add is a single object that does not keep its request: thousands of adds are in progress, and every further container
is one more for Python's garbage collector to visit.

Not its job: what happens once a request is stored (`request_processor`).
"""

from __future__ import annotations

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

    def __init__(self, client: CompletionClient, frame: bytes, timer: Timer | None, body: bytes, txn_id: bytes) -> None:
        """`body` is the entry packet; `txn_id` is a varint, empty where the protocol has none."""
        self.client = client
        self.frame = frame
        self.timer = timer
        self.body = body
        self.txn_id = txn_id

    def refusal(self, status: Status) -> Response:
        if not self.txn_id:
            return AddResponse(0, status, *packet_ids(self.body))
        stored = decode_response(memoryview(self.frame)[LENGTH_SIZE:])
        assert isinstance(stored, AddResponse), "the frame says that the add is stored"
        return stored._replace(status=status)


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

    def refusal(self, status: Status) -> Response:
        return error_response(self.request, status)


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
