"""The fast path of single reads: decodes the common read request and encodes its response without a message object.

`read_v3` accepts one shape of a protocol v3 request, which BookKeeper's Java client and this client send for a read of
one entry by its id: header, ledger id, entry id, each field in its place, every number in its shortest form and not
negative, every length exact. A read that fences, waits, has a priority, or asks for the last entry is left to `v3`; a
request that both accept means the same to both. `read_v2` does the same for protocol v2 (version 2, without flags).

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


class Found:
    """Encodes success responses of reads of one ledger, byte for byte what `encode_response` of their protocol does.

    What consecutive responses share is kept, since mostly only transaction id, entry id and entry differ.
    """

    def __init__(self, ledger: bytes, max_lac: int) -> None:
        """`ledger` is the encoded id; `max_lac` the highest LAC that the bookie knows, 0 or above."""
        self.of = ledger, max_lac
        self._ledger = ledger
        self._lac = b"\x28" + short_varint(max_lac)
        self._sizes = (-1, -1, -1)
        self._begin = self._until_entry = self._until_body = b""

    def frame(self, read: FastRead, body: bytes) -> bytes:
        """The frame of the response with this packet."""
        ledger_id, entry_id, txn_id, _, entry = read
        if not txn_id:
            return _V2_FOUND.pack(_V2_FOUND_SIZE + len(body), _V2_HEADER, 0, ledger_id, entry_id) + body
        sizes = (len(txn_id), len(entry), len(body))
        if sizes != self._sizes:
            self._resize(*sizes)
        return b"".join((self._begin, txn_id, self._until_entry, entry, self._until_body, body, self._lac))

    def _resize(self, txn_size: int, entry_size: int, size: int) -> None:
        self._sizes = (txn_size, entry_size, size)
        body_size = short_varint(size)
        message = 5 + len(self._ledger) + entry_size + len(body_size) + size + len(self._lac)
        message_size = short_varint(message)
        length = _LENGTH.pack(11 + txn_size + len(message_size) + message)
        self._begin = b"%b\x0a%c\x08\x03\x10\x01\x18" % (length, _HEADER + txn_size)
        self._until_entry = b"\x10\0\xa2\x06%b\x08\0\x10%b\x18" % (message_size, self._ledger)
        self._until_body = b"\x22" + body_size


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


def read_run(first: FastRead, packets: Sequence[memoryview], start: int) -> Sequence[FastRead]:
    """A read, and those of the next entries of its ledger that follow it, as far as the packets have them.

    A sequential reader sends many reads before the first response, so they are received together.

    Args:
        first: A read in either protocol version.
        packets: What was received; `first` is the packet before `start`.
        start: The first packet to look at.
    """
    if start >= len(packets):
        return (first,)
    return _read_run_v3(first, packets, start) if first.txn_id else _read_run_v2(first, packets, start)


def _read_run_v3(first: FastRead, packets: Sequence[memoryview], start: int) -> Sequence[FastRead]:
    ledger_id, entry_id, _, ledger, _ = first
    run = [first]
    for index in range(start, len(packets)):
        packet = packets[index]
        entry_id += 1
        entry = short_varint(entry_id)
        # Of reads in another order one byte is looked at, the lowest of the entry id.
        if len(packet) <= len(entry) or packet[-len(entry)] != entry[0]:
            break
        match = _READ.fullmatch(packet)
        if match is None:
            break
        header_length, txn_id, length, its_ledger, its_entry = match.groups()
        if (
            its_ledger != ledger
            or its_entry != entry
            or header_length[0] != _HEADER + len(txn_id)
            or length[0] != _TAGS + len(ledger) + len(entry)
        ):
            break
        run.append(_new(FastRead, (ledger_id, entry_id, txn_id, ledger, entry)))
    return run


def _read_run_v2(first: FastRead, packets: Sequence[memoryview], start: int) -> Sequence[FastRead]:
    run = [first]
    for index in range(start, len(packets)):
        read = read_v2(packets[index])
        if read is None or read.ledger_id != first.ledger_id or read.entry_id != first.entry_id + len(run):
            break
        run.append(read)
    return run


def read_scattered(first: FastRead, packets: Sequence[memoryview], start: int) -> Sequence[FastRead]:
    """A read, and those of its ledger that follow it in any order, as far as the packets have them; see `read_run`.

    It ends before the next entry of the one before, where a run may have begun.
    """
    read = read_v3 if first.txn_id else read_v2
    ledger_id, next_entry_id = first.ledger_id, first.entry_id + 1
    reads = [first]
    for index in range(start, len(packets)):
        following = read(packets[index])
        if following is None or following[0] != ledger_id or following[1] == next_entry_id:
            break
        next_entry_id = following[1] + 1
        reads.append(following)
    return reads


_new = tuple.__new__  # takes half the time of the named constructor
