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
from typing import NamedTuple

from bookgate.ledger.varint import VARINTS, decode_varint, encode_varint

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

    def found(self, body: bytes, max_lac: int) -> bytes:
        """The frame of the success response, byte for byte what `encode_response` of its protocol produces.

        Args:
            body: The stored packet.
            max_lac: The highest LAC that the bookie knows, 0 or above; protocol v2 does not send it.
        """
        _, entry_id, txn_id, ledger, entry = self
        size = len(body)
        if not txn_id:
            return _V2_FOUND.pack(_V2_FOUND_SIZE + size, _V2_HEADER, 0, self.ledger_id, entry_id) + body
        body_size = VARINTS[size] if size < _TABLE else encode_varint(size)
        lac = VARINTS[max_lac] if max_lac < _TABLE else encode_varint(max_lac)
        message = 6 + len(ledger) + len(entry) + len(body_size) + size + len(lac)
        message_size = VARINTS[message] if message < _TABLE else encode_varint(message)
        return b"%b\x0a%c\x08\x03\x10\x01\x18%b\x10\0\xa2\x06%b\x08\0\x10%b\x18%b\x22%b%b\x28%b" % (
            _LENGTH.pack(11 + len(txn_id) + len(message_size) + message),
            _HEADER + len(txn_id),
            txn_id,
            message_size,
            ledger,
            entry,
            body_size,
            body,
            lac,
        )


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


_TABLE = len(VARINTS)
_new = tuple.__new__  # takes half the time of the named constructor
