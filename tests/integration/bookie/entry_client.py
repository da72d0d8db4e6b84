"""A client of the entry protocol that does nothing but what it is told: for looking at a bookie from outside."""

from __future__ import annotations

import itertools
import socket
import struct
from types import TracebackType
from typing import Self

from bookgate.bookie.standalone.cluster import BookieProcess
from bookgate.ledger.digest import digest_for, ledger_master_key
from bookgate.ledger.entry import encode_entry, encode_lac
from bookgate.ledger.metadata import DigestType
from bookgate.ledger.wire import messages, v2
from bookgate.ledger.wire.messages import Request, Response
from bookgate.ledger.wire.v3 import decode_response, encode_request

KEY = ledger_master_key(b"secret")
WRONG_KEY = ledger_master_key(b"wrong")
_DIGEST = digest_for(DigestType.CRC32C, b"secret")
_txn_ids = itertools.count(1)


def packet(ledger_id: int, entry_id: int, payload: bytes = b"payload", lac: int | None = None) -> bytes:
    """An entry packet of the ledger with password `secret`."""
    before = entry_id - 1 if lac is None else lac
    return encode_entry(_DIGEST, ledger_id, entry_id, before, (entry_id + 1) * len(payload), payload)


def lac_packet(ledger_id: int, lac: int) -> bytes:
    return encode_lac(_DIGEST, ledger_id, lac)


def add(
    ledger_id: int,
    entry_id: int,
    payload: bytes = b"payload",
    *,
    key: bytes = KEY,
    recovery: bool = False,
    body: bytes | None = None,
) -> messages.AddRequest:
    body = packet(ledger_id, entry_id, payload) if body is None else body
    return messages.AddRequest(next(_txn_ids), ledger_id, entry_id, key, body, recovery)


def read(ledger_id: int, entry_id: int) -> messages.ReadRequest:
    return messages.ReadRequest(next(_txn_ids), ledger_id, entry_id)


def fence(ledger_id: int, entry_id: int = -1, key: bytes | None = KEY) -> messages.ReadRequest:
    return messages.ReadRequest(next(_txn_ids), ledger_id, entry_id, fence=True, master_key=key)


class EntryClient:
    """One connection. Raises ConnectionError when the bookie closes it."""

    def __init__(self, address: str, timeout_seconds: float = 20.0) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout_seconds)

    @classmethod
    def to(cls, bookie: BookieProcess) -> Self:
        return cls(bookie.addresses["bookie"])

    def send(self, *wanted: Request) -> None:
        self.socket.sendall(b"".join(map(encode_request, wanted)))

    def receive(self) -> Response:
        return decode_response(self.receive_packet())

    def receive_packet(self) -> bytes:
        """The next answer's bytes, without its length."""
        return self._receive_exactly(struct.unpack(">I", self._receive_exactly(4))[0])

    def ask(self, request: Request) -> Response:
        """Sends a request and returns its answer, which must be the next that comes."""
        self.send(request)
        response = self.receive()
        assert response.txn_id == request.txn_id
        return response

    def status(self, request: Request) -> int:
        return self.ask(request).status

    def is_closed_by_bookie(self) -> bool:
        """Waits for the end of the connection."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def _receive_exactly(self, size: int) -> bytes:
        parts = []
        while size:
            part = self.socket.recv(min(size, 1 << 20))
            if not part:
                raise ConnectionError("the bookie closed the connection")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class BinaryEntryClient(EntryClient):
    """The same in the binary protocol; `version` is that of what it sends next."""

    version = 2

    def send(self, *wanted: Request) -> None:
        self.socket.sendall(b"".join(v2.encode_request(request, self.version) for request in wanted))

    def receive(self) -> Response:
        return v2.decode_response(self.receive_packet())

    def ask(self, request: Request) -> Response:
        self.send(request)
        return self.receive()
