"""Ledger responses that are encoded once and sent many times.

Every subscriber and every reader of the cache receives the same state of a ledger. Its message is encoded when the
gateway learns the state; the fields that differ between responses are appended, since the fields of a protobuf message
may appear in any order. The gRPC server sends `bytes` unchanged (see `interceptor`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import chain

from bookgate.gateway.services.ledger_access import owner_of_metadata, withhold
from bookgate.gateway.services.messages import success
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.varint import encode_varint
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2 import (
    GetLedgerRangesResponse,
    LedgerMetadataResponse,
)

_REVISION = LedgerMetadataResponse.REVISION_FIELD_NUMBER << 3
_REQUESTS_HANDLED = LedgerMetadataResponse.REQUESTS_HANDLED_FIELD_NUMBER << 3
_BATCH = LedgerMetadataResponse.BATCH_FIELD_NUMBER << 3 | 2
_LEDGERS = bytes((GetLedgerRangesResponse.LEDGERS_FIELD_NUMBER << 3 | 2,))

BatchItem = tuple[bytes, bytes, bytes]
"""A response as an item of a batched response, in parts, so that what is kept for a batch has no copy of the ledger."""


@dataclass(frozen=True, slots=True)
class EncodedLedger:
    """A ledger's state and the encoded SUCCESS response with it, without a revision."""

    ledger_id: LedgerId
    version: int
    format_version: int
    """The format version of the metadata in the store."""
    data: bytes
    incarnation: int | None = None
    owner: str | None = None
    """The principal that created the ledger, according to its metadata."""
    _withheld: EncodedLedger | None = field(default=None, init=False, compare=False, repr=False)

    def answer(self, revision: int) -> bytes:
        """The encoded response."""
        return self.data + _revision_field(revision)

    def watch_answer(self, revision: int, requests_handled: int) -> bytes:
        """The encoded response of a Watch stream."""
        return self.answer(revision) + bytes((_REQUESTS_HANDLED,)) + encode_varint(requests_handled)

    def without_password(self) -> EncodedLedger:
        """The same for callers that may not read the password; built once, at the first request."""
        if self._withheld is None:
            data = withhold(self.response()).SerializeToString()
            object.__setattr__(self, "_withheld", replace(self, data=data))
        assert self._withheld is not None
        return self._withheld

    def response(self) -> LedgerMetadataResponse:
        """The response as a message, without a revision."""
        return LedgerMetadataResponse.FromString(self.data)

    def batch_item(self, revision: int) -> BatchItem:
        """The same response as one item of a batched response."""
        return batch_item(self.data, _revision_field(revision))


def encode_ledger(record: LedgerRecord) -> EncodedLedger:
    data = success(record, 0).SerializeToString()
    metadata = record.metadata
    owner = owner_of_metadata(metadata) if metadata.custom_metadata else None
    return EncodedLedger(record.ledger_id, record.version, metadata.format_version, data, record.incarnation, owner)


def batch_item(answer: bytes, more: bytes = b"") -> BatchItem:
    """An encoded response, and fields that belong to it, as an item of a batched response."""
    return bytes((_BATCH,)) + encode_varint(len(answer) + len(more)), answer, more


def batched_answer(items: Iterable[BatchItem], revision: int) -> bytes:
    """The message that carries a batch."""
    return b"".join((*chain.from_iterable(items), _revision_field(revision)))


def listed_item(answer: bytes) -> bytes:
    """An encoded response as a ledger of a listing."""
    return _LEDGERS + encode_varint(len(answer)) + answer


def _revision_field(revision: int) -> bytes:
    return bytes((_REVISION,)) + encode_varint(revision)
