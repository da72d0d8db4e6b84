"""The LedgerMetadataService: RPCs on top of a `LedgerManager`.

Thin: checks the request, calls the manager, turns the result or the exception into an answer. Watch is in
`watch_service`. The rules of each method are on the gateway page, "Semantics".
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

from gateway.guard import Context, abort
from gateway.messages import (
    failure,
    ledger_id_from,
    ledger_id_of,
    metadata_of,
    metadata_to_create,
    required_ledger_id,
    success,
)
from gateway.parallel import map_unordered
from gateway.watch_service import WatchService
from ledger.errors import (
    BKException,
    IncorrectParameterException,
    MetadataVersionException,
    MetaStoreException,
    NoSuchLedgerExistsOnMetadataServerException,
)
from ledger.id_set import encode_ids
from ledger.ledger_id import LedgerId
from ledger.manager import LedgerManagerFactory, LedgerRecord
from ledger.metadata import LedgerMetadata
from protos.bookkeeper.common.v1.status_pb2 import StatusCode
from protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2 import (
    BatchCreateRequest,
    BatchCreateResponse,
    BatchReadRequest,
    GetLedgerRangesRequest,
    GetLedgerRangesResponse,
    LedgerMetadataRequest,
    LedgerMetadataResponse,
)
from protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2_grpc import LedgerMetadataServiceServicer

MAX_BATCH = 10_000
DEFAULT_LEDGERS_A_RESPONSE = 10_000
MAX_LEDGERS_A_RESPONSE = 100_000
MAX_METADATA_A_RESPONSE = 1_000
"""Ledgers with metadata that are read before they are sent."""

MAX_BYTES_A_RESPONSE = 1024 * 1024
"""Where a response with metadata is cut; a single ledger may be larger."""

Operation = Callable[[LedgerMetadataRequest], Awaitable[LedgerMetadataResponse]]


class MetadataService(LedgerMetadataServiceServicer):
    """See the module. One a gateway."""

    def __init__(self, factory: LedgerManagerFactory, watches: WatchService) -> None:
        self._factory = factory
        self._watches = watches

    # The generated base class names the methods as the proto file does.
    # ruff: noqa: N802

    async def Create(self, request: LedgerMetadataRequest, context: Context) -> LedgerMetadataResponse:
        return await self._unary("Create", self._create, request, context)

    async def Read(self, request: LedgerMetadataRequest, context: Context) -> LedgerMetadataResponse:
        return await self._unary("Read", self._read, request, context)

    async def Write(self, request: LedgerMetadataRequest, context: Context) -> LedgerMetadataResponse:
        return await self._unary("Write", self._write, request, context)

    async def Remove(self, request: LedgerMetadataRequest, context: Context) -> LedgerMetadataResponse:
        return await self._unary("Remove", self._remove, request, context)

    async def Watch(
        self, request_iterator: AsyncIterator[LedgerMetadataRequest], context: Context
    ) -> AsyncIterator[LedgerMetadataResponse]:
        async with aclosing(self._watches.serve(request_iterator, context)) as responses:  # type: ignore[type-var]
            async for response in responses:
                yield response

    async def BatchCreate(self, request: BatchCreateRequest, context: Context) -> BatchCreateResponse:
        if len(request.requests) > MAX_BATCH:
            return BatchCreateResponse(code=StatusCode.BAD_REQUEST, message=_over_batch(len(request.requests)))
        try:
            return await self._batch_create(request)
        except Exception as error:
            return await abort(context, "BatchCreate", error)

    async def BatchRead(self, request: BatchReadRequest, context: Context) -> AsyncIterator[LedgerMetadataResponse]:
        if len(request.ledger_ids) > MAX_BATCH:
            yield LedgerMetadataResponse(code=StatusCode.BAD_REQUEST, message=_over_batch(len(request.ledger_ids)))
            return
        try:
            await self._reach(request.min_revision)
            scope_id = request.ledger_scope_id
            async with aclosing(
                map_unordered(lambda ledger_id: self._read_one(scope_id, ledger_id), request.ledger_ids)
            ) as responses:  # type: ignore[type-var]
                async for response in responses:
                    yield response
        except Exception as error:
            await abort(context, "BatchRead", error)

    async def Iterate(
        self, request: GetLedgerRangesRequest, context: Context
    ) -> AsyncIterator[GetLedgerRangesResponse]:
        problem = _iterate_problem(request)
        if problem:
            yield GetLedgerRangesResponse(code=StatusCode.BAD_REQUEST, message=problem)
            return
        try:
            async with aclosing(self._listing(request)) as responses:  # type: ignore[type-var]
                held: GetLedgerRangesResponse | None = None
                async for response in responses:
                    if held is not None:
                        yield held
                    held = response
            held = held or GetLedgerRangesResponse(serialized_ranges=encode_ids([]))
            held.end = True
            held.ledger_scope_id = request.ledger_scope_id
            yield held
        except IncorrectParameterException as error:
            yield GetLedgerRangesResponse(code=StatusCode.BAD_REQUEST, message=str(error))
        except Exception as error:
            await abort(context, "Iterate", error)

    # --- one ledger ---------------------------------------------------------------------------------------------

    async def _unary(
        self, method: str, operation: Operation, request: LedgerMetadataRequest, context: Context
    ) -> LedgerMetadataResponse:
        try:
            return await self._outcome(operation, request)
        except Exception as error:
            return await abort(context, method, error)

    async def _outcome(self, operation: Operation, request: LedgerMetadataRequest) -> LedgerMetadataResponse:
        """The operation's answer, or the code of a domain failure; what concerns the store stays an exception."""
        try:
            await self._reach(request.min_revision)
            return await operation(request)
        except MetaStoreException:
            raise
        except BKException as error:
            ledger_id = request.ledger_id if request.HasField("ledger_id") else 0
            response = failure(error, None, await self._factory.revision())
            response.ledger_id, response.ledger_scope_id = ledger_id, request.ledger_scope_id
            return response

    async def _reach(self, min_revision: int) -> None:
        if min_revision > 0:
            await self._factory.catch_up(min_revision)

    async def _success(self, record: LedgerRecord) -> LedgerMetadataResponse:
        return success(record, await self._factory.revision())

    async def _create(self, request: LedgerMetadataRequest) -> LedgerMetadataResponse:
        ledger_id = ledger_id_of(request)
        metadata = metadata_to_create(request)
        if ledger_id is None and not metadata.creator_token:
            # Lets the manager try again by itself where an answer of its store is lost.
            metadata = replace(metadata, creator_token=(uuid.uuid4().int >> 65) or 1)
        return await self._success(await self._factory.ledger_manager.create(ledger_id, metadata))

    async def _read(self, request: LedgerMetadataRequest) -> LedgerMetadataResponse:
        return await self._success(await self._factory.ledger_manager.read(required_ledger_id(request)))

    async def _write(self, request: LedgerMetadataRequest) -> LedgerMetadataResponse:
        ledger_id = required_ledger_id(request)
        if not request.HasField("expected_version"):
            raise IncorrectParameterException("expected_version is missing: a write replaces a known version")
        metadata = await self._in_stored_format(ledger_id, metadata_of(request))
        try:
            record = await self._factory.ledger_manager.write(ledger_id, metadata, request.expected_version)
        except MetadataVersionException as error:
            return await self._conflict(ledger_id, error)
        return await self._success(record)

    async def _in_stored_format(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> LedgerMetadata:
        """A ledger keeps its serialisation over rewrites; the client does not know which it is."""
        try:
            stored = await self._factory.ledger_manager.read(ledger_id)
        except NoSuchLedgerExistsOnMetadataServerException:
            # A copy that lags may not have it yet; the write itself decides.
            return metadata
        return replace(metadata, format_version=stored.metadata.format_version)

    async def _conflict(self, ledger_id: LedgerId, error: MetadataVersionException) -> LedgerMetadataResponse:
        """BAD_VERSION with the current state, which saves the caller a read."""
        record = await self._factory.ledger_manager.read(ledger_id)
        response = await self._success(record)
        response.code = StatusCode.BAD_VERSION
        response.message = str(error)
        return response

    async def _remove(self, request: LedgerMetadataRequest) -> LedgerMetadataResponse:
        ledger_id = required_ledger_id(request)
        version = request.expected_version if request.HasField("expected_version") else None
        await self._factory.ledger_manager.remove(ledger_id, version)
        return LedgerMetadataResponse(
            code=StatusCode.SUCCESS,
            ledger_id=ledger_id.ledger_id,
            ledger_scope_id=ledger_id.scope_id,
            revision=await self._factory.revision(),
        )

    # --- many ledgers -------------------------------------------------------------------------------------------

    async def _batch_create(self, request: BatchCreateRequest) -> BatchCreateResponse:
        responses: list[LedgerMetadataResponse | None] = [None] * len(request.requests)
        store_error: MetaStoreException | None = None

        async def create(index: int) -> None:
            nonlocal store_error
            try:
                responses[index] = await self._outcome(self._create, request.requests[index])
            except MetaStoreException as error:
                store_error = error
                responses[index] = failure(error, None)

        async for _ in map_unordered(create, range(len(request.requests))):
            pass
        if store_error and not any(response and response.code == StatusCode.SUCCESS for response in responses):
            raise store_error
        # Some were created: that must reach the caller, the others say that their outcome is not known.
        return BatchCreateResponse(code=StatusCode.SUCCESS, responses=[r for r in responses if r is not None])

    async def _read_one(self, scope_id: int, ledger_id: int) -> LedgerMetadataResponse:
        request = LedgerMetadataRequest(ledger_id=ledger_id, ledger_scope_id=scope_id)
        return await self._outcome(self._read, request)

    async def _listing(self, request: GetLedgerRangesRequest) -> AsyncIterator[GetLedgerRangesResponse]:
        limit = min(request.limit_per_response or DEFAULT_LEDGERS_A_RESPONSE, MAX_LEDGERS_A_RESPONSE)
        if request.include_metadata:
            limit = min(limit, MAX_METADATA_A_RESPONSE)
        ranges = self._factory.ledger_manager.ledger_ranges(
            request.ledger_scope_id,
            request.start_after if request.HasField("start_after") else None,
            request.end_before if request.HasField("end_before") else None,
        )
        async for ids in _regroup(ranges, limit):
            if not request.include_metadata:
                yield _ranges_response(request.ledger_scope_id, ids)
                continue
            async for response in self._with_metadata(request.ledger_scope_id, ids):
                yield response

    async def _with_metadata(self, scope_id: int, ids: Sequence[int]) -> AsyncIterator[GetLedgerRangesResponse]:
        found = [
            response
            async for response in map_unordered(lambda ledger_id: self._read_one(scope_id, ledger_id), ids)
            # Removed since it was listed.
            if response.code != StatusCode.LEDGER_NOT_FOUND
        ]
        found.sort(key=lambda response: response.ledger_id)
        for part in _cut_by_size(found):
            response = _ranges_response(scope_id, [ledger.ledger_id for ledger in part])
            response.ledgers.extend(part)
            yield response


def _iterate_problem(request: GetLedgerRangesRequest) -> str | None:
    if request.limit_per_response < 0:
        return f"limit_per_response is {request.limit_per_response}; it must be 0 (the default) or more"
    try:
        ledger_id_from(request.ledger_scope_id, 0)
    except IncorrectParameterException as error:
        return str(error)
    return None


async def _regroup(ranges: AsyncIterator[Sequence[int]], limit: int) -> AsyncIterator[list[int]]:
    """The same ids in runs of `limit`; only the last may be shorter."""
    pending: list[int] = []
    async for ids in ranges:
        pending.extend(ids)
        while len(pending) >= limit:
            yield pending[:limit]
            pending = pending[limit:]
    if pending:
        yield pending


def _cut_by_size(ledgers: Sequence[LedgerMetadataResponse]) -> list[list[LedgerMetadataResponse]]:
    parts: list[list[LedgerMetadataResponse]] = []
    size = 0
    for ledger in ledgers:
        bytes_needed = ledger.ByteSize()
        if not parts or size + bytes_needed > MAX_BYTES_A_RESPONSE:
            parts.append([])
            size = 0
        parts[-1].append(ledger)
        size += bytes_needed
    return parts


def _ranges_response(scope_id: int, ids: Sequence[int]) -> GetLedgerRangesResponse:
    return GetLedgerRangesResponse(
        code=StatusCode.SUCCESS,
        count=len(ids),
        serialized_ranges=encode_ids(ids),
        ledger_scope_id=scope_id,
        last_ledger_id=ids[-1],
    )


def _over_batch(count: int) -> str:
    return f"a batch of {count} ledgers is over the limit of {MAX_BATCH}"
