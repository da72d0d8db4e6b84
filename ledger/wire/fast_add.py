"""The fast path of adds: decodes the common add request and prepares its response without a message object.

`read_v3` accepts one shape of a protocol v3 request, which BookKeeper's Java client and this client send for an add
without flags: header, ledger id, entry id, a 20-byte master key and the entry packet, each field in its place, every
number in its shortest form, every length exact, and the ids equal to those of the packet; an add of an unbounded ledger
has the term and the last add fully replicated behind it. `read_copy` accepts the same with the flag of a recovery add
and the high priority. Anything else is left to `v3`; a request that both accept means the same to both. `AddReader`
reads the adds of a connection, which mostly have one shape, one by one or as runs. `read_v2` does the same for protocol
v2 (version 2, without flags).

Source: docs/protocol/wire.md#packet-header, docs/protocol/wire.md#request, docs/protocol/wire.md#add-messages,
docs/protocol/wire.md#v2-header, docs/protocol/wire.md#v2-requests, docs/protocol/wire.md#v2-responses,
docs/protocol/unbounded-ledgers.md#on-the-wire.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, final

from bookgate.ledger.entry import HEADER_SIZE, PACKET_IDS
from bookgate.ledger.ledger_id import NO_ENTRY
from bookgate.ledger.varint import VARINTS, are_shortest, decode_varint, encode_varint, is_shortest, short_varint

_SHAPE = (
    rb"\x0a(.)\x08\x03\x10\x02\x18([\x00-\x7f]|[\x80-\xff]{1,8}[\x01-\x7f])%(priority)b"
    rb"\xaa\x06(%(v)b)%(flag)b\x08(%(v)b)\x10(%(v)b)\x1a\x14(.{20})\x22(%(v)b)"
)
"""Groups: header length, txnId, length of the sub-message, ledgerId, entryId, masterKey, length of the body."""
_VARINT = rb"[\x80-\xff]{0,8}[\x00-\x7f]"
_ADD = re.compile(_SHAPE % {b"v": _VARINT, b"priority": b"", b"flag": b""}, re.DOTALL)
_COPY = re.compile(_SHAPE % {b"v": _VARINT, b"priority": rb"\x20\x64", b"flag": rb"\xa0\x06\x01"}, re.DOTALL)
_PRIORITY, _FLAG = 2, 3
"""Bytes that a copy has besides, in the header and in the sub-message."""

_AT_TERM = re.compile(rb"(\xc8\x3e([\x80-\xff]{0,8}[\x00-\x7f]))\xd0\x3e([\x80-\xff]{0,9}[\x00-\x7f])")
"""Groups: the term as it stands in the response, term, LAFR, which is -1 before the first entry is fully replicated."""

_HEADER = 5
"""Bytes of the header's fields without the transaction id."""
_SUB_MESSAGE = 25
"""Bytes of the sub-message's tags and master key."""
_OPERATION, _ADD_ENTRY = 5, 2
"""Where a header has its operation, and that of adds."""
_BEGIN = 7
"""Bytes before the transaction id."""
_BEHIND = 23
"""Bytes from the entry id to the body without the body's length: master key and tags."""
_LENGTH_SIZE = 4
"""Bytes of a frame's length."""
_LONGEST_IN_RUN = 8192
"""Bytes of a packet above which it is read alone: the copy that a run takes would cost more than it saves."""

_V2_ADD = struct.Struct(">I20sqqq")
"""Header, master key, and the packet's ledgerId, entryId and LAC."""
_V2_HEADER = 0x02010000
"""Version 2, operation 1, no flags."""
_V2_BODY = 24
_V2_STORED = struct.Struct(">IIIqq")


class FastAdd(NamedTuple):
    """The fields of a fast-path add. Ids are not negative."""

    stored: bytes
    """The frame of the success response, byte for byte what `encode_response` of its protocol produces."""
    ledger_id: int
    entry_id: int
    last_add_confirmed: int
    """The LAC in the entry packet."""
    master_key: bytes
    body: bytes
    txn_id: bytes
    """The transaction id as a varint, as received; empty in protocol v2, which has none for adds."""


@final
class FastTermAdd(NamedTuple):
    """The fields of a fast-path add of an unbounded ledger. Numbers are not negative, but for `lafr`."""

    add: FastAdd
    term: int
    lafr: int
    """The writer's last add fully replicated."""

    @property
    def ledger_id(self) -> int:
        """As a `FastAdd` has it."""
        return self.add.ledger_id


@final
class AddRun(NamedTuple):
    """Adds of one ledger, with ascending ids, that were received one after the other. Ids are positive."""

    stored: bytes
    """The frames of their success responses, joined; all have one size."""
    ledger_id: int
    entry_ids: Sequence[int]
    last_add_confirmed: int
    """The highest LAC in the entry packets."""
    master_key: bytes
    bodies: Sequence[bytes]
    """The entry packets."""


