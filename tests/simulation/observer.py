"""Watches bookies from their own side of the wire: which answer left them when, and what had arrived before.

It stands between the network and the bookie's protocol, reads the frames of both directions along, and changes nothing
but that it may let a request come twice, or not at all. Clients of a simulation speak protocol v3, and v2 for batched
reads, on one connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, cast

from bookgate.ledger.digest import ledger_master_key
from bookgate.ledger.wire import messages, v2, v3
from bookgate.ledger.wire.frames import LENGTH_SIZE
from bookgate.ledger.wire.messages import DEFERRED_SYNC, Request, Response, Status
from tests.history.events import BookieAnswered, FenceAsked, StrangerAnswered
from tests.history.recorder import Recorder
from tests.history.recording_client import PASSWORD
from tests.history.rules_access import STRANGERS

KEY = ledger_master_key(PASSWORD)
"""Of every ledger of a history."""

FENCING = ("fencing-read", "recovery-add")
"""What fences a ledger; of recovery adds the first that a bookie hears of it."""

_TELLING = ("body", "bodies", "max_lac", "lac_body", "last_entry_body", "availability")
"""Fields of answers that have something of the ledger."""
_V3_TAG = 0x0A


class Observed(asyncio.BufferedProtocol):
    """In the place of a bookie's protocol; `on_answer` hears what was recorded."""

    def __init__(
        self,
        protocol: asyncio.BufferedProtocol,
        bookie: str,
        recorder: Recorder,
        on_answer: Callable[[BookieAnswered], None],
        repeats: Callable[[], float | None] = lambda: None,
        loses: Callable[[str], bool] = lambda host: False,
        fences: set[tuple[str, str]] | None = None,
    ) -> None:
        """`repeats`: after how many seconds a request comes again. `loses`: whether one from that host is lost.

        `fences`: bookies and ledgers of which there is a FenceAsked, where strangers ask too; None: none do.
        """
        self._protocol = protocol
        self._bookie = bookie
        self._recorder = recorder
        self._on_answer = on_answer
        self._repeats = repeats
        self._loses = loses
        self._fences = fences
        self._peer = ""
        self._transport: asyncio.Transport | None = None
        self._asked: dict[object, list[tuple[Request, int]]] = {}
        """By transaction, or for protocol v2, which has none, by ledger and entry."""
        self._arriving = Frames()
        self._leaving = Frames()
        self._room = memoryview(b"")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._peer = transport.get_extra_info("peername", ("",))[0]
        tapped = _Tapped(cast("asyncio.Transport", transport), self)
        self._protocol.connection_made(cast("asyncio.Transport", tapped))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    def get_buffer(self, sizehint: int) -> memoryview:
        self._room = memoryview(cast("bytearray", self._protocol.get_buffer(sizehint)))
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        at_frame, room, end, lost = not self._arriving.pending, self._room[:nbytes], 0, list[tuple[int, int]]()
        for packet in self._arriving.take(room):
            begin, end = end, end + LENGTH_SIZE + len(packet)
            request = _decode_request(packet)
            if at_frame and _operation(request) is not None and self._loses(self._peer):
                lost.append((begin, end))
                continue
            if self._fences is not None:
                self._note_fence(request, self._fences)
            asked = (_light(request), len(self._recorder.history))
            self._asked.setdefault(_key(packet, request), []).append(asked)
            again = self._repeats() if _is_v3(packet) and _operation(request) is not None else None
            if again is not None:
                asyncio.get_running_loop().call_later(again, self._repeat, bytes(packet))
        if lost:
            nbytes = _take_out(room, lost)
        if nbytes:
            self._protocol.buffer_updated(nbytes)

    def _note_fence(self, request: Request, known: set[tuple[str, str]]) -> None:
        if self._peer in STRANGERS or _operation(request) not in FENCING:
            return
        ledger = str(request.ledger_id)  # type: ignore[union-attr]
        if (self._bookie, ledger) not in known:
            known.add((self._bookie, ledger))
            self._recorder.add(FenceAsked(self._recorder.now, self._bookie, ledger))

    def _repeat(self, packet: bytes) -> None:
        """Between two frames, if the connection is at such a place."""
        transport = self._transport
        if self._arriving.pending or transport is None or transport.is_closing() or not transport.is_reading():
            return
        frame = memoryview(len(packet).to_bytes(4, "big") + packet)
        while frame:
            room = self.get_buffer(len(frame))
            count = min(len(room), len(frame))
            room[:count] = frame[:count]
            frame = frame[count:]
            self.buffer_updated(count)

    def leaves(self, data: bytes | bytearray | memoryview) -> None:
        for packet in self._leaving.take(data):
            decode = v3.decode_response if _is_v3(packet) else v2.decode_response
            response = decode(packet)
            asked = self._asked.get(_key(packet, response))
            if asked:
                self._answered(asked.pop(0), response)
                if not asked:
                    self._asked.pop(_key(packet, response), None)

    def _answered(self, asked: tuple[Request, int], response: Response) -> None:
        request, arrived_after = asked
        if self._peer in STRANGERS:
            self._stranger_answered(request, response, arrived_after)
            return
        operation = _operation(request)
        if operation is None:
            return
        recorder, key = self._recorder, getattr(request, "master_key", None)
        event = BookieAnswered(
            recorder.now,
            self._bookie,
            str(request.ledger_id),  # type: ignore[union-attr]
            getattr(request, "entry_id", -1),
            operation,
            Status(response.status).name,
            arrived_after,
            key is not None and key != KEY,
        )
        recorder.add(event)
        self._on_answer(event)

    def _stranger_answered(self, request: Request, response: Response, arrived_after: int) -> None:
        operation = _stranger_operation(request)
        if operation is None:
            return
        now, ledger = self._recorder.now, str(getattr(request, "ledger_id", ""))
        tells = any(getattr(response, name, None) for name in _TELLING)
        status = Status(response.status).name
        self._recorder.add(
            StrangerAnswered(now, self._bookie, self._peer, ledger, operation, status, tells, arrived_after)
        )


