"""Entry packets and explicit LAC packets: the bytes that adds and reads carry and that a bookie stores.

    format V1:                     ledger id 8 | entry id 8 | last add confirmed 8 | length 8 | digest D | payload
    format V2:  flags 1 | scope 8 | ledger id 8 | entry id 8 | last add confirmed 8 | length 8 | digest D | payload

V1 is the format of every ledger without a scope, V2 that of the others. The first byte tells them apart: that of V1
belongs to a ledger id, which is not negative, that of V2 has its highest bit set. Ledgers are given and returned by
their number (`ledger_id`).

Integers are big-endian and signed. `length` is the number of payload bytes of the ledger up to and including this
entry; the LAC is that of the writer when it first sent the entry. Recovery may write the same entry again with another
LAC, so copies are compared by payload and length, never as whole packets. Source:
docs/protocol/entry-format.md#entry-packet, docs/protocol/entry-format.md#digests,
docs/protocol/entry-format.md#explicit-lac-packet, docs/protocol/scoped-ledgers.md#entry-format-v2.
"""

from __future__ import annotations

import struct
import warnings
from collections.abc import Iterable, Sequence
from hmac import compare_digest
from typing import NamedTuple

import google_crc32c

from bookgate.ledger.digest import Crc32cDigest, Crc32Digest, Digest, HmacDigest
from bookgate.ledger.errors import DigestMatchException
from bookgate.ledger.ledger_id import HALF_MASK, MAX_UNSCOPED, halves_of
from bookgate.ledger.packets import Packets

HEADER_SIZE = 32
"""Bytes of the header of V1, which precedes the digest."""
SCOPED_HEADER_SIZE = 41
"""The same of V2."""

_HEADER = struct.Struct(">qqqq")
CRC32C_PACKET = struct.Struct(">32sI")
"""Header and digest of a packet with a CRC32C digest."""
PACKET_IDS = struct.Struct(">qqq")
"""The first three fields of an entry packet: ledger id, entry id, LAC."""
_LAC = struct.Struct(">qq")
LAC_HEADER_SIZE = _LAC.size
"""Bytes that precede the digest in an explicit LAC packet without a scope."""

_SCOPED_HEADER = struct.Struct(">BQQqqq")
_SCOPED_IDS = struct.Struct(">BQQqq")
_SCOPED_PREFIX = struct.Struct(">BQQq")
SCOPED_IDS_SIZE = _SCOPED_PREFIX.size
"""Bytes of a V2 packet up to its entry id."""
_IDS = struct.Struct(">qq")
_SCOPED_LAC = _SCOPED_PREFIX
_V2_FLAGS = 0xA0
"""Highest bit, and version 2 in bits 4 to 6; the digest type is in bits 0 to 3."""
_VERSION_BITS = 0xF0
_DIGEST_BITS = 0x0F
_LAST_DIGEST_TYPE = 4
NO_DIGEST_FLAGS = _V2_FLAGS | _LAST_DIGEST_TYPE
"""The flags of what has no digest."""
_LONGEST_DIGEST = HmacDigest.length
_KEYLESS: tuple[Digest, ...] = (Crc32cDigest(), Crc32Digest())
"""Digests that can be checked without the ledger's password."""


class EntryHeader(NamedTuple):
    """The header of an entry packet; `ledger_id` is the ledger's number."""

    ledger_id: int
    entry_id: int
    last_add_confirmed: int
    length: int


class Entry(NamedTuple):
    """An entry whose digest and ids were verified.

    `ledger_length` counts the ledger's payload bytes up to and including it; `size` are its own. `length`, the former
    name of `ledger_length`, warns. `ledger_id` is the lower half of the ledger's id: the handle it was read by knows
    the scope.
    """

    ledger_id: int
    entry_id: int
    last_add_confirmed: int
    ledger_length: int
    payload: bytes

    @property
    def size(self) -> int:
        """Bytes of the payload."""
        return len(self.payload)

    @property
    def length(self) -> int:
        """The former name of `ledger_length`."""
        warnings.warn("Entry.length is now called ledger_length", DeprecationWarning, stacklevel=2)
        return self.ledger_length


