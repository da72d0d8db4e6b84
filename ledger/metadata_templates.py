"""Metadata of listed ledgers, most of which differ in a few numbers: what is equal is sent, checked and built once.

A million ledgers of one application have a few thousand ensembles, and the same quorums, password and custom metadata.
The *numbers* of a ledger are its end, its creation time and its creator's token; its *template* is its serialised
message without them. docs/protocol/gateway.md#columns specifies the template's bytes, since gateways send them.

Not its job: the rules of metadata (`metadata`) and of their message (`metadata_codec`), which judge each template.
"""

from __future__ import annotations

from typing import NamedTuple

from google.protobuf.message import DecodeError

from bookgate.ledger.errors import MetadataFormatException
from bookgate.ledger.ledger_id import NO_ENTRY
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_codec import from_format
from bookgate.protos.bookkeeper.proto.data_formats_pb2 import LedgerMetadataFormat

_KEPT = 4096
_LONGEST_KEY = 2048
"""In bytes: metadata may have a mebibyte, of which thousands are not to be kept."""

_CLOSED = LedgerMetadataFormat.CLOSED


class Numbers(NamedTuple):
    """What a template lacks. The end is NO_ENTRY and 0 of a ledger that is not closed, and of an unbounded one."""

    last_entry_id: int
    length: int
    ctime_ms: int
    creator_token: int


def take_numbers(message: LedgerMetadataFormat) -> Numbers | None:
    """Takes the numbers out of a message, which is the ledger's template then.

    None for a message that has no valid end where it needs one; it is unchanged, and `from_format` rejects it.
    """
    last, length = NO_ENTRY, 0
    if message.state == _CLOSED and not message.HasField("unbounded"):
        if not (message.HasField("lastEntryId") and message.HasField("length")):
            return None
        last, length = message.lastEntryId, message.length
        if last < NO_ENTRY or length < 0:
            return None
        message.lastEntryId = message.length = 0
    ctime_ms, token = message.ctime, message.cToken
    if ctime_ms:
        message.ctime = 0
    message.ClearField("cToken")
    return Numbers(last, length, ctime_ms, token)


def ledger_of(
    template: LedgerMetadata, last_entry_id: int, length: int, ctime_ms: int, creator_token: int
) -> LedgerMetadata:
    """The metadata of a ledger from its template and `Numbers`, whose range the caller has checked."""
    if template.terms is not None:
        last_entry_id, length = template.last_entry_id, template.length
    has_ctime = template.ctime_ms is not None
    return template.with_numbers(last_entry_id, length, ctime_ms if has_ctime else None, creator_token)


class MetadataTemplates:
    """Builds metadata from templates; see the module."""

    def __init__(self) -> None:
        self._built: dict[bytes, LedgerMetadata] = {}

    def metadata_of(self, message: LedgerMetadataFormat) -> LedgerMetadata:
        """The metadata in a message of format version 3, as `from_format` builds them. The message becomes a template.

        Raises MetadataFormatException, which names the fault.
        """
        numbers = take_numbers(message)
        if numbers is None:
            return from_format(message)
        return ledger_of(self.template(message.SerializePartialToString()), *numbers)

    def template(self, key: bytes) -> LedgerMetadata:
        """The template with these bytes. Raises MetadataFormatException."""
        template = self._built.get(key)
        if template is None:
            template = _parsed(key)
            if len(key) <= _LONGEST_KEY:
                if len(self._built) >= _KEPT:
                    self._built.clear()
                self._built[key] = template
        return template


def _parsed(key: bytes) -> LedgerMetadata:
    try:
        return from_format(LedgerMetadataFormat.FromString(key))
    except DecodeError as error:
        raise MetadataFormatException(f"ledger metadata can't be read: {error}") from error
