"""Records in entries: many small records in one entry, compressed or not, as a layer of its own on payloads.

A ledger whose custom metadata name a codec (`bookgate.codec`) has such entries; any other has plain ones, each of which
is one record. Bookies, and clients that do not know the layer, see bytes. Source:
docs/protocol/payload-codec.md#custom-metadata, docs/protocol/payload-codec.md#entry-payload.

    form 1 | [size varint] | body        body: count varint | length varint, … | records

Not its job: when a batch is sent (`thinclient.handles.record_writer`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from bookgate.ledger.entry import Entry
from bookgate.ledger.errors import IllegalOpException, IncorrectParameterException, PayloadCodecException
from bookgate.ledger.varint import encode_varint

CODEC_KEY = "bookgate.codec"
"""The name in the custom metadata."""

MAX_DECODED_BYTES = 256 * 1024 * 1024
"""What a compressed entry may grow to; one that claims more is damaged or hostile."""

_LONGEST_VARINT = 5


class Codec(Enum):
    """How the records of a ledger lie in its entries; the value is that of the custom metadata."""

    PLAIN = ""
    """An entry is a record."""
    RECORDS = "records-1"
    RECORDS_LZ4 = "records-1+lz4"
    RECORDS_ZSTD = "records-1+zstd"


class Compression(Enum):
    """How batches of records are compressed."""

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"


class RecordPosition(NamedTuple):
    """The position of a record: its entry, and its index in the entry, from 0."""

    entry_id: int
    number: int


class Record(NamedTuple):
    """A record and where it lies: its entry, and its number in there, from 0."""

    entry_id: int
    number: int
    payload: bytes


_CODECS = {
    Compression.NONE: Codec.RECORDS,
    Compression.LZ4: Codec.RECORDS_LZ4,
    Compression.ZSTD: Codec.RECORDS_ZSTD,
}
_FORMS = {Codec.RECORDS: 0, Codec.RECORDS_LZ4: 1, Codec.RECORDS_ZSTD: 2}
_UNCOMPRESSED, _LZ4, _ZSTD = 0, 1, 2
_NOT_STATED = -1
"""The library's word for the size of a frame that does not state it."""
_INSTALL = "which is not installed; run: pip install 'bookgate[compression]'"


def codec_for(compression: Compression) -> Codec:
    """The codec of batches compressed so. Raises IllegalOpException where its library is not installed."""
    if not isinstance(compression, Compression):
        raise IncorrectParameterException(f"compression is a Compression, not {compression!r}")
    if compression is not Compression.NONE:
        _library(compression)
    return _CODECS[compression]


def codec_of(custom_metadata: Mapping[str, bytes]) -> Codec:
    """The codec that a ledger's custom metadata name. Raises PayloadCodecException for one of a later version."""
    named = custom_metadata.get(CODEC_KEY, b"").decode(errors="replace")
    try:
        return Codec(named)
    except ValueError:
        known = ", ".join(each.value for each in Codec if each.value)
        raise PayloadCodecException(f"the codec {named!r} is not known here, only {known}") from None


def encode_records(codec: Codec, records: Sequence[bytes]) -> bytes:
    """The payload of an entry with these records, one at least. What compression does not make smaller stays as it is.

    Raises:
        IncorrectParameterException: There is no record, or several in a plain ledger, or more bytes than are decoded.
        IllegalOpException: The library is not installed.
    """
    if codec is Codec.PLAIN and len(records) == 1:
        return records[0]
    if codec is Codec.PLAIN or not records:
        raise IncorrectParameterException(f"{len(records)} records don't make an entry of the codec {codec.value!r}")
    body = b"".join((encode_varint(len(records)), *(encode_varint(len(each)) for each in records), *records))
    if codec is not Codec.RECORDS and len(body) > MAX_DECODED_BYTES:
        raise IncorrectParameterException(
            f"the records of an entry have {len(body)} bytes; at most {MAX_DECODED_BYTES} are compressed together"
        )
    compressed = _compressed(_FORMS[codec], body)
    if compressed is not None and len(compressed) + _LONGEST_VARINT < len(body):
        return b"".join((bytes((_FORMS[codec],)), encode_varint(len(body)), compressed))
    return b"\x00" + body


