"""A load of the entry protocol that was encoded beforehand, so that the bookie is what is measured.

One thread sends, one takes the answers; latencies go from the write of a frame to its answer. Answers are taken to come
in the order of the requests, which holds for one connection and one journal.
"""

from __future__ import annotations

import itertools
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence

from bookgate.ledger.digest import digest_for, ledger_master_key
from bookgate.ledger.entry import encode_entry
from bookgate.ledger.metadata import DigestType
from bookgate.ledger.wire.messages import AddRequest, BatchReadRequest, ReadRequest
from bookgate.ledger.wire.v2 import encode_request as encode_v2
from bookgate.ledger.wire.v3 import encode_request
from bookgate.runtime.latency import LatencyHistogram

_LENGTH = struct.Struct(">I")
_ledger_ids = itertools.count(1_000_000)


def new_ledger_ids(count: int) -> list[int]:
    """Ids that no run has used."""
    return [next(_ledger_ids) for _ in range(count)]


def encoded_adds(size: int, count: int, ledgers: int | Sequence[int] = 1, first_entry_id: int = 0) -> list[bytes]:
    """Adds to so many ledgers of their own, so that every run writes anew, or to given ones; in turn."""
    ids = new_ledger_ids(ledgers) if isinstance(ledgers, int) else ledgers
    digest, key, payload = digest_for(DigestType.CRC32C, b""), ledger_master_key(b""), b"x" * size
    frames = []
    for number in range(count):
        ledger_id, entry_id = ids[number % len(ids)], first_entry_id + number // len(ids)
        packet = encode_entry(digest, ledger_id, entry_id, entry_id - 1, 0, payload)
        frames.append(encode_request(AddRequest(number + 1, ledger_id, entry_id, key, packet)))
    return frames


def encoded_reads(ledger_id: int, entry_ids: Sequence[int]) -> list[bytes]:
    """Single reads of protocol v3."""
    return [encode_request(ReadRequest(number + 1, ledger_id, entry)) for number, entry in enumerate(entry_ids)]


def encoded_batch_reads(ledger_id: int, entries: int, batch: int) -> list[bytes]:
    """Batch reads of protocol v2, from the first entry on."""
    size = 5 << 20
    starts = range(0, entries, batch)
    return [encode_v2(BatchReadRequest(start + 1, ledger_id, start, batch, size)) for start in starts]


def requests_per_second(port: int, frames: Sequence[bytes], outstanding: int) -> tuple[float, LatencyHistogram]:
    """Sends the frames with so many outstanding; the rate and the latencies."""
    latencies = LatencyHistogram()
    starts = [0.0] * len(frames)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        room = threading.Semaphore(outstanding)
        step = max(1, outstanding // 8)

        def send() -> None:
            for start in range(0, len(frames), step):
                batch = frames[start : start + step]
                for _ in batch:
                    room.acquire()
                now = time.perf_counter()
                starts[start : start + len(batch)] = [now] * len(batch)
                connection.sendall(b"".join(batch))

        sender = threading.Thread(target=send)
        began = time.perf_counter()
        sender.start()
        answered = 0
        for answers in _answers(connection, len(frames)):
            now = time.perf_counter()
            for number in range(answered, answered + answers):
                latencies.record(now - starts[number])
            answered += answers
            room.release(answers)
        elapsed = time.perf_counter() - began
        sender.join()
    return len(frames) / elapsed, latencies


def _answers(connection: socket.socket, wanted: int) -> Iterator[int]:
    """How many whole answers came with each chunk."""
    rest = b""
    while wanted:
        chunk = connection.recv(1 << 18)
        if not chunk:
            raise ConnectionError(f"the bookie closed the connection with {wanted} answers to come")
        data = rest + chunk
        position = answers = 0
        while len(data) - position >= 4:
            end = position + 4 + _LENGTH.unpack_from(data, position)[0]
            if end > len(data):
                break
            position, answers = end, answers + 1
        rest = data[position:]
        wanted -= answers
        if answers:
            yield answers
