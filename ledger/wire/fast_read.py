"""The fast path of single reads: decodes the common read request and encodes its response without a message object.

`read_v3` accepts one shape of a protocol v3 request, which BookKeeper's Java client and this client send for a read of
one entry by its id: header, ledger id, entry id, each field in its place, every number in its shortest form and not
negative, every length exact. A read that fences, waits, has a priority, or asks for the last entry is left to `v3`; a
request that both accept means the same to both. `read_v2` does the same for protocol v2 (version 2, without flags).
`read_together` takes the reads of one ledger that were received one after the other.

Source: docs/protocol/wire.md#packet-header, docs/protocol/wire.md#request, docs/protocol/wire.md#v3-messages,
docs/protocol/wire.md#v2-header, docs/protocol/wire.md#v2-requests, docs/protocol/wire.md#v2-responses.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import NamedTuple

from bookgate.ledger.varint import decode_varint, short_varint

_READ = re.compile(
    rb"\x0a(.)\x08\x03\x10\x01\x18(%(v)b)\xa2\x06(.)\x08(%(v)b)\x10(%(v)b)"
    % {b"v": rb"(?:[\x00-\x7f]|[\x80-\xff]{1,8}[\x01-\x7f])"},
    re.DOTALL,
)
"""Groups: header length, txnId, length of the sub-message, ledgerId, entryId."""
_HEADER = 5
"""Bytes of the header's fields without the transaction id."""
_TAGS = 2
"""Bytes of the sub-message's tags."""
_MOST_SHARED = 256
"""Sizes of responses that are remembered."""
_LENGTH = struct.Struct(">I")

_V2_READ = struct.Struct(">Iqq")
_V2_HEADER = 0x02020000
"""Version 2, operation 2, no flags."""
_V2_FOUND = struct.Struct(">IIIqq")
_V2_FOUND_SIZE = 24
"""Bytes of a response without its body, and without its length."""


class FastRead(NamedTuple):
    """The fields of a fast-path read. Ids are not negative; the encoded numbers, as received, are empty in protocol
    v2.
    """

    ledger_id: int
    entry_id: int
    txn_id: bytes
    ledger: bytes
    entry: bytes


class Reads(NamedTuple):
    """Reads of one ledger that were received one after the other, as columns. Ids are not negative.

    The encoded numbers are as received, and empty in protocol v2.
    """

    ledger_id: int
    entry_ids: Sequence[int]
    ledger: bytes
    txn_ids: Sequence[bytes]
    entries: Sequence[bytes]

    def part(self, start: int) -> tuple[int, bool]:
        """The end of the part that begins at `start`, and whether its entries are in a row: a part is a single entry or
        a row, or ends where a row begins.
        """
        ids, end = self.entry_ids, start + 1
        while end < len(ids) and ids[end] == ids[end - 1] + 1:
            end += 1
        if end > start + 1 or end == len(ids):
            return end, True
        while end < len(ids) and not (end + 1 < len(ids) and ids[end + 1] == ids[end] + 1):
            end += 1
        return end, end == start + 1


class Found:
    """Encodes success responses of reads of one ledger, byte for byte what `encode_response` of their protocol does.

    What consecutive responses share is kept, since mostly only transaction id, entry id and entry differ.
    """

    def __init__(self, ledger: bytes, max_lac: int) -> None:
        """`ledger` is the encoded id; `max_lac` the highest LAC that the bookie knows, 0 or above."""
        self.of = ledger, max_lac
        self._ledger = ledger
        self._lac = b"\x28" + short_varint(max_lac)
        self._shared: dict[tuple[int, int, int], tuple[bytes, bytes, bytes]] = {}
        """By the sizes of transaction id, entry id and packet: what is before these three."""

    def frames(self, reads: Reads, start: int, bodies: Sequence[bytes]) -> bytes:
        """The frames of the responses to the reads from `start` on, with these packets."""
        count = len(bodies)
        if not reads.txn_ids:
            return _v2_frames(reads.ledger_id, reads.entry_ids[start : start + count], bodies)
        txn_ids, entries = reads.txn_ids[start : start + count], reads.entries[start : start + count]
        sizes = list(zip(map(len, txn_ids), map(len, entries), map(len, bodies), strict=True))
        if sizes.count(sizes[0]) == count:
            before_txn, before_entry, before_body = self._shared_by(sizes[0])
            parts = [before_txn, b"", before_entry, b"", before_body, b"", self._lac] * count
        else:
            parts = [b"", b"", b"", b"", b"", b"", self._lac] * count
            parts[0::7], parts[2::7], parts[4::7] = zip(*map(self._shared_by, sizes), strict=True)
        parts[1::7], parts[3::7], parts[5::7] = txn_ids, entries, bodies
        return b"".join(parts)

    def _shared_by(self, sizes: tuple[int, int, int]) -> tuple[bytes, bytes, bytes]:
        shared = self._shared.get(sizes)
        if shared is None:
            if len(self._shared) >= _MOST_SHARED:
                self._shared.clear()
            shared = self._shared[sizes] = self._before(*sizes)
        return shared

    def _before(self, txn_size: int, entry_size: int, size: int) -> tuple[bytes, bytes, bytes]:
        body_size = short_varint(size)
        message = 5 + len(self._ledger) + entry_size + len(body_size) + size + len(self._lac)
        message_size = short_varint(message)
        length = _LENGTH.pack(11 + txn_size + len(message_size) + message)
        return (
            b"%b\x0a%c\x08\x03\x10\x01\x18" % (length, _HEADER + txn_size),
            b"\x10\0\xa2\x06%b\x08\0\x10%b\x18" % (message_size, self._ledger),
            b"\x22" + body_size,
        )


