"""Metadata of listed ledgers, most of which differ only in where they end: what is equal is checked and built once.

A million ledgers of one application have a few thousand ensembles, and the same quorums, password and custom metadata.
The serialised message without its end, creation time and token is the key to metadata that were built from an equal
message before. Metadata of ledgers that are not closed, and unbounded ones, are always built anew.

Not its job: the rules of metadata (`metadata`) and of their message (`metadata_codec`), which judge each message whose
key is new.
"""

from __future__ import annotations

from bookgate.ledger.ledger_id import NO_ENTRY
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_codec import from_format
from bookgate.protos.bookkeeper.proto.data_formats_pb2 import LedgerMetadataFormat

_KEPT = 4096
_LONGEST_KEY = 2048
"""In bytes: metadata may have a mebibyte, of which thousands are not to be kept."""

_CLOSED = LedgerMetadataFormat.CLOSED


class MetadataTemplates:
    """Builds metadata from messages; see the module."""

    def __init__(self) -> None:
        self._built: dict[bytes, LedgerMetadata] = {}

    def metadata_of(self, message: LedgerMetadataFormat) -> LedgerMetadata:
        """The metadata in a message of format version 3, as `from_format` builds them. The message is taken apart:
        afterwards it lacks the fields by which ledgers differ.

        Raises MetadataFormatException, which names the fault; the message is whole then.
        """
        if message.state != _CLOSED or not _has_end(message) or message.HasField("unbounded"):
            return from_format(message)
        end, length, token = message.lastEntryId, message.length, message.cToken
        ctime_ms = message.ctime if message.HasField("ctime") else None
        if end < NO_ENTRY or length < 0:
            return from_format(message)
        for name in ("lastEntryId", "length", "ctime", "cToken"):
            message.ClearField(name)
        key = message.SerializePartialToString()
        template = self._built.get(key)
        if template is None:
            template = self._build(message, key)
        return template.ended_at(end, length, ctime_ms, token)

    def _build(self, message: LedgerMetadataFormat, key: bytes) -> LedgerMetadata:
        message.lastEntryId, message.length = NO_ENTRY, 0
        template = from_format(message)
        if len(key) <= _LONGEST_KEY:
            if len(self._built) >= _KEPT:
                self._built.clear()
            self._built[key] = template
        return template


def _has_end(message: LedgerMetadataFormat) -> bool:
    return message.HasField("lastEntryId") and message.HasField("length")
