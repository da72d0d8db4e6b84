"""Serialisation of ledger metadata: versions 1 to 3 as the metadata store holds them, and the gateway's message.

Every version begins with the same kind of line, which states the version. Version 1 continues as tab-separated text,
version 2 as protobuf text, version 3 (used for new ledgers) as length-delimited protobuf. The version belongs to the
ledger and is kept when the metadata is rewritten. Source: docs/protocol/metadata.md#serialization. Golden bytes:
tests/conformance.

Version 1 stores no password, and neither does version 2 as written by the oldest clients. Such ledgers can be updated
like any other.

A CLOSED ledger without a last entry id is rejected as damaged; the Java reader takes it to be closed at entry 0 (F16).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from google.protobuf.message import DecodeError

from bookgate.ledger.errors import IncorrectParameterException, MetadataFormatException, MetadataSerializationException
from bookgate.ledger.ledger_id import NO_ENTRY
from bookgate.ledger.metadata import DigestType, Fragment, LedgerMetadata, LedgerState
from bookgate.ledger.metadata_text import parse_text
from bookgate.ledger.protobuf_text import quoted
from bookgate.ledger.unbounded_codec import disguised, undisguised
from bookgate.ledger.varint import encode_varint
from bookgate.protos.bookkeeper.proto.data_formats_pb2 import LedgerMetadataFormat, LedgerMetadataFormats

_PREFIX = b"BookieMetadataFormatVersion\t"
_HEADER_V3 = _PREFIX + b"3\n"
_LEDGER = bytes((LedgerMetadataFormats.LEDGER_FIELD_NUMBER << 3 | 2,))
_LONGEST_VERSION = 9
_IN_RECOVERY_MARK = -102
_CLOSED = "CLOSED"
_VARINT32_BYTES = 5
# A listing looks these up for every ledger; an enum's own look-up by value costs as much as all other fields together.
_FORMAT_CLOSED = LedgerMetadataFormat.CLOSED
_STATES = {int(state): state for state in LedgerState}
_DIGEST_TYPES = {int(kind): kind for kind in DigestType}
_FRAGMENTS_KEPT = 4096
_LONGEST_KEPT = 2048
"""Characters of an ensemble's bookie ids. Any client can write metadata with thousands of bookies, or with long ids."""


def encode(metadata: LedgerMetadata) -> bytes:
    """Serialises metadata in the ledger's own format version. Raises MetadataSerializationException."""
    if metadata.format_version not in (1, 2, 3):
        raise MetadataSerializationException(f"there is no metadata format version {metadata.format_version}")
    if metadata.password_check is not None:
        raise MetadataSerializationException("the password was withheld: these are not all of the ledger's metadata")
    if metadata.terms is not None and metadata.format_version != 3:
        raise MetadataSerializationException("an unbounded ledger has metadata of version 3: no other can hold terms")
    header = b"%s%d\n" % (_PREFIX, metadata.format_version)
    if metadata.format_version == 1:
        return header + _encode_v1(metadata)
    if metadata.format_version == 2:
        return header + _encode_v2(metadata)
    if metadata.password is None:
        raise MetadataSerializationException(
            "format version 3 needs a password and a digest type; this ledger has none"
        )
    body = to_format(metadata).SerializeToString()
    return header + encode_varint(len(body)) + body


def decode(data: bytes) -> LedgerMetadata:
    """Parses stored metadata. Raises MetadataFormatException.

    If the bytes carry no creation time, `ctime_ms` stays None, so a rewrite never adds one.
    """
    version, body = _split_header(data)
    try:
        if version == 1:
            return _decode_v1(body)
        message = parse_text(body) if version == 2 else _parse_delimited(body)
        return from_format(message, version)
    except (IncorrectParameterException, ValueError) as error:
        raise MetadataFormatException(f"ledger metadata can't be read: {error}") from error


