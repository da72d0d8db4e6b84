"""The fast path of client requests: precomputes the bytes that all adds or reads of a ledger share.

The bytes equal those of `v3.encode_request`, which encodes every request. The encoders here serve adds and reads that
differ only in transaction id, entry id and body. Entry ids are not negative; a ledger is given by its number.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from bookgate.ledger.ledger_id import HALF_MASK, MAX_UNSCOPED
from bookgate.ledger.varint import short_varint
from bookgate.ledger.wire.v3 import scope_field, term_fields

_RECOVERY_FLAG = b"\xa0\x06\x01"
_FENCE_FLAG = b"\xa0\x06\x01"
_LAFR_TAG = b"\xd0\x3e"
_FOLLOWING_TAG = b"\xe8\x3e"
_NO_LAFR = b"\xff" * 9 + b"\x01"
"""-1, before the first entry is fully replicated."""


def _lower(ledger_id: int) -> bytes:
    return short_varint(ledger_id if ledger_id <= MAX_UNSCOPED else ledger_id & HALF_MASK)


def _priority(priority: int) -> bytes:
    return b"\x20" + short_varint(priority) if priority else b""


@cache
def _headers(operation: int, priority: int) -> tuple[bytes, ...]:
    """The bytes of a packet before its transaction id, indexed by the encoded size of that id."""
    size = 5 + len(_priority(priority))
    return tuple(b"\x0a%c\x08\x03\x10%c\x18" % (size + txn_size, operation) for txn_size in range(11))


class AddRequestEncoder:
    """Encodes adds to one ledger that share flags and priority."""

    def __init__(
        self, ledger_id: int, master_key: bytes, *, recovery: bool = False, write_flags: int = 0, priority: int = 0
    ) -> None:
        self._headers = _headers(2, priority)
        self._tag = _priority(priority) + b"\xaa\x06"
        self._ledger = (_RECOVERY_FLAG if recovery else b"") + b"\x08" + _lower(ledger_id) + b"\x10"
        self._key = b"\x1a" + short_varint(len(master_key)) + master_key + b"\x22"
        self._flags = (b"\x28" + short_varint(write_flags) if write_flags else b"") + scope_field(ledger_id)

    def encode(self, txn_id: int, entry_id: int, body: bytes) -> bytes:
        """Encodes the frame of one add."""
        return self.encode_run((txn_id,), entry_id, (body,))[0]

    def encode_run(self, txn_ids: Sequence[int], first_entry_id: int, bodies: Sequence[bytes]) -> list[bytes]:
        """Encodes the frames of adds of consecutive entries."""
        frames = []
        flags, sizes = self._flags, (0, 0, 0)
        before, between, behind = b"", b"", b""
        for entry_id, (txn_id, body) in enumerate(zip(txn_ids, bodies, strict=True), first_entry_id):
            txn, entry = short_varint(txn_id), short_varint(entry_id)
            if sizes != (len(txn), len(entry), len(body)):
                sizes = len(txn), len(entry), len(body)
                before, between, behind = self._constant_parts(*sizes, len(flags))
            frames.append(b"".join((before, txn, between, entry, behind, body, flags)))
        return frames

    def _constant_parts(
        self, txn_size: int, entry_size: int, body_size: int, end_size: int
    ) -> tuple[bytes, bytes, bytes]:
        """What stands before the transaction id, the entry id and the body of adds whose fields have these sizes;
        `end_size` is that of what follows the body.
        """
        behind = self._key + short_varint(body_size)
        size = len(self._ledger) + entry_size + len(behind) + body_size + end_size
        between = self._tag + short_varint(size) + self._ledger
        packet_size = len(self._headers[txn_size]) + txn_size + len(self._tag) + len(short_varint(size)) + size
        return packet_size.to_bytes(4, "big") + self._headers[txn_size], between, behind


class TermAddEncoder(AddRequestEncoder):
    """Encodes adds to one unbounded ledger that share term, flags and priority, but for truncating ones."""

    def __init__(self, ledger_id: int, master_key: bytes, term: int, *, recovery: bool = False, priority: int = 0):
        super().__init__(ledger_id, master_key, recovery=recovery, priority=priority)
        self._flags += term_fields(term)

    def encode_add(self, txn_id: int, entry_id: int, body: bytes, lafr: int) -> bytes:
        """Encodes the frame of one add, with the writer's LAFR."""
        txn, entry = short_varint(txn_id), short_varint(entry_id)
        end = self._flags + _LAFR_TAG + (short_varint(lafr) if lafr >= 0 else _NO_LAFR)
        before, between, behind = self._constant_parts(len(txn), len(entry), len(body), len(end))
        return b"".join((before, txn, between, entry, behind, body, end))


class ReadRequestEncoder:
    """Encodes reads of one ledger's entries: plain reads; with a master key, fencing reads; with `known_lac`, reads of
    an unbounded ledger whose reader knows that entries up to `known_lac` are confirmed.
    """

    def __init__(
        self, ledger_id: int, fence_with: bytes | None = None, priority: int = 0, *, known_lac: int | None = None
    ) -> None:
        self._headers = _headers(1, priority)
        self._tag = _priority(priority) + b"\xa2\x06"
        self._ledger = (b"" if fence_with is None else _FENCE_FLAG) + b"\x08" + _lower(ledger_id) + b"\x10"
        self._key = b"" if fence_with is None else b"\x1a" + short_varint(len(fence_with)) + fence_with
        self._key += scope_field(ledger_id) + term_fields(None, known_lac=known_lac)
        self._before_message = len(self._headers[0]) + len(self._tag)

    def encode(self, txn_id: int, entry_id: int, following: int = 0) -> bytes:
        """Encodes the frame of one read, also of at most so many entries `following` it."""
        txn, entry = short_varint(txn_id), short_varint(entry_id)
        behind = self._key + _FOLLOWING_TAG + short_varint(following) if following else self._key
        size = len(self._ledger) + len(entry) + len(behind)
        message_size = short_varint(size)
        packet_size = self._before_message + len(txn) + len(message_size) + size
        return b"%b%b%b%b%b%b%b%b" % (
            packet_size.to_bytes(4, "big"),
            self._headers[len(txn)],
            txn,
            self._tag,
            message_size,
            self._ledger,
            entry,
            behind,
        )
