"""Protocol v2 on the client's side: a `BookieConnection` that speaks version 2.

Clients configured for v2 use it, and every client uses it for batch reads, which v3 lacks.

Callers pass frames of either protocol; a v3 frame is translated to v2. For operations that v2 lacks:

* a LAC read becomes a read of entry -1, and its response a ReadLacResponse without an explicit LAC;
* explicit LACs, disk space and entry lists use a v3 connection beside this one;
* long polls, deferred sync and `force` end at once with IllegalOpException (F12: nothing hangs).

Responses carry operation, ledger and entry instead of a transaction id, and several requests may share these. A
response may then belong to any of them, and bookies do not keep an order (a fencing read or a recovery add overtakes
others). A response therefore ends the oldest *plain* request. A fencing read or recovery add, whose response means
more, ends only when everything else with its key has been answered, because its own response has certainly arrived then
(P7: the response to a plain read is never taken for a fence). A plain request past its deadline still absorbs one
response before a fencing one does. If a fencing read or recovery add passes its deadline, the connection is dropped,
because later responses would be ambiguous. Batch reads carry their transaction id as request id and need none of this.

Source: docs/protocol/wire.md#v2-packets, docs/protocol/wire.md#client-statuses. Not its job: bytes
(`bookgate.ledger.wire.v2`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any, ClassVar

from bookgate.ledger.errors import BKException, IllegalOpException
from bookgate.ledger.wire import v2
from bookgate.ledger.wire import v3 as protocol_v3
from bookgate.ledger.wire.messages import (
    ADD_ENTRY,
    DEFERRED_SYNC,
    LAST_ENTRY,
    READ_ENTRY,
    AddRequest,
    AddResponse,
    ForceLedgerRequest,
    ReadLacRequest,
    ReadLacResponse,
    ReadRequest,
    ReadResponse,
    Request,
    Response,
)
from bookgate.thinclient.bookies.connection import STORED, BookieConnection, Sink
from bookgate.thinclient.bookies.wire import Wire

_V3_FIRST_BYTE = 0x0A
_MOST_UNANSWERED = 10_000
"""Maximum requests of a connection past their deadline whose responses may still arrive."""

Key = tuple[int, int, int]
"""Operation, ledger id, entry id."""

# The frame fields that identify the response: opcode, flags, ledger id, entry id.
_HEAD = struct.Struct(">xxxxxBH")
_IDS = struct.Struct(">qq")
_ADD, _READ = 1, 2
_ADD_IDS_AT, _READ_IDS_AT = 28, 8
_FENCE_OR_RECOVERY = 0x0003
_ANSWER = struct.Struct(">xBxxiqq")
_ANSWER_SIZE = 24


def key_of(frame: bytes) -> tuple[Key, bool] | None:
    """The key that the response to a v2 frame will carry, and whether the request fences or recovers; None for other
    operations.
    """
    opcode, flags = _HEAD.unpack_from(frame)
    if opcode == _ADD:
        return (ADD_ENTRY, *_IDS.unpack_from(frame, _ADD_IDS_AT)), bool(flags & _FENCE_OR_RECOVERY)
    if opcode == _READ:
        return (READ_ENTRY, *_IDS.unpack_from(frame, _READ_IDS_AT)), bool(flags & _FENCE_OR_RECOVERY)
    return None


class V2AddRequestEncoder:
    """Encodes the fast-path adds of one ledger: the bytes of `encode_request`, with the constant parts precomputed."""

    def __init__(self, ledger_id: int, master_key: bytes) -> None:
        example = v2.encode_request(AddRequest(0, ledger_id, 0, master_key, b""))
        self._head, self._size = example[4:], len(example) - 4

    def encode(self, txn_id: int, entry_id: int, body: bytes) -> bytes:
        """Encodes the frame of one add; its ids are in the body."""
        return b"".join(((self._size + len(body)).to_bytes(4, "big"), self._head, body))

    def encode_run(self, txn_ids: Sequence[int], first_entry_id: int, bodies: Sequence[bytes]) -> list[bytes]:
        """Encodes the frames of adds of consecutive entries."""
        return [self.encode(*each) for each in zip(txn_ids, count(first_entry_id), bodies, strict=False)]


class AnswerMatcher:
    """Finds the request for a response without a transaction id. Pure.

    Invariants: a strict request is matched only when no other of its key is unanswered; a request is matched once.
    """

    def __init__(self) -> None:
        self._queues: dict[Key, list[int]] = {}
        self._keys: dict[int, Key] = {}
        self._strict: set[int] = set()
        self._dead: set[int] = set()

    @property
    def unanswered(self) -> int:
        """Number of requests past their deadlines whose responses may still arrive."""
        return len(self._dead)

    def sent(self, txn_id: int, key: Key, strict: bool) -> None:
        """A request was sent."""
        self._keys[txn_id] = key
        if strict:
            self._strict.add(txn_id)
        self._queues.setdefault(key, []).append(txn_id)

    def answered(self, key: Key) -> int | None:
        """The request that a response ends; None if no caller waits for that request any more."""
        queue = self._queues.get(key)
        if queue is None:
            return None
        txn_id = queue[0] if len(queue) == 1 else self._choose(queue)
        dead = txn_id in self._dead
        self._remove(txn_id)
        return None if dead else txn_id

    def expired(self, txn_id: int) -> bool:
        """A request has passed its deadline. False if later responses for its key would be ambiguous."""
        if txn_id not in self._keys:
            return True
        if txn_id in self._strict:
            return False
        self._dead.add(txn_id)
        return True

    def withdrawn(self, txn_id: int) -> None:
        """A request was never sent."""
        if txn_id in self._keys:
            self._remove(txn_id)

    def clear(self) -> None:
        """The connection is gone, and no response will arrive."""
        self._queues.clear()
        self._keys.clear()
        self._strict.clear()
        self._dead.clear()

    def _choose(self, queue: Sequence[int]) -> int:
        def rank(txn_id: int) -> int:
            return 2 if txn_id in self._strict else 1 if txn_id in self._dead else 0

        return min(queue, key=rank)

    def _remove(self, txn_id: int) -> None:
        key = self._keys.pop(txn_id)
        queue = self._queues[key]
        queue.remove(txn_id)
        if not queue:
            del self._queues[key]
        self._strict.discard(txn_id)
        self._dead.discard(txn_id)


class V2Wire(Wire):
    """Decodes responses of protocol v2."""

    reads_runs: ClassVar[bool] = False
    _owner: V2Connection

    def take(self, packets: Sequence[memoryview]) -> None:
        """Passes responses to the owner. Raises ProtocolError."""
        for packet in packets:
            if len(packet) == _ANSWER_SIZE:
                opcode, code, ledger_id, entry_id = _ANSWER.unpack_from(packet)
                if opcode == _ADD and not code:
                    self._owner.on_keyed(self, (ADD_ENTRY, ledger_id, entry_id), STORED)
                    continue
            self._owner.on_response(self, v2.decode_response(packet))


class V2Connection(BookieConnection):
    """A connection that speaks v2; `v3` returns the one beside it, for operations that v2 lacks."""

    wire_class: ClassVar[type[Wire]] = V2Wire
    answers_have_txn_ids: ClassVar[bool] = False

    def __init__(self, *arguments: Any, v3: Callable[[], BookieConnection] | None = None) -> None:
        super().__init__(*arguments)
        self._v3 = v3
        self._matcher = AnswerMatcher()

    def send(self, operation: int, txn_id: int, frame: bytes, deadline: float, sink: Sink, token: Any) -> None:
        """Sends a request's frame, of v2 or v3; see `BookieConnection.send`."""
        if frame[4] == _V3_FIRST_BYTE:
            self._send_v3(operation, txn_id, frame, deadline, sink, token)
        else:
            self._send_v2(operation, txn_id, frame, deadline, sink, token)

    def encode(self, request: Request) -> bytes:
        """The frame of a request in v2. Raises ValueError if v2 can't express it."""
        return v2.encode_request(request)

    def decode(self, packet: bytes) -> Response:
        """A response in v2. Raises ProtocolError."""
        return v2.decode_response(packet)

    def _send_v2(self, operation: int, txn_id: int, frame: bytes, deadline: float, sink: Sink, token: Any) -> None:
        key = key_of(frame)
        super().send(operation, txn_id, frame, deadline, sink, token)
        if key is not None and txn_id in self._outstanding:
            self._matcher.sent(txn_id, *key)

    def _send_v3(self, operation: int, txn_id: int, frame: bytes, deadline: float, sink: Sink, token: Any) -> None:
        request = protocol_v3.decode_request(memoryview(frame)[4:])
        match request:
            case AddRequest() if not request.write_flags & DEFERRED_SYNC:
                request = request._replace(write_flags=0)
            case ReadRequest() if request.previous_lac is None or request.fence:
                request = request._replace(previous_lac=None)
            case ReadLacRequest(ledger_id=ledger_id):
                operation, sink = READ_ENTRY, partial(_give_lac, sink)
                request = ReadRequest(txn_id, ledger_id, LAST_ENTRY)
            case AddRequest() | ReadRequest() | ForceLedgerRequest():
                what = "long polls" if isinstance(request, ReadRequest) else "deferred sync and force"
                error = IllegalOpException(
                    f"bookie {self} is spoken to in protocol v2, which has no {what}: set wire_protocol to v3"
                )
                self._refuse(sink, token, error)
                return
            case _ if self._v3 is not None:
                self._v3().send(operation, txn_id, frame, deadline, sink, token)
                return
        try:
            said = v2.encode_request(request)
        except IllegalOpException as refused:
            self._refuse(sink, token, refused)
            return
        except ValueError as reason:
            error = IllegalOpException(f"a request to bookie {self} can't be sent in protocol v2: {reason}")
            self._refuse(sink, token, error)
            return
        self._send_v2(operation, txn_id, said, deadline, sink, token)

    # Events of the wire

    def on_response(self, wire: Wire, response: Response) -> None:
        """A response arrived; one that belongs to no request is dropped."""
        if isinstance(response, AddResponse):
            self.on_keyed(wire, (ADD_ENTRY, response.ledger_id, response.entry_id), response)
        elif isinstance(response, ReadResponse):
            self.on_keyed(wire, (READ_ENTRY, response.ledger_id, response.entry_id), response)
        else:
            super().on_response(wire, response)

    def on_keyed(self, wire: Wire, key: Key, response: Response) -> None:
        """A response arrived that is identified only by its key."""
        if wire is not self._wire:
            return
        txn_id = self._matcher.answered(key)
        request = None if txn_id is None else self._outstanding.pop(txn_id, None)
        if request is not None:
            request[2](request[3], response, None)

    # Endings

    def forget(self, txn_id: int, unsent: bool) -> None:
        """A request has ended without a response: it may still arrive, or responses have become ambiguous."""
        if unsent:
            self._matcher.withdrawn(txn_id)
            return
        apart = self._matcher.expired(txn_id) and self._matcher.unanswered <= _MOST_UNANSWERED
        if not apart and self._wire is not None:
            reason = "left a request unanswered, so that later answers can't be told apart; the connection is dropped"
            self.on_lost(self._wire, self.loss(reason, None))

    def _fail_outstanding(self, error: BKException) -> None:
        self._matcher.clear()
        super()._fail_outstanding(error)


def _give_lac(sink: Sink, token: Any, response: Response | None, error: BKException | None) -> None:
    """Converts the response to a read of the last entry into that of a LAC read."""
    if isinstance(response, ReadResponse):
        response = ReadLacResponse(response.txn_id, response.status, response.ledger_id, None, response.body)
    sink(token, response, error)
