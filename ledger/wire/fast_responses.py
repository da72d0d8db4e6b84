"""The fast path of client responses: decodes the most frequent protocol v3 responses without a message object, and
those to successful adds many at once.

Two shapes are accepted, as written by the bookies of BookKeeper and Bookgate: success of an add, optionally followed by
scope and term, and an entry read, optionally followed by the highest LAC. Each field must be in its place and each
length exact. Anything else is left to `v3.decode_response`; a response that both accept means the same to both.

Source: docs/protocol/wire.md#v3-messages, docs/protocol/unbounded-ledgers.md#on-the-wire.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from bookgate.ledger.varint import decode_varint
from bookgate.ledger.wire.messages import EOK, ReadResponse

_NUMBER = rb"[\x80-\xff]{0,8}[\x00-\x7f]"
_HALF = rb"[\x80-\xff]{0,9}[\x00-\x7f]"
"""Half of a ledger id: all of its 64 bits may be used."""
_STORED = re.compile(
    rb"\x0a(.)\x08\x03\x10\x02\x18(%(n)b)\x10\x00\xaa\x06(.)\x08\x00"
    rb"(\x10%(h)b\x18%(n)b(?:\xc0\x3e%(h)b)?(?:\xc8\x3e(%(n)b))?)" % {b"n": _NUMBER, b"h": _HALF},
    re.DOTALL,
)
"""Groups: header length, txnId, length of the sub-message, its fields after the status, the term."""
_ENTRY = re.compile(
    rb"\x0a(.)\x08\x03\x10\x01\x18(%(n)b)\x10\x00\xa2\x06(%(n)b)\x08\x00\x10(%(n)b)\x18(%(n)b)\x22(%(n)b)"
    % {b"n": _NUMBER},
    re.DOTALL,
)
"""Groups: header length, txnId, length of the sub-message, ledgerId, entryId, length of the body."""
_FIRST_STORED = re.compile(
    rb"....\x0a.\x08\x03\x10\x02\x18(%(n)b)\x10\x00\xaa\x06.\x08\x00\x10(%(h)b)\x18(%(n)b)((?:\xc0\x3e%(h)b)?)"
    % {b"n": _NUMBER, b"h": _HALF},
    re.DOTALL,
)
"""The frame of a stored add without a term. Groups: txnId, lower half of the ledger id, entry id, scope."""
_TXN_ID_AT = 11
"""Position of the transaction id in such a frame."""
_BEFORE_LEDGER = 3
"""Bytes of the sub-message before the ledger id."""
_MAX_LAC = re.compile(rb"\x28(%b)" % _NUMBER)
_HEADER = 5
"""Bytes of the header's fields without the transaction id."""


def stored_add(packet: bytes | memoryview) -> tuple[int, int | None] | None:
    """The transaction id of a successful add's response and the term, if it has one; None for any other response.

    No other field is needed.
    """
    match = _STORED.fullmatch(packet)
    if match is None:
        return None
    header_length, txn_id, length, fields, term = match.groups()
    if header_length[0] != _HEADER + len(txn_id) or length[0] != 2 + len(fields):
        return None
    if term is None:
        return decode_varint(txn_id), None
    return decode_varint(txn_id), term[0] if len(term) == 1 else decode_varint(term)


def stored_adds(frames: memoryview) -> tuple[list[int], int]:
    """The transaction ids of the frames at the beginning that are responses to successful adds without a term, all of
    the same size, and how many bytes these frames have.

    Any other frame ends the run, and is left to `stored_add` and `v3.decode_response`.
    """
    first = _FIRST_STORED.match(frames)
    if first is None:
        return [], 0
    sizes = tuple(map(len, first.groups()))
    run = _run_of(*sizes).match(frames)
    if run is None:
        return [], 0
    found, step = run[0], first.end()
    *lower, values = [found[at::step] for at in range(_TXN_ID_AT, _TXN_ID_AT + sizes[0])]
    txn_ids: Sequence[int] = values
    for column in reversed(lower):
        txn_ids = [higher << 7 | byte & 0x7F for higher, byte in zip(txn_ids, column, strict=True)]
    return list(txn_ids), len(found)


@lru_cache(256)
def _run_of(txn_size: int, ledger_size: int, entry_size: int, scope_size: int) -> re.Pattern[bytes]:
    """Frames of stored adds whose fields have these sizes, one behind another."""
    in_message = 4 + ledger_size + entry_size + scope_size
    in_packet = 2 + _HEADER + txn_size + 5 + in_message
    scope = rb"\xc0\x3e" + _varint_of(scope_size - 2) if scope_size else b""
    return re.compile(
        rb"(?:\x00\x00\x00%b\x0a%b\x08\x03\x10\x02\x18%b\x10\x00\xaa\x06%b\x08\x00\x10%b\x18%b%b)+"
        % (
            re.escape(bytes([in_packet])),
            re.escape(bytes([_HEADER + txn_size])),
            _varint_of(txn_size),
            re.escape(bytes([in_message])),
            _varint_of(ledger_size),
            _varint_of(entry_size),
            scope,
        )
    )


def _varint_of(size: int) -> bytes:
    return rb"[\x80-\xff]{%d}[\x00-\x7f]" % (size - 1)


def found_entry(packet: bytes | memoryview) -> ReadResponse | None:
    """The response to a read that returned an entry in the common shape, else None."""
    match = _ENTRY.match(packet)
    if match is None:
        return None
    header_length, txn_id, length, ledger_id, entry_id, body_length = match.groups()
    start = match.end()
    end = start + decode_varint(body_length)
    if (
        header_length[0] != _HEADER + len(txn_id)
        or decode_varint(length) != len(packet) - match.start(4) + _BEFORE_LEDGER
    ):
        return None
    max_lac = None
    if end != len(packet):
        told = _MAX_LAC.fullmatch(packet, end) if end < len(packet) else None
        if told is None:
            return None
        max_lac = decode_varint(told[1])
    ids = decode_varint(ledger_id), decode_varint(entry_id)
    return ReadResponse(decode_varint(txn_id), EOK, *ids, bytes(packet[start:end]), max_lac)
