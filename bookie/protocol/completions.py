"""The kinds of requests that wait in storage: adds, those that are answered like them, and fences with their read.

An add is one object of its own, without the request it was read from: there are thousands of them under way, and each
further container is one more that the garbage collector visits.

Not its job: what is done once a request is stored (`request_processor`).
"""

from __future__ import annotations

from typing import Protocol

from bookgate.bookie.protocol.read_scheduler import ReadingClient
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
    """The processor's view of a connection; it knows in which version of the protocol to answer."""

    def answer(self, response: Response) -> None:
        """Encodes and sends."""

    def start_tls(self, txn_id: int) -> bool:
        """Answers that TLS begins, and begins it; False, with nothing done, where that can't be."""

    def pause_reading(self) -> None:
        """Stops reading requests until storage has capacity."""


class AddCompletion(Completion):
    """An add. Its ids are those of its packet."""

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


class RequestCompletion(Completion):
    """Any other request. Always timed."""

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
    """A read that goes on once its fence is durable."""

    __slots__ = ()
    client: Client
    request: ReadRequest | BatchReadRequest

    def __init__(self, client: Client, timer: Timer, request: ReadRequest | BatchReadRequest) -> None:
        super().__init__(client, b"", timer, request)
