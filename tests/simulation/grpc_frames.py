"""How the simulation's stand-in for gRPC puts calls on a connection. No I/O.

A frame is a length (of what follows it) in 4 bytes, a kind, the call's number in 4 bytes, and a payload:

    client → server   CALL (method, seconds to the deadline, metadata) · MESSAGE · HALF_CLOSE · CANCEL
    server → client   MESSAGE · TRAILERS (status, details, metadata; the call is over) · GO_AWAY (no new calls)
    both              TAKEN (so many bytes of messages were consumed) · PING · PONG

Messages are the real, serialised protobuf messages.
"""

from __future__ import annotations

import json
import struct
from enum import IntEnum
from typing import Any, NamedTuple

import grpc

WINDOW_BYTES = 64 * 1024
"""Messages of one direction of a call that are sent and not consumed; a single one may be larger."""

_HEAD = struct.Struct(">IBI")
_BEHIND_LENGTH = _HEAD.size - 4

Metadata = tuple[tuple[str, str | bytes], ...]


class Kind(IntEnum):
    CALL = 1
    MESSAGE = 2
    HALF_CLOSE = 3
    CANCEL = 4
    TRAILERS = 5
    TAKEN = 6
    PING = 7
    PONG = 8
    GO_AWAY = 9


class Frame(NamedTuple):
    kind: Kind
    call: int
    payload: bytes = b""

    def encode(self) -> bytes:
        return _HEAD.pack(len(self.payload) + _BEHIND_LENGTH, self.kind, self.call) + self.payload


class FrameReader:
    """Frames out of a stream of bytes."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        self._buffer += data
        frames = []
        while len(self._buffer) >= _HEAD.size:
            length, kind, call = _HEAD.unpack_from(self._buffer)
            end = 4 + length
            if len(self._buffer) < end:
                break
            frames.append(Frame(Kind(kind), call, bytes(self._buffer[_HEAD.size : end])))
            del self._buffer[:end]
        return frames


def call_frame(number: int, method: str, seconds: float | None, metadata: Metadata) -> Frame:
    return Frame(Kind.CALL, number, json.dumps([method, seconds, _listed(metadata)]).encode())


def decode_call(payload: bytes) -> tuple[str, float | None, Metadata]:
    method, seconds, metadata = json.loads(payload)
    return method, seconds, _metadata(metadata)


def trailers_frame(number: int, code: grpc.StatusCode, details: str, metadata: Metadata) -> Frame:
    return Frame(Kind.TRAILERS, number, json.dumps([code.name, details, _listed(metadata)]).encode())


def decode_trailers(payload: bytes) -> tuple[grpc.StatusCode, str, Metadata]:
    code, details, metadata = json.loads(payload)
    return grpc.StatusCode[code], details, _metadata(metadata)


def taken_frame(number: int, size: int) -> Frame:
    return Frame(Kind.TAKEN, number, size.to_bytes(4, "big"))


def _listed(metadata: Metadata) -> list[list[str]]:
    return [[key, value.decode() if isinstance(value, bytes) else value] for key, value in metadata]


def _metadata(listed: Any) -> Metadata:
    return tuple((key, value) for key, value in listed)