def decode_records(codec: Codec, payload: bytes | memoryview) -> list[bytes]:
    """The records of an entry.

    Raises:
        PayloadCodecException: The payload is no entry of this layer.
        IllegalOpException: The library is not installed.
    """
    data = bytes(payload)
    if codec is Codec.PLAIN:
        return [data]
    if not data:
        raise PayloadCodecException("an empty entry has no records")
    body = _body(data)
    count, at = _varint(body, 0)
    if count > len(body):
        raise PayloadCodecException(f"{count} records don't fit an entry of {len(body)} bytes")
    sizes = []
    for _ in range(count):
        size, at = _varint(body, at)
        sizes.append(size)
    if at + sum(sizes) != len(body):
        raise PayloadCodecException(f"records of {sum(sizes)} bytes don't fill {len(body) - at}")
    records = []
    for size in sizes:
        records.append(body[at : at + size])
        at += size
    return records


def records_of(codec: Codec, entries: Iterable[Entry]) -> list[Record]:
    """The records of entries, in their order. Raises as `decode_records`, naming the entry."""
    found: list[Record] = []
    for entry in entries:
        try:
            records = decode_records(codec, entry.payload)
        except PayloadCodecException as error:
            raise PayloadCodecException(f"entry {entry.entry_id} of ledger {entry.ledger_id}: {error}") from error
        found += [Record(entry.entry_id, number, payload) for number, payload in enumerate(records)]
    return found


def _body(data: bytes) -> bytes:
    form = data[0]
    if form == _UNCOMPRESSED:
        return data[1:]
    if form not in (_LZ4, _ZSTD):
        raise PayloadCodecException(f"no entry begins with the byte {form}")
    size, at = _varint(data, 1)
    if size > MAX_DECODED_BYTES:
        raise PayloadCodecException(f"an entry claims {size} bytes of records; the most is {MAX_DECODED_BYTES}")
    body = _decompressed(form, data[at:], size)
    if len(body) != size:
        raise PayloadCodecException(f"an entry of {size} bytes of records has {len(body)}")
    return body


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A varint of at most 35 bits, and where it ends."""
    value = 0
    for place, byte in enumerate(data[at : at + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    raise PayloadCodecException("a number of an entry does not end")


def _compressed(form: int, body: bytes) -> bytes | None:
    if form == _LZ4:
        return bytes(_library(Compression.LZ4).compress(body, store_size=False))
    if form == _ZSTD:
        return bytes(_library(Compression.ZSTD).ZstdCompressor().compress(body))
    return None


def _decompressed(form: int, data: bytes, size: int) -> bytes:
    try:
        if form == _LZ4:
            return bytes(_library(Compression.LZ4).decompress(data, uncompressed_size=size))
        return _one_frame(_library(Compression.ZSTD), data, size)
    except (IllegalOpException, PayloadCodecException):
        raise
    except Exception as error:  # each library has errors of its own
        raise PayloadCodecException(f"the records of an entry can't be decompressed: {error}") from error


def _one_frame(zstandard: Any, data: bytes, size: int) -> bytes:
    """The contents of a Zstandard frame that must be `size` bytes."""
    # A frame usually states its size, and then the library allocates that much, whatever `max_output_size` is.
    stated = zstandard.frame_content_size(data)
    if stated not in (_NOT_STATED, size):
        raise PayloadCodecException(f"an entry of {size} bytes of records has a frame of {stated}")
    return bytes(zstandard.ZstdDecompressor().decompress(data, max_output_size=size))


def _library(compression: Compression) -> Any:
    try:
        if compression is Compression.LZ4:
            import lz4.block

            return lz4.block
        import zstandard
    except ModuleNotFoundError:
        name = "lz4" if compression is Compression.LZ4 else "zstandard"
        raise IllegalOpException(f"records compressed with {compression.value} need {name}, {_INSTALL}") from None
    return zstandard
