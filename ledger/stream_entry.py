"""The payload of an entry of a stream: records appended together, their time, and the producers' sequence numbers.

Source: docs/protocol/streams.md#entries. Not its job: when an entry is written
and with what (`thinclient.core.streams`), and the names of streams (`streams`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from google.protobuf.message import DecodeError

from bookgate.ledger.errors import PayloadCodecException
from bookgate.ledger.payload_codec import RecordPosition
from bookgate.protos.bookkeeper.streams.v1 import stream_entry_pb2 as wire

ENTRY_OVERHEAD = 32
"""Bytes of an entry beside its records and producers, at most."""
RECORD_OVERHEAD = 8
"""Bytes of a record's frame, at most."""
PRODUCER_OVERHEAD = 20
"""Bytes of a producer beside its name, at most."""


class ProducerSequence(NamedTuple):
    """A producer, and the highest sequence number that the stream has of it."""

    name: str
    sequence: int


class StreamRecord(NamedTuple):
    """A record of a stream.

    Attributes:
        entry_id: The entry that it is in.
        number: Its index in there, from 0.
        payload: Its bytes.
        append_time_ms: When its writer took it, in milliseconds since 1970; never less than of an earlier record.
    """

    entry_id: int
    number: int
    payload: bytes
    append_time_ms: int

    @property
    def position(self) -> RecordPosition:
        """Where it lies."""
        return RecordPosition(self.entry_id, self.number)


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """What an entry of a stream holds.

    Attributes:
        append_time_ms: Time of the records, in milliseconds since 1970; 0 without records.
        since_snapshot: Entries since the last snapshot, 0 for one; None for the entry that opens a term.
        records: The records.
        producers: Of a snapshot all producers, least recently heard of first; else those with records here.
    """

    append_time_ms: int
    since_snapshot: int | None
    records: tuple[bytes, ...] = ()
    producers: tuple[ProducerSequence, ...] = ()


OPENING = StreamEntry(0, None)
"""The first entry of each term. It makes what a take-over found readable, before the writer knows what to write."""


def encode_stream_entry(entry: StreamEntry) -> bytes:
    """The payload of an entry; never empty, as an unbounded ledger demands."""
    message = wire.StreamEntry(append_time_ms=entry.append_time_ms, record=entry.records)
    if entry.since_snapshot is not None:
        message.since_snapshot = entry.since_snapshot
    for name, sequence in entry.producers:
        message.producer.add(name=name, sequence=sequence)
    # An opening entry has no field to write.
    return message.SerializeToString() or _EMPTY


_EMPTY = b"\x08\x00"
"""`append_time_ms` 0, written out."""


def decode_stream_entry(payload: bytes | memoryview) -> StreamEntry:
    """Raises PayloadCodecException if the payload is not that of a stream."""
    try:
        message = wire.StreamEntry.FromString(bytes(payload))
    except DecodeError as error:
        raise PayloadCodecException("the entry is not one of a stream: something else writes to the ledger") from error
    return StreamEntry(
        message.append_time_ms,
        message.since_snapshot if message.HasField("since_snapshot") else None,
        tuple(message.record),
        tuple(ProducerSequence(each.name, each.sequence) for each in message.producer),
    )


def records_of_entry(entry_id: int, payload: bytes | memoryview, first: int = 0) -> list[StreamRecord]:
    """The records of an entry from number `first` on. Raises PayloadCodecException."""
    entry = decode_stream_entry(payload)
    time = entry.append_time_ms
    return [StreamRecord(entry_id, number, record, time) for number, record in enumerate(entry.records)][first:]