def is_scoped_packet(packet: bytes | memoryview) -> bool:
    """Whether a packet or record, which is not empty, is one of format V2 (or of a later one)."""
    return packet[0] >= 0x80


def header_size_of(ledger_id: int) -> int:
    """Bytes that precede the digest in the entry packets of the ledger with this number."""
    return HEADER_SIZE if ledger_id <= MAX_UNSCOPED else SCOPED_HEADER_SIZE


def encode_header(digest_type: int, ledger_id: int, entry_id: int, last_add_confirmed: int, length: int) -> bytes:
    """The bytes that precede the digest in an entry packet."""
    if ledger_id <= MAX_UNSCOPED:
        return _HEADER.pack(ledger_id, entry_id, last_add_confirmed, length)
    flags = _V2_FLAGS | digest_type
    return _SCOPED_HEADER.pack(flags, ledger_id >> 64, ledger_id & HALF_MASK, entry_id, last_add_confirmed, length)


def encode_entry(
    digest: Digest, ledger_id: int, entry_id: int, last_add_confirmed: int, length: int, payload: bytes
) -> bytes:
    """Encodes one entry packet of the ledger with this number."""
    header = encode_header(digest.number, ledger_id, entry_id, last_add_confirmed, length)
    return b"".join((header, digest.compute(header, payload), payload))


def encode_entries(
    digest: Digest,
    ledger_id: int,
    first_entry_id: int,
    last_add_confirmed: int,
    lengths: Iterable[int],
    payloads: Sequence[bytes],
) -> list[bytes]:
    """Encodes packets of consecutive entries that have the same LAC.

    Equivalent to calling `encode_entry` for each, but optimised for long runs.
    """
    if type(digest) is not Crc32cDigest or ledger_id > MAX_UNSCOPED:
        return [
            encode_entry(digest, ledger_id, entry_id, last_add_confirmed, length, payload)
            for entry_id, (length, payload) in enumerate(zip(lengths, payloads, strict=True), first_entry_id)
        ]
    pack, joined, crc_of, crc_with = _HEADER.pack, CRC32C_PACKET.pack, google_crc32c.value, google_crc32c.extend
    packets = []
    for entry_id, (length, payload) in enumerate(zip(lengths, payloads, strict=True), first_entry_id):
        header = pack(ledger_id, entry_id, last_add_confirmed, length)
        packets.append(joined(header, crc_with(crc_of(header), payload)) + payload)
    return packets


def encode_ids(ledger_id: int, entry_id: int) -> bytes:
    """What a record without a digest begins with: the ids as an entry packet of the ledger has them."""
    if ledger_id <= MAX_UNSCOPED:
        return _IDS.pack(ledger_id, entry_id)
    return _SCOPED_PREFIX.pack(NO_DIGEST_FLAGS, ledger_id >> 64, ledger_id & HALF_MASK, entry_id)


def packet_ids(packet: bytes | memoryview, start: int = 0) -> tuple[int, int]:
    """The numbers of the ledger and the entry that a packet or record begins with.

    Raises:
        ValueError: It is too short, or neither V1 nor V2.
    """
    try:
        if packet[start] < 0x80:
            number, entry_id = _IDS.unpack_from(packet, start)
            return number, entry_id
        flags, scope, lower, entry_id = _SCOPED_PREFIX.unpack_from(packet, start)
    except (IndexError, struct.error) as error:
        raise ValueError(f"{len(packet) - start} bytes are too few for the ids of an entry") from error
    _check_flags(flags, scope)
    return scope << 64 | lower, entry_id


