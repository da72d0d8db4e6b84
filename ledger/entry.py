"""Entry packets (format V1) and explicit LAC packets: the bytes that adds and reads carry and that a bookie stores.

    ledger id 8 | entry id 8 | last add confirmed 8 | length 8 | digest D | payload

Integers are big-endian and signed. `length` is the number of payload bytes of the ledger up to and including this
entry; the LAC is that of the writer when it first sent the entry. Recovery may write the same entry again with another
LAC, so copies are compared by payload and length, never as whole packets. Source:
docs/protocol/entry-format.md#entry-packet, docs/protocol/entry-format.md#digests,
docs/protocol/entry-format.md#explicit-lac-packet.

Not its job: format V2 (128-bit ids).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hmac import compare_digest
from typing import NamedTuple

import google_crc32c

from bookgate.ledger.digest import Crc32cDigest, Digest
from bookgate.ledger.errors import DigestMatchException

HEADER_SIZE = 32
"""Bytes of the header, which precedes the digest."""

_HEADER = struct.Struct(">qqqq")
CRC32C_PACKET = struct.Struct(">32sI")
"""Header and digest of a packet with a CRC32C digest."""
PACKET_IDS = struct.Struct(">qqq")
"""The first three fields of an entry packet: ledger id, entry id, LAC."""
_LAC = struct.Struct(">qq")
LAC_HEADER_SIZE = _LAC.size
"""Bytes that precede the digest in an explicit LAC packet."""


class EntryHeader(NamedTuple):
    """The first 32 bytes of an entry packet."""

    ledger_id: int
    entry_id: int
    last_add_confirmed: int
    length: int


class Entry(NamedTuple):
    """An entry whose digest and ids were verified. `length` counts the ledger's payload bytes up to and including
    it.
    """

    ledger_id: int
    entry_id: int
    last_add_confirmed: int
    length: int
    payload: bytes


def encode_entry(
    digest: Digest, ledger_id: int, entry_id: int, last_add_confirmed: int, length: int, payload: bytes
) -> bytes:
    """Encodes one entry packet."""
    header = _HEADER.pack(ledger_id, entry_id, last_add_confirmed, length)
    return b"".join((header, digest.compute(header, payload), payload))


def decode_header(packet: bytes) -> EntryHeader:
    """Parses the header without verifying the digest. Raises DigestMatchException if the packet is too short."""
    if len(packet) < HEADER_SIZE:
        raise DigestMatchException(f"an entry packet of {len(packet)} bytes has no header")
    return EntryHeader._make(_HEADER.unpack_from(packet))


def decode_entry(digest: Digest, packet: bytes, ledger_id: int, entry_id: int | None) -> Entry:
    """Verifies and decodes a packet. Raises DigestMatchException.

    `entry_id` None accepts any entry id, as a read of the last entry needs.
    """
    start = HEADER_SIZE + digest.length
    if len(packet) < start:
        raise DigestMatchException(
            f"{_asked(entry_id)} of ledger {ledger_id}: {len(packet)} bytes are less than header and digest"
        )
    header, payload = packet[:HEADER_SIZE], packet[start:]
    found_ledger, found_entry, last_add_confirmed, length = _HEADER.unpack(header)
    if not compare_digest(digest.compute(header, payload), packet[HEADER_SIZE:start]):
        asked = found_entry if entry_id is None else entry_id
        raise DigestMatchException(f"entry {asked} of ledger {ledger_id}: the digest does not match")
    if found_ledger != ledger_id or entry_id not in (None, found_entry):
        raise DigestMatchException(
            f"{_asked(entry_id)} of ledger {ledger_id}: the packet is entry {found_entry} of ledger {found_ledger}"
        )
    return Entry(ledger_id, found_entry, last_add_confirmed, length, payload)


def _asked(entry_id: int | None) -> str:
    return "the last entry" if entry_id is None else f"entry {entry_id}"


def decode_entries(
    digest: Digest, packets: Sequence[bytes | memoryview], ledger_id: int, first_entry_id: int
) -> tuple[list[Entry], DigestMatchException | None]:
    """Verifies and decodes packets of consecutive entries. Returns those before the first bad packet, and that packet's
    error.

    Equivalent to calling `decode_entry` for each packet, but optimised for long runs.
    """
    entries: list[Entry] = []
    if type(digest) is Crc32cDigest:
        _open_crc32c(packets, ledger_id, first_entry_id, entries)
    for packet in packets[len(entries) :]:
        try:
            entries.append(decode_entry(digest, bytes(packet), ledger_id, first_entry_id + len(entries)))
        except DigestMatchException as error:
            return entries, error
    return entries, None


def _open_crc32c(packets: Sequence[bytes | memoryview], ledger_id: int, entry_id: int, entries: list[Entry]) -> None:
    """Appends entries up to the first packet that fails a check, without a Python function call per entry.

    The payload is copied once, the header not at all.
    """
    split, size, ids_of = CRC32C_PACKET.unpack_from, CRC32C_PACKET.size, _HEADER.unpack
    append, new, crc_of, crc_with = entries.append, tuple.__new__, google_crc32c.value, google_crc32c.extend
    for packet in packets:
        if len(packet) < size:
            return
        header, crc = split(packet)
        payload = bytes(packet[size:])
        found_ledger, found_entry, last_add_confirmed, length = ids_of(header)
        if crc_with(crc_of(header), payload) != crc or found_entry != entry_id or found_ledger != ledger_id:
            return
        append(new(Entry, (ledger_id, entry_id, last_add_confirmed, length, payload)))
        entry_id += 1


def encode_lac(digest: Digest, ledger_id: int, lac: int) -> bytes:
    """Encodes an explicit LAC packet."""
    header = _LAC.pack(ledger_id, lac)
    return header + digest.compute(header)


def decode_lac_header(packet: bytes) -> tuple[int, int]:
    """Returns (ledger id, LAC) of an explicit LAC packet, without verifying the digest. Raises struct.error below 16
    bytes.
    """
    ledger_id, lac = _LAC.unpack_from(packet)
    return ledger_id, lac


def decode_lac(digest: Digest, packet: bytes, ledger_id: int) -> int:
    """Verifies an explicit LAC packet and returns its LAC. Raises DigestMatchException."""
    end = _LAC.size + digest.length
    if len(packet) < end:
        raise DigestMatchException(f"explicit LAC of ledger {ledger_id}: {len(packet)} bytes are too few")
    header = packet[: _LAC.size]
    found_ledger, lac = _LAC.unpack(header)
    if not compare_digest(digest.compute(header), packet[_LAC.size : end]):
        raise DigestMatchException(f"explicit LAC of ledger {ledger_id}: the digest does not match")
    if found_ledger != ledger_id:
        raise DigestMatchException(f"explicit LAC of ledger {ledger_id}: the packet is of ledger {found_ledger}")
    return int(lac)