def without_password(metadata: LedgerMetadata) -> LedgerMetadata:
    """Returns metadata without a password in a format version that can represent that; other metadata is returned
    unchanged.

    It becomes version 1 if that loses nothing: Apache BookKeeper updates a ledger of version 2 only if it has a
    password.
    """
    if metadata.password is not None:
        return metadata
    more = metadata.custom_metadata or metadata.ctime_ms is not None
    version = 2 if more or metadata.ack_quorum_size != metadata.write_quorum_size else 1
    return replace(metadata, format_version=version)


def stored_format(data: bytes) -> LedgerMetadataFormat:
    """The stored metadata as a message, for callers that forward it unread; the receiver checks the rules of metadata.

    Raises MetadataFormatException if the bytes are not ledger metadata.
    """
    version, body = _split_header(data)
    if version != 3:
        return to_format(decode(data))
    message = _parse_delimited(body)
    check_fields(message)
    return message


def stored_messages(stored: Sequence[bytes]) -> list[LedgerMetadataFormat]:
    """The same for many ledgers, all parsed in one call if they are of version 3; the caller checks the fields.

    Raises MetadataFormatException if the bytes of one are no message.
    """
    if all(map(_is_delimited, stored)):
        start = len(_HEADER_V3)
        joined = b"".join([_LEDGER + data[start:] for data in stored])
        try:
            return list(LedgerMetadataFormats.FromString(joined).ledger)
        except DecodeError as error:
            raise MetadataFormatException(f"ledger metadata of version 3 can't be read: {error}") from error
    return [stored_format(data) for data in stored]


def _is_delimited(data: bytes) -> bool:
    """Whether these are metadata of version 3 and nothing else, as far as their length tells."""
    start = len(_HEADER_V3)
    if not data.startswith(_HEADER_V3) or len(data) < start + 2:
        return False
    size = data[start]
    if size & 0x80:
        size, start = size & 0x7F | data[start + 1] << 7, start + 1
        if size >> 14:
            return False
    return start + 1 + size == len(data)


def to_format(metadata: LedgerMetadata) -> LedgerMetadataFormat:
    """The protobuf message that the gateway sends and that version 3 stores."""
    message = _bounded_fields(metadata) if metadata.terms is None else disguised(metadata)
    message.cToken = metadata.creator_token
    if metadata.password is not None and metadata.digest_type is not None:
        message.MergeFrom(LedgerMetadataFormat(digestType=metadata.digest_type.name, password=metadata.password))
    if metadata.ctime_ms is not None:
        message.ctime = metadata.ctime_ms
    for key, value in metadata.custom_metadata.items():
        message.customMetadata.add(key=key, value=value)
    return message


def _bounded_fields(metadata: LedgerMetadata) -> LedgerMetadataFormat:
    message = LedgerMetadataFormat(
        quorumSize=metadata.write_quorum_size,
        ensembleSize=metadata.ensemble_size,
        length=metadata.length,
        lastEntryId=metadata.last_entry_id,
        state=metadata.state.name,
        ackQuorumSize=metadata.ack_quorum_size,
    )
    for fragment in metadata.fragments:
        message.segment.add(ensembleMember=fragment.ensemble, firstEntryId=fragment.first_entry_id)
    return message


def from_format(message: LedgerMetadataFormat, format_version: int = 3) -> LedgerMetadata:
    """Converts the protobuf message. Raises MetadataFormatException, which names the fault."""
    check_fields(message)
    closed = message.state == _FORMAT_CLOSED
    has_password = message.HasField("password")
    segments = message.segment
    custom_metadata = {entry.key: entry.value for entry in message.customMetadata}
    _check_texts(custom_metadata, "a key of the custom metadata")
    try:
        if message.HasField("unbounded"):
            return _unbounded(message, custom_metadata, format_version)
        return LedgerMetadata(
            ensemble_size=message.ensembleSize,
            write_quorum_size=message.quorumSize,
            ack_quorum_size=message.ackQuorumSize if message.HasField("ackQuorumSize") else message.quorumSize,
            fragments=tuple(
                [
                    _fragment(segment.firstEntryId, tuple(segment.ensembleMember))
                    for segment in (segments if len(segments) == 1 else sorted(segments, key=_first_entry_id))
                ]
            ),
            state=_STATES[message.state],
            last_entry_id=message.lastEntryId if closed else NO_ENTRY,
            length=message.length if closed else 0,
            digest_type=_DIGEST_TYPES[message.digestType] if has_password else None,
            password=message.password if has_password else None,
            ctime_ms=message.ctime if message.HasField("ctime") else None,
            custom_metadata=custom_metadata,
            creator_token=message.cToken,
            format_version=format_version,
        )
    except IncorrectParameterException as error:
        raise MetadataFormatException(str(error)) from error