def read_v3(packet: memoryview) -> FastAdd | FastTermAdd | None:
    """The add, or None if the packet is anything else."""
    match = _ADD.match(packet)
    return None if match is None else _decode(match, packet, _HEADER, _SUB_MESSAGE)


def read_copy(packet: memoryview) -> FastAdd | FastTermAdd | None:
    """The recovery add of high priority, as recoveries, repairs and take-overs send it, or None if the packet is
    anything else.
    """
    match = _COPY.match(packet)
    return None if match is None else _decode(match, packet, _HEADER + _PRIORITY, _SUB_MESSAGE + _FLAG)


def _decode(
    match: re.Match[bytes], packet: memoryview, header_size: int, message_size: int
) -> FastAdd | FastTermAdd | None:
    """The add of a matching packet, if its numbers agree; the sizes are those without what varies."""
    header_length, txn_id, add_length, ledger, entry, master_key, body_length = match.groups()
    start = match.end()
    size = len(packet) - start
    if size < HEADER_SIZE:
        return None
    ledger_id, entry_id, last_add_confirmed = PACKET_IDS.unpack_from(packet, start)
    if ledger_id < 0 or entry_id < 0:
        return None
    add_size = message_size + len(ledger) + len(entry) + len(body_length) + size
    if (
        entry != (VARINTS[entry_id] if entry_id < _TABLE else encode_varint(entry_id))
        or ledger != (VARINTS[ledger_id] if ledger_id < _TABLE else encode_varint(ledger_id))
        or add_length != (VARINTS[add_size] if add_size < _TABLE else encode_varint(add_size))
        or header_length[0] != header_size + len(txn_id)
    ):
        return None
    told, term, lafr = b"", NO_ENTRY, NO_ENTRY
    if body_length != (VARINTS[size] if size < _TABLE else encode_varint(size)):
        behind, size = size, decode_varint(body_length)
        at_term = _at_term(bytes(packet[start + size :])) if HEADER_SIZE <= size < behind else None
        if at_term is None:
            return None
        told, term, lafr = at_term
    ids = len(ledger) + len(entry) + len(told)
    stored = b"\0\0\0%c\x0a%c\x08\x03\x10\x02\x18%b\x10\0\xaa\x06%c\x08\0\x10%b\x18%b%b" % (
        16 + len(txn_id) + ids,
        _HEADER + len(txn_id),
        txn_id,
        4 + ids,
        ledger,
        entry,
        told,
    )
    body = bytes(packet[start : start + size])
    add = _new(FastAdd, (stored, ledger_id, entry_id, last_add_confirmed, master_key, body, txn_id))
    return _new(FastTermAdd, (add, term, lafr)) if told else add


@final
class AddReader:
    """Reads the adds of one connection as `read_v3` does; consecutive ones mostly have the same shape.

    Two adds of one ledger and of one size show the shape of the next: only transaction id, entry id and packet differ.
    An add of that shape is taken apart and compared at once; for any other `read_v3` decides. Adds of that shape with
    ascending ids are a run, whose fields are compared as columns: a writer sends many adds before the first response.
    """

    __slots__ = ("_former", "_no_run", "_shape")

    def __init__(self) -> None:
        self._shape: _Shape | None = None
        self._no_run = 0
        self._former = (NO_ENTRY, 0)
        """Ledger and size of the last add that `read_v3` decoded."""

    def read_run(self, packets: Sequence[memoryview], start: int) -> AddRun | None:
        """The run of adds that begins with the packet at `start`, of two or more; None if there is none."""
        if self._no_run:
            self._no_run -= 1
            return None
        if self._shape is None or len(packets[start]) > _LONGEST_IN_RUN:
            return None
        entry_ids, last_add_confirmed = self._shape.ascending(packets, start)
        if len(entry_ids) < 2:
            return None
        run = self._shape.read_run(packets[start : start + len(entry_ids)], entry_ids, last_add_confirmed)
        if run is None:
            self.read_singly(len(entry_ids))
        return run

    def read_singly(self, count: int) -> None:
        """Lets so many packets be no run, of which `read_run` was given the first: they were tried as one."""
        self._no_run = count - 1

    def read(self, packet: memoryview) -> FastAdd | FastTermAdd | None:
        """The add, or None if the packet is anything else."""
        if len(packet) <= _OPERATION or packet[_OPERATION] != _ADD_ENTRY:
            return None
        if self._shape is not None:
            add = self._shape.read(packet)
            if add is not None:
                return add
            self._shape = None
        found = read_v3(packet)
        if type(found) is FastAdd:
            like = found.ledger_id, len(packet)
            if like == self._former:
                self._shape = _Shape(found, packet)
            self._former = like
        return found