def _v2_frames(ledger_id: int, entry_ids: Sequence[int], bodies: Sequence[bytes]) -> bytes:
    parts = [b""] * (2 * len(bodies))
    parts[0::2] = [
        _V2_FOUND.pack(_V2_FOUND_SIZE + len(body), _V2_HEADER, 0, ledger_id, entry_id)
        for entry_id, body in zip(entry_ids, bodies, strict=True)
    ]
    parts[1::2] = bodies
    return b"".join(parts)


def read_v3(packet: memoryview) -> FastRead | None:
    """The read, or None if the packet is anything else."""
    match = _READ.fullmatch(packet)
    if match is None:
        return None
    header_length, txn_id, length, ledger, entry = match.groups()
    if header_length[0] != _HEADER + len(txn_id) or length[0] != _TAGS + len(ledger) + len(entry):
        return None
    return _new(FastRead, (decode_varint(ledger), decode_varint(entry), txn_id, ledger, entry))


def read_v2(packet: memoryview) -> FastRead | None:
    """The read, or None if the packet is anything else."""
    if len(packet) != _V2_READ.size:
        return None
    header, ledger_id, entry_id = _V2_READ.unpack(packet)
    if header != _V2_HEADER or ledger_id < 0 or entry_id < 0:
        return None
    return _new(FastRead, (ledger_id, entry_id, b"", b"", b""))


def read_together(first: FastRead, packets: Sequence[memoryview], start: int) -> Reads:
    """A read, and those of its ledger that follow it, as far as the packets have them.

    A reader sends many reads before the first response, so they are received together.

    Args:
        first: A read in either protocol version.
        packets: What was received; `first` is the packet before `start`.
        start: The first packet to look at.
    """
    return _together_v3(first, packets, start) if first.txn_id else _together_v2(first, packets, start)


def _together_v3(first: FastRead, packets: Sequence[memoryview], start: int) -> Reads:
    ledger_id, entry_id, first_txn_id, ledger, first_entry = first
    entry_ids, txn_ids, entries = [entry_id], [first_txn_id], [first_entry]
    for index in range(start, len(packets)):
        match = _READ.fullmatch(packets[index])
        if match is None:
            break
        header_length, txn_id, length, its_ledger, entry = match.groups()
        if (
            its_ledger != ledger
            or header_length[0] != _HEADER + len(txn_id)
            or length[0] != _TAGS + len(ledger) + len(entry)
        ):
            break
        entry_ids.append(decode_varint(entry))
        txn_ids.append(txn_id)
        entries.append(entry)
    return Reads(ledger_id, entry_ids, ledger, txn_ids, entries)


def _together_v2(first: FastRead, packets: Sequence[memoryview], start: int) -> Reads:
    entry_ids = [first.entry_id]
    for index in range(start, len(packets)):
        read = read_v2(packets[index])
        if read is None or read.ledger_id != first.ledger_id:
            break
        entry_ids.append(read.entry_id)
    return Reads(first.ledger_id, entry_ids, b"", (), ())


_new = tuple.__new__  # takes half the time of the named constructor