def _unbounded(message: LedgerMetadataFormat, custom_metadata: dict[str, bytes], format_version: int) -> LedgerMetadata:
    _check_texts(message.unbounded.bookie, "a bookie id")
    if format_version != 3 or not message.HasField("password"):
        raise MetadataFormatException("ledger metadata are damaged: an unbounded ledger of an old format")
    return replace(
        undisguised(message.unbounded),
        digest_type=_DIGEST_TYPES[message.digestType],
        password=message.password,
        ctime_ms=message.ctime if message.HasField("ctime") else None,
        custom_metadata=custom_metadata,
        creator_token=message.cToken,
    )


def check_fields(message: LedgerMetadataFormat) -> None:
    """Checks the mandatory fields of a message. Raises MetadataFormatException."""
    if not message.IsInitialized():
        raise MetadataFormatException(
            "ledger metadata lacks a required field (quorumSize, ensembleSize, length, state)"
        )
    if message.state == _FORMAT_CLOSED and not message.HasField("lastEntryId"):
        raise MetadataFormatException("ledger metadata is damaged: CLOSED without a last entry id")
    if message.HasField("password") and not message.HasField("digestType"):
        raise MetadataFormatException("ledger metadata is damaged: a password without a digest type")


def _first_entry_id(segment: LedgerMetadataFormat.Segment) -> int:
    return segment.firstEntryId


_fragments: dict[tuple[int, tuple[str, ...]], Fragment] = {}


def _fragment(first_entry_id: int, ensemble: tuple[str, ...]) -> Fragment:
    """Interned: ledgers of a listing share most of their ensembles, so equal fragments are one object."""
    kept = _fragments.get((first_entry_id, ensemble))
    return _new_fragment(first_entry_id, ensemble) if kept is None else kept


def _new_fragment(first_entry_id: int, ensemble: tuple[str, ...]) -> Fragment:
    _check_texts(ensemble, "a bookie id")
    fragment = Fragment(first_entry_id, ensemble)
    if sum(map(len, ensemble)) <= _LONGEST_KEPT:
        if len(_fragments) >= _FRAGMENTS_KEPT:
            _fragments.clear()
        _fragments[first_entry_id, ensemble] = fragment
    return fragment


def _check_texts(texts: Iterable[object], what: str) -> None:
    """Rejects text that is not UTF-8: protobuf returns it as bytes, and it can't be sent on."""
    if not all(isinstance(text, str) for text in texts):
        raise MetadataFormatException(f"ledger metadata is damaged: {what} that is not UTF-8")


def _split_header(data: bytes) -> tuple[int, bytes]:
    if not data.startswith(_PREFIX):
        raise MetadataFormatException(f"not ledger metadata: it begins with {data[:28]!r}")
    start = len(_PREFIX)
    end = data.find(b"\n", start, start + _LONGEST_VERSION + 1)
    digits = data[start:end]
    if end < 0 or not digits.isdigit():
        raise MetadataFormatException(f"ledger metadata has no format version: {data[start : start + 10]!r}")
    version = int(digits)
    if version not in (1, 2, 3):
        raise MetadataFormatException(f"ledger metadata has the unknown format version {version}")
    return version, data[end + 1 :]


# --- version 1 ------------------------------------------------------------------------------------------------------


