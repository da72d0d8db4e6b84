"""Converts between the gateway's protobuf messages and domain values, and from exceptions to status codes.

A domain outcome becomes a StatusCode. An exception that concerns the store or the gateway itself (MetaStoreException)
has none; the services turn it into a gRPC status. Source: docs/protocol/gateway.md#status-codes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace

from bookgate.gateway.services.caller import AccessDeniedException
from bookgate.ledger.errors import (
    BKException,
    IncorrectParameterException,
    LedgerExistException,
    MetadataFormatException,
    MetadataSerializationException,
    MetadataVersionException,
    NoSuchLedgerExistsOnMetadataServerException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_codec import from_format, to_format, without_password
from bookgate.ledger.metadata_store import LedgerRecord, RegisteredBookie
from bookgate.protos.bookkeeper.common.v1.status_pb2 import StatusCode
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2 import (
    LedgerMetadataRequest,
    LedgerMetadataResponse,
)
from bookgate.protos.bookkeeper.gateway.v1.service_discovery_pb2 import Bookie, Endpoint

_CODES: tuple[tuple[type[BKException], StatusCode], ...] = (
    (IncorrectParameterException, StatusCode.BAD_REQUEST),
    (MetadataSerializationException, StatusCode.BAD_REQUEST),
    (LedgerExistException, StatusCode.LEDGER_EXISTS),
    (NoSuchLedgerExistsOnMetadataServerException, StatusCode.LEDGER_NOT_FOUND),
    (MetadataVersionException, StatusCode.BAD_VERSION),
    (MetadataFormatException, StatusCode.LEDGER_METADATA_ERROR),
    (AccessDeniedException, StatusCode.PERMISSION_DENIED),
)


def status_code(error: BKException) -> StatusCode:
    """The status code for an exception."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), StatusCode.UNEXPECTED)


def ledger_id_of(request: LedgerMetadataRequest) -> LedgerId | None:
    """The request's ledger id, or None. Raises IncorrectParameterException."""
    if not request.HasField("ledger_id"):
        if request.ledger_scope_id:
            raise IncorrectParameterException("a ledger of a scope needs its ledger_id; only scope 0 generates ids")
        return None
    return ledger_id_from(request.ledger_scope_id, request.ledger_id)


def ledger_id_from(scope_id: int, ledger_id: int) -> LedgerId:
    """Raises IncorrectParameterException for an invalid ledger id."""
    try:
        return LedgerId(scope_id, ledger_id)
    except ValueError as error:
        raise IncorrectParameterException(str(error)) from error


def required_ledger_id(request: LedgerMetadataRequest) -> LedgerId:
    ledger_id = ledger_id_of(request)
    if ledger_id is None:
        raise IncorrectParameterException("ledger_id is missing")
    return ledger_id


def metadata_of(request: LedgerMetadataRequest, max_bytes: int) -> LedgerMetadata:
    """The request's metadata. Raises IncorrectParameterException if it is missing, too large or invalid."""
    if not request.HasField("metadata"):
        raise IncorrectParameterException("metadata is missing")
    size = request.metadata.ByteSize()
    if size > max_bytes:
        raise IncorrectParameterException(
            f"the metadata has {size} bytes, more than the {max_bytes} that a ledger may have"
        )
    try:
        return from_format(request.metadata)
    except MetadataFormatException as error:
        raise IncorrectParameterException(str(error)) from error


def metadata_to_create(request: LedgerMetadataRequest, max_bytes: int) -> LedgerMetadata:
    """Like `metadata_of`, but a request token without a creator token becomes the creator token.

    Every gateway of the same store then recognises a repeated Create of a given id, because the token is stored with
    the ledger until its first update.
    """
    metadata = without_password(metadata_of(request, max_bytes))
    if metadata.creator_token or not request.request_token:
        return metadata
    digest = hashlib.sha256(request.request_token + request.metadata.SerializeToString(deterministic=True)).digest()
    return replace(metadata, creator_token=(int.from_bytes(digest[:8]) >> 1) or 1)


def success(record: LedgerRecord, revision: int) -> LedgerMetadataResponse:
    return LedgerMetadataResponse(
        code=StatusCode.SUCCESS,
        ledger_id=record.ledger_id.low,
        ledger_scope_id=record.ledger_id.scope_id,
        version=record.version,
        metadata=to_format(record.metadata),
        revision=revision,
        created_ms=record.created_ms,
        incarnation=record.incarnation,
    )


def failure(error: BKException, ledger_id: LedgerId | None, revision: int = 0) -> LedgerMetadataResponse:
    return LedgerMetadataResponse(
        code=status_code(error),
        ledger_id=ledger_id.low if ledger_id else 0,
        ledger_scope_id=ledger_id.scope_id if ledger_id else 0,
        message=str(error),
        revision=revision,
    )


def bookie_message(bookie: RegisteredBookie) -> Bookie:
    return Bookie(
        bookie_id=bookie.bookie_id,
        endpoints=[
            Endpoint(
                id=endpoint.id,
                host=endpoint.host,
                port=endpoint.port,
                protocol=endpoint.protocol,
                auth=endpoint.auth,
                extensions=endpoint.extensions,
            )
            for endpoint in bookie.info.endpoints
        ],
        properties=dict(bookie.info.properties),
        writable=bookie.writable,
        read_only=bookie.read_only,
    )


def bookie_messages(bookies: Iterable[RegisteredBookie]) -> list[Bookie]:
    return [bookie_message(bookie) for bookie in bookies]