@final
class _Shape:
    """What an add and its response have in common with the next ones of its ledger and its size."""

    __slots__ = ("_common", "_ledger_id", "_master_key", "_size", "_split", "_start", "_stored", "_take_apart")

    def __init__(self, add: FastAdd, packet: memoryview) -> None:
        txn, entry = len(add.txn_id), len(short_varint(add.entry_id))
        behind = _BEHIND + len(short_varint(len(add.body)))
        self._size = len(packet)
        self._start = self._size - len(add.body)
        middle = self._start - _BEGIN - txn - entry - behind
        before = f">{_BEGIN}s{txn}s{middle}s{entry}s{behind}s"
        self._take_apart = struct.Struct(before + "qqq").unpack_from
        self._split = struct.Struct(f"{before}{len(add.body)}s").iter_unpack
        begin, _, middle_bytes, _, behind_bytes, *_ = self._take_apart(packet)
        self._common = begin, middle_bytes, behind_bytes
        self._ledger_id, self._master_key = add.ledger_id, add.master_key
        txn_at = _LENGTH_SIZE + _BEGIN
        self._stored = add.stored[:txn_at], add.stored[txn_at + txn : -entry]

    def read(self, packet: memoryview) -> FastAdd | None:
        """The add, or None if the packet has another shape."""
        if len(packet) != self._size:
            return None
        begin, txn_id, middle, entry, behind, ledger_id, entry_id, last_add_confirmed = self._take_apart(packet)
        if (begin, middle, behind) != self._common or ledger_id != self._ledger_id or entry_id < 0:
            return None
        if entry != short_varint(entry_id) or not is_shortest(txn_id):
            return None
        before_txn, before_entry = self._stored
        stored = b"".join((before_txn, txn_id, before_entry, entry))
        body = bytes(packet[self._start :])
        return _new(FastAdd, (stored, ledger_id, entry_id, last_add_confirmed, self._master_key, body, txn_id))

    def read_run(
        self, packets: Sequence[memoryview], entry_ids: Sequence[int], last_add_confirmed: int
    ) -> AddRun | None:
        """The run of what `ascending` has found, or None if a packet has another shape."""
        joined = b"".join(packets)
        begins, txn_ids, middles, entries, behinds, bodies = zip(*self._split(joined), strict=True)
        heads = list(zip(begins, middles, behinds, strict=True))
        is_alike = heads.count(self._common) == len(heads) and list(entries) == list(map(short_varint, entry_ids))
        if not is_alike or not are_shortest(txn_ids):
            return None
        before_txn, before_entry = self._stored
        stored = [before_txn, b"", before_entry, b""] * len(heads)
        stored[1::4], stored[3::4] = txn_ids, entries
        run = (b"".join(stored), self._ledger_id, entry_ids, last_add_confirmed, self._master_key, bodies)
        return _new(AddRun, run)

    def ascending(self, packets: Sequence[memoryview], start: int) -> tuple[list[int], int]:
        """The entry ids, positive and ascending, of the packets that may be a run; and the highest LAC in them."""
        size, at, ledger_id = self._size, self._start, self._ledger_id
        latest, highest = 0, NO_ENTRY
        entry_ids: list[int] = []
        for index in range(start, len(packets)):
            packet = packets[index]
            if len(packet) != size:
                break
            its_ledger_id, entry_id, last_add_confirmed = PACKET_IDS.unpack_from(packet, at)
            if its_ledger_id != ledger_id or entry_id <= latest:
                break
            entry_ids.append(entry_id)
            latest = entry_id
            if last_add_confirmed > highest:
                highest = last_add_confirmed
        return entry_ids, highest


@lru_cache(1024)  # consecutive adds have the same term, and often the same LAFR
def _at_term(encoded: bytes) -> tuple[bytes, int, int] | None:
    """What stands behind the body of an add of an unbounded ledger that does not truncate, or None if it is anything
    else: the term as it stands in the response, the term, and the LAFR.
    """
    match = _AT_TERM.fullmatch(encoded)
    if match is None:
        return None
    told, encoded_term, encoded_lafr = match.groups()
    term, lafr = decode_varint(encoded_term), _signed(decode_varint(encoded_lafr))
    if lafr < NO_ENTRY or encoded_term != (VARINTS[term] if term < _TABLE else encode_varint(term)):
        return None
    return told, term, lafr


def _signed(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def read_v2(packet: memoryview) -> FastAdd | None:
    """The add, or None if the packet is anything else."""
    if len(packet) < _V2_BODY + HEADER_SIZE:
        return None
    header, master_key, ledger_id, entry_id, last_add_confirmed = _V2_ADD.unpack_from(packet)
    if header != _V2_HEADER or ledger_id < 0 or entry_id < 0:
        return None
    stored = _V2_STORED.pack(24, _V2_HEADER, 0, ledger_id, entry_id)
    return _new(FastAdd, (stored, ledger_id, entry_id, last_add_confirmed, master_key, bytes(packet[_V2_BODY:]), b""))


_TABLE = len(VARINTS)
_new = tuple.__new__  # takes half the time of the named constructor
