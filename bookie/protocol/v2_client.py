"""A connection that uses v2, as the processor sees it: one client per version.

The version of a response is that of its request, and a connection may use several, although no known client does. A
connection therefore makes one `BinaryClient` for each version it meets; they share its transport, while each has its
own queue of reads. Responses that v2 can't express, above all a failed authentication, close the connection.

Not its job: telling the protocols apart (`connection`), the codec (`bookgate.ledger.wire.v2`).
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from bookgate.bookie.protocol.read_scheduler import QueuedRead
from bookgate.ledger.wire import v2
from bookgate.ledger.wire.messages import AUTH_DISABLED, AuthResponse, Response


class SharedConnection(Protocol):
    """The connection that the versions share."""

    @property
    def is_open(self) -> bool: ...

    @property
    def takes_answers(self) -> bool: ...

    def send(self, frame: bytes, count: int = 1) -> None: ...

    def flush(self) -> None: ...

    def pause_reading(self) -> None: ...

    def close(self) -> None: ...


class BinaryClient:
    """One version of v2 on one connection."""

    def __init__(self, connection: SharedConnection, version: int) -> None:
        self._connection = connection
        self._version = version
        self.reads: deque[QueuedRead] = deque()
        self.reading = False

    @property
    def is_open(self) -> bool:
        return self._connection.is_open

    @property
    def takes_answers(self) -> bool:
        return self._connection.takes_answers

    def encode(self, response: Response) -> bytes:
        """The frame of a response. Raises ValueError for a response that v2 can't express."""
        # "Authentication is disabled" is sent in the current version, whatever the version of the request.
        disabled = isinstance(response, AuthResponse) and response.plugin_name == AUTH_DISABLED
        return v2.encode_response(response, v2.CURRENT_VERSION if disabled else self._version)

    def answer(self, response: Response) -> None:
        try:
            frame = self.encode(response)
        except ValueError:
            self._connection.close()
        else:
            self._connection.send(frame)

    def send(self, frame: bytes, count: int = 1) -> None:
        self._connection.send(frame, count)

    def flush(self) -> None:
        self._connection.flush()

    def pause_reading(self) -> None:
        self._connection.pause_reading()

    def start_tls(self, txn_id: int) -> bool:
        """Returns False: v2 has no START_TLS."""
        return False