def packet_lac(packet: bytes | memoryview) -> int | None:
    """The LAC in a packet; None where it is too short for one. What `packet_ids` refuses has none either."""
    at = 16 if packet and packet[0] < 0x80 else SCOPED_IDS_SIZE
    if len(packet) < at + 8:
        return None
    return int.from_bytes(packet[at : at + 8], "big", signed=True)


def has_matching_crc(packet: bytes) -> bool:
    """Whether the packet has a CRC-32C or CRC-32 digest that fits its bytes. False of one with a MAC, which nobody can
    check without the password, and of one without digest.
    """
    size = SCOPED_HEADER_SIZE if packet and is_scoped_packet(packet) else HEADER_SIZE
    return any(
        len(packet) >= size + digest.length
        and digest.compute(packet[:size], packet[size + digest.length :]) == packet[size : size + digest.length]
        for digest in _KEYLESS
    )


def is_same_entry(packet: bytes, other: bytes) -> bool:
    """Whether two packets of one entry, whose digests nobody can check, are equal, or would be with the same LAC."""
    if packet_lac(packet) == packet_lac(other):
        return packet == other
    lac_at, header = (SCOPED_IDS_SIZE, SCOPED_HEADER_SIZE) if is_scoped_packet(packet) else (16, HEADER_SIZE)
    # The digest covers the LAC.
    return all(
        packet[start:end] == other[start:end]
        for start, end in ((0, lac_at), (lac_at + 8, header), (header + _LONGEST_DIGEST, None))
    )


def _check_flags(flags: int, scope: int) -> None:
    """Raises ValueError for a version or digest type that this code does not know, and for scope 0."""
    if flags & _VERSION_BITS != _V2_FLAGS:
        raise ValueError(f"an entry packet has format version {flags >> 4 & 7}; only 1 and 2 are known")
    if not 1 <= flags & _DIGEST_BITS <= _LAST_DIGEST_TYPE:
        raise ValueError(f"an entry packet has digest type {flags & _DIGEST_BITS}, which is unknown")
    if scope == 0:
        raise ValueError("an entry packet of format V2 has scope 0, whose entries have format V1")


def decode_header(packet: bytes) -> EntryHeader:
    """Parses the header without verifying the digest. Raises DigestMatchException if the packet has none."""
    if packet and is_scoped_packet(packet):
        return _decode_scoped_header(packet)
    if len(packet) < HEADER_SIZE:
        raise DigestMatchException(f"an entry packet of {len(packet)} bytes has no header")
    return EntryHeader._make(_HEADER.unpack_from(packet))


def _decode_scoped_header(packet: bytes) -> EntryHeader:
    if len(packet) < SCOPED_HEADER_SIZE:
        raise DigestMatchException(f"an entry packet of {len(packet)} bytes has no header")
    flags, scope, lower, entry_id, last_add_confirmed, length = _SCOPED_HEADER.unpack_from(packet)
    try:
        _check_flags(flags, scope)
    except ValueError as error:
        raise DigestMatchException(str(error)) from error
    return EntryHeader(scope << 64 | lower, entry_id, last_add_confirmed, length)


def decode_entry(digest: Digest, packet: bytes, ledger_id: int, entry_id: int | None) -> Entry:
    """Verifies and decodes a packet. Raises DigestMatchException.

    `ledger_id` is the ledger's number. `entry_id` None accepts any entry id, as a read of the last entry needs.
    """
    if ledger_id > MAX_UNSCOPED:
        return _decode_scoped_entry(digest, packet, ledger_id, entry_id)
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