def _encode_v1(metadata: LedgerMetadata) -> bytes:
    lines = [str(metadata.write_quorum_size), str(metadata.ensemble_size), str(metadata.length)]
    lines += ["\t".join((str(f.first_entry_id), *f.ensemble)) for f in metadata.fragments]
    text = "".join(line + "\n" for line in lines)
    if metadata.state is LedgerState.CLOSED:
        text += f"{metadata.last_entry_id}\t{_CLOSED}"
    elif metadata.state is LedgerState.IN_RECOVERY:
        text += f"{_IN_RECOVERY_MARK}\t{_CLOSED}"
    return text.encode()


def _decode_v1(body: bytes) -> LedgerMetadata:
    lines = body.decode("utf-8").split("\n")
    if len(lines) < 4:
        raise MetadataFormatException(f"ledger metadata of version 1 has only {len(lines)} lines")
    write_quorum, ensemble_size, length = (int(line) for line in lines[:3])
    fragments: list[Fragment] = []
    state, last_entry_id = LedgerState.OPEN, NO_ENTRY
    for line in filter(None, lines[3:]):
        fields = line.split("\t")
        if len(fields) > 1 and fields[1] == _CLOSED:
            last_entry_id = int(fields[0])
            state = LedgerState.IN_RECOVERY if last_entry_id == _IN_RECOVERY_MARK else LedgerState.CLOSED
            break
        fragments.append(Fragment(int(fields[0]), tuple(fields[1:])))
    closed = state is LedgerState.CLOSED
    return LedgerMetadata(
        ensemble_size=ensemble_size,
        write_quorum_size=write_quorum,
        ack_quorum_size=write_quorum,
        fragments=tuple(sorted(fragments, key=lambda fragment: fragment.first_entry_id)),
        state=state,
        last_entry_id=last_entry_id if closed else NO_ENTRY,
        length=length if closed else 0,
        digest_type=None,
        password=None,
        format_version=1,
    )


# --- version 2 ------------------------------------------------------------------------------------------------------


def _text_lines(message: LedgerMetadataFormat) -> Iterator[str]:
    yield f"quorumSize: {message.quorumSize}"
    yield f"ensembleSize: {message.ensembleSize}"
    yield f"length: {message.length}"
    yield f"lastEntryId: {message.lastEntryId}"
    yield f"state: {LedgerMetadataFormat.State.Name(message.state)}"
    for segment in message.segment:
        yield "segment {"
        for member in segment.ensembleMember:
            yield f"  ensembleMember: {quoted(member)}"
        yield f"  firstEntryId: {segment.firstEntryId}"
        yield "}"
    # Clients of BookKeeper 4.1 stored neither field.
    if message.HasField("password"):
        yield f"digestType: {LedgerMetadataFormat.DigestType.Name(message.digestType)}"
        yield f"password: {quoted(message.password)}"
    yield f"ackQuorumSize: {message.ackQuorumSize}"
    if message.HasField("ctime"):
        yield f"ctime: {message.ctime}"
    for entry in message.customMetadata:
        yield "customMetadata {"
        yield f"  key: {quoted(entry.key)}"
        yield f"  value: {quoted(entry.value)}"
        yield "}"


def _encode_v2(metadata: LedgerMetadata) -> bytes:
    return "".join(line + "\n" for line in _text_lines(to_format(metadata))).encode()


# --- version 3 ------------------------------------------------------------------------------------------------------


def _parse_delimited(body: bytes) -> LedgerMetadataFormat:
    size, start = _read_varint(body)
    if start + size > len(body):
        raise MetadataFormatException(f"ledger metadata is cut short: {len(body) - start} of {size} bytes")
    try:
        return LedgerMetadataFormat.FromString(body[start : start + size])
    except DecodeError as error:
        raise MetadataFormatException(f"ledger metadata of version 3 can't be read: {error}") from error


def _read_varint(data: bytes) -> tuple[int, int]:
    value = 0
    for position, byte in enumerate(data[:_VARINT32_BYTES]):
        value |= (byte & 0x7F) << (7 * position)
        if byte < 0x80:
            return value, position + 1
    raise MetadataFormatException("ledger metadata of version 3 has no length")