class _Tapped:
    """A transport that shows what is written to it."""

    def __init__(self, transport: asyncio.Transport, observer: Observed) -> None:
        self._transport = transport
        self._observer = observer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._observer.leaves(data)
        self._transport.write(data)

    def writelines(self, parts: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(parts))


def _take_out(room: memoryview, parts: Iterable[tuple[int, int]]) -> int:
    """Closes up what is left; how many bytes that is."""
    left = 0
    after = 0
    for begin, end in (*parts, (len(room), len(room))):
        kept = bytes(room[after:begin])
        room[left : left + len(kept)] = kept
        left, after = left + len(kept), end
    return left


class Frames:
    """Cuts a direction into packets, which are views of what was taken: the bookie's own decoder checks them."""

    def __init__(self) -> None:
        self.pending = b""
        """What has come of a frame that is not whole."""

    def take(self, data: bytes | bytearray | memoryview) -> list[memoryview]:
        view = memoryview(self.pending + bytes(data) if self.pending else data)
        start, end = 0, len(view)
        packets = []
        while (begin := start + LENGTH_SIZE) <= end:
            following = begin + int.from_bytes(view[start:begin], "big")
            if following > end:
                break
            packets.append(view[begin:following])
            start = following
        self.pending = bytes(view[start:])
        return packets


def _is_v3(packet: memoryview) -> bool:
    """A v3 message begins with the tag of its header, a v2 packet with its version and operation."""
    return packet[0] == _V3_TAG


def _decode_request(packet: memoryview) -> Request:
    return v3.decode_request(packet) if _is_v3(packet) else v2.decode_request(packet).request


def _key(packet: memoryview, message: Request | Response) -> object:
    if _is_v3(packet):
        return message.txn_id
    # The second version has an id for batch reads alone, which are not answered in their order.
    return getattr(message, "ledger_id", -1), getattr(message, "entry_id", -1), message.txn_id


def _light(request: Request) -> Request:
    """Without the entry, which lies in a buffer that is used again."""
    return request._replace(body=b"") if isinstance(request, messages.AddRequest) else request


def _operation(request: Request) -> str | None:
    match request:
        case messages.AddRequest():
            if request.recovery:
                return "recovery-add"
            return "deferred-add" if request.write_flags & DEFERRED_SYNC else "add"
        case messages.ReadRequest():
            return "fencing-read" if request.fence else "read"
        case messages.BatchReadRequest():
            return "read"
        case messages.ForceLedgerRequest():
            return "force"
        case messages.WriteLacRequest():
            return "write-lac"
        case messages.ReadLacRequest():
            return "read-lac"
    return None


def _stranger_operation(request: Request) -> str | None:
    """The same, with what only strangers ask for."""
    match request:
        case messages.BatchReadRequest():
            return "fencing-batch-read" if request.fence else "batch-read"
        case messages.ListEntriesRequest():
            return "list"
    return _operation(request)
