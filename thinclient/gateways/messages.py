"""Converts between the gateway's messages and the shared vocabulary: ids, records, codes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bookgate.ledger import metadata_codec
from bookgate.ledger.errors import (
    BKException,
    IllegalOpException,
    IncorrectParameterException,
    LedgerExistException,
    LockLostException,
    MetadataFormatException,
    MetadataVersionException,
    MetaStoreException,
    NoSuchLedgerExistsOnMetadataServerException,
    UnauthorizedAccessException,
)
from bookgate.ledger.ledger_columns import LedgerColumns
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.metadata_templates import MetadataTemplates
from bookgate.ledger.password_check import PasswordCheck
from bookgate.protos.bookkeeper.common.v1.status_pb2 import StatusCode
from bookgate.protos.bookkeeper.gateway.v1 import ledger_metadata_service_pb2 as wire
from bookgate.protos.bookkeeper.proto.data_formats_pb2 import LedgerMetadataFormat

MetadataOf = Callable[[LedgerMetadataFormat], LedgerMetadata]
"""What builds the metadata of a message; raises MetadataFormatException."""

_EXCEPTIONS: dict[int, type[BKException]] = {
    StatusCode.BAD_REQUEST: IncorrectParameterException,
    StatusCode.NOT_IMPLEMENTED: IllegalOpException,
    StatusCode.LEDGER_METADATA_ERROR: MetadataFormatException,
    StatusCode.LEDGER_EXISTS: LedgerExistException,
    StatusCode.LEDGER_NOT_FOUND: NoSuchLedgerExistsOnMetadataServerException,
    StatusCode.BAD_VERSION: MetadataVersionException,
    StatusCode.LOCK_LOST: LockLostException,
    StatusCode.ILLEGAL_OPERATION: IllegalOpException,
    StatusCode.PERMISSION_DENIED: UnauthorizedAccessException,
}


def scoped(request: wire.LedgerMetadataRequest, ledger_id: LedgerId) -> wire.LedgerMetadataRequest:
    """Sets a request's ledger id; scope 0 is omitted."""
    request.ledger_id = ledger_id.low
    if ledger_id.scope_id:
        request.ledger_scope_id = ledger_id.scope_id
    return request


def record_of(
    response: wire.LedgerMetadataResponse,
    metadata_of: MetadataOf = metadata_codec.from_format,
) -> LedgerRecord:
    """The ledger in a response. Raises MetadataFormatException."""
    ledger_id = LedgerId(response.ledger_scope_id, response.ledger_id)
    try:
        metadata = metadata_of(response.metadata)
        if response.HasField("password_check"):
            check = PasswordCheck(response.password_check.salt, response.password_check.digest)
            metadata = replace(metadata, password_check=check)
    except MetadataFormatException as error:
        raise MetadataFormatException(f"ledger {ledger_id}: {error}") from error
    created_ms = response.created_ms if response.HasField("created_ms") else None
    incarnation = response.incarnation if response.HasField("incarnation") else None
    return LedgerRecord(ledger_id, metadata, response.version, created_ms, incarnation)


def columns_of(response: wire.GetLedgerRangesResponse, templates: MetadataTemplates) -> LedgerColumns:
    """The ledgers in the columns of a response.

    Raises MetadataFormatException, which names a ledger whose metadata are damaged; MetaStoreException for columns that
    are no ledgers.
    """
    columns, scope_id = response.columns, response.ledger_scope_id
    built = []
    for index, key in enumerate(columns.templates):
        try:
            built.append(templates.template(key))
        except MetadataFormatException as error:
            named = zip(columns.template_of, columns.ledger_ids, strict=False)
            first = next((LedgerId(scope_id, low) for template, low in named if template == index), "of no name")
            raise MetadataFormatException(f"ledger {first}: {error}") from error
    try:
        return LedgerColumns(
            scope_id,
            built,
            list(columns.template_of),
            list(columns.ledger_ids),
            list(columns.versions),
            list(columns.last_entry_ids),
            list(columns.lengths),
            list(columns.ctimes),
            list(columns.creator_tokens),
            list(columns.created_ms),
        )
    except ValueError as error:
        raise MetaStoreException(f"the gateway's listing is damaged: {error}") from error


def code_error(code: int, message: str, what: str) -> BKException:
    """The exception for a code other than SUCCESS."""
    try:
        name = StatusCode.Name(code)
    except ValueError:
        name = f"code {code}"
    kind = _EXCEPTIONS.get(code, MetaStoreException)
    return kind(f"could not {what}: {message or name}")
