"""Reads ledger metadata in protobuf's text form, version 2, in time that stored ledgers may take of an event loop.

protobuf's own parser of that form is written in Python and takes microseconds a byte. The parts that can be many or
long, ensembles and custom metadata, are read here by regular expressions in the one layout that BookKeeper and Bookgate
write; a dozen plain fields are left to that parser, and so is any text in another layout.
Source: docs/protocol/metadata.md#version-2.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from google.protobuf import text_encoding, text_format

from bookgate.ledger.errors import MetadataFormatException
from bookgate.protos.bookkeeper.proto.data_formats_pb2 import LedgerMetadataFormat

# Possessive: a long value is read in one pass, and what does not fit is given up at once.
_TEXT = r'"((?:[^"\\\n]++|\\.)*+)"'
_MEMBER = re.compile(f"  ensembleMember: {_TEXT}\n")
_SEGMENT = re.compile(
    r"^segment \{\n((?:  ensembleMember: "
    + _TEXT.replace("(", "(?:", 1)
    + r"\n)*+)  firstEntryId: (-?(?:0|[1-9][0-9]{0,18}))\n\}\n",
    re.MULTILINE,
)
_CUSTOM = re.compile(r"^customMetadata \{\n  key: " + _TEXT + r"\n  value: " + _TEXT + r"\n\}\n", re.MULTILINE)
_PLAIN = re.compile(r"(?:\w++: (?:\"(?:[^\"\\\n]++|\\.)*+\"|-?\w++)\n)*+")


def parse_text(body: bytes) -> LedgerMetadataFormat:
    """Raises MetadataFormatException."""
    message = LedgerMetadataFormat()
    try:
        text = body.decode("utf-8")
        segments, custom = _SEGMENT.findall(text), _CUSTOM.findall(text)
        rest, customs_left = _CUSTOM.subn("", _SEGMENT.sub("", text))
        # What shows only once something within it was taken out is nothing that a writer makes.
        if customs_left == len(custom) and _PLAIN.fullmatch(rest):
            _add_ensembles(message, segments)
            _add_custom_metadata(message, custom)
        else:
            rest = text
        text_format.Parse(rest, message, allow_unknown_field=True)
    except (text_format.ParseError, ValueError) as error:
        raise MetadataFormatException(f"ledger metadata of version 2 can't be read: {error}") from error
    return message


def _add_ensembles(message: LedgerMetadataFormat, segments: Iterable[tuple[str, str]]) -> None:
    for members, first_entry_id in segments:
        message.segment.add(
            ensembleMember=[_unescaped(member).decode() for member in _MEMBER.findall(members)],
            firstEntryId=int(first_entry_id),
        )


def _add_custom_metadata(message: LedgerMetadataFormat, custom: Iterable[tuple[str, str]]) -> None:
    for key, value in custom:
        message.customMetadata.add(key=_unescaped(key).decode(), value=_unescaped(value))


def _unescaped(text: str) -> bytes:
    unescaped: bytes = text_encoding.CUnescape(text) if "\\" in text else text.encode()
    return unescaped