def _decode_scoped_entry(digest: Digest, packet: bytes, ledger_id: int, entry_id: int | None) -> Entry:
    what = f"{_asked(entry_id)} of ledger {ledger_id:032x}"
    start = SCOPED_HEADER_SIZE + digest.length
    if len(packet) < start:
        raise DigestMatchException(f"{what}: {len(packet)} bytes are less than header and digest")
    if not is_scoped_packet(packet):
        raise DigestMatchException(f"{what}: the packet is of a ledger without a scope")
    found = _decode_scoped_header(packet)
    if packet[0] & _DIGEST_BITS != digest.number:
        raise DigestMatchException(f"{what}: the packet has digest type {packet[0] & _DIGEST_BITS}, not the ledger's")
    payload = packet[start:]
    if not compare_digest(digest.compute(packet[:SCOPED_HEADER_SIZE], payload), packet[SCOPED_HEADER_SIZE:start]):
        raise DigestMatchException(f"{what}: the digest does not match")
    if found.ledger_id != ledger_id or entry_id not in (None, found.entry_id):
        raise DigestMatchException(f"{what}: the packet is entry {found.entry_id} of ledger {found.ledger_id:032x}")
    return Entry(halves_of(ledger_id)[1], found.entry_id, found.last_add_confirmed, found.length, payload)


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
    if type(digest) is Crc32cDigest and ledger_id <= MAX_UNSCOPED:
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
    ids_of, append, new = _HEADER.unpack, entries.append, tuple.__new__
    crc_of, crc_with = google_crc32c.value, google_crc32c.extend
    for header, crc, payload in Packets.of(packets).split(CRC32C_PACKET) or ():
        found_ledger, found_entry, last_add_confirmed, length = ids_of(header)
        if crc_with(crc_of(header), payload) != crc or found_entry != entry_id or found_ledger != ledger_id:
            return
        append(new(Entry, (ledger_id, entry_id, last_add_confirmed, length, payload)))
        entry_id += 1


def encode_lac(digest: Digest, ledger_id: int, lac: int) -> bytes:
    """Encodes an explicit LAC packet of the ledger with this number."""
    if ledger_id <= MAX_UNSCOPED:
        header = _LAC.pack(ledger_id, lac)
    else:
        header = _SCOPED_LAC.pack(_V2_FLAGS | digest.number, ledger_id >> 64, ledger_id & HALF_MASK, lac)
    return header + digest.compute(header)


def decode_lac_header(packet: bytes) -> tuple[int, int]:
    """Returns (ledger number, LAC) of an explicit LAC packet, without verifying the digest. Raises struct.error below
    16 bytes (25 with a scope), ValueError for a format that is unknown.
    """
    if packet and is_scoped_packet(packet):
        flags, scope, lower, lac = _SCOPED_LAC.unpack_from(packet)
        _check_flags(flags, scope)
        return scope << 64 | lower, lac
    ledger_id, lac = _LAC.unpack_from(packet)
    return ledger_id, lac


def lac_header_size_of(ledger_id: int) -> int:
    """Bytes that precede the digest in the explicit LAC packets of the ledger with this number."""
    return LAC_HEADER_SIZE if ledger_id <= MAX_UNSCOPED else _SCOPED_LAC.size


def decode_lac(digest: Digest, packet: bytes, ledger_id: int) -> int:
    """Verifies an explicit LAC packet and returns its LAC. Raises DigestMatchException."""
    what = f"explicit LAC of ledger {ledger_id if ledger_id <= MAX_UNSCOPED else f'{ledger_id:032x}'}"
    header_size = lac_header_size_of(ledger_id)
    end = header_size + digest.length
    if len(packet) < end:
        raise DigestMatchException(f"{what}: {len(packet)} bytes are too few")
    header = packet[:header_size]
    if not compare_digest(digest.compute(header), packet[header_size:end]):
        raise DigestMatchException(f"{what}: the digest does not match")
    try:
        found_ledger, lac = _LAC.unpack(header) if ledger_id <= MAX_UNSCOPED else decode_lac_header(packet)
    except ValueError as error:
        raise DigestMatchException(f"{what}: {error}") from error
    if found_ledger != ledger_id:
        raise DigestMatchException(f"{what}: the packet is of ledger {found_ledger}")
    return int(lac)
