"""The completions of requests that wait in storage: adds, requests with a similar response, and fencing reads.

An add is a single object that does not keep its request: thousands of adds are in progress, and every further container
is one more for Python's garbage collector to visit.

Not its job: what happens once a request is stored (`request_processor`).
"""

from __future__ import annotations

from typing import Protocol

from bookgate.bookie.protocol.read_scheduler import ReadingClient
from bookgate.bookie.storage.ledger_state import LedgerState
from bookgate.bookie.storage_events import Completion, CompletionClient, Timer
from bookgate.ledger.entry import packet_ids
from bookgate.ledger.varint import decode_varint
from bookgate.ledger.wire.error_responses import error_response
from bookgate.ledger.wire.messages import (
    AddResponse,
    BatchReadRequest,
    ForceLedgerRequest,
    ReadRequest,
    Response,
    Status,
    WriteLacRequest,
)


class Client(ReadingClient, Protocol):
    """A connection as the processor sees it; it knows the protocol version of its responses."""

    def answer(self, response: Response) -> None:
        """Encodes and sends a response."""

    def start_tls(self, txn_id: int) -> bool:
        """Responds that TLS begins, and begins it; returns False, without any effect, if that is impossible."""

    def pause_reading(self) -> None:
        """Stops reading requests until storage has capacity."""


class AddCompletion(Completion):
    """An add. Its ids are those in its packet."""

    __slots__ = ("body", "txn_id")

    def __init__(self, client: CompletionClient, frame: bytes, timer: Timer | None, body: bytes, txn_id: bytes) -> None:
        """`body` is the entry packet; `txn_id` is a varint, empty where the protocol has none."""
        self.client = client
        self.frame = frame
        self.timer = timer
        self.body = body
        self.txn_id = txn_id

    def refusal(self, status: Status) -> Response:
        ledger_id, entry_id = packet_ids(self.body)
        return AddResponse(decode_varint(self.txn_id) if self.txn_id else 0, status, ledger_id, entry_id)


class TermAddCompletion(AddCompletion):
    """An add of an unbounded ledger, whose response has its term."""

    __slots__ = ("term",)

    def __init__(
        self, client: CompletionClient, frame: bytes, timer: Timer | None, body: bytes, txn_id: bytes, term: int
    ) -> None:
        super().__init__(client, frame, timer, body, txn_id)
        self.term = term

    def refusal(self, status: Status) -> Response:
        return AddResponse(decode_varint(self.txn_id), status, *packet_ids(self.body), self.term)


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
        self, client: Client, timer: Timer, request: ReadRequest | BatchReadRequest, ledger: LedgerState
    ) -> None:
        super().__init__(client, b"", timer, request)
        self.ledger = ledger
